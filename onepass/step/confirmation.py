"""Confirm by calls of a network that it is not causal, before an analysis of its graph may say so.

A graph shows which rows an operation reads, not whether their values matter: a kernel may be
masked, a gate closed. An operation without a rule shows nothing at all.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from onepass.networks.condition_specs import is_at_rate, shape_at
from onepass.step.probes import Argument, Probe, differs
from onepass.step.program import LENGTHS
from onepass.step.tracing import Traces
from onepass.step.wide_floats import SINGLE, WideCalls

FARTHEST = 1 << 14  # largest number of time steps of a call
BEYOND = 30  # number of time steps of a call beyond a lookahead
DRAWS = "two calls on the same input differ: the network draws random numbers of its own"


def observed_fault(function: Callable, specs: Sequence[tf.TensorSpec], ahead: int = 0) -> str:
    """Return how a network's outputs violate causality; "" if no violation is found.

    The network is called with its own weights and with random ones, on the first lengths that it
    takes. Only its first argument must not affect earlier outputs.
    """
    traces = function if isinstance(function, Traces) else Traces(function)
    shorter = (pair[0] for pair in LENGTHS)
    for length in (min(ahead + BEYOND, FARTHEST), *shorter) if ahead else shorter:
        try:
            return _fault(traces, specs, length)
        except (ValueError, TypeError, LookupError, tf.errors.OpError):
            continue  # the network takes no such length
    return ""


def _fault(traces: Traces, specs: Sequence[tf.TensorSpec], length: int) -> str:
    # These import this package.
    from onepass.step.random_inputs import RandomInputs
    from onepass.step.random_weights import precisions_for, weights_of, with_random_weights

    example = [tf.TensorSpec(shape_at(spec, 1, [length]), spec.dtype) for spec in specs]
    if traces.of(example).graph.outputs[0].shape[1] != length:
        return ""  # its rows are no time steps
    draw = RandomInputs(traces, specs, 0, None, [length])
    first, other = draw(length), draw(length)
    if differs(traces(*first), traces(*first), SINGLE):
        return DRAWS
    kinds = [Argument(is_at_rate(spec), n == 0) for n, spec in enumerate(specs)]
    weights = weights_of(traces, example)
    own = WideCalls(traces, precisions=precisions_for([*weights.trained, *weights.frozen]))
    for network in (own, with_random_weights(traces, 0, *(x[:1] for x in first))):
        fault = Probe(network, first, other, kinds).fault([length // 2])
        if fault:
            return fault.text
    return ""
