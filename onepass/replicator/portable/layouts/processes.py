"""Connect, coordinate and shut down several processes that train together.

`jax.distributed` connects them, at the given addresses or at those from Slurm, Open MPI and others.
If a process is lost or never starts, JAX's native code would print a trace; here it is one line.
"""

import argparse
import contextlib
import ctypes
import functools
import hashlib
import os
import re
import signal
import socket
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from .layout import LayoutError

AUTO = "auto"
STATUS = 2
GONE = "another process of this training was lost; restart all of them to resume"
NATIVE_END = b"JAX distributed service detected fatal errors"
LOST_PEER = re.compile("gloo|nccl|coordination|peer|socket", re.IGNORECASE)


@contextlib.contextmanager
def together(options: argparse.Namespace) -> Iterator[None]:
    """Join the other processes in run.py's options; an error in the block ends this one."""
    if options.coordinator is options.processes is options.process is None:
        yield
        return
    ending = Ending(f"not all processes connected within {options.wait_seconds} s")
    try:
        _join(options.coordinator, options.processes, options.process, options.wait_seconds)
        ending.line = GONE
        yield
        jax.distributed.shutdown()
    except (LayoutError, OSError) as error:
        ending.now(f"{error}")
    except (ValueError, RuntimeError) as error:
        if LOST_PEER.search(str(error)):
            ending.now(GONE)
        ending.end_with_error()
    except Exception:
        ending.end_with_error()
    ending.close()


def _join(coordinator: str | None, count: int | None, index: int | None, seconds: int) -> None:
    address = None if coordinator == AUTO else coordinator
    if address and not re.fullmatch(r".+:\d+", address):
        raise LayoutError(f"--coordinator must be HOST:PORT or {AUTO}, got {address}.")
    if address and index == 0:
        with socket.create_server(("", int(address.rpartition(":")[2]))):
            pass  # a port in use raises OSError here, but crashes JAX's native code
    jax.config.update("jax_enable_preemption_service", False)  # would intercept SIGTERM
    try:
        jax.distributed.initialize(address, count, index, initialization_timeout=seconds)
        devices, local = len(jax.devices()), jax.local_device_count()
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise LayoutError(f"The processes cannot be connected: {reason}") from error
    if devices != jax.process_count() * local:
        raise LayoutError("Every process must have the same number of devices.")


class Ending:
    """Ends a process at once when others are lost, with one line on stderr and status 2.

    The output of native code is written to a temporary file, and copied to stderr only if the code
    aborts for a different reason. A regular exit of JAX would wait for the missing processes.
    """

    def __init__(self, line: str):
        self.line, self._python = line, sys.stderr
        sys.stderr.flush()
        self._stderr, (self._native, path) = os.dup(2), tempfile.mkstemp()
        os.unlink(path)
        os.dup2(self._native, 2)
        sys.stderr = os.fdopen(self._stderr, "w", buffering=1)
        self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._aborting)
        # A Python handler would wait for a main thread that may never return.
        ctypes.CDLL(None).signal(int(signal.SIGABRT), self._handler)

    def now(self, line: str) -> NoReturn:
        """End the process with a message and status 2."""
        os.write(self._stderr, f"error: {line}\n".encode())
        os._exit(STATUS)

    def end_with_error(self) -> NoReturn:
        """End the process with the traceback of the current error and status 1."""
        traceback.print_exc()
        os._exit(1)

    def close(self) -> None:
        """Restore stderr and the handler of SIGABRT."""
        ctypes.CDLL(None).signal(int(signal.SIGABRT), None)
        os.dup2(self._stderr, 2)
        os.close(self._native)
        sys.stderr.close()
        sys.stderr = self._python

    def _aborting(self, _: int) -> None:
        printed = os.pread(self._native, os.fstat(self._native).st_size, 0)
        if NATIVE_END in printed:
            self.now(self.line)
        os.write(self._stderr, printed)


def is_first() -> bool:
    """Return whether this process is the one that writes files."""
    return jax.process_index() == 0


def of_first(arrays: Callable[[], dict[str, np.ndarray]], slots: Sequence[dict]) -> dict:
    """Return the arrays of the first process, which alone calls `arrays`, in all processes."""
    if jax.process_count() == 1:
        return arrays()
    if is_first():
        return multihost_utils.broadcast_one_to_all(arrays())
    empty = {slot["name"]: np.zeros(slot["shape"], slot["dtype"]) for slot in slots}
    return multihost_utils.broadcast_one_to_all(empty)


def whole(array: jax.Array) -> np.ndarray:
    """Return a copy of a distributed array; every process must call this."""
    if not (array.is_fully_addressable or array.is_fully_replicated):
        return np.array(multihost_utils.process_allgather(array, tiled=True))
    return np.array(array)


def check_equal(*things: Any) -> None:
    """Raise LayoutError if the repr of these values differs between processes."""
    if jax.process_count() == 1:
        return
    digest = hashlib.sha256(repr(things).encode()).digest()
    own = np.frombuffer(digest, np.int32)
    every = multihost_utils.process_allgather(own)
    different = [i for i, each in enumerate(every) if (each != every[0]).any()]
    if different:
        raise LayoutError(
            f"Process {different[0]} has another program, layout or --steps than process 0: give "
            "all of them the same folder and options."
        )


class Agreement:
    """An agreement of all processes on the next action, which each requests after every step.

    All follow the highest of the `requests` made; the first means to continue. With several
    processes, the answer belongs to the previous step, so no process has to wait for its devices.
    """

    def __init__(self, requests: Sequence[str]):
        self._requests = list(requests)
        self._asked: deque = deque()

    def __call__(self, request: str) -> str:
        """Return the agreed action, given this process's request."""
        if jax.process_count() == 1:
            return request
        self._asked.append(_largest(np.int32(self._requests.index(request))))
        if len(self._asked) < 2:
            return self._requests[0]
        agreed = self._requests[int(self._asked.popleft())]
        if agreed != self._requests[0]:
            self._asked.clear()  # they were made before the action
        return agreed


def _largest(number: np.int32) -> jax.Array:
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "all")
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("all"))
    own = np.full(jax.local_device_count(), number)
    return _maximum(mesh)(jax.make_array_from_process_local_data(sharding, own))


@functools.cache
def _maximum(mesh: jax.sharding.Mesh) -> Any:
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.jit(jax.numpy.max, out_shardings=everywhere)
