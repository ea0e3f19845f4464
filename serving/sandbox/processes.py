"""Starts and ends the models' processes through the fork server."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from serving.sandbox.fork_server import MOST_BYTES

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


class ForkServer:
    """Starts and ends processes of models through a fork server, which is started when needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._stop = lambda: None
        self._unreferenced: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def start(
        self, request: Mapping[str, Any], count: int, seconds: float
    ) -> tuple[int, list[socket.socket]]:
        """Start a process that runs `worker.run` for a request; return its id and its sockets.

        The fork server is started first if it is not running; ConnectionError means that it ended,
        or did not answer in time.
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
        """End a process soon, in another thread.

        This neither locks nor waits, so a finalizer may call it: the garbage collector runs
        finalizers in any thread, even in one that holds the lock.
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
                if answer := json.loads(self._control.recv(MOST_BYTES) or "{}"):
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
                [*words, str(child_end.fileno())],
                env={**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the server handles Ctrl-C
            )
        self._stop = weakref.finalize(self, _stop, process, self._control, self._unreferenced)
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


def _stop(
    process: subprocess.Popen, control: socket.socket, unreferenced: "queue.SimpleQueue[int | None]"
) -> None:
    unreferenced.put(None)
    control.close()
    try:
        process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
