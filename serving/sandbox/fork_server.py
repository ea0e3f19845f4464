"""A process that has imported TensorFlow, and forks a process for every model that is asked for.

What a model's process shares with the others is memory that neither has written to since: libraries
and the compiled engine for processors. This one runs no model, and knows nothing of the server: it
has neither its memory nor its variables.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
from typing import Any

from serving.sandbox import worker

MOST_BYTES = 2**16
MOST_CONNECTIONS = 250  # to a process; the kernel passes at most 253 descriptors at once
IMPORTS = ("tensorflow", "serving.bundles.loading")
UNUSED = ("jax", "keras")  # no bundle needs them; TensorFlow imports what it finds of them
ENGINE = ("distill.model", "distill.cpu.engine")  # of students, where it is installed
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def main(descriptor: int) -> None:
    """Starts and ends processes as asked over a socket, until the server closes it."""
    control = socket.socket(fileno=descriptor)
    processes: set[int] = set()
    sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type]  # None: not to be found
    for name in IMPORTS:
        importlib.import_module(name)
    with contextlib.suppress(ImportError):
        # A confined process could neither keep what it compiles nor share it.
        [importlib.import_module(name) for name in ENGINE][-1].compile_kernels()
    gc.collect()
    gc.freeze()  # or collections in the processes of models would write to what they share
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, MOST_CONNECTIONS)
        if not data:
            break
        asked = json.loads(data)
        if "end" in asked:
            answer = {"status": _ended(asked["end"]) if asked["end"] in processes else 0}
            processes.discard(asked["end"])
        else:
            answer = {"pid": _started(asked, control, descriptors)}
            processes.add(answer["pid"])
        control.send(json.dumps(answer).encode())
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _started(request: dict[str, Any], control: socket.socket, descriptors: list[int]) -> int:
    """The id of a new process, which has the sockets and answers the request."""
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    try:
        control.close()
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        worker.run(request, [socket.socket(fileno=descriptor) for descriptor in descriptors])
    finally:
        os._exit(1)


def _ended(pid: int) -> int:
    """How a process ended, at the latest by SIGKILL. Until then no other has its id."""
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    main(int(sys.argv[1]))
