"""The student's engine on processors: weights, tiles of time, and the loop over flows.

A tile is an interval of time that a thread computes through all layers before it starts its next
tile. Threads take the tiles in turn, each two layers behind the thread of the preceding tile: every
layer's inputs are then used by one thread at a time, and a thread waits for only one other.

Each layer's inputs are in a window of rows, the past before the present, so a tap is read at a
fixed offset; when a window is full, the past that is still needed moves to its beginning. If the
number of a tile's rows is not a multiple of `ROWS`, rows are also written beyond its end, which the
next tile overwrites.

The arithmetic is float32, whatever the flows' `compute_dtype`. A sample's bits do not depend on the
batch, the sizes of the chunks or the number of threads.
"""

import dataclasses
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from distill.config import RECENT, StudentConfig
from distill.cpu import kernels as flow_kernels
from distill.cpu.kernels import ROWS, as_compiled, gate_rows, pack_gates, pack_outputs, product_rows
from distill.residual import Prediction
from distill.student import Flow, FlowLayer
from onepass.foundation.rules import must_be
from onepass.foundation.runtime import cores
from onepass.likelihoods.affine import FlowOutput
from onepass.likelihoods.noise import FOLD_LANE, KEY_PARITY
from onepass.machine.compiler import compiled, entry
from onepass.machine.kernels import (
    FLOAT_BYTES,
    LANES,
    VECTOR_BYTES,
    aligned_zeros,
    copy,
    exponential,
    pad_channels,
    publish,
    wait_for,
)

TILE_ROWS = 80 * ROWS
"""Largest number of bunches per tile: its activations and a layer's weights fit the cache."""

_COUNTS = (
    *("front_width", "width", "condition_inputs", "residual_inputs", "residual_vectors"),
    *("gate_inputs", "gate_vectors", "bunch", "held_inputs", "row_samples"),
)
SIZES = np.dtype([*((name, np.int64) for name in _COUNTS), ("min_log_scale", np.float64)])
"""Record type of the sizes that all layers share."""

_FLOW_PARTS = (
    *("front", "front_bias", "bunch", "bunch_bias"),
    *("head1", "head1_bias", "head2", "head2_bias"),
)
_LAYER_PARTS = ("gate", "gate_bias", "held", "residual", "residual_bias")

FLOW = np.dtype([(name, np.int64) for name in _FLOW_PARTS])
"""Record type of a flow: the offset of each of its arrays in the memory, in bytes."""

_PLACE = ("flow", "first", "last", "dilation", "past", "window", "capacity")
LAYER = np.dtype([(name, np.int64) for name in (*_PLACE, *_LAYER_PARTS)])
"""Record type of a layer: its position, its window of inputs in rows, and each array's offset."""


class PackedFlows(NamedTuple):
    """The weights and sizes that all sounds share."""

    memory: np.ndarray
    """float32, all weights concatenated."""
    sizes: Any
    """A record of type SIZES; its type is Any, since `np.void` declares no fields."""
    flows: np.ndarray
    """Array of type FLOW, [flows]."""
    layers: np.ndarray
    """Array of type LAYER, [layers of all flows]."""


def pack(flows: list[Flow], narrow: bool = False) -> PackedFlows:
    """Return a copy of the flows' weights, of large products as bfloat16 pairs if `narrow`."""
    config = flows[0].config
    parts: list[np.ndarray] = []
    flow_table = np.zeros(len(flows), FLOW)
    layer_table = np.zeros(sum(len(flow.layers) for flow in flows), LAYER)
    place = window = 0
    for number, flow in enumerate(flows):
        _enter(flow_table[number], _flow_parts(flow, narrow), parts)
        for i, layer in enumerate(flow.layers):
            entry = layer_table[place]
            _enter(entry, _layer_parts(layer, narrow), parts)
            past = layer.past_samples
            entry["flow"], entry["dilation"] = number, layer.dilation
            entry["first"], entry["last"] = i == 0, i == len(flow.layers) - 1
            # At least twice the past, so that moving the past copies each row at most once.
            entry["past"], entry["capacity"] = past, past + max(past, TILE_ROWS)
            entry["window"] = window
            window += entry["capacity"]
            place += 1
    memory = aligned_zeros([sum(part.size for part in parts)])
    np.concatenate(parts, out=memory)
    return PackedFlows(memory, _sizes(config), flow_table, layer_table)


