"""`check_causal`: test whether a network's outputs depend on later inputs."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from autoregressive.any_length import Taken, any_length
from autoregressive.condition_specs import is_at_rate, sized
from autoregressive.incremental import NotCausalError, UnsupportedNetworkError
from autoregressive.incremental.program import LONG as VERIFIED
from autoregressive.incremental.tracing import Traces
from autoregressive.networks import condition_specs, input_spec
from autoregressive.outputs import one_line, output_shape
from autoregressive.probes import ROWS, Argument, Probe, differs, rows_changed
from autoregressive.random_weights import (
    parameter_count,
    symbol_count,
    weights_of,
    with_random_weights,
)
from autoregressive.tables import DERIVED, Tables, derived
from foundation.errors import UserError

# Candidate lengths of the compared sequences; the first that the network takes is used.
LENGTHS = (DERIVED[0], 24, 12, 8, 6, 4)
# Height and width of the compared images.
SIDES = (5, 6)
# Height and width of the images for calls with random weights.
LARGE_SIDES = (14, 40)
# Candidate lengths of sequences for calls with random weights, and the length for networks with
# many weights. The graphs for the first lengths are also used to derive a step.
LONG, LESS_LONG = (VERIFIED, 600), 96
MANY_WEIGHTS = 20_000_000
# The largest number of time steps for which both rows of a batch are called together.
BOTH_ROWS = 600
# The largest number of values in the outputs of both rows; bounds memory for large vocabularies.
MOST_COMPARED = 2**26


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

    First the graph is analysed from input to output. Then the network is called on pairs of random
    inputs that are equal up to a given time step, and the outputs before that step are compared.
    The second check can miss operations that those inputs do not exercise.

    Args:
      network: a `tf.Module`, a Keras model or a function, whose first argument is the sequence.
      inputs: spec of the first argument, [None, None, channels]; None: as declared by a Keras
        model or a `tf.function`, or float32 [None, None, 1].
      condition: spec of the second argument, or specs of all further arguments by name; None: there
        are none, or they are declared inputs of a Keras model.
      seed: seed of the random inputs.

    Returns:
      A `Causality`, which is true if the network is causal.

    Raises:
      UserError: the network belongs to Keras on a backend other than TensorFlow.
    """
    try:
        taken, specs = _taken(network, inputs, condition)
        call = Traces(taken)
    except UserError:
        raise
    except ValueError as error:
        return Causality(False, False, str(error))
    tables = Tables(network, call, specs, axes=1)
    message, has_step, is_causal, unknown = _derivation(network, tables, inputs, condition)
    try:
        output_shape(call, specs, axes=1)
    except ValueError as error:
        both = f"{message}; {error}" if message and is_causal else message
        return Causality(False, False, both or str(error))
    causal = [spec for spec in specs if is_at_rate(spec)]
    seen = observed_fault(call, specs, causal, seed, *probe_lengths(call, tables, specs))
    if seen and is_causal:
        message = f"{message}; {seen}" if message else seen
    has_step = has_step and not seen
    return Causality(is_causal and not seen, has_step, message, unknown if has_step else "")


def _unknown(stepped: Any, network: Any, inputs: Any, condition: Any) -> str:
    """Return which operation the step machine does not support, as a sentence; "" if none."""
    from autoregressive.machine.machine import unknown_operation  # a heavy import

    return unknown_operation(stepped, _specs(network, inputs, condition))


def _specs(network: Any, inputs: Any, condition: Any) -> list[tf.TensorSpec]:
    """Return the specs of a network's arguments."""
    return [input_spec(network, inputs), *condition_specs(network, condition).values()]


def _taken(network: Any, inputs: Any, condition: Any) -> Taken:
    """Return a network as a function, with specs of its arguments, the first of any length."""
    call, specs = any_length(network, _specs(network, inputs, condition))
    return Taken(call, opened(specs))


def probe_lengths(
    call: Traces, tables: Tables, specs: Sequence[tf.TensorSpec], with_random_weights: bool = True
) -> tuple[int, int]:
    """Return the lengths of the two kinds of sequences on which `observed_fault` calls a network.

    The second length is for calls with random weights; 0: there are no such calls.

    Args:
      call: the network.
      tables: the network's tables of positions.
      specs: specs of the network's arguments.
      with_random_weights: whether the network will be called with random weights, too.
    """
    lengths = [n for n in LENGTHS if not tables.fault(n)] or [LENGTHS[-1]]
    length = next((n for n in lengths if _is_traceable(call, _sized(specs, n))), lengths[-1])
    if not with_random_weights:
        return length, 0
    sized = _sized(specs, length)
    if parameter_count(weights_of(call, sized).trained) > MANY_WEIGHTS:
        return length, tables.longest(LESS_LONG, *LENGTHS)
    any_length = length == LENGTHS[0]  # otherwise lengths may have to be multiples of a number
    most = MOST_COMPARED // (2 * _numbers_per_step(call, sized))
    long = [n for n in LONG[0 if any_length else 1 :] if n <= most]
    return length, tables.longest(*long, LESS_LONG, *LENGTHS)


