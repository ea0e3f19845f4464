"""A convolutional LSTM, which encodes a sequence of frames as a map."""

import tensorflow as tf

from likelihoods.initial import Initial

FORGET_BIAS = 1.0  # a new cell keeps what it holds (Jozefowicz et al. 2015)


class ConvLSTM(tf.Module):
    """An LSTM whose products are convolutions, without peepholes.

    Shi et al. 2015, "Convolutional LSTM Network" (arXiv 1506.04214), equation 3:

        i, f, g, o = W_x * X_t + W_h * H_(t-1) + b
        C_t = sigmoid(f) . C_(t-1) + sigmoid(i) . tanh(g)
        H_t = sigmoid(o) . tanh(C_t)

    Both states are zero before the first step.
    """

    def __init__(
        self, inputs: int, channels: int, initial: Initial, width: int = 3, name="conv_lstm"
    ):
        super().__init__(name=name)
        self.inputs, self.channels = inputs, channels
        # Rows of W_x, then of W_h: one variable, so that a single step reaches it too.
        self.kernel = initial.kernel([width, width, inputs + channels, 4 * channels], "kernel")
        self.bias = initial.zeros([4 * channels], "bias")

    def __call__(self, frames):
        """Return the hidden state after the last frame, [batch, height, width, channels].

        The frames are [batch, time, height, width, inputs]; all but the batch are known sizes.
        """
        time, *size = frames.shape[1:]
        flat = tf.reshape(frames, [-1, *size])
        driven = tf.nn.conv2d(flat, self.kernel[:, :, : self.inputs], 1, "SAME") + self.bias
        driven = tf.reshape(driven, [-1, time, *size[:2], 4 * self.channels])
        recurrent = self.kernel[:, :, self.inputs :]
        hidden, cell = self._step(driven[:, 0], 0.0)
        for t in range(1, time):
            gates = driven[:, t] + tf.nn.conv2d(hidden, recurrent, 1, "SAME")
            hidden, cell = self._step(gates, cell)
        return hidden

    def _step(self, gates, cell):
        i, f, g, o = tf.split(gates, 4, -1)
        cell = tf.sigmoid(f + FORGET_BIAS) * cell + tf.sigmoid(i) * tf.tanh(g)
        return tf.sigmoid(o) * tf.tanh(cell), cell
