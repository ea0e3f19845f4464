"""`check_causal`: test whether a network's outputs depend on later inputs, and in which layer."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import UserError
from onepass.networks.any_length import any_length, pad_timed
from onepass.networks.conditions import is_at_rate, random_tensor, shape_at, specs_at
from onepass.networks.length_limits import DERIVED, Tables, derive_step
from onepass.networks.network import condition_specs, input_spec, one_line, output_shape
from onepass.step import NotCausalError, UnsupportedNetworkError
from onepass.step.hoisting import Hoisted, hoist_frames
from onepass.step.periods import in_whole_periods, period_of
from onepass.step.program import LONG as VERIFIED
from onepass.step.replay import CALLS, operations_for
from onepass.step.tracing import Traces, known_layers, layer_names, rate_of
from onepass.step.verification import (
    AHEAD,
    DRAWS,
    ERRORS,
    MANY_WEIGHTS,
    ROWS,
    Fault,
    RandomInputs,
    WideCalls,
    differs,
    differs_by_call,
    exceeding,
    find_fault,
    parameter_count,
    rows_changed,
    weights_of,
    with_random_weights,
)


def describe_fault(
    network: WideCalls, fault: Fault, names: Iterable[str], axes: int = 1, period: int = 1
) -> str:
    """Return a fault as a phrase that names the layer, if its values show it."""
    if not fault.kind:
        return fault.text
    try:
        layer = _layer(_Compared(network, fault, axes, period), frozenset(names))
    except ERRORS:
        layer = ""
    return f"{fault.text}; {layer} {fault.kind}" if layer else fault.text


def drawing_layer(graph: tf.Graph, names: Iterable[str]) -> str:
    """Return a phrase that names the layer of a network that draws random numbers."""
    drawn = (op.name for op in operations_for(graph.outputs) if "Random" in op.type)
    name = next(drawn, "")
    return f"{DRAWS}, in {_layer_phrase(name, frozenset(names))}" if name else DRAWS


def _layer(compared: "_Compared", names: frozenset[str]) -> str:
    tensor = compared.output if compared.at_fault.get(compared.output.name) else None
    at_fault = None
    while tensor is not None:
        at_fault, tensor = tensor, compared.source(tensor)
    return "" if at_fault is None else _layer_phrase(compared.begin(at_fault).name, names)


class _Compared:
    def __init__(self, network: WideCalls, fault: Fault, axes: int, period: int) -> None:
        graphs = [network.graph(arguments) for arguments in (fault.first, fault.other)]
        self.output, self.at_fault = graphs[0].outputs[0], dict[str, bool]()
        self.changed: set[str] = set()
        pairs = zip(
            network.operations(graphs[0], fault.first),
            network.operations(graphs[1], fault.other),
            strict=True,
        )
        sizes = [tuple(x[0].shape[: 1 + axes]) for x in (fault.first, fault.other)]
        for (op, values), (counterpart, others) in pairs:
            if op.type != counterpart.type:
                raise ValueError(f"{op.name} has no counterpart.")
            for tensor, *two in zip(op.outputs, values, others, strict=True):
                dtype = tensor.dtype
                if not (dtype.is_floating or dtype.is_integer or dtype.is_bool):
                    continue
                if two[0].shape != two[1].shape or bool(tf.reduce_any(two[0] != two[1])):
                    self.changed.add(op.name)
                rows = [_first_rows(x, each, period) for x, each in zip(two, sizes, strict=True)]
                if rows[0] is not None and rows[1] is not None:
                    rate = math.prod(sizes[0][1:]) // rows[0].shape[1]
                    first = rows[0][fault.row : fault.row + 1, : fault.times // rate]
                    second = rows[1][:1, : fault.times // rate]
                    exceeds = first.shape == second.shape and exceeding(
                        first, second, network.precision
                    )
                    self.at_fault[tensor.name] = bool(np.any(exceeds))

    def source(self, tensor: tf.Tensor) -> tf.Tensor | None:
        found = (each for op in self._between(tensor) for each in op.inputs)
        return next((each for each in found if self.at_fault.get(each.name)), None)

    def begin(self, tensor: tf.Tensor) -> tf.Operation:
        """Return the first operation between a tensor at fault and tensors that are not."""
        found = [
            op
            for op in self._between(tensor)
            if op.name in self.changed
            and any(x.name in self.at_fault or not x.op.inputs for x in op.inputs)
        ]
        order = {op: place for place, op in enumerate(tensor.graph.get_operations())}
        return min(found or [tensor.op], key=lambda op: order[op])

    def _between(self, tensor: tf.Tensor) -> list[tf.Operation]:
        waiting, found = [tensor.op], []
        while waiting:
            op = waiting.pop(0)
            if op not in found:
                found.append(op)
                waiting += [x.op for x in op.inputs if x.name not in self.at_fault]
        return found


def _first_rows(value: tf.Tensor, sizes: Sequence[int], period: int) -> tf.Tensor | None:
    """Return a value as [batch, times or pixels, values]; None if it has no such axes."""
    if value.dtype.is_bool:
        return None
    shape, first = tuple(value.shape), tuple(sizes)
    if len(sizes) == 2 and shape[:2] == first[::-1] and shape[:2] != first:
        value = tf.transpose(value, [1, 0, *range(2, len(shape))])  # time comes first
    elif period > 1 and len(shape) > 1 and shape[0] == first[0] and shape[1]:
        rate, rest = divmod(first[1], shape[1])
        if rest or rate > period:
            return None
        first = shape[:2]
    elif shape[: len(first)] != first:
        return None
    return tf.reshape(value, [first[0], math.prod(first[1:]), -1])


def _layer_phrase(operation: str, names: frozenset[str]) -> str:
    scopes = [scope for scope in operation.split("/") if scope not in CALLS]
    path = dict.fromkeys(known_layers(scopes[:-1], names))
    return f"its layer `{'/'.join(path)}`" if path else f"its operation `{'/'.join(scopes)}`"


# Candidate lengths of the compared sequences; the first that the network takes is used.
LENGTHS = (DERIVED[0], 24, 12, 8, 6, 4)
# Candidate lengths of sequences for calls with random weights, and the length for networks with
# many weights. The graphs for the first lengths are also used to derive a step.
LONG, LESS_LONG = (VERIFIED, 600), 96
# The largest number of values in the outputs of both rows; bounds memory for large vocabularies.
MOST_COMPARED = 2**25


def probe_lengths(
    call: Traces, tables: Tables, specs: Sequence[tf.TensorSpec], with_random_weights: bool = True
) -> tuple[int, int]:
    """Return lengths for `observed_fault`, with own and with random weights (0: no such calls)."""
    lengths = [n for n in LENGTHS if not tables.fault([n])] or [LENGTHS[-1]]
    taken = (n for n in lengths if _is_traceable(call, specs_at(specs, 1, [n])))
    length = next(taken, lengths[-1])
    if period_of(call) > 1:  # three periods, the last one not whole
        length = max(length, 3 * period_of(call) - 1)
    if not with_random_weights:
        return length, 0
    sized = specs_at(specs, 1, [length])
    if parameter_count(weights_of(call, sized).trained) > MANY_WEIGHTS:
        return length, tables.longest([LESS_LONG, *LENGTHS])
    any_length = length >= LENGTHS[0]  # otherwise lengths may have to be multiples of a number
    shape = call.of(sized).outputs[0].shape if _is_traceable(call, sized) else []
    each = int(np.prod([size or 1 for size in shape[2:]], dtype=np.int64))
    most = MOST_COMPARED // (2 * each)
    long = [n for n in LONG[0 if any_length else 1 :] if n <= most]
    return length, tables.longest([*long, LESS_LONG, *LENGTHS])


def free_time_axis(specs: Sequence[tf.TensorSpec]) -> list[tf.TensorSpec]:
    """Return the specs with the size None for the first one's time axis, even if it has a size."""
    first, *others = specs
    return [tf.TensorSpec([None, None, *first.shape[2:]], first.dtype), *others]


