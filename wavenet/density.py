"""Exact log-probability of recordings of any length, computed in windows to bound memory."""

import math
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from onepass.foundation.measures import CodeLengths, measure_code_lengths
from onepass.foundation.runtime import check_eager
from onepass.networks.conditions import only_timed
from wavenet.dev_recordings import condition_of
from wavenet.network import Network
from wavenet.samplers.symbols import autoregressive

WINDOW_SAMPLES = 1 << 16


class Density:
    """The exact log p(x | c) of recordings of any length, under a network's current weights."""

    def __init__(self, network: Network, window_samples: int = WINDOW_SAMPLES) -> None:
        self.network = network
        config = network.config
        # A context stack reaches further back than the layers do; blocks must stay aligned.
        block = config.block_samples
        past = config.receptive_field + config.context_blocks * block
        self.past_samples = math.ceil(past / block) * block
        self.window_samples = math.ceil(window_samples / block) * block
        self._window = tf.function(self._of_window, autograph=False, reduce_retracing=True)

    def log_prob(
        self,
        levels: np.ndarray,
        frames: np.ndarray | None = None,
        speaker: int | None = None,
        weights: str = "float32",
    ) -> np.ndarray:
        """Return each level's log-probability given the levels before it, [samples], in nats."""
        check_eager()
        condition = None
        if frames is not None or speaker is not None:
            given = None if frames is None else tf.constant(frames[None], tf.float32)
            whose = None if speaker is None else tf.constant([speaker])
            condition = self.network.condition(given, whose, len(levels))
        if weights != "float32":
            samplers = autoregressive(self.network).samplers
            symbols = tf.constant(levels[None], tf.int32)
            return samplers.log_prob(symbols, only_timed(condition), weights)[0]
        parts = []
        for start in range(0, len(levels), self.window_samples):
            first = max(0, start - self.past_samples)
            window = slice(first, start + self.window_samples)
            part = None if condition is None else condition[:, window]
            values = self._window(tf.constant(levels[None, window], tf.int32), part)
            parts.append(values.numpy()[0, start - first :])
        return np.concatenate(parts)

    def code_lengths(self, items: Iterable[dict]) -> CodeLengths:
        """Return the code lengths of recordings with the entries of `full_recordings`."""
        network = self.network

        def log_prob(item: dict) -> np.ndarray:
            levels = network.codec.encode(item["waveform"]).numpy()
            frames, speaker = condition_of(network, item)
            return self.log_prob(levels, frames, speaker)[np.newaxis]

        return measure_code_lengths(items, log_prob, lambda item: [len(item["waveform"])])

    def _of_window(self, levels: tf.Tensor, condition: tf.Tensor | None) -> tf.Tensor:
        parameters = self.network(self.network.inputs(levels), condition)
        return self.network.likelihood.log_prob(parameters, levels)
