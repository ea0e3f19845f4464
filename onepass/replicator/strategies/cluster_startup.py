"""Wait for all tasks of a cluster to start, and handle signals while TensorFlow connects.

TensorFlow's own wait for a missing task has no useful time limit and cannot be interrupted.
"""

import contextlib
import ctypes
import functools
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from onepass.foundation.errors import UserError
from onepass.foundation.heartbeat import spoke, telling
from onepass.replicator.launch.tf_config import Task

_CONNECT_SECONDS = 5.0
_PAUSE_SECONDS = 0.2
SAY_SECONDS = 3.0  # after this time a task prints what it waits for


def wait_for_all(task: Task, join_seconds: float) -> None:
    """Wait until every other task has accepted a connection at its address.

    Meanwhile this process listens at its own, where TensorFlow's server will listen next.
    """
    own = task.cluster[task.kind][task.index]
    missing = {
        f"{kind} {index} ({address})": address
        for kind, addresses in task.cluster.items()
        for index, address in enumerate(addresses)
        if (kind, index) != (task.kind, task.index)
    }
    deadline = time.monotonic() + join_seconds
    with contextlib.closing(_listener(own)), reporting_wait(task) as say:
        while missing := {n: a for n, a in missing.items() if refusal(a)}:
            say(", ".join(missing))
            if time.monotonic() > deadline:
                raise UserError(
                    f"{task.kind} {task.index} waited {join_seconds:g} s for the other tasks "
                    f"of TF_CONFIG; missing: {', '.join(missing)}."
                )
            time.sleep(_PAUSE_SECONDS)


@contextlib.contextmanager
def reporting_wait(task: Task) -> Iterator[Callable[[str], None]]:
    """Yield a function that sets what a task waits for, which is printed after some seconds."""
    start, awaited, is_said = time.monotonic(), "", False

    def line() -> str:
        seconds = time.monotonic() - start
        return f"{task.name} waits for {awaited} of TF_CONFIG: {seconds:.0f} s so far"

    def say(what: str) -> None:
        nonlocal awaited, is_said
        awaited = what
        if not is_said and time.monotonic() - start >= SAY_SECONDS:
            print(line(), file=sys.stderr, flush=True)
            spoke()
            is_said = True

    with telling(line):  # repeated while nothing else is printed
        yield say


@contextlib.contextmanager
def interruptible_startup() -> Iterator[None]:
    """Let signals end the process while TensorFlow joins a cluster.

    Meanwhile no Python code runs, and TensorFlow replaces the handler of SIGTERM. Therefore Ctrl-C
    and SIGTERM end the process directly, unless they are ignored; nothing is lost before training
    begins. The handlers are restored afterwards. In threads other than the main one, this does
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if before[signal.SIGINT] is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    heeded = before[signal.SIGTERM] not in (signal.SIG_IGN, None)
    try:
        with default_sigterm() if heeded else contextlib.nullcontext():
            yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not installed by Python
                signal.signal(number, handler)


def _listener(address: str) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    port = int(address.rpartition(":")[2])
    try:
        return socket.create_server(("", port), family=family, dualstack_ipv6=dual, backlog=1024)
    except (OSError, OverflowError) as error:
        raise UserError(f"Cannot listen at this task's address {address}: {error}.") from None


def connect_to(address: str, seconds: float) -> socket.socket:
    """Connect to HOST:PORT; raise OSError if the connection is not accepted within `seconds`."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=seconds)


def refusal(address: str, seconds: float = _CONNECT_SECONDS) -> Exception | None:
    """Return the error from an attempt to connect to HOST:PORT, or None on success."""
    try:
        connect_to(address, seconds).close()
    except (OSError, OverflowError, ValueError) as error:
        return error
    return None


PAUSE_MICROSECONDS = 20_000


@contextlib.contextmanager
def default_sigterm() -> Iterator[None]:
    """Return a context in which SIGTERM ends the process, even if other code installs a handler.

    A native thread, which does not need the GIL, restores the default action fifty times a second.
    The caller must install the handler to use afterwards.
    """
    loop, libc = _loop(), ctypes.CDLL(None)
    ended, thread = ctypes.c_int32(0), ctypes.c_ulong()
    start = ctypes.c_void_p(loop.address)
    if libc.pthread_create(ctypes.byref(thread), None, start, ctypes.byref(ended)):
        yield  # no thread could be created
        return
    try:
        yield
    finally:
        ended.value = 1
        libc.pthread_join(thread, None)


@functools.cache
def _loop() -> Any:
    """Return the compiled thread function, which ends once the int32 at its argument is set."""
    import numba
    import numpy as np

    libc = ctypes.CDLL(None)
    act, pause, number = libc.signal, libc.usleep, int(signal.SIGTERM)
    act.argtypes, act.restype = (ctypes.c_int, ctypes.c_size_t), ctypes.c_size_t
    pause.argtypes, pause.restype = (ctypes.c_uint,), ctypes.c_int

    @numba.cfunc("voidptr(voidptr)")
    def loop(argument: Any) -> Any:
        ended = numba.carray(argument, 1, np.int32)
        while ended[0] == 0:
            act(number, 0)  # SIG_DFL
            pause(PAUSE_MICROSECONDS)
        return argument

    return loop
