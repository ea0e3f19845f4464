"""Numba code for the parts of a `WaveNet` before and after its layers, one sample per step."""

import functools
from typing import NamedTuple

import numpy as np

from onepass.machine.kernels import add, aligned_zeros, compiled, copy, entry, multiply, rectify
from wavenet.network import WaveNet
from wavenet.samplers.numba.draw import add_prediction, draw, remember
from wavenet.samplers.numba.layers import Chunk, begin, input_slot, run_layers
from wavenet.samplers.numba.state import Buffers, Program
from wavenet.samplers.numba.weights import CATEGORICAL, PackedWeights, pack


class Arrays(NamedTuple):
    """The arrays that a step accesses as NumPy arrays, not by address."""

    history: np.ndarray
    """Past samples in [-1, 1], oldest first, float32 [rows, front_width]."""
    latest: np.ndarray
    """Latest level of each row, int32 [rows]; -1 before the first sample."""
    outputs: np.ndarray
    """Outputs of the network, float32 [rows, padded outputs]."""
    chances: np.ndarray
    """Workspace for a softmax, float32 [padded outputs]."""
    prediction: np.ndarray
    """Coefficients of the linear prediction, float32 [front_width], or empty."""
    dilations: np.ndarray
    ring_starts: np.ndarray


@compiled
def front(plan: np.record, arrays: Arrays, time: int) -> None:
    """Compute the first layer's input at `time`, from the past samples or the latest levels."""
    output, latest = input_slot(plan, arrays, time), arrays.latest
    for row in range(plan.rows):
        copy(output + row * plan.residual_bytes, plan.front_bias, plan.residual_vectors)
        if plan.likelihood == CATEGORICAL and latest[row] >= 0:
            add(
                output + row * plan.residual_bytes,
                plan.front + latest[row] * plan.residual_bytes,
                plan.residual_vectors,
            )
    if plan.likelihood != CATEGORICAL:
        multiply(
            output, plan.residual_bytes,
            plan.front,
            plan.history, 4 * plan.front_width,
            plan.rows, plan.front_width, plan.residual_vectors,
        )  # fmt: skip


@compiled
def head(plan: np.record) -> None:
    """Compute the network's outputs [rows, outputs] from the sum of skips."""
    rectify(plan.skips, plan.rows * plan.skip_vectors)
    for row in range(plan.rows):
        copy(plan.hidden + row * plan.skip_bytes, plan.head1_bias, plan.skip_vectors)
        copy(plan.outputs + row * plan.output_bytes, plan.head2_bias, plan.output_vectors)
    multiply(
        plan.hidden, plan.skip_bytes,
        plan.head1,
        plan.skips, plan.skip_bytes,
        plan.rows, plan.skip_inputs, plan.skip_vectors,
    )  # fmt: skip
    rectify(plan.hidden, plan.rows * plan.skip_vectors)
    multiply(
        plan.outputs, plan.output_bytes,
        plan.head2,
        plan.hidden, plan.skip_bytes,
        plan.rows, plan.skip_inputs, plan.output_vectors,
    )  # fmt: skip


@compiled
def finish(plan: np.record, arrays: Arrays, chunk: Chunk, step: int) -> None:
    """Compute a step's parameters from the sum of skips, and draw its levels unless given."""
    head(plan)
    if arrays.prediction.size:
        add_prediction(plan, arrays.outputs, arrays.history, arrays.prediction)
    for row in range(plan.rows):
        for output in range(plan.num_parameters):
            chunk.parameters[row, step, output] = arrays.outputs[row, output]
        if not chunk.given:
            chunk.levels[row, step] = draw(
                plan, arrays.outputs, row, arrays.chances, chunk.noise, step, chunk.temperature
            )
        remember(plan, arrays.history, arrays.latest, row, chunk.levels[row, step])


@entry
def run_samples(plan: np.record, arrays: Arrays, chunk: Chunk, alone: bool) -> None:
    """Run a chunk's steps, one sample each; `alone` is as in `bunches.run_bunches`."""
    steps = chunk.levels.shape[1]
    begin(plan, chunk, steps)
    for step in range(steps):
        front(plan, arrays, chunk.start + step)
        run_layers(plan, arrays, chunk, step, steps, alone)
        finish(plan, arrays, chunk, step)


def program_of(network: WaveNet) -> Program:
    """Return the program of a `WaveNet`, with a copy of its current weights."""
    kernel = network.prediction_kernel
    prediction = np.asarray([] if kernel is None else kernel).astype(np.float32)
    return Program(pack(network), run_samples, _buffers, functools.partial(_arrays, prediction))


def _buffers(plan: np.void) -> Buffers:
    rows = int(plan["rows"])
    latest = aligned_zeros([rows], np.int32)
    latest[:] = -1
    return {
        "hidden": aligned_zeros([rows, int(plan["skip_bytes"]) // 4]),
        "history": aligned_zeros([rows, int(plan["front_width"])]),
        "latest": latest,
    }


def _arrays(prediction: np.ndarray, weights: PackedWeights, buffers: Buffers) -> Arrays:
    own = {name: buffers[name] for name in ("history", "latest", "outputs", "chances")}
    return Arrays(**own, prediction=prediction, **weights.rings)
