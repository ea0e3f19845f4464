"""Several processes that train together: how they meet, what they agree on, and how they end.

`jax.distributed` connects them, with addresses as given or as Slurm, Open MPI and others say. Where
one has gone, or never came, JAX's native code prints a trace and aborts; here it is one line.
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
GONE = "another process of this training is gone; start all again to resume"
NATIVE_END = b"JAX distributed service detected fatal errors"
LOST_PEER = re.compile("gloo|nccl|coordination|peer|socket", re.IGNORECASE)


@contextlib.contextmanager
def together(options: argparse.Namespace) -> Iterator[None]:
    """Within it this process and the others that the options speak of train together.

    options: with coordinator, processes, process and wait_seconds, as run.py has them.

    Raises what is raised within, where the process is alone; else it ends, as `Ending` says.
    """
    given = (options.coordinator, options.processes, options.process)
    if given == (None, None, None):
        yield
        return
    ending = Ending(f"not all processes have come within {options.wait_seconds} s")
    try:
        _join(*given, options.wait_seconds)
        ending.line = GONE
        yield
        jax.distributed.shutdown()
    except (LayoutError, OSError) as error:
        ending.now(f"{error}")
    except (ValueError, RuntimeError) as error:
        if LOST_PEER.search(str(error)):
            ending.now(GONE)
        ending.unexpected()
    except Exception:
        ending.unexpected()
    ending.close()


def _join(coordinator: str | None, count: int | None, index: int | None, seconds: int) -> None:
    """Connects the processes; raises LayoutError for what cannot be connected."""
    address = None if coordinator == AUTO else coordinator
    if address and not re.fullmatch(r".+:\d+", address):
        raise LayoutError(f"--coordinator must be HOST:PORT or {AUTO}, got {address}.")
    if address and index == 0:
        with socket.create_server(("", int(address.rpartition(":")[2]))):
            pass  # a port that is in use is an OSError here, and a fault of JAX's native code there
    jax.config.update("jax_enable_preemption_service", False)  # it would catch SIGTERM
    try:
        jax.distributed.initialize(address, count, index, initialization_timeout=seconds)
        devices, local = len(jax.devices()), jax.local_device_count()
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise LayoutError(f"The processes cannot be connected: {reason}") from error
    if devices != jax.process_count() * local:
        raise LayoutError("Every process must have as many devices as the others.")


class Ending:
    """How a process ends that needs others: with a line on stderr and status 2, at once.

    What native code prints goes to a temporary file, and from there to stderr only where it aborts
    for a reason of its own. An exit by way of JAX would wait for processes that do not come.

    line: why it ends, where native code finds a process missing.
    """

    def __init__(self, line: str):
        self.line, self._python = line, sys.stderr
        sys.stderr.flush()
        self._stderr, (self._native, path) = os.dup(2), tempfile.mkstemp()
        os.unlink(path)
        os.dup2(self._native, 2)
        sys.stderr = os.fdopen(self._stderr, "w", buffering=1)
        self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self._aborting)
        # A handler of Python's would wait for a main thread that may never come back.
        ctypes.CDLL(None).signal(int(signal.SIGABRT), self._handler)

    def now(self, line: str) -> NoReturn:
        """Ends the process."""
        os.write(self._stderr, f"error: {line}\n".encode())
        os._exit(STATUS)

    def unexpected(self) -> NoReturn:
        """Ends the process with the traceback of the error that is being handled."""
        traceback.print_exc()
        os._exit(1)

    def close(self) -> None:
        """Undoes what the process no longer needs."""
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
    """Whether this process is the one that writes."""
    return jax.process_index() == 0


def of_first(arrays: Callable[[], dict[str, np.ndarray]], slots: Sequence[dict]) -> dict:
    """What the first process reads, in all; described by names, shapes and dtypes."""
    if jax.process_count() == 1:
        return arrays()
    if is_first():
        return multihost_utils.broadcast_one_to_all(arrays())
    empty = {slot["name"]: np.zeros(slot["shape"], slot["dtype"]) for slot in slots}
    return multihost_utils.broadcast_one_to_all(empty)


def whole(array: jax.Array) -> np.ndarray:
    """A copy of an array that lies among the devices of all processes, which all ask for it."""
    if not (array.is_fully_addressable or array.is_fully_replicated):
        return np.array(multihost_utils.process_allgather(array, tiled=True))
    return np.array(array)


def check_equal(*things: Any) -> None:
    """Raises LayoutError where another process has others, by their repr."""
    if jax.process_count() == 1:
        return
    digest = hashlib.sha256(repr(things).encode()).digest()
    own = np.frombuffer(digest, np.int32)
    every = multihost_utils.process_allgather(own)
    different = [i for i, each in enumerate(every) if (each != every[0]).any()]
    if different:
        raise LayoutError(
            f"Process {different[0]} has another program, layout or --steps than process 0: give "
            "all the same folder and options."
        )


class Agreement:
    """What all processes do next, which each of them asks after every step.

    Answers are those of the step before where there are several processes, so that none waits for
    its devices.

    requests: the first is to go on; of the others the last that any process has is done by all.
    """

    def __init__(self, requests: Sequence[str]):
        self._requests = list(requests)
        self._asked: deque = deque()

    def __call__(self, request: str) -> str:
        """What is to be done, as this process requests or another does."""
        if jax.process_count() == 1:
            return request
        self._asked.append(_largest(np.int32(self._requests.index(request))))
        if len(self._asked) < 2:
            return self._requests[0]
        agreed = self._requests[int(self._asked.popleft())]
        if agreed != self._requests[0]:
            self._asked.clear()  # asked before this was done
        return agreed


def _largest(number: np.int32) -> jax.Array:
    """Of all processes; it need not be there yet."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), "all")
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("all"))
    own = np.full(jax.local_device_count(), number)
    return _maximum(mesh)(jax.make_array_from_process_local_data(place, own))


@functools.cache
def _maximum(mesh: jax.sharding.Mesh) -> Any:
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.jit(jax.numpy.max, out_shardings=everywhere)
