"""The fork server: a process that imports TensorFlow, and then forks a process for each model.

The processes share memory that none of them has written to since the fork: libraries, and the
compiled engine for CPUs. The fork server does not run models. It cannot read the server's memory,
and has only some of its environment variables.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

from onepass.bundles import numba_engine
from serving.sandbox import confinement, worker

MOST_BYTES = 2**16
MOST_CONNECTIONS = 250  # sockets per process; the kernel passes at most 253 descriptors at once
IMPORTS = ("tensorflow", "onepass.bundles.bundle")  # all that bundles need
UNUSED = ("jax", "keras")  # imported by TensorFlow if installed; no bundle needs them
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def main(descriptor: int) -> None:
    """Start and end processes as requested over a socket, until the server closes it."""
    control = socket.socket(fileno=descriptor)
    children = _Children()
    try:
        _prepare()
    except Exception as error:
        control.recv(MOST_BYTES)
        control.send(json.dumps({"failed": worker.describe_error(error)["message"]}).encode())
        os._exit(1)
    gc.collect()
    gc.freeze()  # otherwise, garbage collection in the forks would write to shared memory
    while children.watch(control):
        data, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, MOST_CONNECTIONS)
        if not data:
            break
        request = json.loads(data)
        if "end" in request:
            answer = {"status": children.end(request["end"])}
        else:
            answer = {"pid": children.start(request, control, descriptors)}
        control.send(json.dumps(answer).encode())
    children.end_all()
    os._exit(0)


def _prepare() -> None:
    sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type]  # None: import fails
    for name in IMPORTS:
        importlib.import_module(name)
    numba_engine.prepare()


class _Children:
    """The processes of models, and the descriptors by which they request threads.

    A process first sends its listener (`thread_limit`) over a socket. The kernel then uses the
    listener for requests for threads. Sockets and listeners are stored by descriptor number.
    """

    def __init__(self) -> None:
        self._most: dict[int, int] = {}  # largest number of threads, by process
        self._askers: dict[int, tuple[socket.socket, int]] = {}
        self._listeners: dict[int, int] = {}

    def watch(self, control: socket.socket) -> bool:
        while True:
            poll = select.poll()
            for descriptor in (control.fileno(), *self._askers, *self._listeners):
                poll.register(descriptor, select.POLLIN)
            for descriptor, events in poll.poll():
                if descriptor == control.fileno():
                    return True
                if descriptor in self._askers:
                    self._receive(descriptor)
                elif events & select.POLLIN:
                    pid = self._listeners[descriptor]
                    confinement.answer(descriptor, pid, self._most.get(pid, 0))
                else:  # the process has ended
                    os.close(descriptor)
                    del self._listeners[descriptor]

    def _receive(self, descriptor: int) -> None:
        asker, pid = self._askers.pop(descriptor)
        with asker, contextlib.suppress(OSError):
            _, found, _, _ = socket.recv_fds(asker, MOST_BYTES, 1)
            self._listeners.update(dict.fromkeys(found, pid))

    def start(self, request: dict[str, Any], control: socket.socket, descriptors: list[int]) -> int:
        own, theirs = socket.socketpair()
        pid = os.fork()
        if pid:
            for descriptor in descriptors:
                os.close(descriptor)
            theirs.close()
            self._askers[own.fileno()] = own, pid
            self._most[pid] = confinement.most_threads(len(descriptors))
            return pid
        try:
            control.close()
            own.close()
            for descriptor in (*self._askers, *self._listeners):  # descriptors of other processes
                os.close(descriptor)
            ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
            worker.run(request, sockets, theirs)
        finally:
            os._exit(1)

    def end(self, pid: int) -> int:
        """Kill a process and return its exit status; 0 for an id that is not a child's.

        The status is the negative signal number for a process that a signal ended. The operating
        system does not reuse the id before this call.
        """
        if self._most.pop(pid, None) is None:
            return 0
        os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def end_all(self) -> None:
        for pid in self._most:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
