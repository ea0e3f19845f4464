"""A bundle whose program runs in its own process, with the interface of any other bundle."""

import contextlib
import json
import logging
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onepass.bundles.errors import Internal, InvalidInput, NotFound, NotReady
from onepass.bundles.signature import Arrays, Signature, check
from onepass.foundation.model_folders import MOST_SPEC_BYTES
from onepass.foundation.rules import UserError
from serving.observability import event
from serving.sandbox.fork_server import (
    MOST_HEAD_BYTES,
    MOST_REQUEST_BYTES,
    BadMessage,
    Head,
    receive,
    send,
)
from serving.settings import Settings

# Environment variables that a model's process gets: settings of TensorFlow and Numba, and paths of
# libraries. They are listed in full because others with the same prefix may contain secrets.
KEPT_VARIABLES = {
    *("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH"),
    *("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"),
    *("MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS"),
    *("NUMBA_CPU_FEATURES", "NUMBA_CPU_NAME", "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER"),
    *("TF_CPP_MIN_LOG_LEVEL", "TF_DETERMINISTIC_OPS", "TF_ENABLE_ONEDNN_OPTS"),
    *("TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_XLA_FLAGS", "XLA_FLAGS"),
}
EXIT_SECONDS = 10.0
END_SECONDS = 60.0  # time for the fork server to report how a process ended
LOG = logging.getLogger(__name__)
LOADER = "onepass.bundles.bundle:load"
MOST_FACTS_BYTES = 2 * MOST_SPEC_BYTES
STREAM_END = "end"
SPARE_CONNECTIONS = 2  # for features of recordings, in addition to calls and streams


