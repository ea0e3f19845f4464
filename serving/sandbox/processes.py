"""Starting and ending the processes of models, by way of the fork server."""

import json
import os
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


class ForkServer:
    """Starts processes of models; begins, and begins anew after its end, when one is asked for."""

    def __init__(self):
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._stop = lambda: None

    def start(self, request: Mapping[str, Any], count: int) -> tuple[int, list[socket.socket]]:
        """The id of a process that answers a request, see `worker.run`, and sockets to it."""
        ours, theirs = zip(*(socket.socketpair() for _ in range(count)), strict=True)
        try:
            answer = self._asked(request, [end.fileno() for end in theirs])
        finally:
            for end in theirs:
                end.close()
        return answer["pid"], list(ours)

    def end(self, pid: int) -> str:
        """Ends a process, if it has not ended; how it did, in words."""
        try:
            status = self._asked({"end": pid})["status"]
        except (OSError, KeyError):
            return "with all others"
        return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"

    def close(self) -> None:
        """Ends it, and every process that it has started."""
        self._stop()

    def _asked(self, request: Mapping[str, Any], descriptors: tuple | list = ()) -> dict[str, Any]:
        with self._lock:
            if self._control is None and "end" not in request:
                self._begin()
            if self._control is None:
                raise ConnectionError("The processes of models have ended.")
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
                if answer := self._control.recv(MOST_BYTES):
                    return json.loads(answer)
            except ConnectionError:
                pass
            self._control = None
            self._stop()
            raise ConnectionError("The process that starts models has ended.")

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
        self._stop = weakref.finalize(self, _stop, process, self._control)


def _stop(process: subprocess.Popen, control: socket.socket) -> None:
    control.close()
    try:
        process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
