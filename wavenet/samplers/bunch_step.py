"""A step of a vocoder: the layers once per bunch, and each of its samples, over past buffers.

Buffers are wave, residuals and samples over their level, float [rows, batch] each; rows before
`end` are the past, the newest row last.
"""

import tensorflow as tf

from wavenet.conditioner import Condition
from wavenet.samplers.xla import LayerStep, Rings
from wavenet.vocoder import AHEAD, VocoderWaveNet


class BunchStep(LayerStep):
    """The computation of samples given those before them, over the condition of a chunk.

    Args:
      network: the vocoder. rings: of its layers.
      made: the condition of every sample of the chunk.
    """

    network: VocoderWaveNet

    def __init__(self, network: VocoderWaveNet, rings: Rings, made: Condition):
        super().__init__(network, rings)
        self.made = made
        self.front_width = network.config.front_width
        self.head_width = network.config.head_width
        self.gain, self.shrink = tf.exp(-made.log_gain), tf.exp(-made.log_level)

    def of_bunch(self, number, time, end, buffers, queues, gates):
        """Return what the layers give to the head [batch, B * units], and the queues after it.

        Args:
          number: of the bunch since the start.
          time: index of the bunch's first sample.
          end: of the past in the buffers.
          buffers: wave, residuals and samples over their level.
          queues: see `LayerStep.skips`.
          gates: see `LayerStep.skips`.
        """
        _, residual, scaled = buffers
        hidden = self.network.front(
            last(residual, end, self.front_width),
            last(scaled, end, self.front_width),
            self._pitch_taps(residual, time, end),
        )
        skips, queues = self.skips(number, hidden, queues, gates)
        return self.network.from_layers(skips), queues

    def parameters(self, time, end, buffers, given):
        """Return the parameters of one sample [batch, parameters], and its prediction [batch].

        Args:
          time: index of the sample.
          end: row of the buffers after the newest.
          buffers: wave, residuals and samples over their level.
          given: the layers' input to the head of this sample, [batch, units].
        """
        network = self.network
        wave, residual, scaled = buffers
        recent = network.from_recent(
            last(residual, end, self.head_width),
            last(scaled, end, self.head_width),
            self._pitch_taps(residual, time, end),
        )
        predicted = self._predicted(wave, time, end)
        raw = network.outputs(given + recent)
        return network.in_wave_units(raw, predicted, self.made.log_gain[:, time]), predicted

    def entries(self, time, value, predicted):
        """Return the rows [batch] that a sample of this value adds to the buffers."""
        return value, (value - predicted) * self.gain[:, time], value * self.shrink[:, time]

    def _predicted(self, wave, time, end):
        order = self.network.config.prediction_order
        if not order:
            return tf.zeros_like(wave[0])
        past = last(wave, end, order)
        return tf.reduce_sum(past[:, ::-1] * self.made.coefficients[:, time], -1)

    def _pitch_taps(self, residual, time, end):
        taps = self.network.config.pitch_taps
        if not taps:
            return None
        period = self.network.whole_period(self.made.period[:, time])
        first = end - period + AHEAD + 1 - taps
        rows = first[:, None] + tf.range(taps)
        columns = tf.broadcast_to(tf.range(tf.shape(rows)[0])[:, None], tf.shape(rows))
        return tf.gather_nd(residual, tf.stack([rows, columns], -1))


def last(values, end, width: int):
    """Return the `width` values before a row, oldest first, [batch, width]."""
    return tf.transpose(tf.slice(values, [end - width, 0], [width, -1]))


def written_at(buffers, row, entries):
    """Return the buffers with an entry [batch] in this row of each."""
    return tuple(
        tf.tensor_scatter_nd_update(x, [[row]], entry[None])
        for x, entry in zip(buffers, entries, strict=True)
    )
