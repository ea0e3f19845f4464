"""Training batches of clips, for TensorFlow and for machines without it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from onepass.replicator.training.training_run import PortableBatches
from wavenet.data import batch_sampling
from wavenet.data.corpus import Corpus, export_npz
from wavenet.data.pipeline import ALONE, ClipContext, clips

CLIPS = "clips.npz"  # name of the file with recordings in an exported folder


@dataclasses.dataclass(frozen=True)
class ClipBatches:
    """The training batches of a corpus, each a pure function of the seed and the step."""

    corpus: Corpus
    clip_samples: int
    batch_size: int
    seed: int
    features: tuple[str, ...]
    around: ClipContext = ALONE
    encode: Callable[[tf.Tensor], tf.Tensor] | None = None

    def __call__(
        self, start_step: int, shard_index: int = 0, num_shards: int = 1
    ) -> tf.data.Dataset:
        """Return the batches starting at `start_step`, or part `shard_index` of each."""
        return clips(
            self.corpus,
            "train",
            clip_samples=self.clip_samples,
            batch_size=self.batch_size,
            seed=self.seed,
            features=self.features,
            encode=self.encode,
            start_step=start_step,
            shard_index=shard_index,
            num_shards=num_shards,
            clip_context=self.around,
        )

    def portable(self) -> PortableBatches:
        """Return the same batches, without levels, for a machine without TensorFlow."""
        augmentation = self.around.augmentation(self.corpus, self.features)
        settings = {
            "file": CLIPS,
            "split": "train",
            "clip_samples": self.clip_samples,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "left_samples": self.around.left_samples,
            "side_frames": self.around.side_frames,
            "augmentation": None if augmentation is None else dataclasses.asdict(augmentation),
        }
        return PortableBatches(batch_sampling, settings, self._write)

    def _write(self, path: Path) -> None:
        export_npz(self.corpus, path, self.features)
