"""Starting and ending the processes of models, by way of the fork server."""

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

# Of the environment, what sets how fast a model computes; nothing else is a model's concern.
KEPT_VARIABLES = (
    "TF_",
    "XLA_",
    "OMP_",
    "OPENBLAS_",
    "MKL_",
    "NUMBA_",
    "MALLOC_",
    "LD_LIBRARY_PATH",
    "LANG",
)
EXIT_SECONDS = 10.0
END_SECONDS = 60.0  # in which the fork server says how a process ended


class ForkServer:
    """Starts processes of models; begins, and begins anew after its end, when one is asked for."""

    def __init__(self):
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._stop = lambda: None
        self._left: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def start(
        self, request: Mapping[str, Any], count: int, seconds: float
    ) -> tuple[int, list[socket.socket]]:
        """Start a process that answers a request, see `worker.run`.

        Args:
          request: what it loads.
          count: of sockets, at most MOST_CONNECTIONS.
          seconds: in which the fork server must have started it, and itself if it is new.

        Returns:
          The id of the process, and sockets to it.

        Raises:
          ConnectionError: the fork server has ended, or does not answer.
        """
        ours, theirs = zip(*(socket.socketpair() for _ in range(count)), strict=True)
        try:
            answer = self._asked(request, seconds, [end.fileno() for end in theirs])
        except BaseException:
            for end in ours:
                end.close()
            raise
        finally:
            for end in theirs:
                end.close()
        return answer["pid"], list(ours)

    def end(self, pid: int) -> str:
        """Ends a process, if it has not ended; how it did, in words."""
        try:
            status = self._asked({"end": pid}, END_SECONDS)["status"]
        except (OSError, KeyError):
            return "with all others"
        return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"

    def end_later(self, pid: int) -> None:
        """End a process soon, in another thread.

        It takes no lock and waits for nothing, so that a finalizer may call it: the garbage
        collector runs those in whatever thread, one that holds the lock included.
        """
        self._left.put(pid)

    def close(self) -> None:
        """Ends it, and every process that it has started."""
        self._stop()

    def _asked(
        self, request: Mapping[str, Any], seconds: float, descriptors: tuple | list = ()
    ) -> dict[str, Any]:
        with self._lock:
            if self._control is None and "end" not in request:
                self._begin()
            if self._control is None:
                raise ConnectionError("The processes of models have ended.")
            what = "has ended"
            try:
                self._control.settimeout(seconds)
                socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
                if answer := self._control.recv(MOST_BYTES):
                    return json.loads(answer)
            except TimeoutError:  # an answer that comes now would be taken for that of the next
                what = f"did not answer within {seconds:g} seconds"
            except ConnectionError:
                pass
            self._control = None
            self._stop()
            raise ConnectionError(f"The process that starts models {what}.")

    def _begin(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept = {n: value for n, value in os.environ.items() if n.startswith(KEPT_VARIABLES)}
        # Of more arenas than cores glibc gives little back of what compilers freed.
        kept.setdefault("MALLOC_ARENA_MAX", str(os.cpu_count() or 1))
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "serving.sandbox.fork_server", str(theirs.fileno())],
                env={**kept, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is the server's to answer
            )
        self._stop = weakref.finalize(self, _stop, process, self._control, self._left)
        arguments = (weakref.ref(self), self._left)
        threading.Thread(target=_end_left, args=arguments, name="ending", daemon=True).start()


def _end_left(
    fork_server: "weakref.ref[ForkServer]", left: "queue.SimpleQueue[int | None]"
) -> None:
    """End the processes that nobody refers to any more, until the fork server ends."""
    while (pid := left.get()) is not None:
        if (server := fork_server()) is not None:
            server.end(pid)
        del server


def _stop(
    process: subprocess.Popen,
    control: socket.socket,
    left: "queue.SimpleQueue[int | None]",
) -> None:
    left.put(None)
    control.close()
    try:
        process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
