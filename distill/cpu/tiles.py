"""Compiled loops over sounds, tiles of time and the layers of the flows.

A tile is an interval of time that a thread computes through all layers before it starts its next
tile. Threads take the tiles in turn, each two layers behind the thread of the preceding tile: every
layer's inputs are then used by one thread at a time, and a thread waits for only one other.

Each layer's inputs are in a window of rows, the past before the present, so a tap is read at a
fixed offset; when a window is full, the past that is still needed moves to its beginning. If the
number of a tile's rows is not a multiple of `ROWS`, rows are also written beyond its end, which the
next tile overwrites.
"""

from typing import Any, NamedTuple

import numpy as np

from distill.config import RECENT
from distill.cpu.kernels import ROWS, gate_rows, product_rows
from distill.cpu.weights import PackedFlows
from onepass.machine.kernels import (
    FLOAT_BYTES,
    LANES,
    VECTOR_BYTES,
    compiled,
    copy,
    entry,
    exponential,
    publish,
    wait_for,
)

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


def new_progress(threads: int) -> np.ndarray:
    """Return the progress counters of threads that have not started."""
    return np.zeros([threads, _LINE], np.int64)


@compiled
def _address(array: np.ndarray) -> int:
    return array.ctypes.data


@compiled
def _bunch_words(channels: int, pairs: np.ndarray | None) -> int:
    return RECENT + channels if pairs is None else (RECENT + 1) // 2 + channels // 2


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
    inputs = _bunch_words(channels, pairs)
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
    exponential(_address(scratch.scales), -(-tile.rows // LANES))
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
