"""The reference sampler: generation by the definition, the whole network for every sample."""

import numpy as np
import tensorflow as tf

from wavenet.sound_network import Network


class NaiveSampler:
    """One full pass over the receptive field a sample, O(receptive field x layers) work."""

    def __init__(self, network: Network, window_samples: int):
        self.network = network
        self.window_samples = window_samples
        self._parameters = tf.function(self._last, autograph=False)

    def parameters(self, levels: np.ndarray, condition, position: int):
        """Return the parameters of sample `position` given those before, [batch, parameters]."""
        # The window begins at the start of the sound or one receptive field back, so that the
        # zeros a convolution pads with are those the sound itself would have.
        first = max(0, position + 1 - self.window_samples)
        first -= first % self.network.config.block_samples
        window = slice(first, first + self.window_samples + self.network.config.block_samples - 1)
        part = None if condition is None else condition[:, window]
        return self._parameters(tf.constant(levels[:, window]), part, tf.constant(position - first))

    def _last(self, levels, condition, index):
        return self.network(self.network.inputs(levels), condition)[:, index]


def generate(
    network: Network,
    levels: np.ndarray,
    start: int,
    noise,
    condition,
    temperature: float = 1.0,
    window_samples: int | None = None,
):
    """Return the levels with every sample from `start` on drawn, and their parameters.

    Levels before `start`, int32 [batch, time], are the prime. `window_samples` is the input of a
    pass: by default all of it, or the receptive field if that is shorter and there is no context
    stack.
    """
    time = levels.shape[1]
    config = network.config
    if window_samples is None:
        # The sample itself, which the network shifts out, stands behind its receptive field.
        window_samples = time if config.context_layers else min(time, config.receptive_field + 1)
    sampler = NaiveSampler(network, window_samples)
    levels, drawn = levels.copy(), []
    for t in range(start, time):
        parameters = sampler.parameters(levels, condition, t)
        levels[:, t] = network.likelihood.sample(parameters, noise[:, t - start], temperature)
        drawn.append(parameters)
    return levels, tf.stack(drawn, 1)