def _enter(entry: np.void, named: dict[str, np.ndarray], parts: list[np.ndarray]) -> None:
    for name, array in named.items():
        entry[name] = sum(part.nbytes for part in parts)
        parts.append(np.pad(array.ravel(), (0, -array.size % 16)))


def _sizes(config: StudentConfig) -> np.void:
    sizes = np.zeros(1, SIZES)[0]
    sizes["front_width"], sizes["width"] = config.front_width, config.filter_width
    sizes["condition_inputs"] = config.gate_inputs - config.held_inputs
    sizes["held_inputs"] = config.held_inputs
    sizes["row_samples"] = config.row_samples if config.held_inputs else 1
    sizes["residual_inputs"] = config.residual_channels
    sizes["residual_vectors"] = pad_channels(config.residual_channels) // LANES
    sizes["gate_inputs"] = config.gate_channels
    sizes["gate_vectors"] = pad_channels(config.gate_channels) // LANES
    sizes["bunch"] = config.bunch_samples
    sizes["min_log_scale"] = config.min_log_scale
    return sizes


def _layer_parts(layer: FlowLayer, narrow: bool) -> dict[str, np.ndarray]:
    kernels = [np.asarray(tap) for tap in np.asarray(layer.gate_kernel)]
    held = np.zeros([0, kernels[0].shape[1]], np.float32)
    if layer.condition_kernel is not None:
        held, each = np.split(np.asarray(layer.condition_kernel), [layer.held_inputs])
        kernels.append(each)
    half_power = math.sqrt(0.5)
    residual = np.asarray(layer.residual_kernel) * half_power
    return {
        "gate": pack_gates(_concatenate_kernels(kernels, narrow), narrow),
        "gate_bias": pack_gates(np.asarray(layer.gate_bias)[None]),
        "held": pack_gates(held),
        "residual": pack_outputs(_concatenate_kernels([residual], narrow), narrow),
        "residual_bias": _wide(np.asarray(layer.residual_bias) * half_power),
    }


def _flow_parts(flow: Flow, narrow: bool) -> dict[str, np.ndarray]:
    head1 = _concatenate_kernels([np.asarray(flow.head1_kernel)], narrow)
    return {
        "front": pack_outputs(np.asarray(flow.front_kernel)),
        "front_bias": _wide(flow.front_bias),
        **_bunch_parts(flow, narrow),
        "head1": pack_outputs(head1, narrow),
        "head1_bias": _wide(flow.head1_bias),
        "head2": pack_outputs(np.asarray(flow.head2_kernel)),
        "head2_bias": _wide(flow.head2_bias),
    }


def _wide(array: ArrayLike) -> np.ndarray:
    """Return an array [..., channels] padded with zeros to whole vectors."""
    array = np.asarray(array, np.float32)
    short = pad_channels(array.shape[-1]) - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, short)])


def _concatenate_kernels(parts: list[np.ndarray], narrow: bool) -> np.ndarray:
    return np.concatenate([flow_kernels.even(each) if narrow else each for each in parts])


def _bunch_parts(flow: Flow, narrow: bool) -> dict[str, np.ndarray]:
    if flow.config.bunch_samples == 1:
        return {"bunch": np.zeros(0, np.float32), "bunch_bias": np.zeros(0, np.float32)}
    bias, recent = np.asarray(flow.bunch_bias), np.asarray(flow.recent_kernel)
    layered = np.asarray(flow.bunch_kernel).reshape(-1, *bias.shape)
    padding = np.zeros([pad_channels(len(layered)) - len(layered), bias.shape[1]], np.float32)
    each = [[recent, np.concatenate([layered[:, j], padding])] for j in range(len(bias))]
    kernels = [_concatenate_kernels(parts, narrow) for parts in each]
    return {
        "bunch": np.concatenate([pack_gates(kernel, narrow).ravel() for kernel in kernels]),
        "bunch_bias": np.concatenate([pack_gates(each[None]).ravel() for each in bias]),
    }


_FLOOR = -np.inf  # lower bound of a product that is not rectified
OFFSET_BYTES = 8
_LINE = 16  # int64 values in two cache lines, which processors fetch together


