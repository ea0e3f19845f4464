"""Evaluation during training: bits per dev sample, and generated audio with its spectrogram."""

import math
from pathlib import Path

import numpy as np
from PIL import Image

from onepass.foundation.metrics import MetricsLog
from onepass.replicator.training.state import TrainState
from wavenet.data import audio
from wavenet.data.corpus import Corpus
from wavenet.density import Density
from wavenet.dev_recordings import condition_of, dev_recordings, up_to
from wavenet.network import WaveNet
from wavenet.plots import spectrogram_png
from wavenet.presets import TrainConfig
from wavenet.samplers.generation import generate
from wavenet.trained_speech import request_of

SAMPLE_SECONDS = 2.0
DEV_SECONDS = 30.0  # total length of the dev recordings on which checkpoints are selected


class EvaluationCallback:
    """A callback that evaluates the averaged weights on the "choose" half of the dev split.

    It uses the first recordings, up to `DEV_SECONDS` in total. Generated waveforms and their
    spectrograms are written to `folder`.
    """

    def __init__(
        self, network: WaveNet, state: TrainState, corpus: Corpus, config: TrainConfig, folder: Path
    ) -> None:
        self.network, self.state, self.config, self.folder = network, state, config, folder
        self.density = Density(network)
        known = corpus.speakers[: config.network.speakers]
        self.recordings = up_to(
            dev_recordings(network, corpus, config.data.features, known, "choose"),
            DEV_SECONDS * config.data.sample_rate_hz,
        )

    def __call__(self, log: MetricsLog, step: int) -> float:
        """Return the bits per dev sample; log them, generated audio and its spectrogram."""
        with self.state.swap_in_average():
            bits = self._bits()
            log.scalars(step, {"dev_bits_per_sample": bits})
            self._sample(log, step)
        return bits

    def _bits(self) -> float:
        total = samples = 0.0
        for item in self.recordings:
            levels = self.network.codec.encode(item["waveform"]).numpy()
            total -= float(
                np.sum(
                    self.density.log_prob(levels, *condition_of(self.network, item)),
                    dtype=np.float64,
                )
            )
            samples += len(levels)
        return total / samples / math.log(2.0)

    def _sample(self, log: MetricsLog, step: int) -> None:
        rate_hz = self.config.data.sample_rate_hz
        item = self.recordings[0]
        length = min(int(SAMPLE_SECONDS * rate_hz), len(item["waveform"]))
        request = request_of(condition_of(self.network, item), length)
        levels = generate(self.network, request)[0]
        waveform = self.network.codec.decode(levels).numpy()
        path = self.folder / f"step_{step:08d}"
        audio.write(path.with_suffix(".wav"), waveform, rate_hz)
        pair = {"sampled": waveform, "recorded": item["waveform"][:length]}
        spectrogram_png(path.with_suffix(".png"), pair, rate_hz)
        log.audio(step, "sample", waveform, rate_hz)
        log.image(
            step, "spectrogram", np.asarray(Image.open(path.with_suffix(".png")).convert("RGB"))
        )
