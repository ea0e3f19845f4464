"""Random batches of examples; batch n is a pure function of the seed and n.

This module uses only NumPy and imports nothing from this package, so that it can be copied to
another machine, where `open_batches` draws identical batches.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

ALL_ROWS = slice(None)
LANES = 5  # random words per image: seed, flip, top, left and dropout of the condition
DROPPED = {"label": -1, "caption": 0}  # values of a dropped condition
Arrays = dict[str, np.ndarray]


def words(seed: int, stream: int, count: int) -> np.ndarray:
    """Return words of Philox-4x64 (Salmon et al. 2011) for key (seed, stream), uint64 [count]."""
    key = np.array([seed % 2**64, stream], np.uint64)
    return np.random.Philox(key=key).random_raw(count)


@functools.lru_cache(maxsize=8)
def _epoch_order(seed: int, epoch: int, count: int) -> np.ndarray:
    return np.argsort(words(seed, 2 * epoch, count), kind="stable")


def sampled_examples(seed: int, step: int, batch_size: int, count: int) -> np.ndarray:
    """Return the indices of the examples in batch `step`, out of `count`, int64 [batch_size].

    Every epoch has each example once, in a random order; a batch may be of two epochs.
    """
    places = np.arange(step * batch_size, (step + 1) * batch_size)
    return np.array([_epoch_order(seed, int(p) // count, count)[int(p) % count] for p in places])


def example_words(seed: int, step: int, batch_size: int, lanes: int) -> np.ndarray:
    """Return `lanes` random words per example of batch `step`, uint64 [lanes, batch_size]."""
    return words(seed, 2 * step + 1, lanes * batch_size).reshape(lanes, batch_size)


def example_seeds(lane: np.ndarray) -> np.ndarray:
    """Split each word into two halves, int32 [batch, 2]."""
    halves = np.stack([lane >> np.uint64(32), lane & np.uint64(2**32 - 1)], axis=-1)
    return halves.astype(np.uint32).view(np.int32)


def normals(seed: int, step: int, lane: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return standard normal noise for batch `step`, float32 `shape`, different for each lane."""
    draws = np.random.default_rng([seed % 2**64, step, lane])
    return draws.standard_normal(shape, np.float32)


def cyclic_shuffle(seed: int, count: int) -> np.ndarray:
    """Return a random permutation with a single cycle, so that every index moves, int64 [count]."""
    order = np.argsort(words(seed, 0, count), kind="stable")
    shuffled = np.empty(count, np.int64)
    shuffled[order] = np.roll(order, -1)
    return shuffled


