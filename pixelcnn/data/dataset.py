"""Batches of the images, or frames, that a run is trained and evaluated on."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from pixelcnn.data.corpus import Corpus, ImageSet, read_corpus, read_dev
from pixelcnn.data.image_file import DataError
from pixelcnn.data.photographs import square_batches, whole_photographs
from pixelcnn.data.pipeline import batches, whole
from pixelcnn.data.video import Statistics, Video, read_episodes, video_batches, whole_video

EVALUATION_BATCH = 16
VIDEO_SHUFFLES = 8  # a video has few moments: the luck of a single shuffle would show
CAPTION_SHUFFLES = 9  # other captions under which every image is evaluated
CAPTIONS_NAMED = 12
NEEDED = {"class": "label", "text": "caption", "map": "map"}
SOURCE = {
    "class": "classes (a sub-folder each, a column `class` of a table, or `labels` in npz)",
    "text": "captions (a column `caption` of a table, or `captions` in npz)",
    "map": "maps (`maps` in npz)",
}


@dataclasses.dataclass(frozen=True)
class ImageDataset:
    """A corpus of images, or of video where the condition is the frames before."""

    config: Any  # a TrainConfig, of either model
    source: Corpus | Video

    @classmethod
    def read(cls, data: Path | str, config: Any) -> "ImageDataset":
        """Return the data set of a folder or file.

        Raises:
          DataError: the source lacks what the configuration's condition needs.
        """
        if config.conditioning.kind == "video":
            return cls(config, read_episodes(data, config.data.rules))
        return cls._of(config, read_corpus(data, config.data.rules), data)

    @classmethod
    def for_evaluation(
        cls,
        data: Path | str,
        config: Any,
        classes: Sequence[str],
        statistics: Statistics | None = None,
        everything: bool = False,
    ) -> "ImageDataset":
        """Return the dev split alone, with the classes and statistics of a trained model.

        Args:
          data: as for `read_dev`.
          config: of the model, resolved.
          classes: of the model.
          statistics: of the model, for video.
          everything: take the images of all splits as dev; of a video dev is a file of its own.
        """
        if config.conditioning.kind == "video":
            return cls(config, read_episodes(data, config.data.rules, statistics))
        kind = config.conditioning.kind
        wanted = classes if kind in ("class", "text") else ()
        options = {"everything": everything, "others_allowed": kind == "text"}
        return cls._of(config, read_dev(data, config.data.rules, wanted, **options), data)

    @classmethod
    def _of(cls, config: Any, corpus: Corpus, data: Path | str) -> "ImageDataset":
        kind = config.conditioning.kind
        if kind in NEEDED and NEEDED[kind] not in next(iter(whole(corpus, "dev", 1))):
            raise DataError(
                f"{data} has no {SOURCE[kind]}, which `conditioning.kind` {kind} needs."
            )
        return cls(config, corpus)

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines on what was read, to be printed."""
        return self.source.notes

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.source.classes if isinstance(self.source, Corpus) else ()

    @property
    def captions(self) -> tuple[str, ...]:
        """Up to `CAPTIONS_NAMED` captions, of training images where there are some."""
        if not isinstance(self.source, Corpus):
            return ()
        splits = self.source.splits
        known = sorted(set(splits.get("train", splits["dev"]).captions or ()))
        chosen = np.linspace(0, len(known) - 1, min(CAPTIONS_NAMED, len(known)))
        return tuple(known[place] for place in chosen.astype(int))

    @property
    def dev_digest(self) -> str:
        """A digest of the images or frames of dev, independent of their location."""
        dev = self.source.splits["dev"]
        pixels = dev.images if isinstance(dev, ImageSet) else dev.frames
        if self.config.data.crop:
            pixels = np.concatenate([photograph.ravel() for photograph in pixels])
        return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16).hexdigest()

    @property
    def found(self) -> int | None:
        """Number of images in the source, including other splits; None for a video."""
        return self.source.found if isinstance(self.source, Corpus) else None

    @property
    def statistics(self) -> Statistics | None:
        """The statistics that normalise actions and states; None for images."""
        return self.source.statistics if isinstance(self.source, Video) else None

    @property
    def resolved(self) -> Any:
        """The configuration with the sizes that follow from the data filled in."""
        conditioning = self.config.conditioning
        if isinstance(self.source, Video):
            first = self.source.splits["train"]
            conditioning = dataclasses.replace(
                conditioning,
                action_channels=first.actions.shape[-1],
                state_channels=first.states.shape[-1],
                picture_channels=self.config.data.channels,
            )
        elif conditioning.kind == "class":
            conditioning = dataclasses.replace(conditioning, classes=len(self.classes))
        elif conditioning.kind == "map" and not conditioning.classes:
            labels = [s.maps for s in self.source.splits.values() if s.maps is not None]
            conditioning = dataclasses.replace(
                conditioning, classes=int(max(np.max(m) for m in labels)) + 1
            )
        return dataclasses.replace(self.config, conditioning=conditioning)

    def training(
        self, start_step: int, shard_index: int = 0, num_shards: int = 1
    ) -> tf.data.Dataset:
        """Return endless batches from a step on, a function of the seed and the step alone.

        Args:
          start_step: number of the first batch.
          shard_index: the equal part of their rows to return.
          num_shards: the equal part of their rows to return.
        """
        data, seed = self.config.data, self.config.seed
        shard = {"shard_index": shard_index, "num_shards": num_shards}
        if isinstance(self.source, Video):
            return video_batches(
                self.source,
                "train",
                batch_size=data.batch_size,
                seed=seed,
                start_step=start_step,
                context=self.config.conditioning.context_frames,
                jitter=self.config.conditioning.jitter,
                **shard,
            )
        shard |= {"batch_size": data.batch_size, "seed": seed, "start_step": start_step}
        if data.crop:
            photographs = list(self.source.splits["train"].images)
            return square_batches(photographs, side=data.crop, flip=data.flip, **shard)
        return batches(
            self.source,
            "train",
            flip=data.flip,
            shift=data.shift,
            dropout=self.config.conditioning.dropout,
            **shard,
        )

    @property
    def shuffles(self) -> int:
        """The number of permutations of conditions that `dev` offers."""
        if isinstance(self.source, Video):
            return VIDEO_SHUFFLES
        if self.config.conditioning.kind != "text":
            return 1
        return min(CAPTION_SHUFFLES, len(set(self.source.splits["dev"].captions or ())) - 1)

    def dev(self, batch_size: int = EVALUATION_BATCH, shuffled: int = 0) -> Any:
        """Return all of dev, once: a tf.data.Dataset; photographs in a list, one per batch.

        Args:
          batch_size: images per batch.
          shuffled: 0, or the number, from 1 to `shuffles`, of a permutation that gives every image
            the condition of another one (a caption, a class, a map; of a frame the action and the
            state, not the frames before it).
        """
        if isinstance(self.source, Video):
            return whole_video(
                self.source,
                "dev",
                batch_size,
                context=self.config.conditioning.context_frames,
                shuffle_actions=shuffled > 0,
                seed=max(shuffled - 1, 0),
            )
        if self.config.data.crop:
            photographs = list(self.source.splits["dev"].images)
            return whole_photographs(photographs, self.config.multiple)
        if not shuffled:
            return whole(self.source, "dev", batch_size)
        dev = self.source.splits["dev"]
        if dev.captions is not None and self.config.conditioning.kind == "text":
            others = _with_other_captions(dev, shuffled / (self.shuffles + 1))
        else:
            others = _with_others(dev)
        splits = {**self.source.splits, "dev": others}
        return whole(dataclasses.replace(self.source, splits=splits), "dev", batch_size)


def _with_other_captions(dev: ImageSet, share: float) -> ImageSet:
    """Return the images, each with a caption a share of the way round the sorted circle of all."""
    captions = sorted(set(dev.captions or ()))
    on = round(len(captions) * share)
    places = {caption: place + on for place, caption in enumerate(captions)}
    others = tuple(captions[places[caption] % len(captions)] for caption in dev.captions or ())
    return dataclasses.replace(dev, captions=others)


def _with_others(dev: ImageSet) -> ImageSet:
    """Return the images, each with the class or the map of one that has another."""
    order = _derangement(dev.names if dev.labels is None else dev.labels)
    return dataclasses.replace(
        dev,
        labels=None if dev.labels is None else dev.labels[order],
        maps=None if dev.maps is None else dev.maps[order],
    )


def _derangement(keys: Sequence | np.ndarray) -> np.ndarray:
    """Return another image for each, half way round the circle of images sorted by condition.

    Args:
      keys: a class per image. The other image has another class wherever no class has more than
        half of all images.
    """
    ranked = np.argsort(np.asarray(keys), kind="stable")
    order = np.empty(len(ranked), np.int64)
    order[ranked] = np.roll(ranked, len(ranked) // 2)
    return order
