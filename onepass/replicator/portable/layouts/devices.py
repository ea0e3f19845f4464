"""Connect processes that train, distribute a step's arrays over devices, choose the layout.

If a process is lost or never starts, JAX's native code would print a trace; here it is one line.
"""

import argparse
import contextlib
import ctypes
import functools
import hashlib
import inspect
import math
import os
import re
import signal
import socket
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from onepass.foundation.rules import UserError

from .layout import GIB, MODEL, ROWS, Cut, Layout, Step, Tensor, whole
from .simulation import compiled_bytes

AUTO = "auto"
STATUS = 2
GONE = "another process of this training was lost; restart all of them to resume"
NATIVE_END = b"JAX distributed service detected fatal errors"
LOST_PEER = re.compile("gloo|nccl|coordination|peer|socket", re.IGNORECASE)
FILE = "layout.json"


@contextlib.contextmanager
def together(options: argparse.Namespace) -> Iterator[None]:
    """Join the other processes in run.py's options; an error in the block ends this one."""
    if options.coordinator is options.processes is options.process is None:
        yield
        return
    ending = _Ending(f"not all processes connected within {options.wait_seconds} s")
    try:
        _join(options.coordinator, options.processes, options.process, options.wait_seconds)
        ending.line = GONE
        yield
        jax.distributed.shutdown()
    except (UserError, OSError) as error:
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
        raise UserError(f"--coordinator must be HOST:PORT or {AUTO}, got {address}.")
    if address and index == 0:
        with socket.create_server(("", int(address.rpartition(":")[2]))):
            pass  # a port in use raises OSError here, but crashes JAX's native code
    jax.config.update("jax_enable_preemption_service", False)  # would intercept SIGTERM
    try:
        jax.distributed.initialize(address, count, index, initialization_timeout=seconds)
        devices, local = len(jax.devices()), jax.local_device_count()
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"The processes cannot be connected: {reason}") from error
    if devices != jax.process_count() * local:
        raise UserError("Every process must have the same number of devices.")


class _Ending:
    """Ends a process at once when others are lost, with one line on stderr and status 2.

    A regular exit of JAX would wait for the missing processes. The output of native code is copied
    to stderr only if the code aborts for a different reason.
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
        os.write(self._stderr, f"error: {line}\n".encode())
        os._exit(STATUS)

    def end_with_error(self) -> NoReturn:
        traceback.print_exc()
        os._exit(1)

    def close(self) -> None:
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
    own = arrays() if is_first() else {s["name"]: np.zeros(s["shape"], s["dtype"]) for s in slots}
    return own if jax.process_count() == 1 else multihost_utils.broadcast_one_to_all(own)


def gather_array(array: jax.Array) -> np.ndarray:
    """Return a copy of a distributed array; every process must call this."""
    if not (array.is_fully_addressable or array.is_fully_replicated):
        return np.array(multihost_utils.process_allgather(array, tiled=True))
    return np.array(array)


def check_equal(*things: Any) -> None:
    """Raise UserError if the repr of these values differs between processes."""
    if jax.process_count() == 1:
        return
    own = np.frombuffer(hashlib.sha256(repr(things).encode()).digest(), np.int32)
    every = multihost_utils.process_allgather(own)
    different = [i for i, each in enumerate(every) if (each != every[0]).any()]
    if different:
        raise UserError(
            f"Process {different[0]} has another program, layout or --steps than process 0: give "
            "all of them the same folder and options."
        )


class Agreement:
    """An agreement of all processes on the highest of the requests made; the first: to continue.

    With several processes, the answer belongs to the previous step, so none waits for its devices.
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
    mesh = Mesh(np.array(jax.devices()), "all")
    own = np.full(jax.local_device_count(), number)
    sharding = NamedSharding(mesh, PartitionSpec("all"))
    return _maximum(mesh)(jax.make_array_from_process_local_data(sharding, own))


@functools.cache
def _maximum(mesh: Mesh) -> Any:
    return jax.jit(jax.numpy.max, out_shardings=NamedSharding(mesh, PartitionSpec()))


