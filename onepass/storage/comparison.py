"""Compare what was written with the model, before a save is called done."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.errors import UserError
from onepass.networks.condition_specs import Frames, is_at_rate
from onepass.step.tracing import random_arguments
from onepass.step.wide_floats import HALVES

ROWS = 2
LENGTHS = (5, 12)  # neither equal to the number of rows, nor to each other
SIDES = (8, 6)
# Largest difference by rounding, relative to the largest value, by the bytes of a number.
TOLERANCES = {2: 0.1, 4: 1e-3, 8: 1e-6}

Call = Callable[..., tf.Tensor]


def check_calls(
    live: Sequence[Call], stored: Sequence[Call], specs: Sequence[tf.TensorSpec], axes: int = 1
) -> None:
    """Raise UserError unless stored networks give the outputs of the live ones."""
    for one, other in zip(live, stored, strict=True):
        fault = first_fault(one, other, specs, axes)
        if fault:
            raise UserError(f"The model cannot be stored: read back, its network {fault}.")


def first_fault(live: Call, stored: Call, specs: Sequence[tf.TensorSpec], axes: int = 1) -> str:
    """Return how a stored network differs from the live one at some sizes; "" if it does not."""
    for arguments in _examples(specs, axes):
        try:
            expected = live(*arguments)
        except (ValueError, TypeError, IndexError, tf.errors.OpError):
            continue  # the network does not take this size
        try:
            found = stored(*arguments)
            fault = difference(expected, found)
            if fault and has_halves(_graph_of(stored, arguments)):
                fault = difference(expected, found, TOLERANCES[2])
        except (ValueError, TypeError, tf.errors.OpError) as error:
            fault = f"fails: {' '.join(str(error).split())[:200]}"
        if fault:
            return f"{fault} for inputs of the shape {arguments[0].shape.as_list()}"
    return ""


def difference(
    expected: Any, found: Any, tolerance: float | None = None, moved: float = 0.0
) -> str:
    """Return how tensors differ by more than rounding and a share `moved` of values; else ""."""
    expected, found = map(tf.convert_to_tensor, (expected, found))
    if expected.shape != found.shape:
        return f"has the shape {found.shape.as_list()} in place of {expected.shape.as_list()}"
    if tolerance is None:
        tolerance = TOLERANCES.get(expected.dtype.size, 0.0)
    one, other = (tf.cast(x, tf.float64).numpy() for x in (expected, found))
    is_number = np.isfinite(one)
    if not np.array_equal(one[~is_number], other[~is_number], equal_nan=True):
        return "is not finite elsewhere"
    most = np.abs(one[is_number]).max(initial=0.0)
    errors = np.abs(one[is_number] - other[is_number]) / (1.0 + most)
    if (errors > tolerance).sum() <= moved * errors.size:
        return ""
    return f"differs by {errors.max():.2g}"


def has_halves(graph: Any) -> bool:
    """Return whether a graph, a GraphDef, computes in a type of two bytes."""
    halves = {dtype.as_datatype_enum for dtype in HALVES}
    parts = [graph.node, *(function.node_def for function in graph.library.function)]
    return any(
        value.type in halves for part in parts for node in part for value in node.attr.values()
    )


def _graph_of(call: Call, arguments: Sequence[tf.Tensor]) -> Any:
    @tf.function(autograph=False)
    def run(*given: tf.Tensor) -> tf.Tensor:
        return call(*given)

    return run.get_concrete_function(*arguments).graph.as_graph_def()


def _examples(specs: Sequence[tf.TensorSpec], axes: int) -> Iterator[list[tf.Tensor]]:
    hops = [spec.hop for spec in specs if isinstance(spec, Frames)]
    hop = max(hops, default=1)  # a network is stored as it takes whole frames
    for sizes in [[-(-length // hop) * hop] for length in LENGTHS] if axes == 1 else [SIDES]:
        yield random_arguments([_resize_spec(spec, sizes, axes) for spec in specs])


def _resize_spec(spec: tf.TensorSpec, sizes: Sequence[int], axes: int) -> tf.TensorSpec:
    shape = [size or ROWS if axis == 0 else size for axis, size in enumerate(spec.shape)]
    if isinstance(spec, Frames):
        shape[1] = spec.count(sizes[0])
    if axes > 1 or is_at_rate(spec):
        for axis, size in enumerate(sizes, 1):
            if axis < len(shape) and shape[axis] is None:
                shape[axis] = size
    return tf.TensorSpec(shape, spec.dtype)
