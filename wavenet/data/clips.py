"""Training batches of clips: an endless, restartable pipeline, and files for other machines."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from onepass.replicator.training.batches import Batch, as_dataset
from onepass.replicator.training.training_run import PortableBatches
from wavenet.data import batch_sampling
from wavenet.data.batch_sampling import Augmentation, ClipSource, batch
from wavenet.data.corpus import Corpus, export_npz, frames_of, recordings_of, silent_frame


@dataclasses.dataclass(frozen=True)
class ClipContext:
    """Settings for the past, neighbours and augmentation, as in `ClipSource` and `Augmentation`."""

    left_samples: int = 0
    side_frames: int = 0
    gain_db: float = 0.0
    polarity: bool = False

    def augmentation(self, corpus: Corpus, features: Sequence[str]) -> Augmentation | None:
        """Return the `Augmentation` of a corpus's clips, or None if it changes nothing."""
        if not (self.gain_db or self.polarity):
            return None
        if corpus.mel is None or "mel" not in features:
            return Augmentation(self.gain_db, self.polarity, 0, -1.0)
        per_unit = 1.0 if corpus.mel.log == "natural" else math.log(10.0)
        silence = corpus.mel.silence * per_unit
        return Augmentation(self.gain_db, self.polarity, corpus.mel.bands, silence)


ALONE = ClipContext()


def source_of(
    corpus: Corpus,
    split: str,
    clip_samples: int,
    features: Sequence[str] = ("mel",),
    clip_context: ClipContext = ALONE,
) -> ClipSource:
    """Return the `ClipSource` of a split; with features, clips start at frame boundaries."""
    members, framed = recordings_of(corpus, split), dict[str, Any]()
    if features:
        framed["frames"] = [frames_of(corpus, p, features) for p in members]
        framed["padding"] = silent_frame(corpus, features)
        framed["hop_samples"] = corpus.hop_samples
    framed |= {"left_samples": clip_context.left_samples, "side_frames": clip_context.side_frames}
    framed["augmentation"] = clip_context.augmentation(corpus, features)
    waveforms, speakers = [p.waveform for p in members], [p.speaker for p in members]
    return ClipSource(waveforms, speakers, clip_samples, **framed)


CLIPS = "clips.npz"  # name of the file with recordings in an exported folder


@dataclasses.dataclass(frozen=True)
class ClipBatches:
    """Endless batches of a split, each a function of seed and step; with `encode` also "levels"."""

    corpus: Corpus
    clip_samples: int
    batch_size: int
    seed: int
    features: tuple[str, ...]
    around: ClipContext = ALONE
    encode: Callable[[tf.Tensor], tf.Tensor] | None = None
    split: str = "train"

    def __call__(
        self, start_step: int = 0, shard_index: int = 0, num_shards: int = 1
    ) -> tf.data.Dataset:
        """Return the batches starting at `start_step`, or part `shard_index` of each."""
        source = source_of(self.corpus, self.split, self.clip_samples, self.features, self.around)
        shard = {"shard_index": shard_index, "num_shards": num_shards}
        made = functools.partial(batch, source, self.seed, batch_size=self.batch_size, **shard)

        def with_levels(arrays: Batch) -> Batch:
            if self.encode is None:
                return arrays
            return {**arrays, "levels": self.encode(arrays["waveform"])}

        rows = self.batch_size // num_shards
        return as_dataset(made, start_step, rows=rows, then=with_levels)

    def portable(self) -> PortableBatches:
        """Return the same batches, without levels, for a machine without TensorFlow."""
        augmentation = self.around.augmentation(self.corpus, self.features)
        own, around = ("split", "clip_samples", "batch_size", "seed"), self.around
        settings = {"file": CLIPS, **{name: getattr(self, name) for name in own}}
        settings |= {"left_samples": around.left_samples, "side_frames": around.side_frames}
        settings["augmentation"] = augmentation and dataclasses.asdict(augmentation)
        write = functools.partial(export_npz, self.corpus, features=self.features)
        return PortableBatches(batch_sampling, settings, write)
