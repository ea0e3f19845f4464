"""Which examples make up batch number n: a pure function of the seed and n, nothing to replay."""

import functools

import numpy as np


def words(seed: int, stream: int, count: int) -> np.ndarray:
    """uint64 [count] of Philox-4x64 (Salmon et al. 2011) under the key (seed, stream)."""
    key = np.array([seed % 2**64, stream], np.uint64)
    return np.random.Philox(key=key).random_raw(count)


@functools.lru_cache(maxsize=8)
def _epoch_order(seed: int, epoch: int, count: int) -> np.ndarray:
    return np.argsort(words(seed, 2 * epoch, count), kind="stable")


def drawn(seed: int, step: int, batch_size: int, count: int) -> np.ndarray:
    """int64 [batch_size], the examples of batch `step` of count ones, each once in every epoch.

    The batches cut one endless sequence, epoch after epoch, each in an order of its own; a batch
    may hold the end of one epoch and the beginning of the next.
    """
    places = np.arange(step * batch_size, (step + 1) * batch_size)
    return np.array([_epoch_order(seed, int(p) // count, count)[int(p) % count] for p in places])


def example_words(seed: int, step: int, batch_size: int, lanes: int) -> np.ndarray:
    """uint64 [lanes, batch_size] that belong to the examples of batch `step` alone."""
    return words(seed, 2 * step + 1, lanes * batch_size).reshape(lanes, batch_size)


def example_seeds(lane: np.ndarray) -> np.ndarray:
    """int32 [batch, 2], the two halves of each word."""
    halves = np.stack([lane >> np.uint64(32), lane & np.uint64(2**32 - 1)], axis=-1)
    return halves.astype(np.uint32).view(np.int32)


def normals(seed: int, step: int, lane: int, shape: tuple[int, ...]) -> np.ndarray:
    """float32 `shape`, standard normal noise of a lane of batch `step`."""
    draws = np.random.default_rng([seed % 2**64, step, lane])
    return draws.standard_normal(shape, np.float32)


def cyclic_shuffle(seed: int, count: int) -> np.ndarray:
    """int64 [count], a permutation of one single cycle, so that nothing stays in its place."""
    order = np.argsort(words(seed, 0, count), kind="stable")
    shuffled = np.empty(count, np.int64)
    shuffled[order] = np.roll(order, -1)
    return shuffled