class Chunk(NamedTuple):
    """The input and output arrays of a chunk of time."""

    noises: np.ndarray
    """float32 [sounds, flows + 1, front_width + time + ROWS bunches]: the past and the input of
    every flow, then the output of the last flow. The pasts and the first input, the noise, are
    given; the rest is filled in."""
    condition: np.ndarray
    """float32 [sounds, bunches, channels]."""
    held: np.ndarray
    """float32 [sounds, rows + ROWS, channels]: the condition that is constant within a row."""
    location: np.ndarray
    """float32 [sounds, time], whole bunches: given as zeros, becomes the location of all flows."""
    log_scale: np.ndarray
    """float32 [sounds, time], whole bunches: given as zeros, becomes the log scale of all flows."""
    windows: np.ndarray
    """float32 [sounds, rows of all windows, padded channels]: the layers' inputs."""
    used: np.ndarray
    """int64 [sounds, layers]: number of filled rows in each window."""


class TileSchedule(NamedTuple):
    """The assignment of tiles to threads."""

    tile_rows: int
    """Number of bunches per tile."""
    tiles: int
    """Number of tiles per sound."""
    threads: int
    progress: np.ndarray
    """int64 [threads, _LINE]: number of layers that each thread has passed, over all tiles."""


class Tile(NamedTuple):
    """An interval of time of one sound."""

    sound: int
    start: int
    """Index of the first bunch."""
    rows: int
    """Number of bunches."""


class Scratch(NamedTuple):
    """A thread's temporary arrays, float32 unless stated otherwise."""

    condition: np.ndarray
    held: np.ndarray
    """[rows, 2 * gate channels]: the sum of a layer's gate bias and each row's condition term."""
    units: np.ndarray
    hidden: np.ndarray
    layered: np.ndarray
    """The output of a flow's last layer, from which the gates of a bunch's samples are computed."""
    outputs: np.ndarray
    """[rows, LANES]: location and log scale, in the first two columns."""
    scales: np.ndarray
    zeros: np.ndarray
    offsets: np.ndarray
    """int64 [2, rows]: zeros, and the offset of each bunch's row in `held`, in bytes."""
    pairs: np.ndarray | None
    """Memory for the inputs of `ROWS` rows as bfloat16 pairs; None: products are in float32."""


@compiled
def _address(array: np.ndarray) -> int:
    return array.ctypes.data


