"""Compiled loops over sounds, tiles of time and layers of the flows.

A tile is a stretch of time that passes through all layers before the next tile of its thread.
Threads take turns at the tiles, each two layers behind the thread before it: a layer's inputs are
then written and read by one thread at a time, and a thread waits only for the one before it.

Each layer's inputs are in a window of rows, the past before the present, so that a tap is read at a
fixed offset; when a window is full, the past that is still needed moves to its beginning. A tile
whose rows are not whole groups writes rows beyond its end, which the next tile overwrites.
"""

from typing import Any, NamedTuple

import numpy as np

from autoregressive.machine.kernels import (
    FLOAT_BYTES,
    LANES,
    VECTOR_BYTES,
    compiled,
    copy,
    entry,
    exponential,
)
from autoregressive.machine.waiting import publish, wait_for
from distill.config import RECENT
from distill.cpu.kernels import ROWS, gate_rows, product_rows
from distill.cpu.weights import PackedFlows

_FLOOR = -np.inf  # under a product that is not rectified
OFFSET_BYTES = 8
_LINE = 16  # int64 numbers in two cache lines, which processors fetch together


class Chunk(NamedTuple):
    """The arrays of a chunk of time, which are read and filled for each sound."""

    noises: np.ndarray
    """float32 [sounds, flows + 1, front_width + time + ROWS bunches]: the past and then the noise
    of each flow; the next flow's is filled, and finally the output."""
    condition: np.ndarray
    """float32 [sounds, bunches, channels]."""
    held: np.ndarray
    """float32 [sounds, rows + ROWS, channels]: the condition that is constant for a row."""
    location: np.ndarray
    """float32 [sounds, time], zeros: the location of all flows, filled; whole bunches."""
    log_scale: np.ndarray
    """float32 [sounds, time], zeros: the log-scale of all flows, filled; whole bunches."""
    windows: np.ndarray
    """float32 [sounds, rows of all windows, channels and padding]."""
    used: np.ndarray
    """Rows of each window that are filled, int64 [sounds, layers]."""


class TileSchedule(NamedTuple):
    """The distribution of tiles over threads."""

    tile_rows: int
    """Number of bunches per tile."""
    tiles: int
    """Number of tiles per sound."""
    threads: int
    progress: np.ndarray
    """Layers that each thread has finished, over all tiles: int64 [threads, _LINE]."""


class Tile(NamedTuple):
    """A stretch of time of one sound."""

    sound: int
    start: int
    """First bunch."""
    rows: int
    """Bunches."""


class Scratch(NamedTuple):
    """A thread's own memory, float32."""

    condition: np.ndarray
    held: np.ndarray
    """[rows, 2 gate channels]: what each row's condition and the bias add to a layer's gates."""
    units: np.ndarray
    hidden: np.ndarray
    layered: np.ndarray
    """The layers' input to the gates of a bunch's samples, after the last layer of a flow."""
    outputs: np.ndarray
    """[rows, LANES]: location and log-scale."""
    scales: np.ndarray
    zeros: np.ndarray
    offsets: np.ndarray
    """int64 [2, rows]: zeros, and each bunch's row of `held`, in bytes."""
    pairs: np.ndarray | None
    """The inputs of `ROWS` rows as bfloat16 pairs; None: float32 products, compiled apart."""


def new_progress(threads: int) -> np.ndarray:
    """Return progress counters for threads that have not started."""
    return np.zeros([threads, _LINE], np.int64)


@compiled
def _address(array: np.ndarray) -> int:
    return array.ctypes.data


@compiled
def _bunch_words(channels: int, pairs: np.ndarray | None) -> int:
    """Return the number of weights' rows of a sample of a bunch, in words."""
    return RECENT + channels if pairs is None else (RECENT + 1) // 2 + channels // 2


@compiled
def _reserve_rows(packed: PackedFlows, chunk: Chunk, tile: Tile, place: int) -> int:
    """Return the address of the rows of a window that a tile fills, and mark them as filled."""
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
    """Fill in the offsets of a tile's bunches."""
    first, gate_bytes = _row_of(sizes, tile.start), 2 * sizes.gate_vectors * VECTOR_BYTES
    for row in range(-(-tile.rows // ROWS) * ROWS):
        last = min(row, tile.rows - 1)
        scratch.offsets[1, row] = (_row_of(sizes, tile.start + last) - first) * gate_bytes


@compiled
def _hold(packed: PackedFlows, chunk: Chunk, scratch: Scratch, tile: Tile, place: int) -> int:
    """Compute what each row adds to the gates of a layer, and return the address of the first."""
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
    """Compute the next layer's input or, after the last layer, `hidden`, rectified."""
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
    """Compute `hidden` of one sample of every bunch, from `layered` and the newest noise."""
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
    """Compute a flow's output, and the location and log-scale of all flows so far."""
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
    """Compute every tile of this thread; the other threads must run at the same time.

    Args:
      packed: the weights.
      chunk: the sounds' arrays, which are read and filled.
      schedule: the distribution of tiles over threads, and their progress.
      scratch: this thread's own memory.
      thread: index of this thread.
    """
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