def flip_images(images: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Mirror images [batch, height, width, ...] horizontally if their word's top bit is set."""
    mirrored = (words >> np.uint64(63)).reshape(-1, *[1] * (images.ndim - 1)).astype(bool)
    return np.where(mirrored, images[:, :, ::-1], images)


def shift_images(images: np.ndarray, words: np.ndarray, most: int) -> np.ndarray:
    """Shift images [batch, height, width, ...] by `words` [2, batch], with repeated edges."""
    sides = [(0, 0), (most, most), (most, most)] + [(0, 0)] * (images.ndim - 3)
    padded, side, places = np.pad(images, sides, mode="edge"), images.shape[1], 2 * most + 1
    tops, lefts = ((words >> np.uint64(32)) * np.uint64(places) >> np.uint64(32)).astype(np.int64)
    cuts = zip(padded, tops, lefts, strict=True)
    return np.stack([image[top : top + side, left : left + side] for image, top, left in cuts])


def shard_rows(batch_size: int, shard_index: int, num_shards: int) -> slice:
    """Return the rows of a batch that belong to a shard."""
    if batch_size % num_shards or not 0 <= shard_index < num_shards:
        raise ValueError(
            f"`batch_size` must be a multiple of `num_shards` {num_shards} and `shard_index` below "
            f"it, got {batch_size} and {shard_index}."
        )
    count = batch_size // num_shards
    return slice(shard_index * count, (shard_index + 1) * count)


def image_batch(
    stored: Mapping[str, np.ndarray],
    seed: int,
    step: int,
    *,
    batch_size: int,
    flip: bool,
    rows: slice = ALL_ROWS,
    dropout: float = 0.0,
    shift: int = 0,
) -> Arrays:
    """Return rows of batch `step`: int32 rows of the stored arrays, and "seed" int32 [rows, 2].

    `stored` has "levels" [images, height, width, channels], and the condition of each image. `flip`
    mirrors images (and their "map") with probability 1/2; `shift` is their maximum shift in pixels;
    `dropout` is the probability with which a "label" or "caption" is replaced by `DROPPED`.
    """
    chosen = sampled_examples(seed, step, batch_size, len(stored["levels"]))[rows]
    seeds, flips, *places, drops = example_words(seed, step, batch_size, LANES)[:, rows]
    batch = {name: array[chosen].astype(np.int32) for name, array in stored.items()}
    for name in {"levels", "map"} & batch.keys() if flip else ():
        batch[name] = flip_images(batch[name], flips)
    for name in {"levels", "map"} & batch.keys() if shift else ():
        batch[name] = shift_images(batch[name], np.stack(places), shift)
    for name in DROPPED.keys() & batch.keys() if dropout else ():
        gone = (drops / 2.0**64 < dropout).reshape(-1, *[1] * (batch[name].ndim - 1))
        batch[name] = np.where(gone, np.int32(DROPPED[name]), batch[name])
    return {**batch, "seed": example_seeds(seeds)}


def square_batch(
    photographs: Mapping[str, np.ndarray],
    seed: int,
    step: int,
    *,
    batch_size: int,
    side: int,
    flip: bool,
    rows: slice = ALL_ROWS,
) -> Arrays:
    """Return rows of batch `step` of random square crops, one per photograph and epoch.

    They are "levels" int32 [rows, side, side, channels], and "seed" int32 [rows, 2]. The
    photographs are uint8 [height, width, channels], with sides of at least `side`.
    """
    images = list(photographs.values())
    chosen = sampled_examples(seed, step, batch_size, len(images))[rows]
    seeds, flips, *corners, _ = example_words(seed, step, batch_size, LANES)[:, rows]
    located = zip(chosen, *corners, strict=True)
    squares = np.stack([_square(images[i], corner, side) for i, *corner in located])
    levels = (flip_images(squares, flips) if flip else squares).astype(np.int32)
    return {"levels": levels, "seed": example_seeds(seeds)}


def _square(photograph: np.ndarray, corner: Sequence, side: int) -> np.ndarray:
    cut = []
    for word, length in zip(corner, photograph.shape[:2], strict=True):
        places = np.uint64(length - side + 1)
        first = int((word >> np.uint64(32)) * places >> np.uint64(32))
        cut.append(slice(first, first + side))
    return photograph[tuple(cut)]


def moments(
    stored: Mapping[str, np.ndarray], chosen: np.ndarray, acting: np.ndarray, context: int
) -> Arrays:
    """Return the examples `chosen` of a video, with actions and states of the examples `acting`.

    Example e is step t = e % n + context of clip e // n, where n = steps - context. `stored` has
    "frames" uint8 [clips, steps, height, width, channels], and "actions" and "states" float32
    [clips, steps, numbers]. The result has "levels" int32 [batch, height, width, channels], frame
    t; and, for steps t - context to t - 1, "past" int32 [batch, context, height, width, channels],
    "action" and "state" float32 [batch, context, numbers].
    """
    choices = stored["frames"].shape[1] - context
    clips, steps = chosen // choices, chosen % choices + context
    before = np.arange(-context, 0)
    acting_clips = (acting // choices)[:, None]
    acting_steps = (acting % choices + context)[:, None] + before
    return {
        "levels": stored["frames"][clips, steps].astype(np.int32),
        "past": stored["frames"][clips[:, None], steps[:, None] + before].astype(np.int32),
        "action": stored["actions"][acting_clips, acting_steps],
        "state": stored["states"][acting_clips, acting_steps],
    }


def video_batch(
    stored: Mapping[str, np.ndarray],
    seed: int,
    step: int,
    *,
    batch_size: int,
    context: int,
    jitter: float,
    rows: slice = ALL_ROWS,
) -> Arrays:
    """Return rows of batch `step` of a video: the `moments` of random frames, and their "seed".

    Normal noise with standard deviation `jitter` is added to actions and states.
    """
    clips, steps = stored["frames"].shape[:2]
    chosen = sampled_examples(seed, step, batch_size, clips * (steps - context))[rows]
    batch = moments(stored, chosen, chosen, context)
    for lane, name in enumerate(("action", "state")):
        drawn = normals(seed, step, lane, (batch_size, *batch[name].shape[1:]))[rows]
        batch[name] = batch[name] + jitter * drawn
    return {**batch, "seed": example_seeds(example_words(seed, step, batch_size, 1)[0, rows])}


def batches_of(stored: Mapping[str, np.ndarray], settings: Mapping) -> Callable[..., Arrays]:
    """Return a function from a step, `shard_index` and `num_shards` to a batch.

    The settings are its "kind" and the arguments of that batch function except `step` and `rows`.
    """
    rest = dict(settings)
    kinds: dict[str, Callable[..., Arrays]] = {
        "images": image_batch,
        "squares": square_batch,
        "video": video_batch,
    }
    make, seed = kinds[rest.pop("kind")], rest.pop("seed")

    def batch(step: int, shard_index: int = 0, num_shards: int = 1) -> Arrays:
        rows = shard_rows(rest["batch_size"], shard_index, num_shards)
        return make(stored, seed, step, rows=rows, **rest)

    return batch


def open_batches(folder: Path, settings: Mapping) -> Callable[..., Arrays]:
    """Return the result of `batches_of` for the arrays in the npz file `settings["file"]`."""
    rest = dict(settings)
    with np.load(Path(folder) / rest.pop("file"), allow_pickle=False) as file:
        return batches_of(dict(file), rest)
