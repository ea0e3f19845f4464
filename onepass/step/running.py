"""Rule for running sums and products over time: the state keeps the total so far."""

from collections.abc import Callable

import tensorflow as tf

from onepass.step.rules import rule
from onepass.step.streams import Call, Node, Part, Start

_TOTALS: dict[str, tuple[Callable, Callable, Callable]] = {
    # the operation, the reduction of several rows, and the combination of two totals
    "Cumsum": (tf.cumsum, tf.reduce_sum, tf.add),
    "Cumprod": (tf.math.cumprod, tf.reduce_prod, tf.multiply),
    "CumulativeLogsumexp": (
        tf.math.cumulative_logsumexp,
        tf.reduce_logsumexp,
        lambda a, b: tf.reduce_logsumexp(tf.stack([a, tf.broadcast_to(b, a.shape)]), 0),
    ),
}
_EMPTY = {"Cumsum": 0.0, "Cumprod": 1.0, "CumulativeLogsumexp": float("-inf")}


@rule(*_TOTALS)
def running_total(node: Node) -> Part:
    """Return how a step runs a running sum, product or log-sum-exp."""
    stream = node.only()
    axis = int(node.static(1)) % node.op.inputs[0].shape.rank
    kind = node.derive_kind(0, stream)
    if axis != stream.axis:
        return Part([kind], lambda inputs, call: [_run(node, inputs[0][0], axis)])
    if node.op.get_attr("reverse"):
        raise node.refusal_error(f"sums over later time steps ({node.type}, reversed)")
    if stream.is_merged:
        raise node.unsupported_error("time was merged with another axis")
    if stream.offset is None or stream.offset < 0:
        raise node.unsupported_error("the first time steps were dropped before it")
    offset, key = stream.offset, f"{node.op.name}:total"
    _, reduce, combine = _TOTALS[node.type]

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        rows, before = inputs[0][0], call.state[key]
        call.changed[key] = combine(before, reduce(rows, axis))
        return [combine(_run(node, rows, axis), tf.expand_dims(before, axis))]

    def states(values: list[tf.Tensor], whole: Callable) -> dict[str, tf.Tensor]:
        rows = tf.gather(values[0], tf.range(offset), axis=axis)
        if offset:
            return {key: reduce(rows, axis)}
        shape = [size for i, size in enumerate(rows.shape) if i != axis]
        return {key: tf.fill(shape, tf.constant(_EMPTY[node.type], rows.dtype))}

    return Part([kind], run, start=Start((node.op.inputs[0],), states))


def _run(node: Node, rows: tf.Tensor, axis: int) -> tf.Tensor:
    exclusive, reverse = node.op.get_attr("exclusive"), node.op.get_attr("reverse")
    return _TOTALS[node.type][0](rows, axis, exclusive=exclusive, reverse=reverse)
