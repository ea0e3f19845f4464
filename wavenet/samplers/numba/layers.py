"""Numba code for one step of the residual layers, and for the work that is done ahead of it.

Layer i stores its past inputs in a ring buffer. The contribution of past inputs to a gate does not
depend on the current sample, so it is computed in advance for up to `BLOCK` steps, which reads the
weights only once. Layers start their blocks at different steps to spread this work.

A step has two parts. The lead is the critical path: gates, units, residuals, and finally the head
and the draw. The aside of each layer adds the units to the sum of skips and prepares the gates of
later steps; a second thread can run it concurrently.

A step generates one sample, or one bunch of samples. The parts before and after the layers are in
samples.py and bunches.py.
"""

from typing import Any, NamedTuple

import numpy as np

from onepass.machine.kernels import (
    add_halved_power,
    clear,
    compiled,
    copy,
    entry,
    gate,
    multiply,
    publish,
    wait_for,
)

BLOCK = 8  # maximum number of steps for which the past is added at once


class Chunk(NamedTuple):
    """A range of steps to run, for one group of batch rows."""

    start: int
    """Number of steps before the chunk."""
    condition: int
    """Address of the condition that the gates read, float32 [steps, rows, channels]."""
    described: np.ndarray
    """Result of `bunches.described`, float32 [rows, steps, ...]; no channels in a `WaveNet`."""
    noise: np.ndarray
    """Noise of the samples, float32 [rows, time, noise_channels]."""
    temperature: np.float32
    levels: np.ndarray
    """Levels to write, or to read if `given`, int32 [rows, time]."""
    given: bool
    parameters: np.ndarray
    """Parameters to write, float32 [rows, time, num_parameters]."""


@compiled
def _clock(time: int, layer: int) -> int:
    """Return the layer's clock at a step; blocks start at multiples of their length."""
    # The shift makes the blocks of different layers start at different steps.
    return time + layer % BLOCK


@compiled
def _ring_slot(plan: np.record, ring: int, span: int, clock: int) -> int:
    """Return the address of a layer's inputs [rows, residual] at `clock`."""
    slot = clock % span
    return plan.rings + (ring + slot) * plan.rows * plan.residual_bytes


@compiled
def _gate_slot(plan: np.record, buffer: int, layer: int, clock: int) -> int:
    """Return the address of a layer's gates at `clock`, in a buffer [layers, BLOCK, rows, ...]."""
    return buffer + (layer * BLOCK + clock % BLOCK) * plan.rows * 2 * plan.gate_bytes


@compiled
def add_past(plan: np.record, dilation: int, ring: int, layer: int, time: int) -> None:
    """Add the contribution of inputs before `time` to the gates of blocks that start at `time`."""
    clock = _clock(time, layer)
    span = (plan.width - 1) * dilation
    tap_bytes = plan.residual_inputs * 2 * plan.gate_bytes
    for tap in range(plan.width - 1):  # the longest lag first, since it has the longest block
        lag = (plan.width - 1 - tap) * dilation
        block = min(lag & -lag, BLOCK)  # a power of two that divides the lag, so no block wraps
        if clock % block:
            continue
        sums = _gate_slot(plan, plan.sums, layer, clock)
        if tap == 0:
            clear(sums, block * plan.rows * 2 * plan.gate_vectors)
        weights = plan.past + (layer * (plan.width - 1) + tap) * tap_bytes
        inputs = _ring_slot(plan, ring, span, clock - lag)
        multiply(
            sums, 2 * plan.gate_bytes,
            weights,
            inputs, plan.residual_bytes,
            block * plan.rows, plan.residual_inputs, 2 * plan.gate_vectors,
        )  # fmt: skip


@compiled
def add_conditions(plan: np.record, layer: int, time: int, steps: int, condition: int) -> None:
    """Compute bias plus projected condition of the gates, from `time` to the end of the block.

    `condition` is the address of the condition starting at `time`, [steps, rows, channels].
    """
    clock = _clock(time, layer)
    rows = min(steps, BLOCK - clock % BLOCK) * plan.rows
    out = _gate_slot(plan, plan.conditions, layer, clock)
    gate_bytes = 2 * plan.gate_bytes
    for row in range(rows):
        copy(out + row * gate_bytes, plan.gate_bias + layer * gate_bytes, 2 * plan.gate_vectors)
    multiply(
        out, gate_bytes,
        plan.condition + layer * plan.condition_bytes,
        condition, 4 * plan.condition_inputs,
        rows, plan.condition_inputs, 2 * plan.gate_vectors,
    )  # fmt: skip


