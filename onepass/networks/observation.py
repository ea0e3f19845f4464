"""Test by calls whether a network's outputs depend on later inputs, the length or other rows."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf

from onepass.networks.condition_specs import is_at_rate, shape_at
from onepass.networks.fault_layers import describe_fault, drawing_layer
from onepass.networks.periods import period_of, whole
from onepass.networks.tables import DERIVED, Tables
from onepass.step.probes import Argument, Probe, differs
from onepass.step.program import LONG as VERIFIED
from onepass.step.random_inputs import RandomInputs
from onepass.step.random_weights import (
    MANY_WEIGHTS,
    parameter_count,
    precisions_for,
    weights_of,
    with_random_weights,
)
from onepass.step.tracing import Traces, rate_of
from onepass.step.wide_floats import ERRORS, SINGLE, WideCalls

# Candidate lengths of the compared sequences; the first that the network takes is used.
LENGTHS = (DERIVED[0], 24, 12, 8, 6, 4)
# Candidate lengths of sequences for calls with random weights, and the length for networks with
# many weights. The graphs for the first lengths are also used to derive a step.
LONG, LESS_LONG = (VERIFIED, 600), 96
# The largest number of time steps for which both rows of a batch are called together.
BOTH_ROWS = 600
# The largest number of time steps in calls of the network itself, which are slow.
EAGER = 24
# The largest number of values in the outputs of both rows; bounds memory for large vocabularies.
MOST_COMPARED = 2**25


def probe_lengths(
    call: Traces, tables: Tables, specs: Sequence[tf.TensorSpec], with_random_weights: bool = True
) -> tuple[int, int]:
    """Return lengths for `observed_fault`, with own and with random weights (0: no such calls)."""
    lengths = [n for n in LENGTHS if not tables.fault(n)] or [LENGTHS[-1]]
    length = next(
        (n for n in lengths if _is_traceable(call, _specs_of_length(specs, n))), lengths[-1]
    )
    if period_of(call) > 1:  # three periods, the last one not whole
        length = max(length, 3 * period_of(call) - 1)
    if not with_random_weights:
        return length, 0
    sized = _specs_of_length(specs, length)
    if parameter_count(weights_of(call, sized).trained) > MANY_WEIGHTS:
        return length, tables.longest(LESS_LONG, *LENGTHS)
    any_length = length >= LENGTHS[0]  # otherwise lengths may have to be multiples of a number
    most = MOST_COMPARED // (2 * _numbers_per_step(call, sized))
    long = [n for n in LONG[0 if any_length else 1 :] if n <= most]
    return length, tables.longest(*long, LESS_LONG, *LENGTHS)


def _numbers_per_step(call: Traces, specs: Sequence[tf.TensorSpec]) -> int:
    shape = call.of(specs).outputs[0].shape if _is_traceable(call, specs) else []
    return int(np.prod([size or 1 for size in shape[2:]], dtype=np.int64))


def free_time_axis(specs: Sequence[tf.TensorSpec]) -> list[tf.TensorSpec]:
    """Return the specs with the size None for the first one's time axis, even if it has a size."""
    first, *others = specs
    return [tf.TensorSpec([None, None, *first.shape[2:]], first.dtype), *others]


def _specs_of_length(specs: Sequence[tf.TensorSpec], length: int) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(shape_at(x, 1, [length]), x.dtype) for x in specs]


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
    """Return how outputs violate the law of a causal network; "" if no violation is found.

    Args:
      causal: those of `specs` whose arguments must not affect outputs at earlier time steps.
      longest: length in calls with random weights, in steps; no such calls if at most `length`.
    """
    traces = call if isinstance(call, Traces) else Traces(call)
    draw = RandomInputs(traces, specs, seed, symbols, [length])
    first, other = draw(length), draw(length)
    kinds = [Argument(is_at_rate(spec), any(spec is each for each in causal)) for spec in specs]
    weights = weights_of(traces, _specs_of_length(specs, length))
    own = WideCalls(traces, precisions=precisions_for([*weights.trained, *weights.frozen]))
    # The network itself, since a graph does not draw what Python code draws.
    few = draw(min(length, EAGER))
    if differs(traces(*few), traces(*few), SINGLE):
        return drawing_layer(own.graph(first), names)
    period = period_of(traces)
    network, fault = own, Probe(own, first, other, kinds, period).fault([length // 2])
    if not fault and longest > length:
        network = with_random_weights(traces, seed, *(x[:1] for x in first))
        try:
            both = BOTH_ROWS if longest > BOTH_ROWS else longest // 2
            many = Probe(network, draw(longest), draw(longest), kinds, period)
            fault = many.fault([both], [length])
        except ERRORS:  # that length is impossible
            fault = Probe(network, first, other, kinds, period).fault([length // 2])
    if not fault:
        return ""
    several = max(period, rate_of(traces).hop)
    first, other = (whole(arguments, several) for arguments in (fault.first, fault.other))
    return describe_fault(network, fault._replace(first=first, other=other), names, period=period)
