"""A WaveNet sampled by a plain `tf.while_loop`: a queue per layer, concatenated and cut.

The straightforward way to cache (Le Paine et al. 2016, arXiv 1611.09482). It draws the same levels
as the library's samplers, with none of their tricks.
"""

import math

import tensorflow as tf

from wavenet.network import WaveNet

SQRT_HALF = math.sqrt(0.5)


class PlainLoop:
    """Cached generation with one queue per layer.

    Args:
      network: reads a scaled waveform and has neither context stack nor linear prediction.
      jit_compile: compile the loop by XLA.
    """

    def __init__(self, network: WaveNet, jit_compile: bool):
        self.network, self.layers = network, network.stack.layers
        self.sample = tf.function(self._sample, jit_compile=jit_compile, autograph=False)

    def _sample(self, noise: tf.Tensor, condition: tf.Tensor | None) -> tf.Tensor:
        """Return levels int32 [batch, time].

        Args:
          noise: [batch, time, noise_channels].
          condition: [batch, time, channels], or None.
        """
        batch, time, dtype = noise.shape[0], noise.shape[1], self.network.dtype
        queues = [
            tf.zeros([batch, layer.past_steps, self.network.config.residual_channels], dtype)
            for layer in self.layers
        ]
        past = tf.zeros([batch, self.network.config.front_width], dtype)
        levels = tf.TensorArray(tf.int32, time, element_shape=[batch])

        def body(t, past, queues, levels):
            now = None if condition is None else condition[:, t]
            parameters, queues = self._step(past, queues, now)
            level = self.network.likelihood.sample(parameters, noise[:, t], 1.0)
            wave = tf.cast(self.network.wave(level), dtype)
            past = tf.concat([past[:, 1:], wave[:, None]], 1)
            return t + 1, past, queues, levels.write(t, level)

        loop = (tf.constant(0), past, queues, levels)
        levels = tf.while_loop(lambda t, *_: t < time, body, loop)[-1]
        return tf.transpose(levels.stack())

    def _step(self, past, queues, condition):
        hidden = tf.matmul(past, tf.cast(self.network.front_kernel, past.dtype))
        hidden += tf.cast(self.network.front_bias, past.dtype)
        skips, after = 0.0, []
        for layer, queue in zip(self.layers, queues, strict=True):
            joined = tf.concat([queue, hidden[:, None]], 1)
            after.append(joined[:, 1:])
            taps = joined[:, :: layer.dilation]
            kernel = tf.cast(layer.gate_kernel, hidden.dtype)
            gate = tf.tensordot(taps, kernel, [[1, 2], [0, 1]])
            gate += tf.cast(layer.gate_bias, hidden.dtype)
            if condition is not None:
                gate += tf.matmul(condition, tf.cast(layer.condition_kernel, hidden.dtype))
            filters, gates = tf.split(gate, 2, -1)
            units = tf.tanh(filters) * tf.sigmoid(gates)
            skips += tf.matmul(units, tf.cast(layer.skip_kernel, hidden.dtype))
            if layer.residual_kernel is not None:
                update = tf.matmul(units, tf.cast(layer.residual_kernel, hidden.dtype))
                bias = tf.cast(layer.residual_bias, hidden.dtype)
                hidden = (hidden + update + bias) * SQRT_HALF
        return self.network.head(skips * self.network.stack.skip_scale), after
