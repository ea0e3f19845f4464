"""Test whether a network over images is masked: its outputs depend on earlier pixels only."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf

from onepass.networks.condition_specs import shape_at
from onepass.networks.fault_layers import describe_fault, drawing_layer
from onepass.step.probes import AHEAD, ROWS, Fault, differs, rows_changed
from onepass.step.random_inputs import RandomInputs, random_numbers
from onepass.step.random_weights import with_random_weights
from onepass.step.tracing import Traces
from onepass.step.wide_floats import ERRORS, SINGLE, WideCalls

# Height and width of the compared images.
SIDES = (5, 6)
# Height and width of the images for calls with random weights.
LARGE_SIDES = (14, 40)


def observed_unmasked(
    call: Callable[..., tf.Tensor],
    inputs: tf.TensorSpec,
    seed: int = 0,
    symbols: int | None = None,
    conditions: Sequence[tf.TensorSpec] = (),
    names: Iterable[str] = (),
) -> str:
    """Return how outputs, with random weights too, violate the law of a masked network, or ""."""
    call = _fix_conditions(call, conditions, seed)
    call = call if isinstance(call, Traces) else Traces(call)
    small, other = (_images(call, inputs, SIDES, seed + i, symbols) for i in range(2))
    own = WideCalls(call)
    outputs = own(small)
    if differs(call(small), call(small), SINGLE):
        return drawing_layer(own.graph([small]), names)
    network, fault = own, _find_unmasked(own, small, other, outputs)
    if not fault:
        network = with_random_weights(call, seed, small)
        many, others = (_images(call, inputs, LARGE_SIDES, seed + i, symbols) for i in range(2))
        try:
            fault = _find_unmasked(network, many, others)
        except ERRORS:  # the network takes no image of that size
            fault = _find_unmasked(network, small, other)
    return describe_fault(network, fault, names, axes=2) if fault else ""


def _images(
    call: Traces,
    inputs: tf.TensorSpec,
    sides: tuple[int, int],
    seed: int,
    symbols: int | None,
) -> tf.Tensor:
    height, width = (a or b for a, b in zip(inputs.shape[1:3], sides, strict=True))
    spec = tf.TensorSpec([None, height, width, inputs.shape[-1]], inputs.dtype)
    return RandomInputs(call, [spec], seed, symbols, [height, width]).images(height, width)


def _fix_conditions(
    call: Callable[..., tf.Tensor], conditions: Sequence[tf.TensorSpec], seed: int
) -> Callable[..., tf.Tensor]:
    if not conditions:
        return call

    def run(images: tf.Tensor) -> tf.Tensor:
        generator = np.random.default_rng(seed)
        drawn = [
            random_numbers(generator, x, shape_at(x, 2, images.shape[1:3]), 2) for x in conditions
        ]
        return call(images, *drawn)

    return run


def _find_unmasked(
    network: WideCalls, first: tf.Tensor, other: tf.Tensor, outputs: tf.Tensor | None = None
) -> Fault | None:
    batch, height, width, _ = first.shape
    whole = _flat(network(first) if outputs is None else outputs)
    mixed = tf.concat([first[:1], other[1:]], 0)
    if differs(whole[:1], _flat(network(mixed))[:1], network.precision):
        text = "the outputs of an image depend on the other images of the batch"
        return Fault(text, ROWS, [first], [mixed], times=height * width)
    rows, found = [tf.reshape(x, [batch, height * width, -1]) for x in (first, other)], None
    for pixel in (0, width - 1, width, height * width // 2, height * width - 1):
        changed = tf.concat([rows[0][:, :pixel], rows[1][:, pixel:]], axis=1)
        changed = tf.reshape(changed, [batch, height, width, -1])
        before = rows_changed(whole, _flat(network(changed)), pixel + 1, network.precision)
        if before:
            at = divmod(pixel + 1 - before, width)
            text = f"the output at pixel {at} depends on that pixel or on later ones"
            # Layers may depend on the pixel itself, so one at fault shows in earlier pixels alone.
            found = Fault(text, AHEAD, [first], [changed], times=pixel)
            if before > 1:
                break
    return found


def _flat(outputs: tf.Tensor) -> tf.Tensor:
    return tf.reshape(outputs, [outputs.shape[0], outputs.shape[1] * outputs.shape[2], -1])
