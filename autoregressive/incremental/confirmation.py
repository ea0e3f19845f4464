"""Confirm by calls of a network that it is not causal, before an analysis of its graph may say so.

A graph shows which rows an operation reads, not whether their values matter: a kernel may be
masked, a gate closed. An operation without a rule shows nothing at all.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from autoregressive.condition_specs import is_at_rate, sized
from autoregressive.incremental.program import LENGTHS
from autoregressive.incremental.tracing import Traces
from autoregressive.probes import Argument, Probe, differs

FARTHEST = 1 << 14  # largest number of time steps of a call
BEYOND = 30  # number of time steps of a call beyond a lookahead
DRAWS = "two calls on the same input differ: the network draws random numbers of its own"


def observed_fault(function: Callable, specs: Sequence[tf.TensorSpec], ahead: int = 0) -> str:
    """Return how a network's outputs violate causality; "" if no violation is found.

    The network is called with its own weights and with random ones, on the first lengths that it
    takes. Only its first argument must not affect earlier outputs.

    Args:
      function: the network, a function from tensors to a tensor.
      specs: specs of the network's arguments, [None, None, ...].
      ahead: number of time steps by which outputs are suspected to look ahead; 0: unknown.
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
    """Return how outputs of `length` time steps violate causality."""
    from autoregressive.random_weights import (
        symbol_count,
        with_random_weights,
    )  # imports this package

    example = [tf.TensorSpec(sized(spec, 1, [length]), spec.dtype) for spec in specs]
    graph = traces.of(example).graph
    if graph.outputs[0].shape[1] != length:
        return ""  # its rows are no time steps
    symbols = symbol_count(graph) if specs[0].dtype.is_integer else 2
    generator = np.random.default_rng(0)
    first, other = (
        [_numbers(generator, spec, length, 2 if n else symbols) for n, spec in enumerate(specs)]
        for _ in range(2)
    )
    if differs(traces.now(*first), traces.now(*first)):
        return DRAWS
    kinds = [Argument(is_at_rate(spec), n == 0) for n, spec in enumerate(specs)]
    random = with_random_weights(traces, 0, *(x[:1] for x in first))
    for call in (traces.now, random):
        fault = Probe(call, call, first, other, kinds).fault([length // 2])
        if fault:
            return fault
    return ""


def _numbers(
    generator: np.random.Generator, spec: tf.TensorSpec, length: int, symbols: int
) -> tf.Tensor:
    """Return two rows of random numbers, of integers below `symbols`."""
    shape = sized(spec, 2, [length])
    if spec.dtype.is_integer or spec.dtype.is_bool:
        return tf.cast(generator.integers(0, symbols, shape), spec.dtype)
    return tf.constant(generator.normal(size=shape), spec.dtype)
