"""Shared parts of MPO and V-MPO: action weights and policy updates within trust regions.

The E-step weights actions by exp(value / eta), where the temperature eta minimises the dual

    g(eta) = eta epsilon + eta log mean exp(value / eta),

so that the KL divergence of the weights to the actions' own distribution is epsilon (Abdolmaleki et
al. 2018, arXiv 1806.06920, equation 9). The M-step fits a Gaussian to the weighted actions, its
mean and its deviation separately, each within a KL divergence to the previous policy: multipliers
increase if it was too large, and an update that would leave the region is shortened.
"""

import math

import numpy as np
import tensorflow as tf

from examples import control
from examples.control import perceptron

BISECTIONS = 40
LOG_DEVIATIONS = (-3.0, 1.0)  # of the policy, lowest and highest
RATE = 0.01  # of a multiplier's logarithm per update


def tempered(values, temperature):
    """Return softmax of values / temperature, [..., actions], and its mean KL to uniform."""
    logs = tf.nn.log_softmax(values / temperature)
    actions = math.log(values.shape[-1])
    return tf.exp(logs), tf.reduce_mean(tf.reduce_sum(tf.exp(logs) * logs, axis=-1)) + actions


def temperature(values, bound: float):
    """Return the temperature that minimises the dual, float32 [], for values [..., actions].

    It is the lowest whose weights are within the bound epsilon, in nats: the dual's derivative,
    bound - KL, increases with the temperature, and its root is bisected.
    """

    def halved(low, high):
        middle = (low + high) / 2.0
        inside = tempered(values, tf.exp(middle))[1] <= bound
        return tf.where(inside, low, middle), tf.where(inside, middle, high)

    ends = tf.constant(math.log(1e-6)), tf.constant(math.log(1e6))
    _, high = tf.while_loop(lambda *_: True, halved, ends, maximum_iterations=BISECTIONS)
    return tf.stop_gradient(tf.exp(high))


def gaussian(weights, observation, arrays=tf):
    """Return mean, within [-1, 1], and deviation of an actor's actions, [..., actions] each."""
    raw = arrays.tanh(perceptron(weights, observation, arrays))
    mean, wide = raw[..., : raw.shape[-1] // 2], raw[..., raw.shape[-1] // 2 :]
    lowest, highest = LOG_DEVIATIONS
    return mean, arrays.exp(lowest + (highest - lowest) * (wide + 1.0) / 2.0)


def log_density(action, mean, deviation):
    """Return the log-density of actions [..., numbers] without its constant, float32 [...]."""
    z = (action - mean) / deviation
    return -tf.reduce_sum(tf.math.log(deviation) + tf.square(z) / 2.0, axis=-1)


def divergences(before, now):
    """Return KL(before || now) if only the mean, and if only the deviation changes, float32 [2]."""
    (mean, deviation), (new_mean, new_deviation) = before, now
    ratio = tf.square(deviation / new_deviation)
    moved = tf.square((new_mean - mean) / deviation) / 2.0
    widened = (ratio - 1.0 - tf.math.log(ratio)) / 2.0
    return tf.stack([tf.reduce_mean(tf.reduce_sum(x, axis=-1)) for x in (moved, widened)])


class GaussianPolicy(control.Learner):
    """A learner that samples its actions, and whose policy stays close to its target's."""

    def __init__(self, settings, *arguments):
        super().__init__(settings, *arguments)
        self.bounds = np.float32([settings.mean_bound, settings.deviation_bound])
        self.log_multipliers = tf.Variable(np.zeros(2, np.float32))

    def act(self, weights, observation, rng):
        """Return an action, see control.Learner."""
        mean, deviation = gaussian(weights, observation, np)
        return mean if rng is None else rng.normal(mean, deviation)

    def before(self, batch):
        """Return mean and deviation of the target policy."""
        return gaussian(self.target_actor, batch["observation"])

    def policy_loss(self, batch, actions, weights):
        """Return minus the weighted log-likelihood of the actions, plus the cost of the bounds.

        Actions are float32 [..., batch, numbers], weights float32 [..., batch], whose sum over the
        first axes is each row's.
        """
        before, now = self.before(batch), gaussian(self.actor, batch["observation"])
        separate = ((now[0], before[1]), (before[0], now[1]))
        fitted = tf.add_n([log_density(actions, *policy) for policy in separate])
        cost = tf.reduce_sum(tf.exp(self.log_multipliers) * divergences(before, now))
        rows = tf.cast(tf.shape(batch["observation"])[0], tf.float32)
        return cost - tf.reduce_sum(weights * fitted) / rows

    def accepted(self, batch, moved):
        """Return the actor, updated as far as its bounds allow, and the new multipliers.

        The whole update is tried, then a quarter and a sixteenth of it; the multipliers depend on
        the divergence of the whole.
        """
        before, actor = self.before(batch), list(self.actor)
        for fraction in (1 / 16, 1 / 4, 1.0):
            tried = [
                old + fraction * (new - old) for old, new in zip(self.actor, moved, strict=True)
            ]
            found = divergences(before, gaussian(tried, batch["observation"]))
            found = self.replicator.all_reduce(found, "mean")
            inside = tf.reduce_all(found <= self.bounds)
            actor = [tf.where(inside, new, old) for new, old in zip(tried, actor, strict=True)]
        rise = RATE * tf.clip_by_value(found / self.bounds - 1.0, -1.0, 1.0)
        multipliers = tf.clip_by_value(self.log_multipliers + rise, -5.0, 5.0)
        return actor, [(self.log_multipliers, multipliers)]