@compiled
def _reserve_rows(packed: PackedFlows, chunk: Chunk, tile: Tile, place: int) -> int:
    layer = packed.layers[place]
    vectors = packed.sizes.residual_vectors
    row_bytes = vectors * VECTOR_BYTES
    window = _address(chunk.windows[tile.sound]) + layer.window * row_bytes
    top = chunk.used[tile.sound, place]
    if top + -(-tile.rows // ROWS) * ROWS > layer.capacity:
        copy(window, window + (top - layer.past) * row_bytes, layer.past * vectors)
        top = layer.past
    chunk.used[tile.sound, place] = top + tile.rows
    return window + top * row_bytes


@compiled
def _front(packed: PackedFlows, chunk: Chunk, scratch: Scratch, tile: Tile, place: int) -> None:
    sizes, flow = packed.sizes, packed.flows[packed.layers[place].flow]
    row_bytes = sizes.residual_vectors * VECTOR_BYTES
    target = _reserve_rows(packed, chunk, tile, place)
    bunch_bytes = FLOAT_BYTES * sizes.bunch
    noise = _address(chunk.noises[tile.sound, packed.layers[place].flow]) + bunch_bytes * tile.start
    weights = _address(packed.memory)
    for row in range(0, tile.rows, ROWS):
        product_rows(
            target + row * row_bytes, weights + flow.front, weights + flow.front_bias,
            _address(scratch.zeros), 0,
            noise + bunch_bytes * row, bunch_bytes, sizes.front_width,
            _FLOOR, sizes.residual_vectors, None,
        )  # fmt: skip


@compiled
def _row_of(sizes: Any, bunch: int) -> int:
    return bunch * sizes.bunch // sizes.row_samples


@compiled
def _locate_rows(sizes: Any, scratch: Scratch, tile: Tile) -> None:
    first, gate_bytes = _row_of(sizes, tile.start), 2 * sizes.gate_vectors * VECTOR_BYTES
    for row in range(-(-tile.rows // ROWS) * ROWS):
        last = min(row, tile.rows - 1)
        scratch.offsets[1, row] = (_row_of(sizes, tile.start + last) - first) * gate_bytes


@compiled
def _hold(packed: PackedFlows, chunk: Chunk, scratch: Scratch, tile: Tile, place: int) -> int:
    sizes, layer, weights = packed.sizes, packed.layers[place], _address(packed.memory)
    if not sizes.held_inputs:
        return weights + layer.gate_bias
    target, gate_bytes = _address(scratch.held), 2 * sizes.gate_vectors * VECTOR_BYTES
    first, row_bytes = _row_of(sizes, tile.start), sizes.held_inputs * FLOAT_BYTES
    source = _address(chunk.held[tile.sound]) + first * row_bytes
    for row in range(0, _row_of(sizes, tile.start + tile.rows - 1) + 1 - first, ROWS):
        product_rows(
            target + row * gate_bytes, weights + layer.held, weights + layer.gate_bias,
            _address(scratch.zeros), 0,
            source + row * row_bytes, row_bytes, sizes.held_inputs,
            _FLOOR, 2 * sizes.gate_vectors, None,
        )  # fmt: skip
    return target


@compiled
def _layer(packed: PackedFlows, chunk: Chunk, scratch: Scratch, tile: Tile, place: int) -> None:
    sizes, layer = packed.sizes, packed.layers[place]
    base = _hold(packed, chunk, scratch, tile, place)
    offsets = _address(scratch.offsets[1 if sizes.held_inputs else 0])
    row_bytes = sizes.residual_vectors * VECTOR_BYTES
    unit_bytes = sizes.gate_vectors * VECTOR_BYTES
    first = layer.window + chunk.used[tile.sound, place] - tile.rows
    source = _address(chunk.windows[tile.sound]) + row_bytes * first
    target, floor = _address(scratch.hidden if sizes.bunch == 1 else scratch.layered), 0.0
    if not layer.last:
        target, floor = _reserve_rows(packed, chunk, tile, place + 1), _FLOOR
    condition, units = _address(scratch.condition), _address(scratch.units)
    weights, pairs = _address(packed.memory), scratch.pairs
    for row in range(0, tile.rows, ROWS):
        gate_rows(
            units, weights + layer.gate, base, offsets + row * OFFSET_BYTES,
            source + row * row_bytes, row_bytes, layer.dilation * row_bytes,
            sizes.width, sizes.residual_inputs,
            condition + row * FLOAT_BYTES * sizes.condition_inputs, sizes.condition_inputs,
            sizes.gate_vectors, pairs,
        )  # fmt: skip
        product_rows(
            target + row * row_bytes, weights + layer.residual, weights + layer.residual_bias,
            source + row * row_bytes, row_bytes,
            units, unit_bytes, sizes.gate_inputs,
            floor, sizes.residual_vectors, pairs,
        )  # fmt: skip


@compiled
def _head(packed: PackedFlows, scratch: Scratch, flow: Any, rows: int) -> None:
    sizes, weights = packed.sizes, _address(packed.memory)
    row_bytes = sizes.residual_vectors * VECTOR_BYTES
    hidden, between = _address(scratch.hidden), _address(scratch.units)
    zeros, outputs, pairs = _address(scratch.zeros), _address(scratch.outputs), scratch.pairs
    for row in range(0, rows, ROWS):
        product_rows(
            between, weights + flow.head1, weights + flow.head1_bias,
            zeros, 0,
            hidden + row * row_bytes, row_bytes, sizes.residual_inputs,
            0.0, sizes.residual_vectors, pairs,
        )  # fmt: skip
        product_rows(
            outputs + row * VECTOR_BYTES, weights + flow.head2, weights + flow.head2_bias,
            zeros, 0,
            between, row_bytes, sizes.residual_inputs,
            _FLOOR, 1, None,
        )  # fmt: skip


@compiled
def _gates_of_bunch(
    packed: PackedFlows, chunk: Chunk, scratch: Scratch, tile: Tile, number: int, member: int
) -> None:
    sizes, flow = packed.sizes, packed.flows[number]
    channels = sizes.residual_vectors * LANES
    row_bytes, bunch_bytes = channels * FLOAT_BYTES, FLOAT_BYTES * sizes.bunch
    first = tile.start * sizes.bunch + sizes.front_width - RECENT + member
    noise = _address(chunk.noises[tile.sound, number]) + FLOAT_BYTES * first
    weights, pairs = _address(packed.memory), scratch.pairs
    inputs = RECENT + channels if pairs is None else (RECENT + 1) // 2 + channels // 2
    for row in range(0, tile.rows, ROWS):
        gate_rows(
            _address(scratch.hidden) + row * row_bytes,
            weights + flow.bunch + member * inputs * 2 * row_bytes,
            weights + flow.bunch_bias + member * 2 * row_bytes,
            _address(scratch.offsets[0]),
            noise + bunch_bytes * row, bunch_bytes, 0, 1, RECENT,
            _address(scratch.layered) + row * row_bytes, channels, sizes.residual_vectors,
            pairs,
        )  # fmt: skip


@compiled
def _compose(
    sizes: Any, chunk: Chunk, scratch: Scratch, tile: Tile, flow: int, member: int
) -> None:
    """Update location and log scale of all flows by a flow's output, at one sample per bunch."""
    lowest, bunch, sound = np.float32(sizes.min_log_scale), sizes.bunch, tile.sound
    start = tile.start * bunch + member
    for row in range(tile.rows):
        log_scale = scratch.outputs[row, 1]
        scratch.scales[row] = lowest if log_scale < lowest else log_scale
        chunk.log_scale[sound, start + bunch * row] += scratch.scales[row]
    scales = _address(scratch.scales)
    exponential(scales, scales, -(-tile.rows // LANES))
    for row in range(tile.rows):
        t, scale, location = start + bunch * row, scratch.scales[row], scratch.outputs[row, 0]
        chunk.location[sound, t] = chunk.location[sound, t] * scale + location
        t += sizes.front_width
        chunk.noises[sound, flow + 1, t] = chunk.noises[sound, flow, t] * scale + location


@entry
def run_tiles(
    packed: PackedFlows, chunk: Chunk, schedule: TileSchedule, scratch: Scratch, thread: int
) -> None:
    """Compute every tile of this thread; the other threads must run at the same time."""
    sizes, layers = packed.sizes, len(packed.layers)
    time = chunk.location.shape[1] // sizes.bunch
    counters, counter_bytes = _address(schedule.progress), 8 * _LINE
    for number in range(thread, len(chunk.location) * schedule.tiles, schedule.threads):
        sound, start = number // schedule.tiles, number % schedule.tiles * schedule.tile_rows
        rows = min(schedule.tile_rows, time - start)
        tile = Tile(sound, start, rows)
        for row in range(rows):
            for channel in range(sizes.condition_inputs):
                scratch.condition[row, channel] = chunk.condition[sound, start + row, channel]
        _locate_rows(sizes, scratch, tile)
        before = counters + (number - 1) % schedule.threads * counter_bytes
        for place in range(layers):
            wait_for(before, (number - 1) * layers + min(place + 2, layers))
            layer = packed.layers[place]
            if layer.first:
                _front(packed, chunk, scratch, tile, place)
            _layer(packed, chunk, scratch, tile, place)
            if layer.last:
                for member in range(sizes.bunch):
                    if sizes.bunch > 1:
                        _gates_of_bunch(packed, chunk, scratch, tile, layer.flow, member)
                    _head(packed, scratch, packed.flows[layer.flow], rows)
                    _compose(sizes, chunk, scratch, tile, layer.flow, member)
            publish(counters + thread * counter_bytes, number * layers + place + 1)


@dataclasses.dataclass
class FlowState:
    """State between chunks, for one use: what later samples need apart from noise and condition."""

    fronts: np.ndarray
    """Past inputs of each flow's first convolution, float32 [batch, flows, front_width]."""
    windows: np.ndarray
    """Inputs of every layer, float32 [batch, rows, channels]."""
    used: np.ndarray
    """Number of filled rows in each layer's window, int64 [batch, layers]."""
    used_up: bool = False

    @property
    def batch(self) -> int:
        """Number of sounds."""
        return len(self.fronts)

    def copy(self) -> "FlowState":
        """Return an independent copy; raise ValueError if this state has been used."""
        self.check_fresh()
        windows = aligned_zeros(self.windows.shape)
        windows[:] = self.windows
        return FlowState(self.fronts.copy(), windows, self.used.copy())

    def check_fresh(self) -> None:
        """Raise ValueError if the state has been used."""
        if self.used_up:
            raise ValueError("`state` must be the newest one or a copy() of it, got one used up.")


class FlowEngine:
    """A CPU engine for flows, whose weights it copies when it is created.

    Several threads may call `run` at the same time, each with its own state. The engine's worker
    threads are reused by later runs and end with the engine. `narrow` computes large products in
    bfloat16 with float32 sums, which is faster, gives different bits, and needs AVX512-BF16.
    """

    def __init__(self, flows: list[Flow], threads: int | None = None, narrow: bool = False) -> None:
        if not flows:
            raise ValueError("`flows` must be at least one, got none.")
        self.threads = cores(threads)
        if narrow and not flow_kernels.IS_AVAILABLE:
            raise ValueError("`narrow` needs a processor with bfloat16 instructions (AVX512-BF16).")
        self._narrow = narrow
        self._packed = pack(flows, narrow)
        self._idle: list[ThreadPoolExecutor] = []

    def initial_state(self, batch: int) -> FlowState:
        """Return the state of `batch` sounds before their first sample."""
        if batch < 1:
            raise ValueError(must_be("batch", "at least 1", batch))
        sizes, layers = self._packed.sizes, self._packed.layers
        channels = int(sizes["residual_vectors"]) * LANES
        return FlowState(
            fronts=np.zeros([batch, len(self._packed.flows), sizes["front_width"]], np.float32),
            windows=aligned_zeros([batch, int(layers["capacity"].sum()), channels]),
            used=np.repeat(layers["past"][None], batch, 0),
        )

    def run(
        self,
        state: FlowState,
        noise: np.ndarray,
        condition: np.ndarray | None = None,
        held: np.ndarray | None = None,
    ) -> tuple[FlowOutput, FlowState]:
        """Return the flows' output for the next noise, float32 [batch, time], and the next state.

        `state` cannot be used again. Except in the last call, the time must be a multiple of
        `bunch_samples` and, if there are `held_inputs`, of `row_samples`.
        """
        state.check_fresh()
        noise = as_compiled(noise, np.float32)
        _check_shape("noise", noise, (state.batch, None))
        channels = int(self._packed.sizes["condition_inputs"])
        (batch, flows, front), time = state.fronts.shape, noise.shape[1]
        bunch = int(self._packed.sizes["bunch"])
        bunches = -(-time // bunch)
        given = self._as_float32_array("condition", condition, state.batch, bunches, channels)
        rows = -(-time // int(self._packed.sizes["row_samples"]))
        held_inputs = int(self._packed.sizes["held_inputs"])
        held = self._as_float32_array("held", held, state.batch, rows, held_inputs)
        state.used_up = True
        held = np.pad(held, [(0, 0), (0, ROWS), (0, 0)])
        noises = np.zeros([batch, flows + 1, front + (bunches + ROWS) * bunch], np.float32)
        noises[:, :-1, :front], noises[:, 0, front : front + time] = state.fronts, noise
        location, log_scale = np.zeros([2, batch, bunches * bunch], np.float32)
        chunk = Chunk(noises, given, held, location, log_scale, state.windows, state.used)
        schedule = _schedule(len(chunk.location), bunches, self.threads)
        # The threads of a run wait for each other, so two runs must not share a pool.
        workers = self._idle.pop() if self._idle else ThreadPoolExecutor(self.threads)
        futures = [
            workers.submit(run_tiles, self._packed, chunk, schedule, self._scratch(), thread)
            for thread in range(schedule.threads)
        ]
        for future in futures:
            future.result()
        self._idle.append(workers)
        fronts = chunk.noises[:, :-1, time : time + front].copy()
        output = np.ascontiguousarray(chunk.noises[:, -1, front : front + time])
        flowed = FlowOutput(output, chunk.location[:, :time], chunk.log_scale[:, :time])
        return flowed, FlowState(fronts, state.windows, state.used)

    def _as_float32_array(self, name: str, array: np.ndarray | None, *shape: int) -> np.ndarray:
        if array is None:
            array = np.zeros([*shape[:-1], 0])
        array = as_compiled(array, np.float32)
        _check_shape(name, array, shape)
        return array

    def _scratch(self) -> Scratch:
        sizes = self._packed.sizes
        channels = int(sizes["residual_vectors"]) * LANES
        gates = int(sizes["gate_vectors"]) * LANES
        units = max(channels, gates)
        words = (channels + gates) * int(sizes["width"]) + int(sizes["condition_inputs"]) + RECENT
        rows = TILE_ROWS * int(sizes["bunch"]) // int(sizes["row_samples"]) + 1 + ROWS
        return Scratch(
            condition=aligned_zeros([TILE_ROWS, int(sizes["condition_inputs"])]),
            held=aligned_zeros([rows if sizes["held_inputs"] else 0, 2 * gates]),
            units=aligned_zeros([ROWS, units]),
            hidden=aligned_zeros([TILE_ROWS, channels]),
            layered=aligned_zeros([TILE_ROWS, channels]),
            outputs=aligned_zeros([TILE_ROWS, LANES]),
            scales=aligned_zeros([-(-TILE_ROWS // LANES) * LANES]),
            zeros=aligned_zeros([max(channels, 2 * gates)]),
            offsets=np.zeros([2, TILE_ROWS], np.int64),
            pairs=aligned_zeros([ROWS * words]) if self._narrow else None,
        )


def compile_kernels() -> None:
    """Compile the kernels, the same for every student, for this process and its later forks."""
    none = np.zeros([1, 1, 0], np.float32)
    flows, layers = np.zeros(0, FLOW), np.zeros(0, LAYER)
    packed = PackedFlows(aligned_zeros([0]), np.ones(1, SIZES)[0], flows, layers)
    chunk = Chunk(none, none, none, none[0], none[0], none, np.zeros([0, 0], np.int64))
    rows, row, offsets = none[0], none[0, 0], np.zeros([2, 0], np.int64)
    scratch = Scratch(rows, rows, rows, rows, rows, rows, row, row, offsets, None)
    run_tiles(packed, chunk, TileSchedule(ROWS, 0, 1, np.zeros([1, _LINE], np.int64)), scratch, 0)
    flow_kernels.wave(rows, Prediction(none, rows), rows, 1)
    noise_words(0, (), 0, 0)
    flow_kernels.solve_rows(np.ones([1, 2]))


def _check_shape(name: str, array: np.ndarray, expected: tuple[int | None, ...]) -> None:
    """Raise a ValueError unless an array has the expected shape; None matches any size."""
    fits = array.ndim == len(expected) and all(
        want in (None, size) for size, want in zip(array.shape, expected, strict=False)
    )
    if not fits:
        wanted = ", ".join("time" if size is None else str(size) for size in expected)
        raise ValueError(f"`{name}` must be [{wanted}], got {list(array.shape)}.")


def _schedule(sounds: int, bunches: int, threads: int) -> TileSchedule:
    tiles = -(-bunches // TILE_ROWS)
    if sounds % threads:
        tiles = -(-tiles // threads) * threads
    rows = max(1, -(-bunches // max(1, tiles)))
    rows = -(-rows // ROWS) * ROWS
    tiles = -(-bunches // rows)
    threads = max(1, min(threads, sounds * tiles))
    return TileSchedule(rows, tiles, threads, np.zeros([threads, _LINE], np.int64))


_LANE, _PARITY = np.uint32(FOLD_LANE), np.uint32(KEY_PARITY)
_ROTATIONS = np.array([[13, 15, 26, 6], [17, 29, 16, 24]], np.uint32)


def noise_words(seed: int, rows: Sequence[int] | np.ndarray, start: int, length: int) -> np.ndarray:
    """Return two random words per row index of the seed and position, uint32 [rows, length, 2].

    They are the integers of `onepass.likelihoods.noise.bits`, in a fifth of the time.
    """
    if not 0 <= seed < 2**64:
        raise ValueError(must_be("seed", "in [0, 2^64)", seed))
    key = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
    made = np.empty([len(rows), length, 2], np.uint32)
    _fill(key, np.array(rows, np.uint32), np.uint32(start), made)
    return made


@entry
def _fill(key: np.ndarray, rows: np.ndarray, start: np.uint32, made: np.ndarray) -> None:
    for row in range(len(rows)):
        first, second = _cipher(key[0], key[1], rows[row], _LANE)
        for i in range(made.shape[1]):
            pair = _cipher(first, second, start + np.uint32(i), np.uint32(0))
            made[row, i, 0], made[row, i, 1] = pair


@compiled
def _cipher(
    key0: np.uint32, key1: np.uint32, left: np.uint32, right: np.uint32
) -> tuple[np.uint32, np.uint32]:
    keys = (key0, key1, np.uint32(key0 ^ key1 ^ _PARITY))
    left, right = np.uint32(left + key0), np.uint32(right + key1)
    for group in range(5):
        for i in range(4):
            count = _ROTATIONS[group % 2, i]
            left = np.uint32(left + right)
            right = np.uint32((right << count | right >> np.uint32(32 - count)) ^ left)
        left = np.uint32(left + keys[(group + 1) % 3])
        right = np.uint32(right + keys[(group + 2) % 3] + np.uint32(group + 1))
    return left, right
