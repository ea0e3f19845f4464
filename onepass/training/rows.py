"""Pad batches of rows of different lengths to a few lengths, so that few steps are compiled."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from onepass.foundation.arguments import check_unmasked
from onepass.likelihoods.codec import Codec
from onepass.networks.elements import as_array
from onepass.networks.ragged import fill_after_end, filler, list_rows, pad_rows
from onepass.step.derive import bucket

ELEMENTS, LENGTHS, MEAN = "elements", "lengths", "mean_length"


class Padded(NamedTuple):
    """The arrays of a batch, by name."""

    arrays: dict[str, np.ndarray]  # [rows, ...] each, with `lengths`, int32 [rows], if padded
    ragged: frozenset[str]  # names of those given as lists of rows, which may be padded
    fill: np.ndarray

    @property
    def longest(self) -> int:
        """Number of time steps of the longest row; 0 if the batch has no lengths."""
        return int(self.arrays[LENGTHS].max()) if LENGTHS in self.arrays else 0

    def of_length(self, length: int) -> "Padded":
        """Return the batch with its ragged arrays padded or cut to a given length."""
        arrays = dict(self.arrays)
        for name in self.ragged:
            array, fill = arrays[name], self.fill if name == ELEMENTS else 0
            more = [(0, 0), (0, max(0, length - array.shape[1])), *[(0, 0)] * (array.ndim - 2)]
            arrays[name] = np.pad(array[:, :length], more, constant_values=fill)
        return self._replace(arrays=arrays)

    def take_rows(self, rows: np.ndarray | slice) -> "Padded":
        """Return a batch of selected rows."""
        return self._replace(arrays={name: array[rows] for name, array in self.arrays.items()})


def padded_arrays(batch: dict[str, Any], codec: Codec, rank: int) -> Padded:
    """Return arrays of a batch, with ragged `elements` and arrays of the same lengths padded."""
    fill = filler(codec)
    rows = list_rows(batch.get(ELEMENTS), rank - 1) if rank != 4 else None
    counts = [] if rows is None else [len(row) for row in rows]
    if rows is None or len(set(counts)) == 1:
        arrays = {name: as_array(value, name) for name, value in batch.items()}
        if LENGTHS in arrays and ELEMENTS in arrays and rank != 4 and arrays[ELEMENTS].ndim == rank:
            arrays[ELEMENTS], arrays[LENGTHS] = fill_after_end(
                arrays[ELEMENTS], arrays[LENGTHS], codec
            )
        elif LENGTHS in arrays:
            raise ValueError("`lengths` needs `elements` in time order.")
        return Padded(arrays, frozenset(), fill)
    if LENGTHS in batch:
        raise ValueError("`lengths` must be left out where `elements` are rows of different ones.")
    arrays, ragged, longest = {LENGTHS: np.asarray(counts, np.int32)}, {ELEMENTS}, max(counts)
    arrays[ELEMENTS] = pad_rows(rows, longest, fill)
    for name, value in batch.items():
        check_unmasked(value, name)
        given = [np.asarray(row) for row in value] if isinstance(value, list | tuple) else []
        if name != ELEMENTS and counts == [len(row) if row.ndim else -1 for row in given]:
            arrays[name], ragged = pad_rows(given, longest), ragged | {name}
        elif name != ELEMENTS:
            arrays[name] = as_array(value, name)
    return Padded(arrays, frozenset(ragged), fill)


def in_bucket(batch: Padded, most: int | None, takes: Callable[[int], bool]) -> Padded:
    """Return a batch padded to one of a few lengths."""
    if not batch.ragged:
        return batch
    longest = max(batch.longest, 1)
    length = bucket(longest) if most is None else min(bucket(longest), most)
    return batch.of_length(length if takes(length) else longest)


def mean_length(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the mean length of a batch's rows, repeated for every row, if there are lengths.

    If the sum over each row is divided by it, the mean over rows equals the mean over all elements
    that are not padding, so replicas with only some of the rows need not know the others.
    """
    if LENGTHS not in arrays:
        return {}
    mean = float(arrays[LENGTHS].mean()) or 1.0
    return {MEAN: np.full(len(arrays[LENGTHS]), mean, np.float32)}
