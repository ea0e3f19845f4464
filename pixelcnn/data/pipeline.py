"""Batches of a corpus as tf.data: endless and restartable for training, or every image once."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from pixelcnn.data.batch_sampling import (
    LANES,
    Arrays,
    cropped,
    example_seeds,
    example_words,
    image_batch,
    shard_rows,
)
from pixelcnn.data.captions import encode_caption
from pixelcnn.data.corpus import Corpus, ImageSet
from replicator.runs.errors import UserError
from replicator.training.batches import as_dataset


def check_batches(batch_size: int) -> None:
    """Raise ValueError for a batch without rows."""
    if batch_size < 1:
        raise ValueError(f"`batch_size` must be at least 1, got {batch_size}.")


def _members(corpus: Corpus, split: str) -> ImageSet:
    if split not in corpus.splits:
        raise ValueError(f"`split` must be {' or '.join(corpus.splits)}, got {split}.")
    return corpus.splits[split]


def _stored(members: ImageSet) -> Arrays:
    """Return the arrays of all images, under the keys of a batch."""
    arrays = {"levels": members.images}
    if members.labels is not None:
        arrays["label"] = members.labels
    if members.captions is not None:
        codes = [encode_caption(caption).astype(np.uint8) for caption in members.captions]
        arrays["caption"] = np.stack(codes)
    if members.maps is not None:
        arrays["map"] = members.maps
    return arrays


def _batch(stored: Mapping[str, np.ndarray], chosen: np.ndarray, seeds: np.ndarray) -> Arrays:
    batch = {name: array[chosen].astype(np.int32) for name, array in stored.items()}
    return {**batch, "seed": example_seeds(seeds)}


def batches(
    corpus: Corpus,
    split: str,
    *,
    batch_size: int,
    seed: int,
    start_step: int = 0,
    flip: bool = False,
    crop: int | None = None,
    shard_index: int = 0,
    num_shards: int = 1,
    dropout: float = 0.0,
    shift: int = 0,
) -> tf.data.Dataset:
    """Return an endless dataset of batches, in which every image comes once per epoch.

    Batch n depends only on the corpus, the arguments and n: a dataset started at `start_step`
    continues one started at 0 exactly, at no cost.

    Args:
      corpus: what to draw from.
      split: what to draw from.
      batch_size: images per batch.
      seed: any int.
      start_step: the first batch's number.
      flip: mirror images and their maps left to right, with probability one half.
      crop: height and width, in pixels, of a square cut from each image at a random location.
      shard_index: the equal part of each batch's rows to return.
      num_shards: see `shard_index`.
      dropout: probability that a label becomes -1, or a caption zeros.
      shift: largest random shift, in pixels; edges repeat. 0 with a crop.

    Yields:
      "levels" int32 [batch, height, width, channels]; "seed" int32 [batch, 2], another for every
      example of every step; where the corpus has them "label" int32 [batch], "caption" int32
      [batch, 201], see `captions.encode_caption`, and "map" int32 [batch, height, width].
    """
    check_batches(batch_size)
    members = _members(corpus, split)
    size = members.images.shape[1]
    if crop is not None and not 1 <= crop <= size:
        raise UserError(f"`crop` must be in [1, {size}], got {crop}.")
    if crop is not None and shift:
        raise UserError(f"`shift` must be 0 with a crop, got {shift}.")
    stored, rows = _stored(members), shard_rows(batch_size, shard_index, num_shards)

    def make(step: int) -> Arrays:
        batch = image_batch(
            stored, seed, step, batch_size=batch_size, flip=flip, rows=rows, dropout=dropout,
            shift=shift,
        )  # fmt: skip
        if crop is not None:
            cuts = example_words(seed, step, batch_size, LANES)[2:4, rows]
            for name in {"levels", "map"} & batch.keys():
                batch[name] = cropped(batch[name], cuts, crop)
        return batch

    return as_dataset(make, start_step, rows=batch_size // num_shards)


def whole(corpus: Corpus, split: str, batch_size: int) -> tf.data.Dataset:
    """Return a dataset of every image of the split once, in order; the last batch may be smaller.

    Yields:
      The keys of `batches`, of unchanged images.
    """
    check_batches(batch_size)
    stored = _stored(_members(corpus, split))
    count = len(stored["levels"])

    def make(step: int) -> Arrays:
        chosen = np.arange(step * batch_size, min((step + 1) * batch_size, count))
        return _batch(stored, chosen, example_words(0, step, batch_size, 1)[0, : len(chosen)])

    return as_dataset(make, 0, -(-count // batch_size))