@compiled
def aside(
    plan: np.record,
    dilation: int,
    ring: int,
    layer: int,
    time: int,
    steps_left: int,
    condition: int,
) -> None:
    """Add a layer's units at `time` to the sum of skips, and prepare its gates for later steps."""
    if layer == 0:
        for row in range(plan.rows):
            copy(plan.skips + row * plan.skip_bytes, plan.skip_bias, plan.skip_vectors)
    units = plan.units + layer * plan.rows * plan.gate_bytes
    weights = plan.skip + layer * plan.gate_inputs * plan.skip_bytes
    multiply(
        plan.skips, plan.skip_bytes,
        weights,
        units, plan.gate_bytes,
        plan.rows, plan.gate_inputs, plan.skip_vectors,
    )  # fmt: skip
    add_past(plan, dilation, ring, layer, time + 1)
    if plan.condition_inputs and steps_left and _clock(time + 1, layer) % BLOCK == 0:
        add_conditions(plan, layer, time + 1, steps_left, condition)


@compiled
def lead(plan: np.record, dilations: np.ndarray, rings: np.ndarray, layer: int, time: int) -> None:
    """Compute one layer's units at `time`, and the input of the next layer."""
    clock = _clock(time, layer)
    inputs = _ring_slot(plan, rings[layer], (plan.width - 1) * dilations[layer], clock)
    sums = _gate_slot(plan, plan.sums, layer, clock)
    units = plan.units + layer * plan.rows * plan.gate_bytes
    gate_bytes = 2 * plan.gate_bytes
    weights = plan.present + layer * plan.present_bytes
    multiply(
        sums, gate_bytes,
        weights,
        inputs, plan.residual_bytes,
        plan.rows, plan.residual_inputs, 2 * plan.gate_vectors,
    )  # fmt: skip
    condition, condition_stride = plan.gate_bias + layer * gate_bytes, 0
    if plan.condition_inputs:
        condition, condition_stride = _gate_slot(plan, plan.conditions, layer, clock), gate_bytes
    for row in range(plan.rows):
        gate(
            units + row * plan.gate_bytes,
            sums + row * gate_bytes,
            condition + row * condition_stride,
            plan.gate_vectors,
        )
    if layer + 1 == plan.layers:
        return
    output = _ring_slot(
        plan, rings[layer + 1], (plan.width - 1) * dilations[layer + 1], _clock(time, layer + 1)
    )
    for row in range(plan.rows):
        add_halved_power(
            output + row * plan.residual_bytes,
            inputs + row * plan.residual_bytes,
            plan.residual_bias + layer * plan.residual_bytes,
            plan.residual_vectors,
        )
    multiply(
        output, plan.residual_bytes,
        weights + plan.residual_inputs * gate_bytes,
        units, plan.gate_bytes,
        plan.rows, plan.gate_inputs, plan.residual_vectors,
    )  # fmt: skip


@compiled
def _condition_at(plan: np.record, chunk: Chunk, step: int) -> int:
    return chunk.condition + 4 * step * plan.rows * plan.condition_inputs


@compiled
def begin(plan: np.record, chunk: Chunk, steps: int) -> None:
    """Compute the gates' condition for the first block of a chunk, in all layers."""
    if plan.condition_inputs:
        for layer in range(plan.layers):
            add_conditions(plan, layer, chunk.start, steps, chunk.condition)


@compiled
def input_slot(plan: np.record, arrays: Any, time: int) -> int:
    """Return the address of the first layer's input [rows, residual] at `time`."""
    span = (plan.width - 1) * arrays.dilations[0]
    return _ring_slot(plan, arrays.ring_starts[0], span, _clock(time, 0))


@compiled
def run_layers(
    plan: np.record, arrays: Any, chunk: Chunk, step: int, steps: int, alone: bool
) -> None:
    """Compute the sum of skips of one step, from the first layer's input in `input_slot`."""
    dilations, rings = arrays.dilations, arrays.ring_starts
    time, left = chunk.start + step, steps - step - 1
    condition = _condition_at(plan, chunk, step + 1)
    for layer in range(plan.layers):
        lead(plan, dilations, rings, layer, time)
        if alone:
            aside(plan, dilations[layer], rings[layer], layer, time, left, condition)
        else:
            publish(plan.lead_done, step * plan.layers + layer + 1)
    if not alone:
        wait_for(plan.aside_done, step + 1)


@entry
def run_aside(plan: np.record, arrays: Any, chunk: Chunk) -> None:
    """Run the asides of a chunk's steps, each after the lead has computed the layer's units."""
    steps = chunk.levels.shape[1] // plan.bunch
    for step in range(steps):
        time, left = chunk.start + step, steps - step - 1
        condition = _condition_at(plan, chunk, step + 1)
        for layer in range(plan.layers):
            dilation, ring = arrays.dilations[layer], arrays.ring_starts[layer]
            wait_for(plan.lead_done, step * plan.layers + layer + 1)
            aside(plan, dilation, ring, layer, time, left, condition)
        publish(plan.aside_done, step + 1)
