"""Draws of a user's model in this process, with which those of its bundle are compared.

One pass of the network suffices: given the elements that the bundle has drawn, each is drawn again
from its noise and the elements before it. So an element that rounding moves to another level has no
effect on those after it. Where many move, the passes of the model itself may not have converged.
"""

import numpy as np
import tensorflow as tf

from distill.flow_student import FlowStudent
from onepass.bundles.own_conditions import Conditions
from onepass.bundles.signature import SEED, Arrays
from onepass.model import Autoregressive
from onepass.networks.condition_values import given_once
from onepass.samplers.passes import MOVED, has_moved, sample_symbols


def drawn_again(
    model: Autoregressive, conditions: Conditions, inputs: Arrays, elements: np.ndarray
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return what a model draws after a bundle's elements, and their log probabilities.

    UnsupportedNetworkError means that it has no step, and that its passes do not converge.
    """
    given, symbols = conditions.of(_tensors(inputs)), model.symbols(elements)
    parameters = model.conditionals(elements, given)
    seed, num = int(inputs[SEED][0]), len(elements)
    noise = model.layout.noise(model.distribution, seed, num, elements.shape[1:])
    drawn = sample_symbols(parameters, model.distribution, noise, 1.0, symbols)
    moved = tf.reduce_mean(tf.cast(has_moved(symbols, drawn), tf.float32))
    if moved > MOVED and not getattr(model.symbol_network, "has_step", False):
        once = given_once(model.symbol_network, given, model.order, elements.shape)
        model.samplers.draw("fixed-point", noise, once, tf.constant(1.0))
    return model.codec.decode(drawn), model.log_prob(elements, given)


def drawn_from_noise(
    student: FlowStudent, conditions: Conditions, inputs: Arrays, elements: np.ndarray
) -> tuple[tf.Tensor, None]:
    """Return what a student draws from the noise of a bundle's elements; the rest as above."""
    num, length = elements.shape
    noise = student.noise(int(inputs[SEED][0]), tf.range(num), length)
    values = student.draw(noise, conditions.of(_tensors(inputs))).output
    return student.elements(values), None


def _tensors(inputs: Arrays) -> dict[str, tf.Tensor]:
    return {name: tf.constant(array) for name, array in inputs.items()}
