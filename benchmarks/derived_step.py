"""A WaveNet sampled by the cached step that `autoregressive.incremental` derives from its graph."""

import tensorflow as tf

from autoregressive.incremental import incremental
from wavenet.network import WaveNet


class DerivedLoop:
    """Cached generation whose step nobody wrote.

    Args:
      network: reads a scaled waveform and has neither context stack nor linear prediction.
    """

    def __init__(self, network: WaveNet):
        self.network = network
        config, dtype = network.config, network.dtype
        condition = None
        if config.gate_inputs:
            condition = tf.TensorSpec([None, None, config.gate_inputs], dtype)
        inputs = tf.TensorSpec([None, None, 1], dtype)
        self._stepped = incremental(self._unshifted, inputs=inputs, condition=condition)
        self.sample = tf.function(self._sample, jit_compile=True, autograph=False)

    def _unshifted(self, wave, condition=None):
        """Return the parameters of the sample after each of wave [batch, time, 1]."""
        width, dtype = self.network.config.front_width, self.network.dtype
        kernel = tf.cast(self.network.front_kernel, dtype)[:, None, :]
        past = tf.pad(wave, [[0, 0], [width - 1, 0], [0, 0]])
        hidden = tf.nn.conv1d(past, kernel, 1, "VALID") + tf.cast(self.network.front_bias, dtype)
        return self.network.head(self.network.stack(hidden, condition))

    def _sample(self, noise: tf.Tensor, condition: tf.Tensor | None) -> tf.Tensor:
        """Return levels int32 [batch, time]; arguments as of `PlainLoop`."""
        batch, time, dtype = noise.shape[0], noise.shape[1], self.network.dtype
        levels = tf.TensorArray(tf.int32, time, element_shape=[batch])

        def body(t, wave, state, levels):
            now = None if condition is None else condition[:, t, None]
            parameters, state = self._stepped.step(wave, state, now)
            level = self.network.likelihood.sample(parameters[:, 0], noise[:, t], 1.0)
            wave = tf.cast(self.network.wave(level), dtype)[:, None, None]
            return t + 1, wave, state, levels.write(t, level)

        state = self._stepped.initial_state(batch)
        loop = (tf.constant(0), tf.zeros([batch, 1, 1], dtype), state, levels)
        levels = tf.while_loop(lambda t, *_: t < time, body, loop)[-1]
        return tf.transpose(levels.stack())
