"""Padding of rows of different lengths to a bucket before a call, and cropping after it."""

import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onepass.bundles.errors import InvalidInput
from onepass.bundles.prompt_inputs import PROMPTED_CHUNK
from onepass.draw import LISTS

Arrays = dict[str, np.ndarray]
COUNTS = ("num_frames", "num_samples")  # inputs that determine the length of the output
MAX_PADDING_SHARE = 0.25  # largest share of padding rows in a call


@dataclasses.dataclass(frozen=True)
class Fitted:
    """One request's inputs, cropped, with padded lengths by name; equal `key`s may share a call."""

    inputs: Arrays
    lengths: dict[str, int]
    key: tuple

    @property
    def cost(self) -> float:
        """Cost of a row: the length of its padded inputs, else of its output; 1 without either."""
        counts = [self.inputs[name] for name in COUNTS if name in self.inputs]
        longest = float(counts[0].max(initial=1)) if counts else 1.0
        lengths = [length for name, length in self.lengths.items() if name not in LISTS]
        return float(max(lengths, default=longest))


class Padding:
    """The lengths and batch sizes that the entry `serving` of model.json allows."""

    def __init__(self, serving: Mapping[str, Any]):
        self._padded = serving.get("padded") or {}
        self._cropped = serving.get("cropped") or {}
        streaming = (serving.get("streaming") or {}).get("signature")
        self._unbatched_signatures = () if streaming is None else (streaming, PROMPTED_CHUNK)
        limit = (serving.get("limits") or {}).get("max_batch")
        allowed = sorted(serving.get("allowed_batches") or [1])
        self.allowed = [size for size in allowed if limit is None or size <= limit] or [1]

    @property
    def max_batch(self) -> int:
        """Largest number of rows of a call."""
        return self.allowed[-1]

    def fit(self, signature: str, inputs: Arrays) -> Fitted:
        """Return the inputs cropped to their longest row; raise InvalidInput if it is too long.

        Inputs of streaming signatures, whose rows must have equal length, are not cropped, and
        their requests do not share calls.
        """
        if signature in self._unbatched_signatures:
            return Fitted(inputs, {}, (signature, object()))
        fitted, lengths = dict(inputs), {}
        for name, rule in self._padded.items():
            if name in inputs and rule["length"] in inputs:
                fitted[name], lengths[name] = _trimmed_input(name, rule, inputs)
        shapes = tuple(
            (name, lengths.get(name), array.shape[1:] if name not in lengths else ())
            for name, array in fitted.items()
        )
        return Fitted(fitted, lengths, (signature, shapes))

    def size(self, rows: int) -> int:
        """Return the number of rows of the next call when `rows` wait: an allowed batch size.

        It exceeds `rows` only if the share of padding is small, or no smaller size is allowed.
        """
        if rows >= self.max_batch:
            return self.max_batch
        index = bisect.bisect_left(self.allowed, rows)
        above = self.allowed[index]
        if above - rows <= MAX_PADDING_SHARE * above or index == 0:
            return above
        return self.allowed[index - 1]

    def stack(
        self, rows: Sequence[Mapping[str, np.ndarray]], lengths: Mapping[str, int], size: int
    ) -> Arrays:
        """Return a batch of `size` rows, the first one repeated, with zeros up to `lengths`."""
        filled = [*rows, *[rows[0]] * (size - len(rows))]
        batch = {}
        for name in rows[0]:
            arrays = [row[name] for row in filled]
            if name in lengths:
                axis = self._padded[name]["axis"] - 1
                arrays = [_zero_padded(array, axis, lengths[name]) for array in arrays]
            batch[name] = np.stack(arrays)
        return batch

    def join(self, rows: Sequence[Mapping[str, np.ndarray]]) -> Arrays:
        """Return a request's outputs as one batch; shorter rows are padded with zeros."""
        joined = {}
        for name in rows[0]:
            arrays = [row[name] for row in rows]
            if name in self._cropped:
                axis = self._cropped[name]["axis"] - 1
                longest = max(array.shape[axis] for array in arrays)
                arrays = [_zero_padded(array, axis, longest) for array in arrays]
            joined[name] = np.stack(arrays)
        return joined

    def crop(self, outputs: Arrays) -> Arrays:
        """Return the outputs of one request, cropped to its longest row."""
        cropped = dict(outputs)
        for name, rule in self._cropped.items():
            if name in outputs and rule["length"] in outputs:
                longest = int(outputs[rule["length"]].max())
                cropped[name] = _truncate_axis(outputs[name], rule["axis"], longest)
        return cropped


def _trimmed_input(name: str, rule: Mapping[str, Any], inputs: Arrays) -> tuple[np.ndarray, int]:
    array, length = inputs[name], rule["length"]
    longest, given = int(inputs[length].max()), array.shape[rule["axis"]]
    if longest > given:
        raise InvalidInput(f"`{length}` must be at most the {given} of `{name}`, got {longest}.")
    buckets = rule.get("buckets") or [longest]
    if longest > buckets[-1]:
        raise InvalidInput(f"`{length}` must be at most {buckets[-1]}, got {longest}.")
    bucket = buckets[bisect.bisect_left(buckets, longest)]
    return _truncate_axis(array, rule["axis"], longest), bucket


def _truncate_axis(array: np.ndarray, axis: int, length: int) -> np.ndarray:
    return array[(slice(None),) * axis + (slice(length),)]


def _zero_padded(array: np.ndarray, axis: int, length: int) -> np.ndarray:
    missing = length - array.shape[axis]
    if not missing:
        return array
    return np.pad(array, [(0, missing if n == axis else 0) for n in range(array.ndim)])
