"""Rules for softmax, reductions and running sums over pairs of time steps."""

import dataclasses

import numpy as np
import tensorflow as tf

from onepass.step.groups import Groups
from onepass.step.pair_kinds import only_pairs, plain, same_order, turn
from onepass.step.replay import run_op
from onepass.step.rowwise import replay_operation
from onepass.step.streams import ENDLESS, Call, Node, Part, Refused, Stream


def softmax(node: Node, groups: Groups) -> Part:
    """Return how a step runs a softmax over the keys or over another axis."""
    kind = only_pairs(node)
    last = node.op.inputs[0].shape.rank - 1
    if kind.query == last:
        raise turn(node, groups, kind.group)
    if kind.key != last:
        return Part([plain(kind)], replay_operation(node), group=kind.group)
    groups.softmaxes.append((kind.group, kind.masks))
    made = dataclasses.replace(plain(kind), is_softmax=node.type == "Softmax")

    def run(inputs: list[list[tf.Tensor]], call: Call) -> list[tf.Tensor]:
        scores, keys = inputs[0][0], call.keys(kind.group)
        if keys.is_window:  # the network has no mask for the zero rows before the first time step
            scores = tf.where(keys.times >= 0, scores, tf.constant(scores.dtype.min, scores.dtype))
        return run_op(node.op, [scores])

    return Part([made], run, group=kind.group)


def reduction(node: Node, groups: Groups) -> Part:
    """Return how a step runs a reduction, such as a sum, over the keys or over another axis."""
    kind = only_pairs(node)
    rank = node.op.inputs[0].shape.rank
    axes = {int(axis) % rank for axis in np.ravel(node.static(1))}
    if kind.query in axes and kind.key not in axes:
        raise turn(node, groups, kind.group)
    if kind.query in axes:
        return Part(
            [Refused(f"{node.layer} reads all of the sequence at once ({node.type})")], None
        )
    if kind.key not in axes:
        made = kind.with_axes(*same_order(node, 0, kind))
        return Part([plain(made)], replay_operation(node), group=kind.group)
    groups.unbounded.add(kind.group)
    if node.type == "Mean":
        raise node.refusal_error("averages over all time steps (Mean)")
    by = "" if kind.outer * kind.inner == 1 else node.layer
    stream = node.derive_kind(0, Stream(0, 0, ENDLESS, kind.outer, kind.inner, merged_by=by))
    return Part([stream], replay_operation(node), group=kind.group)


def running(node: Node, groups: Groups) -> Part:
    """Return how a step runs a running sum over the keys or over another axis."""
    kind = only_pairs(node)
    axis = int(node.static(1)) % node.op.inputs[0].shape.rank
    if axis == kind.query:
        raise turn(node, groups, kind.group)
    if axis == kind.key:
        groups.unbounded.add(kind.group)
    return Part([plain(kind)], replay_operation(node), group=kind.group)
