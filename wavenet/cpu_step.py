"""One time step of a WaveNet, compiled: the layers with their queues, the head, and the draw.

Layer i keeps its past inputs in a ring. What the past adds to a gate does not wait for the present
sample, so it is added in advance, up to `BLOCK` steps at once: the weights are then read once for
all of them. Layers start their blocks at different steps, so that no step has all of that work.

The work of a step is in two parts. The lead runs the chain that every sample waits for: gate,
units, residual, and in the end the head and the draw. The aside, one per layer, adds the units to
the skip sum and prepares the gate sums of later steps; a second thread can do it meanwhile.
"""

import math

import numpy as np

from wavenet.kernels import (
    add,
    add_halved_power,
    clear,
    compiled,
    copy,
    gate,
    multiply,
    publish,
    rectify,
    wait_for,
)

BLOCK = 8  # most steps whose past is added at once
MIXTURE, GAUSSIAN, CATEGORICAL = range(3)


PLAN = np.dtype(
    [
        (name, np.int64)
        for name in (
            # sizes: true channels are `*_inputs`, padded ones come in vectors and bytes
            "rows",
            "layers",
            "width",
            "front_width",
            "condition_inputs",
            "residual_inputs",
            "residual_vectors",
            "residual_bytes",
            "gate_inputs",
            "gate_vectors",
            "gate_bytes",
            "skip_inputs",
            "skip_vectors",
            "skip_bytes",
            "output_vectors",
            "output_bytes",
            # addresses of weights, and the bytes of one layer's where they need telling
            "front",
            "front_bias",
            "past",
            "present",
            "present_bytes",
            "gate_bias",
            "condition",
            "condition_bytes",
            "residual_bias",
            "skip",
            "skip_bias",
            "head1",
            "head1_bias",
            "head2",
            "head2_bias",
            # addresses of the buffers of one group of rows
            "rings",
            "sums",
            "conditions",
            "units",
            "skips",
            "hidden",
            "outputs",
            "history",
            "lead_done",
            "aside_done",
            # what the outputs mean
            "likelihood",
            "levels",
            "components",
            "num_parameters",
        )
    ]
)
"""Everything a step must know, as one record of integers; it holds for one group of rows."""


@compiled
def _clock(time, layer):
    """The step in the layer's own count; a block starts at its multiples."""
    return time + layer % BLOCK


@compiled
def _ring_slot(plan, ring, span, clock):
    """The address of the inputs [rows, residual] of the step `clock`."""
    slot = clock % span
    return plan.rings + (ring + slot) * plan.rows * plan.residual_bytes


@compiled
def _gate_slot(plan, buffer, layer, clock):
    """The address of [rows, 2 gate] in a buffer [layers, BLOCK, rows, 2 gate]."""
    return buffer + (layer * BLOCK + clock % BLOCK) * plan.rows * 2 * plan.gate_bytes


@compiled
def add_past(plan, dilation, ring, layer, time):
    """Adds what the inputs before `time` give to the gate sums of `time` and the steps after it."""
    clock = _clock(time, layer)
    span = (plan.width - 1) * dilation
    tap_bytes = plan.residual_inputs * 2 * plan.gate_bytes
    for tap in range(plan.width - 1):  # the longest lag first: its block is the longest too
        lag = (plan.width - 1 - tap) * dilation
        block = min(lag & -lag, BLOCK)  # a power of two that divides the lag: no block wraps
        if clock % block:
            continue
        sums = _gate_slot(plan, plan.sums, layer, clock)
        if tap == 0:
            clear(sums, block * plan.rows * 2 * plan.gate_vectors)
        weights = plan.past + (layer * (plan.width - 1) + tap) * tap_bytes
        inputs = _ring_slot(plan, ring, span, clock - lag)
        multiply(
            sums,
            2 * plan.gate_bytes,
            weights,
            inputs,
            plan.residual_bytes,
            block * plan.rows,
            plan.residual_inputs,
            2 * plan.gate_vectors,
        )


