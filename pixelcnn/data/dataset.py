"""Batches of images or video frames for training and evaluation."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.files import show_path
from onepass.foundation.rules import require
from onepass.replicator.training.batches import as_dataset
from pixelcnn.data.batch_sampling import (
    Arrays,
    batches_of,
    example_seeds,
    example_words,
    moments,
    shard_rows,
)
from pixelcnn.data.corpus import Corpus, ImageSet, read_corpus, read_dev
from pixelcnn.data.sources import DataError
from pixelcnn.data.video import Statistics, Video, others, read_episodes

EVALUATION_BATCH = 16
VIDEO_SHUFFLES = 8  # a video has few examples, so a single shuffle would be too random
OTHER_TABLES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")  # used by Hugging Face
CAPTION_SHUFFLES = 9  # maximum number of other captions under which an image is evaluated
CAPTIONS_NAMED = 12
NEEDED = {"class": "label", "text": "caption", "map": "map"}
SOURCE = {
    "class": "classes (a sub-folder each, a column `class` of a table, or `labels` in npz)",
    "text": "captions (a column `caption` of a table, or `captions` in npz)",
    "map": "maps (`maps` in npz)",
}


@dataclasses.dataclass(frozen=True)
class ImageDataset:
    """A corpus of images or a video, with the training configuration."""

    config: Any  # a TrainConfig of either kind of model
    source: Corpus | Video

    @classmethod
    def read(cls, data: Path | str, config: Any) -> "ImageDataset":
        """Read images or a video from a folder, a file or a "tfds:" name."""
        if config.conditioning.kind == "video":
            return cls._of_video(config, read_episodes(data, config.data))
        return cls._of(config, read_corpus(data, config.data), data)

    @classmethod
    def for_evaluation(
        cls,
        data: Path | str,
        config: Any,
        classes: Sequence[str],
        statistics: Statistics | None = None,
        everything: bool = False,
    ) -> "ImageDataset":
        """Read dev (with `everything`, all images) with the classes and statistics of a model."""
        if config.conditioning.kind == "video":
            return cls._of_video(config, read_episodes(data, config.data, statistics))
        kind = config.conditioning.kind
        wanted = classes if kind in ("class", "text") else ()
        options = {"everything": everything, "others_allowed": kind == "text"}
        return cls._of(config, read_dev(data, config.data, wanted, **options), data)

    @classmethod
    def _of(cls, config: Any, corpus: Corpus, data: Path | str) -> "ImageDataset":
        kind = config.conditioning.kind
        if kind in NEEDED and NEEDED[kind] not in corpus.splits["dev"].stored:
            reason = next((f" ({each})" for each in corpus.notes if "no classes" in each), "")
            lack = f"has no {SOURCE[kind]}, which `conditioning.kind` {kind} needs{reason}."
            found = [name for name in OTHER_TABLES if (Path(data) / name).is_file()]
            if found and kind in ("text", "class"):
                column = "caption" if kind == "text" else "class"
                lack += (
                    f" {show_path(found[0])} is not read: write pictures.tsv, separated by tabs, "
                    f"with the columns `file` (its `file_name`) and `{column}`."
                )
            raise DataError(data, lack)
        return cls(config, corpus)

    @classmethod
    def _of_video(cls, config: Any, video: Video) -> "ImageDataset":
        steps = min(members.frames.shape[1] for members in video.splits.values())
        context = config.conditioning.context_frames
        require(context < steps, "context_frames", f"in [1, {steps})", context)
        return cls(config, video)

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines of text about what was read."""
        return self.source.notes

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names, in the order of their labels."""
        return self.source.classes

    @property
    def captions(self) -> tuple[str, ...]:
        """Up to `CAPTIONS_NAMED` examples of captions, from train if possible."""
        if not isinstance(self.source, Corpus):
            return ()
        splits = self.source.splits
        known = sorted(set(splits.get("train", splits["dev"]).captions or ()))
        chosen = np.linspace(0, len(known) - 1, min(CAPTIONS_NAMED, len(known)))
        return tuple(known[place] for place in chosen.astype(int))

    @property
    def dev_digest(self) -> str:
        """A hash of the images or frames in dev, independent of their location."""
        dev = self.source.splits["dev"]
        pixels = dev.images if isinstance(dev, ImageSet) else dev.frames
        if self.config.data.crop:
            pixels = np.concatenate([photograph.ravel() for photograph in pixels])
        return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16).hexdigest()

    @property
    def num_found(self) -> int | None:
        """Number of images in the source, including other splits; None for a video."""
        return self.source.found

    @property
    def statistics(self) -> Statistics | None:
        """Statistics to normalise actions and states; None for images."""
        return self.source.statistics

    @property
    def resolved_config(self) -> Any:
        """The configuration with the sizes that depend on the data, such as `classes`, set."""
        conditioning = self.config.conditioning
        if isinstance(self.source, Video):
            first = self.source.splits["train"]
            found = {"action_channels": first.actions.shape[-1]}
            found["state_channels"] = first.states.shape[-1]
            found["picture_channels"] = self.config.data.channels
            conditioning = dataclasses.replace(conditioning, **found)
        elif conditioning.kind == "class":
            conditioning = dataclasses.replace(conditioning, classes=len(self.classes))
        elif conditioning.kind == "map" and not conditioning.classes:
            labels = [s.maps for s in self.source.splits.values() if s.maps is not None]
            conditioning = dataclasses.replace(
                conditioning, classes=int(max(np.max(m) for m in labels)) + 1
            )
        return dataclasses.replace(self.config, conditioning=conditioning)

    @functools.cached_property
    def training_arrays(self) -> tuple[Arrays, dict[str, Any]]:
        """The arguments for `batch_sampling.batches_of`; the configuration must be resolved."""
        data, conditioning = self.config.data, self.config.conditioning
        settings = {"batch_size": data.batch_size, "seed": self.config.seed}
        if data.crop:
            photographs = {f"{n:06}": image for n, image in enumerate(self._photographs("train"))}
            settings |= {"side": data.crop, "flip": data.flip}
            return photographs, {"kind": "squares", **settings}
        stored = self.source.splits["train"].stored
        if isinstance(self.source, Video):
            settings |= {"context": conditioning.context_frames, "jitter": conditioning.jitter}
            return stored, {"kind": "video", **settings}
        kept = {"levels", NEEDED.get(conditioning.kind)}
        settings |= {"flip": data.flip, "shift": data.shift, "dropout": conditioning.dropout}
        arrays = {name: array for name, array in stored.items() if name in kept}
        return arrays, {"kind": "images", **settings}

    def training(
        self, start_step: int, shard_index: int = 0, num_shards: int = 1
    ) -> tf.data.Dataset:
        """Return endless training batches starting at a step."""
        shard = {"shard_index": shard_index, "num_shards": num_shards}
        rows = shard_rows(self.config.data.batch_size, shard_index, num_shards)
        arrays, settings = self.training_arrays
        make = functools.partial(batches_of(arrays, settings), **shard)
        return as_dataset(make, start_step, rows=rows.stop - rows.start)

    @property
    def shuffles(self) -> int:
        """Number of permutations of the conditions for `dev`."""
        if isinstance(self.source, Video):
            return VIDEO_SHUFFLES
        if self.config.conditioning.kind != "text":
            return 1
        return min(CAPTION_SHUFFLES, len(set(self.source.splits["dev"].captions or ())) - 1)

    def dev(self, batch_size: int = EVALUATION_BATCH, shuffled: int = 0) -> Any:
        """Return batches of all dev images, each once; for photographs a list of batches of one.

        In the permutation `shuffled`, from 1 to `shuffles`, every image gets the caption, class or
        map of a different one; a frame gets another's action and state, but keeps its preceding
        frames.
        """
        if self.config.data.crop:
            return whole_photographs(self._photographs("dev"), self.config.multiple)
        rows_of, count = self._dev_rows(shuffled)

        def make(step: int) -> Arrays:
            chosen = np.arange(step * batch_size, min((step + 1) * batch_size, count))
            seeds = example_words(0, step, batch_size, 1)[0, : len(chosen)]
            return {**rows_of(chosen), "seed": example_seeds(seeds)}

        return as_dataset(make, 0, -(-count // batch_size))

    def _photographs(self, split: str) -> list[np.ndarray]:
        photographs: Any = self.source.splits[split]
        return list(photographs.images)

    def _dev_rows(self, shuffled: int) -> tuple[Callable[[np.ndarray], Arrays], int]:
        if isinstance(self.source, Video):
            clips, context = self.source.splits["dev"], self.config.conditioning.context_frames
            count = len(clips.frames) * (clips.frames.shape[1] - context)
            acting = others(clips, context, shuffled - 1) if shuffled else np.arange(count)
            return lambda chosen: moments(clips.stored, chosen, acting[chosen], context), count
        dev = self.source.splits["dev"]
        if shuffled and dev.captions is not None and self.config.conditioning.kind == "text":
            dev = _with_other_captions(dev, shuffled / (self.shuffles + 1))
        elif shuffled:
            dev = _with_others(dev)
        arrays = dev.stored.items()
        return lambda chosen: {k: v[chosen].astype(np.int32) for k, v in arrays}, len(dev.images)


def _with_other_captions(dev: ImageSet, share: float) -> ImageSet:
    captions = sorted(set(dev.captions or ()))
    on = round(len(captions) * share)
    places = {caption: place + on for place, caption in enumerate(captions)}
    others = tuple(captions[places[caption] % len(captions)] for caption in dev.captions or ())
    return dataclasses.replace(dev, captions=others)


def _with_others(dev: ImageSet) -> ImageSet:
    ranked = np.argsort(dev.names if dev.labels is None else dev.labels, kind="stable")
    order = np.empty(len(ranked), np.int64)
    order[ranked] = np.roll(ranked, len(ranked) // 2)
    labels, maps = (None if each is None else each[order] for each in (dev.labels, dev.maps))
    return dataclasses.replace(dev, labels=labels, maps=maps)


def whole_photographs(photographs: Sequence[np.ndarray], multiple: int) -> list[dict]:
    """Return {"levels": int32, "seed": int32 [1, 2]} per photograph, cropped to the `multiple`."""
    batches = []
    for n, photograph in enumerate(photographs):
        cut = []
        for length in photograph.shape[:2]:
            first = length % multiple // 2
            cut.append(slice(first, first + length // multiple * multiple))
        levels = tf.constant(photograph[tuple(cut)][np.newaxis].astype(np.int32))
        seeds = example_seeds(example_words(0, n, 1, 1)[0])
        batches.append({"levels": levels, "seed": tf.constant(seeds)})
    return batches
