"""`check_causal`: a test for networks that look ahead."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from autoregressive.incremental import NotCausalError, UnsupportedNetworkError, incremental
from autoregressive.networks import as_function, condition_spec, input_spec

# Length of the compared sequences.
LENGTH = 24
# Height and width of the compared images.
SIDES = (5, 6)
# Rounding may differ between lengths.
TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Causality:
    """The result of `check_causal`.

    Attributes:
      is_causal: no output depends on later inputs, on the length or on random numbers.
      has_step: the network has a cached step, its own or a derived one.
      message: the fault, with the name of the layer where the graph shows it; "" if there is none.
      left_to_xla: the operation for which a processor's sampler of steps is compiled by XLA; "" if
        the step machine, which compiles nothing, knows all of them, or if there is no step.
    """

    is_causal: bool
    has_step: bool
    message: str
    left_to_xla: str = ""

    def __bool__(self) -> bool:
        return self.is_causal


def check_causal(
    network: Any,
    *,
    inputs: tf.TensorSpec | None = None,
    condition: tf.TensorSpec | None = None,
    seed: int = 0,
) -> Causality:
    """Check that a network is causal, and name the layer that looks ahead if it is not.

    The graph is followed from the input to the output. Then the network is called on pairs of
    random inputs that differ from some time on, and the outputs before that time are compared. The
    second check may miss an operation that those inputs do not reach.

    Args:
      network: as for `incremental`.
      inputs: as for `incremental`.
      condition: as for `incremental`.
      seed: of the random inputs.

    Returns:
      A `Causality` with `is_causal`, `has_step` and `message`; it is true if the network is causal.
    """
    message, has_step, is_causal, unknown = "", True, True, ""
    try:
        stepped = incremental(network, inputs=inputs, condition=condition)
        unknown = _unknown(stepped, network, inputs, condition)
    except NotCausalError as error:
        message, has_step, is_causal = str(error), False, False
    except UnsupportedNetworkError as error:
        message, has_step = str(error), False
    seen = observed_lookahead(network, inputs=inputs, condition=condition, seed=seed)
    if seen and is_causal:
        message = f"{message}; {seen}" if message else seen
    has_step = has_step and not seen
    return Causality(is_causal and not seen, has_step, message, unknown if has_step else "")


def _unknown(stepped: Any, network: Any, inputs: Any, condition: Any) -> str:
    """Return the operation of a step that the machine does not know, or ""."""
    from autoregressive.machine.machine import unknown_operation  # which imports a compiler

    specs = [input_spec(network, inputs), condition_spec(network, condition)]
    return unknown_operation(stepped, [spec for spec in specs if spec is not None])


def observed_lookahead(
    network: Any,
    *,
    inputs: tf.TensorSpec | None = None,
    condition: tf.TensorSpec | None = None,
    seed: int = 0,
    length: int = LENGTH,
) -> str:
    """Return the lookahead found by comparing outputs; "" if the network seems to be causal.

    Args:
      network: as for `incremental`.
      inputs: as for `incremental`.
      condition: as for `incremental`.
      seed: of the random inputs.
      length: of the sequences, in steps.
    """
    specs = [input_spec(network, inputs), condition_spec(network, condition)]
    specs = [spec for spec in specs if spec is not None]
    return observed_fault(as_function(network, specs), specs, specs, seed, length)


def observed_fault(
    call: Callable[..., tf.Tensor],
    specs: Sequence[tf.TensorSpec],
    causal: Sequence[tf.TensorSpec],
    seed: int = 0,
    length: int = LENGTH,
) -> str:
    """Return how outputs break the law of a causal network; "" if they seem to keep it.

    Args:
      call: the network.
      specs: of its arguments, [batch, time, ...].
      causal: those of the first arguments that the outputs must not look ahead in.
      seed: of the random arguments.
      length: of the sequences, in steps.
    """
    generator = np.random.default_rng(seed)
    first, other = ([_numbers(generator, spec, length) for spec in specs] for _ in range(2))
    other = other[: len(causal)] + first[len(causal) :]
    whole = call(*first)
    if _differs(whole, call(*first)):
        return "two calls on the same input differ: the network draws random numbers of its own"
    ahead = 0
    for time in (1, length // 3, length // 2, length - 1):
        changed = [
            tf.concat([x[:, :time], y[:, time:]], 1) for x, y in zip(first, other, strict=True)
        ]
        ahead = max(ahead, _rows_changed(whole, call(*changed), time))
    if ahead:
        return f"output t depends on input t + {ahead}"
    if len(causal) < len(specs):  # the others may decide with their length
        return ""
    shorter = call(*(x[:, : length // 2] for x in first))
    if shorter.shape[1] != length // 2 or _differs(whole[:, : length // 2], shorter):
        return "the first outputs change with the length of the input"
    return ""


def observed_unmasked(call: Callable[..., tf.Tensor], inputs: tf.TensorSpec, seed: int = 0) -> str:
    """Return how outputs of a masked network depend on later pixels; "" if they seem not to.

    Args:
      call: the network, whose outputs at a pixel must depend only on the pixels before it.
      inputs: of the network, [batch, height, width, channels].
      seed: of the random images.
    """
    height, width = (given or size for given, size in zip(inputs.shape[1:3], SIDES, strict=True))
    generator = np.random.default_rng(seed)
    shape = [2, height * width, inputs.shape[-1]]
    first, other = (generator.normal(size=shape) for _ in range(2))

    def outputs(pixels: np.ndarray) -> tf.Tensor:
        images = pixels.reshape([2, height, width, -1])
        made = call(tf.constant(images, inputs.dtype))
        return tf.reshape(made, [2, height * width, -1])

    whole = outputs(first)
    if _differs(whole, outputs(first)):
        return "two calls on the same input differ: the network draws random numbers of its own"
    for pixel in (0, width - 1, width, height * width // 2, height * width - 1):
        changed = np.concatenate([first[:, :pixel], other[:, pixel:]], axis=1)
        rows = _rows_changed(whole, outputs(changed), pixel + 1)
        if rows:
            at = divmod(pixel + 1 - rows, width)
            return f"the output at pixel {at} depends on that pixel or on later ones"
    return ""


def _numbers(generator: np.random.Generator, spec: tf.TensorSpec, length: int) -> tf.Tensor:
    shape = [2, length, *spec.shape[2:]]
    if spec.dtype.is_integer:
        return tf.constant(generator.integers(0, 2, shape), spec.dtype)
    return tf.constant(generator.normal(size=shape), spec.dtype)


def _differs(first: tf.Tensor, second: tf.Tensor) -> bool:
    return bool(tf.reduce_any(_distance(first, second) > TOLERANCE))


def _distance(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    first, second = (tf.cast(x, tf.float64) for x in (first, second))
    return tf.abs(first - second) / (1.0 + tf.abs(first))


def _rows_changed(whole: tf.Tensor, changed: tf.Tensor, time: int) -> int:
    """Return the distance before `time` of the first row that changed."""
    distance = _distance(whole[:, :time], changed[:, :time])
    axes = [axis for axis in range(distance.shape.rank) if axis != 1]
    rows = tf.reduce_any(distance > TOLERANCE, axes).numpy()
    return time - int(np.argmax(rows)) if rows.any() else 0