def _numbers_per_step(call: Traces, specs: Sequence[tf.TensorSpec]) -> int:
    """Return the number of values in one time step of a network's output; 1 if it is unknown."""
    shape = call.of(specs).outputs[0].shape if _is_traceable(call, specs) else []
    return int(np.prod([size or 1 for size in shape[2:]], dtype=np.int64))


def opened(specs: Sequence[tf.TensorSpec]) -> list[tf.TensorSpec]:
    """Return the specs with the size None for the first one's time axis, even if it has a size."""
    first, *others = specs
    return [tf.TensorSpec([None, None, *first.shape[2:]], first.dtype), *others]


def _sized(specs: Sequence[tf.TensorSpec], length: int) -> list[tf.TensorSpec]:
    """Return the specs for one row of `length` time steps."""
    return [tf.TensorSpec(sized(x, 1, [length]), x.dtype) for x in specs]


def _is_traceable(call: Traces, specs: Sequence[tf.TensorSpec]) -> bool:
    try:
        call.of(specs)
    except (ValueError, TypeError, IndexError, tf.errors.OpError):
        return False
    return True


def _derivation(
    network: Any, tables: Tables, inputs: Any, condition: Any
) -> tuple[str, bool, bool, str]:
    """Try to derive a step.

    Return why there is no step ("" if there is one), whether there is a step, whether the graph
    looks causal, and which operation the step machine does not support ("" if none).
    """
    try:
        stepped = derived(network, tables, inputs=inputs, condition=condition)
    except NotCausalError as error:
        return str(error), False, False, ""
    except UnsupportedNetworkError as error:
        return str(error), False, True, ""
    except (ValueError, TypeError, IndexError, tf.errors.OpError) as error:
        return one_line(error), False, True, ""
    return "", True, True, _unknown(stepped, network, inputs, condition)


def observed_lookahead(
    network: Any,
    *,
    inputs: tf.TensorSpec | None = None,
    condition: Any = None,
    seed: int = 0,
    length: int = LENGTHS[0],
) -> str:
    """Compare outputs and return how they violate causality; "" if no violation is found.

    Args:
      network: a `tf.Module`, a Keras model or a function, whose first argument is the sequence.
      inputs: spec of the first argument; None: as for `check_causal`.
      condition: spec of the second argument, or specs of all further arguments by name, or None.
      seed: seed of the random inputs.
      length: length of the sequences, in steps.
    """
    call, specs = _taken(network, inputs, condition)
    causal = [spec for spec in specs if is_at_rate(spec)]
    return observed_fault(call, specs, causal, seed, length)