@compiled
def add_conditions(plan, layer, time, steps, condition):
    """What the condition [steps, rows, channels] gives to the gates from `time` on, and the bias.

    Stops at the end of the block.
    """
    clock = _clock(time, layer)
    rows = min(steps, BLOCK - clock % BLOCK) * plan.rows
    out = _gate_slot(plan, plan.conditions, layer, clock)
    gate_bytes = 2 * plan.gate_bytes
    for row in range(rows):
        copy(out + row * gate_bytes, plan.gate_bias + layer * gate_bytes, 2 * plan.gate_vectors)
    multiply(
        out,
        gate_bytes,
        plan.condition + layer * plan.condition_bytes,
        condition,
        4 * plan.condition_inputs,
        rows,
        plan.condition_inputs,
        2 * plan.gate_vectors,
    )


@compiled
def aside(plan, dilation, ring, layer, time, steps_left, condition):
    """The skips of one layer at `time`, and its gate sums for the steps to come."""
    if layer == 0:
        for row in range(plan.rows):
            copy(plan.skips + row * plan.skip_bytes, plan.skip_bias, plan.skip_vectors)
    units = plan.units + layer * plan.rows * plan.gate_bytes
    weights = plan.skip + layer * plan.gate_inputs * plan.skip_bytes
    multiply(
        plan.skips,
        plan.skip_bytes,
        weights,
        units,
        plan.gate_bytes,
        plan.rows,
        plan.gate_inputs,
        plan.skip_vectors,
    )
    add_past(plan, dilation, ring, layer, time + 1)
    if plan.condition_inputs and steps_left and _clock(time + 1, layer) % BLOCK == 0:
        add_conditions(plan, layer, time + 1, steps_left, condition)


@compiled
def lead(plan, dilations, rings, layer, time):
    """The units of one layer at `time`, and the next layer's input."""
    clock = _clock(time, layer)
    inputs = _ring_slot(plan, rings[layer], (plan.width - 1) * dilations[layer], clock)
    sums = _gate_slot(plan, plan.sums, layer, clock)
    units = plan.units + layer * plan.rows * plan.gate_bytes
    gate_bytes = 2 * plan.gate_bytes
    weights = plan.present + layer * plan.present_bytes
    multiply(
        sums,
        gate_bytes,
        weights,
        inputs,
        plan.residual_bytes,
        plan.rows,
        plan.residual_inputs,
        2 * plan.gate_vectors,
    )
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
        output,
        plan.residual_bytes,
        weights + plan.residual_inputs * gate_bytes,
        units,
        plan.gate_bytes,
        plan.rows,
        plan.gate_inputs,
        plan.residual_vectors,
    )


@compiled
def front(plan, ring, span, time, latest):
    """The first layer's input at `time`, from the past samples or the latest levels [rows]."""
    output = _ring_slot(plan, ring, span, _clock(time, 0))
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
            output,
            plan.residual_bytes,
            plan.front,
            plan.history,
            4 * plan.front_width,
            plan.rows,
            plan.front_width,
            plan.residual_vectors,
        )


@compiled
def head(plan):
    """The network's outputs [rows, outputs] from the finished sum of skips."""
    rectify(plan.skips, plan.rows * plan.skip_vectors)
    for row in range(plan.rows):
        copy(plan.hidden + row * plan.skip_bytes, plan.head1_bias, plan.skip_vectors)
        copy(plan.outputs + row * plan.output_bytes, plan.head2_bias, plan.output_vectors)
    multiply(
        plan.hidden,
        plan.skip_bytes,
        plan.head1,
        plan.skips,
        plan.skip_bytes,
        plan.rows,
        plan.skip_inputs,
        plan.skip_vectors,
    )
    rectify(plan.hidden, plan.rows * plan.skip_vectors)
    multiply(
        plan.outputs,
        plan.output_bytes,
        plan.head2,
        plan.hidden,
        plan.skip_bytes,
        plan.rows,
        plan.skip_inputs,
        plan.output_vectors,
    )


@compiled
def add_prediction(plan, outputs, history, prediction):
    """Adds the linear prediction from the past samples [rows, front] to the means."""
    first, count = (plan.components, plan.components) if plan.likelihood == MIXTURE else (0, 1)
    for row in range(plan.rows):
        total = np.float32(0.0)
        for past in range(plan.front_width):
            total += history[row, past] * prediction[past]
        for mean in range(first, first + count):
            outputs[row, mean] += total


