"""A process that has imported TensorFlow, and forks a process for each model.

The processes share memory that none has written to since the fork: libraries, and the compiled
engine for CPUs. The fork server runs no model, and has neither the server's memory nor its
environment variables.
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
UNUSED = ("jax", "keras")  # imported by TensorFlow if installed; no bundle needs them
ENGINE = ("distill.model", "distill.cpu.engine")  # of students, if installed
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def main(descriptor: int) -> None:
    """Start and end processes as requested over a socket, until the server closes it."""
    control = socket.socket(fileno=descriptor)
    processes: set[int] = set()
    sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type]  # None: import fails
    for name in IMPORTS:
        importlib.import_module(name)
    with contextlib.suppress(ImportError):
        # A confined process could neither cache compiled code nor share it.
        [importlib.import_module(name) for name in ENGINE][-1].compile_kernels()
    gc.collect()
    gc.freeze()  # or collections in the forks would write to shared memory
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, MOST_CONNECTIONS)
        if not data:
            break
        request = json.loads(data)
        if "end" in request:
            answer = {"status": _end(request["end"]) if request["end"] in processes else 0}
            processes.discard(request["end"])
        else:
            answer = {"pid": _start(request, control, descriptors)}
            processes.add(answer["pid"])
        control.send(json.dumps(answer).encode())
    for pid in processes:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _start(request: dict[str, Any], control: socket.socket, descriptors: list[int]) -> int:
    """Fork a process that has the sockets and answers the request; return its id."""
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


def _end(pid: int) -> int:
    """Kill a process and return its exit status; its id is not reused before."""
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    main(int(sys.argv[1]))
