"""Audio students as drafts for WaveNets that read the same frames."""

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from distill.drafts import FlowDraft
from distill.generation import condition_between
from distill.residual import Prediction
from distill.student import Condition, ParallelWaveNet
from onepass.foundation.errors import UserError
from onepass.likelihoods.codec import Codec
from onepass.likelihoods.distribution import with_density
from onepass.samplers.cached import pad_chunk
from wavenet.trained_speech import Request

# The entries of model.json that must be equal for a model and its draft.
SAME = ("sample_rate_hz", "hop_samples", "gain_db", "features", "speakers")


class SoundDraft(FlowDraft):
    """An audio student as a draft, conditioned on frames, for blocks of whole `block_samples`."""

    def __init__(self, student: ParallelWaveNet, codec: Codec):
        super().__init__(student, codec, "own")
        self._student, config = student, student.config
        self._row_samples = config.row_samples if config.domain == "residual" else 1
        self.block_samples = math.lcm(config.bunch_samples, self._row_samples)

    def conditions(self, request: Request, length: int) -> Iterator[Condition]:
        """Yield the condition of every block of `length` samples of a request."""
        student, row = self._student, self._row_samples
        together, bunch = math.lcm(length, student.config.hop_samples), student.config.bunch_samples
        phase = tf.zeros([len(request.rows)], tf.float64)
        for first in range(0, request.num_samples, together):
            last = min(first + together, request.num_samples)
            whole, phase = condition_between(student, request, first, last, phase)
            prediction = whole.prediction
            for start in range(0, last - first, length):
                part = functools.partial(_part, start, length)
                if whole.prediction is not None:
                    prediction = Prediction(*(part(row, x) for x in whole.prediction))
                channels, source = part(bunch, whole.channels), part(1, whole.source)
                yield Condition(channels, source, prediction, part(row, whole.held))


def _part(first: int, length: int, samples: int, values: tf.Tensor | None) -> Any:
    start, count = first // samples, length // samples
    return None if values is None else pad_chunk(values[:, start : start + count], count)


def sound_draft(student: ParallelWaveNet, spec: Mapping[str, Any], model: Any) -> SoundDraft:
    """Return a student of sound, with its model.json, as a draft for a trained WaveNet."""
    if getattr(model, "spec", {}).get("kind") != "wavenet":
        raise UserError(
            f"A student of sound drafts for a WaveNet as `load` returns it, not for a"
            f" {getattr(model, 'kind', type(model).__name__)}."
        )
    if with_density(model.network.likelihood) is None:
        raise UserError("A student drafts for a WaveNet with a density, this one has a softmax.")
    for name in SAME:
        expected, found = model.spec[name], spec[name]
        if expected != found:
            raise UserError(f"A draft needs the model's `{name}`, {expected}; it has {found}.")
    return SoundDraft(student, model.network.codec)