@compiled
def choose(logits, row, count, uniform, temperature):
    """The smallest k with `uniform < cumsum(softmax(logits / temperature))[k]`; spoils the row."""
    largest = logits[row, 0]
    for k in range(1, count):
        largest = max(largest, logits[row, k])
    inverse = np.float32(1.0) / max(temperature, np.float32(1e-6))
    total = np.float32(0.0)
    for k in range(count):
        logits[row, k] = math.exp((logits[row, k] - largest) * inverse)
        total += logits[row, k]
    cumulative = np.float32(0.0)
    for k in range(count - 1):
        cumulative += logits[row, k] / total
        if uniform < cumulative:
            return k
    return count - 1


@compiled
def nearest(value, levels):
    """The level whose bin holds `value`; level 0 for a NaN."""
    position = np.rint((value + np.float32(1.0)) * np.float32(0.5 * (levels - 1)))
    if not position > 0:
        return 0
    return int(min(position, np.float32(levels - 1)))


@compiled
def draw(plan, outputs, row, noise, step, temperature, min_log_scale):
    """The level drawn from one row of outputs [rows, outputs] and noise [rows, time, channels]."""
    first = noise[row, step, 0]
    if plan.likelihood == CATEGORICAL:
        return choose(outputs, row, plan.levels, first, temperature)
    if plan.likelihood == GAUSSIAN:
        mean, log_scale, standard = outputs[row, 0], outputs[row, 1], first
    else:
        k = choose(outputs, row, plan.components, first, temperature)
        mean = outputs[row, plan.components + k]
        log_scale, standard = outputs[row, 2 * plan.components + k], noise[row, step, 1]
    spread = math.exp(max(log_scale, min_log_scale)) * temperature
    return nearest(mean + spread * standard, plan.levels)


@compiled
def remember(plan, history, latest, row, level):
    """Makes `level` the newest past sample of a row."""
    latest[row] = level
    for past in range(plan.front_width - 1):
        history[row, past] = history[row, past + 1]
    centred = np.float32(2.0) * np.float32(level) - np.float32(plan.levels - 1.0)
    history[row, plan.front_width - 1] = centred * np.float32(1.0 / (plan.levels - 1))


@compiled
def run_lead(
    plan,
    dilations,
    rings,
    start,
    condition,
    arrays,
    noise,
    temperature,
    min_log_scale,
    forced,
    levels,
    parameters,
    alone,
):
    """Fills levels [rows, time], and parameters [rows, time, outputs] if they have any time.

    Draws each level from its noise [rows, time, channels], unless `forced` [rows, time] has any
    time: then it takes them from there. `alone` also does the asides; otherwise another thread
    must be in `run_aside` at the same time, with the same arguments.
    """
    history, latest, outputs, prediction = arrays
    steps = levels.shape[1]
    if plan.condition_inputs:
        for layer in range(plan.layers):
            add_conditions(plan, layer, start, steps, _condition_at(plan, condition, 0))
    for step in range(steps):
        front(plan, rings[0], (plan.width - 1) * dilations[0], start + step, latest)
        for layer in range(plan.layers):
            lead(plan, dilations, rings, layer, start + step)
            if alone:
                aside(
                    plan,
                    dilations[layer],
                    rings[layer],
                    layer,
                    start + step,
                    steps - step - 1,
                    _condition_at(plan, condition, step + 1),
                )
            else:
                publish(plan.lead_done, step * plan.layers + layer + 1)
        if not alone:
            wait_for(plan.aside_done, step + 1)
        head(plan)
        if prediction.size:
            add_prediction(plan, outputs, history, prediction)
        for row in range(plan.rows):
            if parameters.shape[1]:
                parameters[row, step] = outputs[row, : plan.num_parameters]
            if forced.shape[1]:
                levels[row, step] = forced[row, step]
            else:
                levels[row, step] = draw(
                    plan, outputs, row, noise, step, temperature, min_log_scale
                )
            remember(plan, history, latest, row, levels[row, step])


@compiled
def run_aside(plan, dilations, rings, start, condition, steps):
    """The asides of `steps` steps, each as soon as `run_lead` has its layer's units."""
    for step in range(steps):
        for layer in range(plan.layers):
            wait_for(plan.lead_done, step * plan.layers + layer + 1)
            aside(
                plan,
                dilations[layer],
                rings[layer],
                layer,
                start + step,
                steps - step - 1,
                _condition_at(plan, condition, step + 1),
            )
        publish(plan.aside_done, step + 1)


@compiled
def _condition_at(plan, condition, step):
    """The address of one step of the condition [time, rows, channels]."""
    return condition + 4 * step * plan.rows * plan.condition_inputs
