"""Numba code for the parts of a vocoder before and after its layers; a step draws one bunch.

Samples, residuals and samples divided by the level are stored in long rows, so that the past that a
step reads is contiguous. When a row is full, its newest part is moved to the beginning.
"""

from typing import NamedTuple

import numpy as np

from onepass.machine.kernels import (
    aligned_zeros,
    clear,
    compiled,
    copy,
    entry,
    gate,
    multiply,
    rectify,
)
from wavenet.samplers.numba.draw import draw, value_of
from wavenet.samplers.numba.layers import Chunk, begin, input_slot, run_layers
from wavenet.samplers.numba.state import Buffers, Program
from wavenet.samplers.numba.weights import PackedWeights, pack_vocoder
from wavenet.vocoder import AHEAD, VocoderWaveNet

ROOM = 1024  # samples until a row is full; a multiple of every bunch size
WAVE, RESIDUAL, SCALED = range(3)  # index into the first axis of the history
# Channels of `described`, followed by the prediction coefficients a_1, a_2, ...
GAIN, INVERSE_GAIN, INVERSE_LEVEL, LOG_GAIN, PERIOD, COEFFICIENTS = range(6)


class BunchArrays(NamedTuple):
    """The arrays that a step accesses as NumPy arrays, not by address."""

    history: np.ndarray
    """Past samples, residuals and scaled samples, float32 [3, rows, history_samples + ROOM]."""
    inputs: np.ndarray
    """Inputs of front or head, float32 [rows, the larger number of inputs]."""
    outputs: np.ndarray
    """Outputs of the network, float32 [rows, padded outputs]."""
    chances: np.ndarray
    """Workspace for a softmax, float32 [padded outputs]."""
    dilations: np.ndarray
    ring_starts: np.ndarray


@compiled
def _make_room(plan: np.record, history: np.ndarray, sample: int) -> None:
    if sample and sample % ROOM == 0:
        for kind in range(3):
            for row in range(plan.rows):
                for past in range(plan.history_samples):
                    history[kind, row, past] = history[kind, row, ROOM + past]


@compiled
def _read_past(
    plan: np.record, arrays: BunchArrays, chunk: Chunk, step: int, place: int, width: int
) -> None:
    inputs, history = arrays.inputs, arrays.history
    for row in range(plan.rows):
        for j in range(width):
            inputs[row, j] = history[RESIDUAL, row, place - width + j]
            inputs[row, width + j] = history[SCALED, row, place - width + j]
        if plan.pitch_taps:
            period = int(chunk.described[row, step, PERIOD])
            first = place - period + AHEAD + 1 - plan.pitch_taps
            for j in range(plan.pitch_taps):
                inputs[row, 2 * width + j] = history[RESIDUAL, row, first + j]


@compiled
def front(plan: np.record, arrays: BunchArrays, chunk: Chunk, step: int, place: int) -> None:
    """Compute the first layer's input for the bunch whose first sample is at `place`."""
    output = input_slot(plan, arrays, chunk.start + step)
    for row in range(plan.rows):
        copy(output + row * plan.residual_bytes, plan.front_bias, plan.residual_vectors)
    _read_past(plan, arrays, chunk, step, place, plan.front_width)
    multiply(
        output, plan.residual_bytes,
        plan.front,
        plan.inputs, plan.input_bytes,
        plan.rows, 2 * plan.front_width + plan.pitch_taps, plan.residual_vectors,
    )  # fmt: skip


@compiled
def give(plan: np.record) -> None:
    """Compute the layers' contribution to the head for the whole bunch, from the sum of skips."""
    vectors = plan.bunch * 2 * plan.unit_vectors
    rectify(plan.skips, plan.rows * plan.skip_vectors)
    clear(plan.gates, plan.rows * vectors)
    multiply(
        plan.gates, plan.bunch * 2 * plan.unit_bytes,
        plan.given,
        plan.skips, plan.skip_bytes,
        plan.rows, plan.skip_inputs, vectors,
    )  # fmt: skip


@compiled
def head(plan: np.record, index: int) -> None:
    """Compute the raw outputs of sample `index` of the bunch, from `inputs` and the layers."""
    gate_bytes = 2 * plan.unit_bytes
    stride, gates = plan.bunch * gate_bytes, plan.gates + index * gate_bytes
    multiply(
        gates, stride,
        plan.recent,
        plan.inputs, plan.input_bytes,
        plan.rows, 2 * plan.head_width + plan.pitch_taps, 2 * plan.unit_vectors,
    )  # fmt: skip
    bias = plan.given_bias + index * gate_bytes
    for row in range(plan.rows):
        gate(plan.head_units + row * plan.unit_bytes, gates + row * stride, bias, plan.unit_vectors)
        copy(plan.hidden + row * plan.unit_bytes, plan.head1_bias, plan.unit_vectors)
        copy(plan.outputs + row * plan.output_bytes, plan.head2_bias, plan.output_vectors)
    multiply(
        plan.hidden, plan.unit_bytes,
        plan.head1,
        plan.head_units, plan.unit_bytes,
        plan.rows, plan.unit_inputs, plan.unit_vectors,
    )  # fmt: skip
    rectify(plan.hidden, plan.rows * plan.unit_vectors)
    multiply(
        plan.outputs, plan.output_bytes,
        plan.head2,
        plan.hidden, plan.unit_bytes,
        plan.rows, plan.unit_inputs, plan.output_vectors,
    )  # fmt: skip


