"""A network with random numbers in place of its trained weights.

A head of zeros, a gate of zero or an untrained mask hides what a network reads; random weights
reveal it.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from onepass.networks.trainable import Weights, weights_among, without_copies
from onepass.step.lookups import entries
from onepass.step.replay import operations_for
from onepass.step.tracing import Traces, dependent, specs_of
from onepass.step.wide_floats import DOUBLE, SINGLE, UNCHANGED, Precision, WideCalls

# A matrix with this many times more rows than columns is taken to be an embedding.
TALL = 4
# Copies of more weights in float64 would take too much memory.
MANY_WEIGHTS = 20_000_000
LARGE = 1 << 16  # numbers, which are drawn in float32 if that is their type
DEFAULT_SYMBOLS = 256


def with_random_weights(
    call: Callable[..., tf.Tensor], seed: int, *example: tf.Tensor
) -> WideCalls:
    """Return a network with random weights; frozen variables, such as masks, keep their values.

    Assignments within a call, such as of a masked kernel to itself, change the random weights.
    """
    call = call if isinstance(call, Traces) else Traces(call)
    generator, weights = np.random.default_rng(seed), weights_of(call, specs_of(example))
    drawn = {
        id(variable.handle): _values(generator, variable)
        for variable in weights.trained
        if variable.dtype.is_floating
    }
    return WideCalls(call, drawn, precisions_for([*weights.trained, *weights.frozen]))


def precisions_for(variables: Sequence[tf.Variable]) -> tuple[Precision, ...]:
    """Return the types in which to compute a network that reads given variables."""
    is_large = parameter_count(variables) > MANY_WEIGHTS
    return (SINGLE, UNCHANGED) if is_large else (DOUBLE, SINGLE, UNCHANGED)


def weights_of(call: Traces, specs: Sequence[tf.TensorSpec]) -> Weights:
    """Return the variables that a network reads for arguments of given shapes."""
    return weights_among(call, without_copies(call.variables(specs)))


def _values(generator: np.random.Generator, variable: tf.Variable) -> tf.Tensor:
    shape = variable.shape.as_list()
    if len(shape) < 2:
        values = generator.uniform(0.5, 1.5, shape)
    else:
        fan_in = int(np.prod(shape[:-1]))
        rows = shape[-1] if len(shape) == 2 and shape[0] > TALL * shape[1] else fan_in
        single = variable.dtype.size <= tf.float32.size and np.prod(shape) > LARGE
        values = generator.standard_normal(shape, np.float32 if single else np.float64)
        values /= np.sqrt(max(rows, 1))
    made = tf.constant(values, variable.dtype)
    constraint = getattr(variable, "constraint", None)
    return made if constraint is None else tf.cast(constraint(made), variable.dtype)


def symbol_count(graph: tf.Graph, unknown: int = DEFAULT_SYMBOLS) -> int:
    """Return the number of symbols in the smallest embedding or one-hot encoding of the input."""
    reads = {tensor.op for tensor in graph.inputs[:1]} | set(dependent(graph, [0]))
    sizes = []
    for op in operations_for(graph.outputs):
        if op.type in ("GatherV2", "ResourceGather") and op.inputs[1].op in reads:
            sizes.append(entries(op))
        elif op.type == "OneHot" and op.inputs[0].op in reads:
            sizes.append(op.outputs[0].shape[-1])
    known = [size for size in sizes if size]
    return min(known, default=unknown)


def parameter_count(variables: Sequence[tf.Variable]) -> int:
    """Return the total number of entries of the variables."""
    return sum(int(np.prod(variable.shape.as_list())) for variable in variables)
