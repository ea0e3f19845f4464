"""What distillation asks of a density and of a fast sampler; a sound, a picture is only a shape.

Both speak of elements [batch, elements...], each drawn given those before it.
"""

import math
from typing import Protocol

import tensorflow as tf

from distill.flows import FlowOutput

# Entropy of the noise that a sampler starts from, in nats an element.
ENTROPY = {"logistic": 2.0, "normal": 0.5 * math.log(2.0 * math.pi * math.e)}


class Conditionals(Protocol):
    """The distribution of every element of something given the elements before it."""

    def log_density(self, values: tf.Tensor) -> tf.Tensor:
        """float32 [..., batch, elements...], nats per unit, of other values at the same places."""


class Density(Protocol):
    """The slow, exact teacher."""

    def conditionals(self, x: tf.Tensor, condition) -> Conditionals:
        """In one pass, p(x_t | x_<t, condition) for all t; differentiable in x."""


class FastSampler(Protocol):
    """The student: all elements at once, and its own density there."""

    @property
    def noise_kind(self) -> str:
        """The noise that `sample` wants: logistic or normal."""

    def sample(self, noise: tf.Tensor, condition) -> FlowOutput:
        """output = noise scale + location, where location and scale at t depend on noise_<t."""