def observed_fault(
    call: Callable[..., tf.Tensor],
    specs: Sequence[tf.TensorSpec],
    causal: Sequence[tf.TensorSpec],
    seed: int = 0,
    length: int = LENGTHS[0],
    longest: int = 0,
    symbols: int | None = None,
) -> str:
    """Return how outputs violate the law of a causal network; "" if no violation is found.

    Args:
      call: the network.
      specs: specs of the network's arguments, [batch, time, ...].
      causal: those of `specs` whose arguments must not affect outputs at earlier time steps.
      seed: seed of the random arguments.
      length: length of the sequences, in steps.
      longest: length in calls with random weights, in steps; no such calls if at most `length`.
      symbols: largest number of symbols of an integer input; None: only its embedding limits it.
    """
    traces = call if isinstance(call, Traces) else Traces(call)
    draw = _Draw(traces, specs, seed, symbols, [length])
    first, other = draw(length), draw(length)
    kinds = [Argument(is_at_rate(spec), any(spec is each for each in causal)) for spec in specs]
    outputs = traces(*first)  # the network in its current state, not as it was traced
    own = Probe(traces.now, traces, first, other, kinds)
    if own.differs(outputs) and differs(outputs, traces(*first)):
        return "two calls on the same input differ: the network draws random numbers of its own"
    fault = ROWS if own.differs(outputs) else own.fault([length // 2])
    if fault or longest <= length:
        return fault
    random = with_random_weights(traces, seed, *(x[:1] for x in first))
    many = Probe(random, random, draw(longest), draw(longest), kinds)
    try:
        both = BOTH_ROWS if longest > BOTH_ROWS else longest // 2
        return many.fault([both], [length])
    except (ValueError, TypeError, tf.errors.OpError):  # that length is impossible
        return Probe(random, random, first, other, kinds).fault([length // 2])


def observed_unmasked(
    call: Callable[..., tf.Tensor],
    inputs: tf.TensorSpec,
    seed: int = 0,
    symbols: int | None = None,
    conditions: Sequence[tf.TensorSpec] = (),
) -> str:
    """Return how outputs violate the law of a masked network; "" if no violation is found.

    The network is called with its own weights, and on larger images with random weights.

    Args:
      call: the network, whose outputs at a pixel must depend only on the pixels before it.
      inputs: spec of the network's first argument, [batch, height, width, channels].
      seed: seed of the random images.
      symbols: largest number of symbols of an integer input; None: only its embedding limits it.
      conditions: specs of the network's further arguments.
    """
    call = _conditioned(call, conditions, seed)
    call = call if isinstance(call, Traces) else Traces(call)
    small, other = (_images(call, inputs, SIDES, seed + i, symbols) for i in range(2))
    if differs(call(small), call(small)):
        return "two calls on the same input differ: the network draws random numbers of its own"
    fault = _unmasked(call, small, other)
    if fault:
        return fault
    random = with_random_weights(call, seed, small)
    many, others = (_images(call, inputs, LARGE_SIDES, seed + i, symbols) for i in range(2))
    try:
        return _unmasked(random, many, others)
    except (ValueError, TypeError, tf.errors.OpError):  # the network takes no image of that size
        return _unmasked(random, small, other)


def _images(
    call: Traces,
    inputs: tf.TensorSpec,
    sides: tuple[int, int],
    seed: int,
    symbols: int | None,
) -> tf.Tensor:
    """Return two random images."""
    height, width = (a or b for a, b in zip(inputs.shape[1:3], sides, strict=True))
    spec = tf.TensorSpec([None, height, width, inputs.shape[-1]], inputs.dtype)
    return _Draw(call, [spec], seed, symbols, [height, width]).images(height, width)


def _conditioned(
    call: Callable[..., tf.Tensor], conditions: Sequence[tf.TensorSpec], seed: int
) -> Callable[..., tf.Tensor]:
    """Return a network as a function of images only, with random conditions for `seed`."""
    if not conditions:
        return call

    def run(images: tf.Tensor) -> tf.Tensor:
        generator = np.random.default_rng(seed)
        given = [_numbers(generator, x, sized(x, 2, images.shape[1:3]), 2) for x in conditions]
        return call(images, *given)

    return run


def _unmasked(call: Callable[..., tf.Tensor], first: tf.Tensor, other: tf.Tensor) -> str:
    """Return how outputs depend on other images, or on their own or later pixels; "" if neither."""
    batch, height, width, _ = first.shape

    def outputs(pixels: tf.Tensor) -> tf.Tensor:
        return tf.reshape(call(tf.reshape(pixels, first.shape)), [batch, height * width, -1])

    whole = outputs(first)
    if differs(whole[:1], outputs(tf.concat([first[:1], other[1:]], 0))[:1]):
        return "the outputs of an image depend on the other images of the batch"
    first, other = (tf.reshape(x, [batch, height * width, -1]) for x in (first, other))
    shape = [batch, height, width, -1]
    for pixel in (0, width - 1, width, height * width // 2, height * width - 1):
        changed = tf.concat([first[:, :pixel], other[:, pixel:]], axis=1)
        rows = rows_changed(whole, _flat(call(tf.reshape(changed, shape))), pixel + 1)
        if rows:
            at = divmod(pixel + 1 - rows, width)
            return f"the output at pixel {at} depends on that pixel or on later ones"
    return ""


def _flat(outputs: tf.Tensor) -> tf.Tensor:
    return tf.reshape(outputs, [outputs.shape[0], outputs.shape[1] * outputs.shape[2], -1])


class _Draw:
    """A source of random arguments for a network, two rows each.

    Args:
      call: the network.
      specs: specs of the network's arguments.
      seed: seed of the random numbers.
      symbols: largest number of symbols of an integer input; None: only its embedding limits it.
      sizes: sizes for which the network can be traced, [time] or [height, width].
    """

    def __init__(
        self,
        call: Traces,
        specs: Sequence[tf.TensorSpec],
        seed: int,
        symbols: int | None,
        sizes: Sequence[int],
    ) -> None:
        self._specs, self._generator = list(specs), np.random.default_rng(seed)
        self._symbols = 2  # every network of symbols accepts 0 and 1
        if specs[0].dtype.is_integer:
            rows, end = 2 if len(sizes) > 1 else 1, 1 + len(sizes)
            example = [tf.TensorSpec([rows, *sizes, *specs[0].shape[end:]], specs[0].dtype)]
            example += [tf.TensorSpec(sized(x, rows, sizes), x.dtype) for x in specs[1:]]
            self._symbols = min(symbols or 1 << 20, symbol_count(call.of(example).graph))

    def __call__(self, length: int) -> list[tf.Tensor]:
        """Return arguments of `length` steps."""
        return [
            self._numbers(spec, sized(spec, 2, [length]), 2 if index else self._symbols)
            for index, spec in enumerate(self._specs)
        ]

    def images(self, height: int, width: int) -> tf.Tensor:
        """Return two images."""
        spec = self._specs[0]
        return self._numbers(spec, [2, height, width, spec.shape[-1]], self._symbols)

    def _numbers(self, spec: tf.TensorSpec, shape: Sequence[int], symbols: int) -> tf.Tensor:
        return _numbers(self._generator, spec, shape, symbols)


def _numbers(
    generator: np.random.Generator, spec: tf.TensorSpec, shape: Sequence[int], symbols: int
) -> tf.Tensor:
    if spec.dtype.is_integer or spec.dtype.is_bool:
        return tf.cast(generator.integers(0, symbols, shape), spec.dtype)
    return tf.constant(generator.normal(size=shape), spec.dtype)