class ForkServer:
    """Starts and ends processes of models through a fork server, which is started when needed.

    It prepares for models with large weights of the type `weights`, run by `backend`.
    """

    def __init__(self, weights: str = "float32", backend: str = "auto") -> None:
        self._weights, self._backend = weights, backend
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._stop = lambda: None
        self._unreferenced: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def start(
        self, request: Mapping[str, Any], count: int, seconds: float
    ) -> tuple[int, list[socket.socket]]:
        """Start a process that runs `fork_server.run` for a request; return its id and its sockets.

        The fork server is started first if needed; ConnectionError: it ended, or did not answer in
        time.
        """
        own_ends, child_ends = zip(*(socket.socketpair() for _ in range(count)), strict=True)
        try:
            answer = self._request(request, seconds, [end.fileno() for end in child_ends])
        except BaseException:
            for end in own_ends:
                end.close()
            raise
        finally:
            for end in child_ends:
                end.close()
        return answer["pid"], list(own_ends)

    def end(self, pid: int) -> str:
        """End a process if it is running; return a phrase for the log that says how it ended."""
        try:
            status = self._request({"end": pid}, END_SECONDS)["status"]
        except (OSError, KeyError):
            return "with all others"
        return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"

    def end_later(self, pid: int) -> None:
        """End a process soon, in another thread, for a finalizer: this neither locks nor waits.

        The garbage collector runs finalizers in any thread, even in one that holds the lock.
        """
        self._unreferenced.put(pid)

    def close(self) -> None:
        """End the fork server and all processes that it has started."""
        self._stop()

    def _request(
        self, request: Mapping[str, Any], seconds: float, descriptors: tuple | list = ()
    ) -> dict[str, Any]:
        with self._lock:
            if self._control is None and "end" not in request:
                self._launch()
            if self._control is None:
                raise ConnectionError("The processes of models have ended.")
            problem = "has ended"
            try:
                self._control.settimeout(seconds)
                socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
                if answer := json.loads(self._control.recv(MOST_REQUEST_BYTES) or "{}"):
                    if "failed" not in answer:
                        return answer
                    problem = f"has ended: {answer['failed']}"
            except TimeoutError:  # a late answer would be taken for the next answer
                problem = f"did not answer within {seconds:g} seconds"
            except ConnectionError:
                pass
            self._control = None
            self._stop()
            raise ConnectionError(f"The process that starts models {problem}.")

    def _launch(self) -> None:
        self._control, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = {n: value for n, value in os.environ.items() if n in KEPT_VARIABLES}
        # With more arenas than cores, glibc returns little of the memory that compilers have freed.
        kept.setdefault("MALLOC_ARENA_MAX", str(os.cpu_count() or 1))
        with child_end:
            words = [sys.executable, "-P", "-m", "serving.sandbox.fork_server"]
            process = subprocess.Popen(
                [*words, str(child_end.fileno()), self._weights, self._backend],
                env={**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the server handles Ctrl-C
            )
        self._stop = weakref.finalize(
            self, _stop_fork_server, process, self._control, self._unreferenced
        )
        arguments = (weakref.ref(self), self._unreferenced)
        threading.Thread(
            target=_end_unreferenced, args=arguments, name="ending", daemon=True
        ).start()


def _end_unreferenced(
    fork_server: "weakref.ref[ForkServer]", unreferenced: "queue.SimpleQueue[int | None]"
) -> None:
    while (pid := unreferenced.get()) is not None:
        if (server := fork_server()) is not None:
            server.end(pid)
        del server


def _stop_fork_server(
    process: subprocess.Popen, control: socket.socket, unreferenced: "queue.SimpleQueue[int | None]"
) -> None:
    unreferenced.put(None)
    control.close()
    try:
        process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class ModelFailed(RuntimeError):  # noqa: N818 - named as the errors of requests
    """Error in a model's process that the request did not cause."""


class ModelEnded(Internal):
    """Error for a process that ended, or was killed because of an invalid or missing answer."""

    def __init__(self) -> None:
        super().__init__("The model's process ended; it is being restarted.")


class SandboxedBundle:
    """A `Servable` that runs the bundle's program in its own process.

    The process is ended when this object is no longer referenced. If it ends earlier, or is killed
    because it does not answer in time, current requests raise ModelEnded and later ones NotReady.
    `loader`, MODULE:FUNCTION, is called in the process with the path and the arguments.
    """

    def __init__(
        self,
        path: Path,
        fork_server: ForkServer,
        settings: Settings,
        arguments: Mapping[str, Any],
        loader: str = LOADER,
    ):
        self.path, self.name, self.version = path, path.parent.name, int(path.name)
        self._settings, self._fork_server = settings, fork_server
        memory_bytes = int(settings.sandbox_memory_gib * 2**30)
        request = {"path": str(path), "memory_bytes": memory_bytes}
        request |= {"arguments": dict(arguments), "loader": loader}
        # The first stays open as long as the process should live; each call or stream uses another.
        connections = 1 + settings.threads + settings.max_streams + SPARE_CONNECTIONS
        self.pid, sockets = fork_server.start(request, connections, settings.load_seconds)
        self._control, self._free = sockets[0], queue.SimpleQueue[socket.socket]()
        for connection in sockets[1:]:
            self._free.put(connection)
        self._end_lock, self._has_ended = threading.Lock(), False
        self._stop = weakref.finalize(self, _stop_process, fork_server, self.pid, sockets)
        facts, _ = self._answer(self._control, settings.load_seconds, MOST_FACTS_BYTES)
        self.kind: str = facts["kind"]
        self.spec: dict[str, Any] = facts["spec"]
        self.engine: str = facts["engine"]
        signatures = facts["signatures"].items()
        self.signatures = {name: Signature.from_dict(stored) for name, stored in signatures}

    @property
    def is_alive(self) -> bool:
        """True if the process is running."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if not self._has_ended and poll.poll(0):  # readable without a request: it has ended
            self._end_process("ended")
        return not self._has_ended

    def check(self, signature: str, inputs: Mapping[str, Any]) -> Arrays:
        """Return the inputs of a signature as `call` takes them; raise InvalidInput if invalid."""
        return check(self.signatures[signature], inputs)

    def warm(self) -> None:
        """Compile the programs that are served."""
        self._request(self._control, {"do": "warm"}, seconds=self._settings.load_seconds)

    def call(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs of a signature for checked inputs."""
        with self._connection() as connection:
            return self._request(connection, {"do": "call", "signature": signature}, inputs)[1]

    def frames(self, waveform: np.ndarray) -> np.ndarray:
        """Return the frames float32 [frames, channels] of a waveform [samples]."""
        with self._connection() as connection:
            return self._request(connection, {"do": "frames"}, {"waveform": waveform})[1]["frames"]

    def stream(self, condition: np.ndarray | None = None, **options: Any) -> Iterator[np.ndarray]:
        """Yield audio in chunks, float32 [1, samples]; arguments are those of `Model.stream`."""
        arrays = {} if condition is None else {"condition": condition}
        with self._connection() as connection:
            self._request(connection, {"do": "stream", "options": options}, arrays)
            try:
                while not (answer := self._request(connection, {"do": "chunk"}))[0].get(STREAM_END):
                    yield answer[1]["chunk"]
            finally:
                if not self._has_ended:
                    self._request(connection, {"do": "close"})

    @contextlib.contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        connection = self._free.get()
        try:
            yield connection
        finally:
            self._free.put(connection)

    def _request(
        self,
        connection: socket.socket,
        head: Head,
        arrays: Mapping[str, np.ndarray] | None = None,
        seconds: float | None = None,
    ) -> tuple[Head, Arrays]:
        if self._has_ended:
            raise NotReady(f"`{self.name}` is being restarted.")
        seconds = seconds or self._settings.call_seconds
        try:
            connection.settimeout(seconds)
            send(connection, head, dict(arrays or {}))
        except TimeoutError:
            raise self._end_process(f"did not read for {seconds:g} seconds") from None
        except OSError:
            raise self._end_process("ended") from None
        return self._answer(connection, seconds)

    def _answer(
        self, connection: socket.socket, seconds: float, most_head_bytes: int = MOST_HEAD_BYTES
    ) -> tuple[Head, Arrays]:
        try:
            head, arrays = receive(connection, most_head_bytes, seconds)
        except TimeoutError:
            raise self._end_process(f"did not answer within {seconds:g} seconds") from None
        except BadMessage as error:
            raise self._end_process(f"sent {error}") from None
        except (EOFError, OSError):
            raise self._end_process("ended") from None
        if "error" in head:
            raise _error_of_kind(str(head["error"]), str(head["message"]))
        return head, arrays

    def _end_process(self, reason: str) -> ModelEnded:
        with self._end_lock:
            if not self._has_ended:
                self._has_ended = True
                how = self._fork_server.end(self.pid)
                fields = {"model": self.name, "version": self.version, "ended": how}
                event(LOG, f"the process of a model {reason}", logging.ERROR, **fields)
        return ModelEnded()


def _error_of_kind(kind: str, message: str) -> Exception:
    if kind == "unreadable":
        error = UserError(message)
        error.__cause__ = OSError(message)
        return error
    kinds = {InvalidInput.code: InvalidInput, NotFound.code: NotFound, "refused": UserError}
    return kinds.get(kind, ModelFailed)(message)


def _stop_process(fork_server: ForkServer, pid: int, sockets: list[socket.socket]) -> None:
    fork_server.end_later(pid)
    for connection in sockets:
        connection.close()