class Devices:
    """The devices that train, and the sharding of each argument of the step for a whole batch."""

    def __init__(self, step: Step, layout: Layout):
        self.layout, self.used = layout, _devices_to_use(layout.num_devices)
        sizes = tuple(layout.mesh.values())
        self._mesh = Mesh(np.array(self.used).reshape(sizes), tuple(layout.mesh))
        self.everywhere = self._sharding(())
        batch, captured = layout.split(step)
        self._batch = self._shapes(step.batch, batch)
        self._captured = self._shapes(step.captured, captured)
        self._slots = step.slots

    def put(self, state: dict, frozen: dict) -> tuple[dict, Any, dict]:
        """Return the state, the flag `alive` (True) and the frozen variables, on the devices."""
        placed = _place_arrays(state | frozen, self._captured)
        alive = jax.make_array_from_process_local_data(self.everywhere, np.array(True))
        return {n: placed[n] for n in state}, alive, {n: placed[n] for n in frozen}

    def shard(self, batch: dict[str, np.ndarray]) -> dict:
        """Distribute the inputs of the step over the devices, given a batch or its `own_rows`."""
        return _place_arrays({name: batch[name] for name in self._batch}, self._batch)

    def own_rows(self, make: Callable[..., dict]) -> Callable[[int], dict]:
        """Return `make`, from a step to its batch, for the shard of rows that this process needs.

        It draws all rows if it has no arguments `shard_index` and `num_shards`.
        """
        spans = set()
        for shape in (each for each in self._batch.values() if each.shape):
            slices = shape.sharding.addressable_devices_indices_map(shape.shape).values()
            rows = [each[0].indices(shape.shape[0]) for each in slices]
            spans.add((min(r[0] for r in rows), max(r[1] for r in rows), shape.shape[0]))
        first, last, total = spans.pop() if len(spans) == 1 else (0, 1, 1)
        size, takes = last - first, inspect.signature(make).parameters
        if size == total or first % size or total % size or "num_shards" not in takes:
            return make
        return functools.partial(make, shard_index=first // size, num_shards=total // size)

    def jit(self, advance: Callable) -> Any:
        """Return a jitted `advance`: (state, alive, frozen, batch) to (state, alive, metrics)."""
        state = {name: self._captured[name].sharding for name in self._slots}
        shardings = state, self.everywhere, self.everywhere
        return jax.jit(advance, donate_argnums=(0, 1), out_shardings=shardings)

    def arguments(self) -> tuple[dict, Any, dict, dict]:
        """Return shapes and shardings of the arguments: state, alive, frozen, batch."""
        alive = jax.ShapeDtypeStruct((), np.bool_, sharding=self.everywhere)
        state = {n: shape for n, shape in self._captured.items() if n in self._slots}
        frozen = {n: shape for n, shape in self._captured.items() if n not in self._slots}
        return state, alive, frozen, self._batch

    def compile_step(self, advance: Callable, options: dict[str, Any] | None = None) -> Any:
        """Return the result of `jit`, compiled ahead of time with XLA `options` by name."""
        state, alive, frozen, batch = self.arguments()
        lowered = self.jit(advance).lower(state, alive, frozen, batch)
        return lowered.compile(compiler_options=options)

    def _shapes(self, tensors: list[Tensor], cuts: tuple[Cut, ...]) -> dict[str, Any]:
        return {
            tensor.name: jax.ShapeDtypeStruct(
                tensor.shape, np.dtype(tensor.dtype), sharding=self._sharding(cut)
            )
            for tensor, cut in zip(tensors, cuts, strict=True)
        }

    def _sharding(self, cut: Cut) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec(*(axes or None for axes in cut)))

    def __str__(self) -> str:
        found = len(jax.devices())
        among = f" of {found}" if len(self.used) < found else ""
        processes = f" in {jax.process_count()} processes" if jax.process_count() > 1 else ""
        return f"{len(self.used)}{among} x {self.used[0].device_kind}{processes}"


def _place_arrays(arrays: dict[str, np.ndarray], shapes: dict[str, Any]) -> dict[str, jax.Array]:
    """Distribute arrays over devices; a process may pass only its rows of a sharded array."""
    put = jax.make_array_from_process_local_data
    return {n: put(shapes[n].sharding, array, shapes[n].shape) for n, array in arrays.items()}


def _devices_to_use(count: int) -> list[jax.Device]:
    found, processes = jax.devices(), jax.process_count()
    if count % processes:
        raise UserError(f"{count} devices cannot be divided among {processes} processes.")
    each, local = count // processes, len(found) // processes
    return [found[start + i] for start in range(0, len(found), local) for i in range(each)]


