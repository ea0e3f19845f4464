"""A bundle whose program runs in a process of its own; to the server it is like any other."""

import contextlib
import dataclasses
import logging
import queue
import select
import socket
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from replicator.runs.errors import UserError
from serving.bundles.audio_bundle import check_lengths
from serving.bundles.loading import MOST_SPEC_BYTES
from serving.bundles.signature import Arrays, Signature, check
from serving.errors import Internal, InvalidInput, NotFound, NotReady
from serving.observability.logs import event
from serving.sandbox.messages import MOST_HEAD_BYTES, BadMessage, Head, receive, send
from serving.sandbox.processes import ForkServer

LOG = logging.getLogger(__name__)
LOADER = "serving.bundles.loading:load"
MOST_FACTS_BYTES = 2 * MOST_SPEC_BYTES
STREAM_END = "end"


class ModelFailed(RuntimeError):  # noqa: N818 - the condition, as the errors of requests
    """What a model's process said of an error that is none of the request's."""


class ModelEnded(Internal):
    """A model's process that has ended, or was ended because it did not answer."""

    def __init__(self, message: str = "The model's process ended; it is being started again."):
        super().__init__(message)


@dataclasses.dataclass(frozen=True)
class SandboxLimits:
    """What the process of a model may take.

    memory_bytes: for itself. load_seconds: to be loaded, and to be warm. call_seconds: for a call,
    or a chunk. connections: things asked at the same time.
    """

    memory_bytes: int
    load_seconds: float
    call_seconds: float
    connections: int


class SandboxedBundle:
    """A `Servable` that asks a process of its own for everything that runs the bundle's program.

    pid: of that process, which ends with the last reference to this object. It `is_alive` until it
    ends by itself, or is ended because it did not answer in time: what was asked raises ModelEnded,
    what is asked later NotReady.

    Args:
      path: of the bundle, NAME/VERSION. fork_server: starts the process. limits: see there.
      arguments: of the loader, besides the path. loader: MODULE:FUNCTION, imported there.

    Raises UserError for a bundle that is refused; ModelEnded, ModelFailed.
    """

    def __init__(
        self,
        path: Path,
        fork_server: ForkServer,
        limits: SandboxLimits,
        arguments: Mapping[str, Any],
        loader: str = LOADER,
    ):
        self.path, self.name, self.version = path, path.parent.name, int(path.name)
        self._limits, self._fork_server = limits, fork_server
        request = {"path": str(path), "memory_bytes": limits.memory_bytes}
        request |= {"arguments": dict(arguments), "loader": loader}
        self.pid, sockets = fork_server.start(request, 1 + limits.connections, limits.load_seconds)
        self._control, self._free = sockets[0], queue.SimpleQueue[socket.socket]()
        for connection in sockets[1:]:
            self._free.put(connection)
        self._end_lock, self._has_ended = threading.Lock(), False
        self._stop = weakref.finalize(self, _stop, fork_server, self.pid, sockets)
        facts, _ = self._answer(
            self._control, limits.load_seconds, most_head_bytes=MOST_FACTS_BYTES
        )
        self.kind: str = facts["kind"]
        self.spec: dict[str, Any] = facts["spec"]
        self.engine: str = facts["engine"]
        said = facts["signatures"].items()
        self.signatures = {name: Signature.from_dict(signature) for name, signature in said}

    @property
    def is_alive(self) -> bool:
        """Whether its process is there."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        if not self._has_ended and poll.poll(0):  # nothing comes here unasked but the end
            self._ended("ended")
        return not self._has_ended

    def check(self, signature: str, inputs: Mapping[str, Any]) -> Arrays:
        """The inputs of a signature as `call` takes them; InvalidInput for what breaks a rule."""
        arrays = check(self.signatures[signature], inputs)
        check_lengths(arrays)
        return arrays

    def warm(self) -> None:
        """Compiles what is served compiled."""
        self._asked(self._control, {"do": "warm"}, seconds=self._limits.load_seconds)

    def call(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """The outputs of a signature for checked inputs."""
        with self._connection() as connection:
            return self._asked(connection, {"do": "call", "signature": signature}, inputs)[1]

    def frames(self, waveform: np.ndarray) -> np.ndarray:
        """The frames float32 [frames, channels] that describe a waveform [samples]."""
        with self._connection() as connection:
            return self._asked(connection, {"do": "frames"}, {"waveform": waveform})[1]["frames"]

    def stream(self, condition: np.ndarray | None = None, **options: Any) -> Iterator[np.ndarray]:
        """A sound in chunks float32 [1, samples]; options as of `AudioBundle.stream`."""
        arrays = {} if condition is None else {"condition": condition}
        with self._connection() as connection:
            self._asked(connection, {"do": "stream", "options": options}, arrays)
            try:
                while not (answer := self._asked(connection, {"do": "chunk"}))[0].get(STREAM_END):
                    yield answer[1]["chunk"]
            finally:
                if not self._has_ended:
                    self._asked(connection, {"do": "close"})

    @contextlib.contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        """One that nobody else asks."""
        connection = self._free.get()
        try:
            yield connection
        finally:
            self._free.put(connection)

    def _asked(
        self,
        connection: socket.socket,
        head: Head,
        arrays: Mapping[str, np.ndarray] | None = None,
        seconds: float | None = None,
    ) -> tuple[Head, Arrays]:
        if self._has_ended:
            raise NotReady(f"`{self.name}` is being started again.")
        seconds = seconds or self._limits.call_seconds
        try:
            connection.settimeout(seconds)
            send(connection, head, dict(arrays or {}))
        except TimeoutError:
            raise self._ended(f"took nothing for {seconds:g} seconds") from None
        except OSError:
            raise self._ended("ended") from None
        return self._answer(connection, seconds)

    def _answer(
        self, connection: socket.socket, seconds: float, most_head_bytes: int = MOST_HEAD_BYTES
    ) -> tuple[Head, Arrays]:
        """The next answer; what it says was raised there is raised here."""
        try:
            head, arrays = receive(connection, most_head_bytes, seconds)
        except TimeoutError:
            raise self._ended(f"did not answer within {seconds:g} seconds") from None
        except BadMessage as error:
            raise self._ended(f"sent {error}") from None
        except (EOFError, OSError):
            raise self._ended("ended") from None
        if "error" in head:
            raise _raised(str(head["error"]), str(head["message"]))
        return head, arrays

    def _ended(self, reason: str) -> ModelEnded:
        """Ends the process, if it has not ended, and the log says so; what to raise."""
        with self._end_lock:
            if not self._has_ended:
                self._has_ended = True
                how = self._fork_server.end(self.pid)
                fields = {"model": self.name, "version": self.version, "ended": how}
                event(LOG, f"the process of a model {reason}", logging.ERROR, **fields)
        return ModelEnded()


def _raised(kind: str, message: str) -> Exception:
    if kind == "unreadable":
        error = UserError(message)
        error.__cause__ = OSError(message)
        return error
    kinds = {InvalidInput.code: InvalidInput, NotFound.code: NotFound, "refused": UserError}
    return kinds.get(kind, ModelFailed)(message)


def _stop(fork_server: ForkServer, pid: int, sockets: list[socket.socket]) -> None:
    fork_server.end_later(pid)
    for connection in sockets:
        connection.close()