@compiled
def _predict_sample(
    plan: np.record, past: np.ndarray, described: np.ndarray, place: int
) -> np.float32:
    total = np.float32(0.0)
    for k in range(plan.prediction_order):
        total += described[COEFFICIENTS + k] * past[place - 1 - k]
    return total


@compiled
def finish(
    plan: np.record, arrays: BunchArrays, chunk: Chunk, step: int, index: int, place: int
) -> None:
    """Convert one sample's parameters to units of the waveform, and append a level to the past."""
    count, history = plan.components, arrays.history
    time = step * plan.bunch + index
    for row in range(plan.rows):
        described, outputs = chunk.described[row, step], arrays.outputs[row]
        predicted = _predict_sample(plan, history[WAVE, row], described, place)
        for k in range(count):
            outputs[count + k] = predicted + described[GAIN] * outputs[count + k]
            outputs[2 * count + k] += described[LOG_GAIN]
        for output in range(plan.num_parameters):
            chunk.parameters[row, time, output] = outputs[output]
        if not chunk.given:
            chunk.levels[row, time] = draw(
                plan, arrays.outputs, row, arrays.chances, chunk.noise, time, chunk.temperature
            )
        value = value_of(chunk.levels[row, time], plan.levels)
        history[WAVE, row, place] = value
        history[RESIDUAL, row, place] = (value - predicted) * described[INVERSE_GAIN]
        history[SCALED, row, place] = value * described[INVERSE_LEVEL]


@entry
def run_bunches(plan: np.record, arrays: BunchArrays, chunk: Chunk, alone: bool) -> None:
    """Run a chunk's steps, one bunch of samples each.

    With `alone`, this thread runs the asides as well. Otherwise another thread must run `run_aside`
    concurrently with the same arguments, and both counters must be zero at the start.
    """
    steps = chunk.levels.shape[1] // plan.bunch
    begin(plan, chunk, steps)
    for step in range(steps):
        sample = (chunk.start + step) * plan.bunch
        _make_room(plan, arrays.history, sample)
        place = plan.history_samples + sample % ROOM
        front(plan, arrays, chunk, step, place)
        run_layers(plan, arrays, chunk, step, steps, alone)
        give(plan)
        for index in range(plan.bunch):
            _read_past(plan, arrays, chunk, step, place + index, plan.head_width)
            head(plan, index)
            finish(plan, arrays, chunk, step, index, place + index)


def describe_steps(network: VocoderWaveNet, condition: np.ndarray) -> np.ndarray:
    """Return prediction, level and pitch of steps, float32 [batch, steps, GAIN to COEFFICIENTS]."""
    order, local = network.config.prediction_order, network.gate_channels
    coefficients = condition[..., local : local + order]
    log_gain, log_level, period = np.moveaxis(condition[..., local + order :], -1, 0)
    channels = np.zeros([*condition.shape[:2], COEFFICIENTS + order], np.float32)
    channels[..., GAIN], channels[..., INVERSE_GAIN] = np.exp(log_gain), np.exp(-log_gain)
    channels[..., INVERSE_LEVEL], channels[..., LOG_GAIN] = np.exp(-log_level), log_gain
    if network.config.pitch_taps:
        channels[..., PERIOD] = network.whole_period(period)
    channels[..., COEFFICIENTS:] = coefficients
    return channels


def program_of(network: VocoderWaveNet) -> Program:
    """Return the program of a `VocoderWaveNet`, with a copy of its current weights."""
    return Program(pack_vocoder(network), run_bunches, _buffers, _arrays)


def _buffers(plan: np.void) -> Buffers:
    rows, unit = int(plan["rows"]), int(plan["unit_bytes"]) // 4
    shapes = {
        "history": [3, rows, int(plan["history_samples"]) + ROOM],
        "inputs": [rows, int(plan["input_bytes"]) // 4],
        "gates": [rows, int(plan["bunch"]), 2 * unit],
        "head_units": [rows, unit],
        "hidden": [rows, unit],
    }
    return {name: aligned_zeros(shape) for name, shape in shapes.items()}


def _arrays(weights: PackedWeights, buffers: Buffers) -> BunchArrays:
    own = {name: buffers[name] for name in ("history", "inputs", "outputs", "chances")}
    return BunchArrays(**own, **weights.rings)