def choose_layout(
    folder: Path,
    options: argparse.Namespace,
    text: Callable[[], str],
    advance: Callable,
    log: Callable[[str], None],
) -> tuple[Devices, Any]:
    """Return the devices of a layout by run.py's options, and the step as compiled for them.

    `text` returns the program for a search, whose layout is written to the exported folder.
    """
    step = Step.read(folder)
    if options.mesh is None and options.layout is None:
        devices = Devices(step, by_rows(step, options.devices))
        return devices, devices.jit(advance)
    if options.devices is not None:
        raise UserError(
            "--devices divides batches by rows only; give either it or --mesh or --layout."
        )
    limit = memory_bytes(options.memory)
    if options.layout in (None, AUTO):
        from .search import Machine, Search  # which needs a recent JAX

        mesh, file = mesh_of(step, options.mesh), Path(folder) / FILE
        machine = Machine.of(jax.default_backend(), limit, options.link)
        search = Search(
            step, text(), mesh, machine,
            lambda cuts: Devices(step, Layout(mesh, cuts)).compile_step(advance),
        )  # fmt: skip
        found = search.best()
        if is_first():
            found.layout.write(file, step, found.cost.as_json())
        log(f"{file}: {found}")
        return Devices(step, found.layout), found.compiled
    layout = Layout.read(options.layout, step)
    _check_number(layout)
    if options.mesh is not None and mesh_of(step, options.mesh) != layout.mesh:
        raise UserError(f"The layout {options.layout} is for the mesh {layout.mesh}.")
    devices = Devices(step, layout)
    if limit is None:
        return devices, devices.jit(advance)
    program = devices.compile_step(advance)
    if (needed := compiled_bytes(program)) > limit:
        sizes = f"{needed / GIB:.3g} GiB per device, more than {limit / GIB:.3g}"
        raise UserError(f"The layout {options.layout} needs {sizes}.")
    return devices, program


def by_rows(step: Step, wanted: int | None = None) -> Layout:
    """Return a layout that divides a batch's rows over `wanted` devices, or all possible ones."""
    rows = sorted({tensor.shape[0] for tensor in step.batch if tensor.shape})
    found, processes = len(jax.devices()), jax.process_count()
    counts = range(processes, found + 1, processes)  # as many devices in every process
    fitting = [n for n in counts if all(row % n == 0 for row in rows)]
    batches = f"batches of {', '.join(map(str, rows))} rows"
    if not fitting:
        raise UserError(f"{processes} processes cannot divide {batches}.")
    if wanted is not None and wanted not in fitting:
        there = f"there are {found} devices and {batches}"
        raise UserError(f"--devices must be one of {fitting}, got {wanted}: {there}.")
    cuts = [tuple((ROWS,) if axis == 0 else () for axis in range(len(t.shape))) for t in step.batch]
    return Layout({ROWS: wanted or fitting[-1]}, (*cuts, *whole(step)[len(cuts) :]))


def mesh_of(step: Step, text: str | None) -> dict[str, int]:
    """Parse a mesh `4x2` or `4,2` (rows x model); None: as many devices as divide the rows."""
    if text is None:
        return by_rows(step).mesh | {MODEL: 1}
    found = re.fullmatch(r"([1-9]\d*)[x,]([1-9]\d*)", text)
    if found is None:
        raise UserError(f"--mesh must be two sizes, rows x model, as in 4x2; got {text}.")
    mesh = {ROWS: int(found[1]), MODEL: int(found[2])}
    _check_number(Layout(mesh, ()))
    rows = math.gcd(*(tensor.shape[0] for tensor in step.batch if tensor.shape))
    if rows % mesh[ROWS]:
        raise UserError(f"--mesh {text}: {mesh[ROWS]} does not divide batches of {rows} rows.")
    sizes = {rows, *(size for tensor in step.captured for size in tensor.shape)}
    if all(size % mesh[MODEL] for size in sizes):
        raise UserError(f"--mesh {text}: {mesh[MODEL]} divides no dimension of the state.")
    return mesh


def memory_bytes(given_gib: float | None) -> float | None:
    """Return the memory of a device in bytes, as given or as it reports; None if unknown."""
    if given_gib is not None:
        return given_gib * GIB
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def _check_number(layout: Layout) -> None:
    found = len(jax.devices())
    if layout.num_devices > found:
        sizes = "x".join(map(str, layout.mesh.values()))
        raise UserError(f"A mesh {sizes} needs {layout.num_devices} devices, there are {found}.")
