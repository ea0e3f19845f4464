"""Log-probabilities in a program of networks whose graph depends on the length.

Traced for any length, such a network (Keras' `TimeDistributed`, which loops over time) computes
something else. In a program it therefore runs on rows that are padded to one of a few lengths;
since it is causal, what is appended changes nothing before it.
"""

import copy
import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from onepass.model import Autoregressive
from onepass.storage.comparison import first_fault
from onepass.storage.program import LENGTHS, function_of, network_specs


def pad_log_prob(model: Autoregressive, lengths: Sequence[int]) -> Autoregressive:
    """Return a model whose `log_prob` may be traced for rows of any length up to the longest.

    The same model is returned if its graph does not depend on the length, if it has conditions, or
    if its rows are longer than those that are stored.
    """
    network = model.symbol_network
    if model.conditions or lengths[-1] > LENGTHS[-1]:  # loops over time are written out
        return model
    any_length = function_of(network.exact, network_specs(model))
    if not first_fault(network.exact, any_length, [network.inputs]):
        return model
    padded = copy.copy(model)
    padded.__dict__["log_prob"] = functools.partial(_log_prob, model, tuple(lengths))
    return padded


def _log_prob(
    model: Autoregressive, lengths: tuple[int, ...], elements: tf.Tensor, condition: Any = None
) -> tf.Tensor:
    time = tf.shape(elements)[1]

    def at_length(length: int) -> tf.Tensor:
        # The last element is repeated, which is one of the model's whatever they are.
        index = tf.minimum(tf.range(length), time - 1)
        rows = tf.gather(elements, index, axis=1)
        return model.log_prob(rows, condition)[:, :time]

    branch = tf.reduce_sum(tf.cast(time > tf.constant(lengths[:-1], tf.int32), tf.int32))
    return tf.switch_case(branch, [functools.partial(at_length, length) for length in lengths])
