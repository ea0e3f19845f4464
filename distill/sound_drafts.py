"""Students of sound as drafts of the WaveNets that read the same frames."""

import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from distill.drafts import FlowDraft
from distill.generation import condition_between
from distill.residual import Prediction
from distill.student import Condition, ParallelWaveNet
from likelihoods.capabilities import with_density
from likelihoods.codec import Codec
from replicator.runs.errors import UserError
from wavenet.samplers.generation import padded
from wavenet.speech_model import Request

# What models of sound must share, of model.json.
SAME = ("sample_rate_hz", "hop_samples", "gain_db", "features", "speakers")


class SoundDraft(FlowDraft):
    """A student of sound as a draft: its condition comes from the frames that the model reads.

    Args:
      student: flows of sound.
      codec: of the model.

    Attributes:
      block_samples: a block is a multiple of so many.
    """

    def __init__(self, student: ParallelWaveNet, codec: Codec):
        super().__init__(student, codec, "own")
        self._student, config = student, student.config
        self._row_samples = config.row_samples if config.domain == "residual" else 1
        self.block_samples = math.lcm(config.bunch_samples, self._row_samples)

    def conditions(self, request: Request, length: int) -> Iterator[Condition]:
        """Yield the condition of every block of `length` samples of a request."""
        student = self._student
        together = math.lcm(length, student.config.hop_samples)
        phase = tf.zeros([len(request.rows)], tf.float64)
        for first in range(0, request.num_samples, together):
            last = min(first + together, request.num_samples)
            whole, phase = condition_between(student, request, first, last, phase)
            for start in range(0, last - first, length):
                yield self._part(whole, start, length)

    def _part(self, whole: Condition, first: int, length: int) -> Condition:
        """Return the condition of `length` samples from `first` on, zeros beyond its end."""

        def part(values: tf.Tensor | None, samples: int) -> Any:
            start, count = first // samples, length // samples
            return None if values is None else padded(values[:, start : start + count], count)

        prediction = whole.prediction
        if prediction is not None:
            prediction = Prediction(*(part(x, self._row_samples) for x in prediction))
        bunch = self._student.config.bunch_samples
        channels, held = part(whole.channels, bunch), part(whole.held, self._row_samples)
        return Condition(channels, part(whole.source, 1), prediction, held)


def sound_draft(student: Any, model: Any) -> SoundDraft:
    """Return a `StudentModel` as a draft of a `SpeechModel`.

    Raises:
      UserError: the model is none of sound, has no density, or sounds of another kind.
    """
    if getattr(model, "spec", {}).get("kind") != "wavenet":
        raise UserError(
            f"A student of sound drafts for a WaveNet as `load` returns it, not for a"
            f" {type(model).__name__}."
        )
    if with_density(model.network.likelihood) is None:
        raise UserError("A student drafts for a WaveNet with a density, this one has a softmax.")
    for name in SAME:
        expected, found = model.spec[name], student.spec[name]
        if expected != found:
            raise UserError(f"A draft needs the model's `{name}`, {expected}; it has {found}.")
    return SoundDraft(student.network, model.network.codec)