def _is_traceable(call: Traces, specs: Sequence[tf.TensorSpec]) -> bool:
    try:
        call.of(specs)
    except (ValueError, TypeError, IndexError, tf.errors.OpError):
        return False
    return True


def observed_fault(
    call: Callable[..., tf.Tensor],
    specs: Sequence[tf.TensorSpec],
    causal: Sequence[tf.TensorSpec],
    seed: int = 0,
    length: int = LENGTHS[0],
    longest: int = 0,
    symbols: int | None = None,
    names: Iterable[str] = (),
) -> str:
    """Return how outputs violate the law of a causal network, as `find_fault` sees, in words."""
    traces = call if isinstance(call, Traces) else Traces(call)
    period = period_of(traces)
    network, fault = find_fault(traces, specs, causal, seed, length, longest, symbols, period)
    if not fault:
        return ""
    if fault.text == DRAWS:
        return drawing_layer(network.graph(fault.first), names)
    several = max(period, rate_of(traces).hop)
    first, other = (
        pad_timed(x, specs, -(-x[0].shape[1] // several) * several)
        for x in (fault.first, fault.other)
    )
    return describe_fault(network, fault._replace(first=first, other=other), names, period=period)


PROBED = (40, 4)  # height and width of the test images
MOST = PROBED[0] // 2  # largest number of rows that can be found
NOISE = 1e-5  # changes below are rounding


def rows_above(call: Callable[..., tf.Tensor], inputs: tf.TensorSpec) -> int | None:
    """Return how many image rows above a pixel outputs depend on; None if none can be left out."""
    if any(size is not None for size in inputs.shape[1:3]):
        return None
    generator = np.random.default_rng(0)
    shape = [1, *PROBED, inputs.shape[-1]]
    images = [random_tensor(generator, shape, inputs.dtype) for _ in range(2)]
    images[1] = tf.concat([images[1][:, :1], images[0][:, 1:]], 1)
    try:
        random = with_random_weights(call, 0, images[:1])
        whole, other = (random([image]) for image in images)
        rows = 0
        changed = _differing_rows(whole, other)
        if changed.any():
            rows = int(np.flatnonzero(changed)[-1])
        if rows > MOST:
            return None
        below = random([images[0][:, MOST - rows :]])
    except (ValueError, TypeError, tf.errors.OpError):
        return None
    return None if _differing_rows(below[:, rows:], whole[:, MOST:]).any() else rows


def _differing_rows(first: tf.Tensor, second: tf.Tensor) -> np.ndarray:
    first, second = (np.asarray(tf.cast(x, tf.float64))[0] for x in (first, second))
    distance = np.abs(first - second) / (1.0 + np.abs(first))
    return distance.max(axis=(1, 2)) > NOISE


SIDES = (5, 6)  # height and width of the compared images
LARGE_SIDES = (14, 40)  # height and width of the images for calls with random weights


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
    outputs = own([small])
    if differs_by_call(call, [small]):
        return drawing_layer(own.graph([small]), names)
    network, fault = own, _find_unmasked(own, small, other, outputs)
    if not fault:
        network = with_random_weights(call, seed, [small])
        many, others = (_images(call, inputs, LARGE_SIDES, seed + i, symbols) for i in range(2))
        try:
            fault = _find_unmasked(network, many, others)
        except ERRORS:  # the network takes no image of that size
            fault = _find_unmasked(network, small, other)
    return describe_fault(network, fault, names, axes=2) if fault else ""


def _images(
    call: Traces, inputs: tf.TensorSpec, sides: tuple[int, int], seed: int, symbols: int | None
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
        sizes = images.shape[1:3]
        drawn = [random_tensor(generator, shape_at(x, 2, sizes), x.dtype) for x in conditions]
        return call(images, *drawn)

    return run


def _find_unmasked(
    network: WideCalls, first: tf.Tensor, other: tf.Tensor, outputs: tf.Tensor | None = None
) -> Fault | None:
    batch, height, width, _ = first.shape
    whole = _flat(network([first]) if outputs is None else outputs)
    mixed = tf.concat([first[:1], other[1:]], 0)
    if differs(whole[:1], _flat(network([mixed]))[:1], network.precision):
        text = "the outputs of an image depend on the other images of the batch"
        return Fault(text, ROWS, [first], [mixed], times=height * width)
    rows, found = [tf.reshape(x, [batch, height * width, -1]) for x in (first, other)], None
    for pixel in (0, width - 1, width, height * width // 2, height * width - 1):
        changed = tf.concat([rows[0][:, :pixel], rows[1][:, pixel:]], axis=1)
        changed = tf.reshape(changed, [batch, height, width, -1])
        before = rows_changed(whole, _flat(network([changed])), pixel + 1, network.precision)
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
    network: Any, *, inputs: tf.TensorSpec | None = None, condition: Any = None, seed: int = 0
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
    length, longest = probe_lengths(call, tables, specs)
    seen = observed_fault(call, specs, causal, seed, length, longest, names=names)
    if seen:
        return Causality(False, False, seen if ahead is None else message)
    is_causal = (ahead or 0) < max(length, longest)  # no call shows a look-ahead farther than that
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
