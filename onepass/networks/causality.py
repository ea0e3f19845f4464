"""`check_causal`: test whether a network's outputs depend on later inputs."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from onepass.foundation.errors import UserError
from onepass.networks.any_length import any_length
from onepass.networks.condition_specs import is_at_rate
from onepass.networks.masked_images import observed_unmasked
from onepass.networks.network import condition_specs, input_spec
from onepass.networks.observation import LENGTHS, free_time_axis, observed_fault, probe_lengths
from onepass.networks.outputs import one_line, output_shape
from onepass.networks.periods import in_whole_periods
from onepass.networks.tables import Tables, derive_step
from onepass.step import NotCausalError, UnsupportedNetworkError
from onepass.step.hoisting import Hoisted, hoist_frames
from onepass.step.layer_names import layer_names
from onepass.step.tracing import Traces

IMAGE_AXES = 4


@dataclasses.dataclass(frozen=True)
class Causality:
    """The result of `check_causal`.

    Attributes:
      is_causal: whether no output depends on later inputs, on the length or on random numbers, and
        the output [batch, time, parameters] has one time step per input.
      has_step: whether the network has a cached step, user-defined or derived.
      message: the fault, with the name of the layer if the graph shows it, or the reason why no
        step can be derived; "" if the network is causal and has a step.
      left_to_xla: which operation the step machine does not support, so CPUs sample with a step
        compiled by XLA; "" if it supports all, or if there is no step.
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
    condition: Any = None,
    seed: int = 0,
) -> Causality:
    """Check that a network is causal; if it is not, name the layer that looks ahead.

    First the graph is analysed from input to output. Then the network is computed in float64, in
    whatever types its layers are, on pairs of random inputs that are equal up to a given time step,
    and the outputs before that step are compared. The second check can miss operations that those
    inputs do not exercise. A network over images is causal if it is masked: the output at a pixel
    depends only on the pixels before it, in row-major order.

    Args:
      network: a `tf.Module`, a Keras model or a function, whose first argument is the sequence.
      inputs: spec of the first argument, [None, None, channels], or [None, None, None, channels]
        for images; None: as declared by a Keras model or a `tf.function`, or float32 [None, None,
        1].
      condition: spec of the second argument, or specs of all further arguments by name; None: there
        are none, or they are declared inputs of a Keras model.
      seed: seed of the random inputs.

    Returns:
      A `Causality`, which is true if the network is causal.

    Raises:
      UserError: the network belongs to Keras on a backend other than TensorFlow.
    """
    try:
        given = condition_specs(network, condition)
        specs = [input_spec(network, inputs), *given.values()]
        if specs[0].shape.rank == IMAGE_AXES:
            return _check_masked(network, specs, seed)
        call, specs = _take_network(network, specs, list(given))
    except UserError:
        raise
    except ValueError as error:
        return Causality(False, False, str(error))
    tables = Tables(network, call, specs, axes=1)
    if isinstance(call.function, Hoisted):
        message, stepped, ahead = _derivation(call, tables, specs[0], call.function.conditions)
    else:
        message, stepped, ahead = _derivation(network, tables, inputs, condition)
    try:
        output_shape(call, specs, axes=1)
    except ValueError as error:
        both = f"{message}; {error}" if message and ahead is None else message
        return Causality(False, False, both or str(error))
    causal, names = [spec for spec in specs if is_at_rate(spec)], layer_names(network)
    lengths = probe_lengths(call, tables, specs)
    seen = observed_fault(call, specs, causal, seed, *lengths, names=names)
    if seen:
        return Causality(False, False, seen if ahead is None else message)
    is_causal = (ahead or 0) < max(lengths)  # no call shows a look-ahead farther than that
    return Causality(is_causal, stepped is not None, message, _unknown(stepped, specs))


def _check_masked(network: Any, specs: Sequence[tf.TensorSpec], seed: int) -> Causality:
    taken, specs = any_length(network, specs, axes=2)
    call, (images, *others) = Traces(taken), specs
    output_shape(call, specs, axes=2)
    seen = observed_unmasked(call, images, seed, None, others, layer_names(network))
    return Causality(not seen, False, seen or "images are sampled without a step")


def _unknown(stepped: Any, specs: Sequence[tf.TensorSpec]) -> str:
    from onepass.machine.machine import unknown_operation  # a heavy import

    try:
        return "" if stepped is None else unknown_operation(stepped, list(specs))
    except UnsupportedNetworkError as error:  # a state for few steps has other operations
        return str(error)


def _take_network(
    network: Any, specs: Sequence[tf.TensorSpec], names: Sequence[str]
) -> tuple[Traces, list[tf.TensorSpec]]:
    """Return a network as a function, with specs of its arguments, the first of any length."""
    call, specs = any_length(network, specs)
    parts = hoist_frames(call, specs, names)
    if parts is not None:
        return Traces(parts), free_time_axis(parts.specs)
    return in_whole_periods(Traces(call), specs), free_time_axis(specs)


def _derivation(
    network: Any, tables: Tables, inputs: Any, condition: Any
) -> tuple[str, Any, int | None]:
    """Return why there is no step ("" if there is), the step, and how far the graph looks ahead.

    The step is None if there is none. The last is None if the graph looks causal, and 0 if it is
    unknown how far it looks ahead.
    """
    try:
        stepped = derive_step(network, tables, inputs=inputs, condition=condition)
    except NotCausalError as error:
        return str(error), None, error.ahead
    except UnsupportedNetworkError as error:
        return str(error), None, None
    except (ValueError, TypeError, IndexError, tf.errors.OpError) as error:
        return one_line(error), None, None
    return "", stepped, None


def observed_lookahead(
    network: Any,
    *,
    inputs: tf.TensorSpec | None = None,
    condition: Any = None,
    seed: int = 0,
    length: int = LENGTHS[0],
) -> str:
    """Compare outputs over `length` steps, as `check_causal`; return the fault, or ""."""
    given = condition_specs(network, condition)
    call, specs = _take_network(
        network, [input_spec(network, inputs), *given.values()], list(given)
    )
    causal = [spec for spec in specs if is_at_rate(spec)]
    return observed_fault(call, specs, causal, seed, length, names=layer_names(network))
