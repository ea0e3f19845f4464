"""The default action of SIGTERM, kept while native code replaces the handler and blocks Python."""

import contextlib
import ctypes
import functools
import signal
from collections.abc import Iterator
from typing import Any

PAUSE_MICROSECONDS = 20_000


@contextlib.contextmanager
def default_sigterm() -> Iterator[None]:
    """Return a context in which SIGTERM ends the process, even if other code installs a handler.

    A native thread, which does not need the GIL, restores the default action fifty times a
    second. The caller installs the handler that is to act afterwards.
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
    """Return the compiled body of the thread, which ends once the int32 at its argument is set."""
    import numba
    import numpy as np

    libc = ctypes.CDLL(None)
    act, pause, number = libc.signal, libc.usleep, int(signal.SIGTERM)
    act.argtypes, act.restype = (ctypes.c_int, ctypes.c_size_t), ctypes.c_size_t
    pause.argtypes, pause.restype = (ctypes.c_uint,), ctypes.c_int

    @numba.cfunc("voidptr(voidptr)")
    def loop(argument):
        ended = numba.carray(argument, 1, np.int32)
        while ended[0] == 0:
            act(number, 0)  # SIG_DFL
            pause(PAUSE_MICROSECONDS)
        return argument

    return loop
