"""Distribute a step's arrays over a mesh of devices, and choose the layout."""

import argparse
import functools
import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .layout import GIB, MODEL, ROWS, Cut, Layout, LayoutError, Step, Tensor, whole
from .processes import is_first
from .simulation import compiled_bytes

AUTO, FILE = "auto", "layout.json"


class Devices:
    """The devices that train, and the sharding of each argument of the step.

    The step is a program for the whole batch. XLA partitions it, so sums over the batch, statistics
    and random numbers are the same as on a single device.
    """

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
        """Return `make`, which maps a step to its batch, restricted to the rows this process needs.

        The result returns all rows if `make` has no arguments `shard_index` and `num_shards`, or if
        the rows needed are not one shard.
        """
        index, count = self._shard()
        if count == 1 or "num_shards" not in inspect.signature(make).parameters:
            return make
        return functools.partial(make, shard_index=index, num_shards=count)

    def _shard(self) -> tuple[int, int]:
        spans = set()
        for shape in (each for each in self._batch.values() if each.shape):
            slices = shape.sharding.addressable_devices_indices_map(shape.shape).values()
            rows = [each[0].indices(shape.shape[0]) for each in slices]
            spans.add((min(r[0] for r in rows), max(r[1] for r in rows), shape.shape[0]))
        first, last, total = spans.pop() if len(spans) == 1 else (0, 1, 1)
        is_shard = first % (last - first) == 0 and total % (last - first) == 0
        return (first // (last - first), total // (last - first)) if is_shard else (0, 1)

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
        return self.jit(advance).lower(*self.arguments()).compile(compiler_options=options)

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
        raise LayoutError(f"{count} devices cannot be divided among {processes} processes.")
    each, local = count // processes, len(found) // processes
    return [found[start + i] for start in range(0, len(found), local) for i in range(each)]


def choose_layout(
    folder: Path,
    options: argparse.Namespace,
    text: Callable[[], str],
    advance: Callable,
    log: Callable[[str], None],
) -> tuple[Devices, Any]:
    """Return the devices of a layout, and the step as `Devices.jit` compiles it for them.

    The options are those of run.py: devices, mesh, layout, memory and link. `text` returns the
    program for a search; the layout that it finds is written to the exported folder. Impossible
    devices, meshes and layouts raise LayoutError.
    """
    step = Step.read(folder)
    if options.mesh is None and options.layout is None:
        devices = Devices(step, by_rows(step, options.devices))
        return devices, devices.jit(advance)
    if options.devices is not None:
        raise LayoutError(
            "--devices divides batches by rows only; give either it or --mesh or --layout."
        )
    limit = memory_bytes(options.memory)
    if options.layout in (None, AUTO):
        from .search import Machine, Search  # which needs a recent JAX

        mesh, file = mesh_of(step, options.mesh), Path(folder) / FILE
        machine = Machine.of(jax.default_backend(), limit, options.link)

        def compile_cuts(cuts: tuple[Cut, ...]) -> Any:
            return Devices(step, Layout(mesh, cuts)).compile_step(advance)

        found = Search(step, text(), mesh, machine, compile_cuts).best()
        if is_first():
            found.layout.write(file, step, found.cost.as_json())
        log(f"{file}: {found}")
        return Devices(step, found.layout), found.compiled
    layout = Layout.read(options.layout, step)
    _check_number(layout)
    if options.mesh is not None and mesh_of(step, options.mesh) != layout.mesh:
        raise LayoutError(f"The layout {options.layout} is for the mesh {layout.mesh}.")
    devices = Devices(step, layout)
    if limit is None:
        return devices, devices.jit(advance)
    program = devices.compile_step(advance)
    if (needed := compiled_bytes(program)) > limit:
        raise LayoutError(
            f"The layout {options.layout} needs {needed / GIB:.3g} GiB per device, "
            f"more than {limit / GIB:.3g}."
        )
    return devices, program


def by_rows(step: Step, wanted: int | None = None) -> Layout:
    """Return a layout that divides a batch's rows over `wanted` devices, or all possible ones."""
    rows = sorted({tensor.shape[0] for tensor in step.batch if tensor.shape})
    found, processes = len(jax.devices()), jax.process_count()
    counts = range(processes, found + 1, processes)  # as many devices in every process
    fitting = [n for n in counts if all(row % n == 0 for row in rows)]
    if not fitting:
        raise LayoutError(
            f"{processes} processes cannot divide batches of {', '.join(map(str, rows))} rows."
        )
    if wanted is not None and wanted not in fitting:
        raise LayoutError(
            f"--devices must be one of {fitting}, got {wanted}: there are {found} devices and "
            f"batches of {', '.join(map(str, rows))} rows."
        )
    cuts = list(whole(step))
    for i, tensor in enumerate(step.batch):
        cuts[i] = tuple((ROWS,) if axis == 0 else () for axis in range(len(tensor.shape)))
    return Layout({ROWS: wanted or fitting[-1]}, tuple(cuts))


def mesh_of(step: Step, text: str | None) -> dict[str, int]:
    """Parse a mesh `4x2` or `4,2` (rows x model); None: as many devices as divide the rows."""
    if text is None:
        return by_rows(step).mesh | {MODEL: 1}
    found = re.fullmatch(r"([1-9]\d*)[x,]([1-9]\d*)", text)
    if found is None:
        raise LayoutError(f"--mesh must be two sizes, rows x model, as in 4x2; got {text}.")
    mesh = {ROWS: int(found[1]), MODEL: int(found[2])}
    _check_number(Layout(mesh, ()))
    rows = math.gcd(*(tensor.shape[0] for tensor in step.batch if tensor.shape))
    if rows % mesh[ROWS]:
        raise LayoutError(f"--mesh {text}: {mesh[ROWS]} does not divide batches of {rows} rows.")
    sizes = {rows, *(size for tensor in step.captured for size in tensor.shape)}
    if all(size % mesh[MODEL] for size in sizes):
        raise LayoutError(f"--mesh {text}: {mesh[MODEL]} divides no dimension of the state.")
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
        raise LayoutError(f"A mesh {sizes} needs {layout.num_devices} devices, there are {found}.")
