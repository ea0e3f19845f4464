"""Rows of different lengths in one call: padded to a bucket before it, cropped after it."""

import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from serving.errors import InvalidInput

Arrays = dict[str, np.ndarray]
COUNTS = ("num_frames", "num_samples")  # inputs that say how much is made
MAX_PADDING_SHARE = 0.25  # part of a call that may be padding rows


@dataclasses.dataclass(frozen=True)
class Fitted:
    """The inputs of one request, as long as its longest row.

    lengths: of the axis that a padded input shall have, by name. key: requests of equal keys may
    share a call.
    """

    inputs: Arrays
    lengths: dict[str, int]
    key: tuple

    @property
    def cost(self) -> float:
        """What a row costs, in units of its signature: its frames, or samples where it has none."""
        counts = [self.inputs[name] for name in COUNTS if name in self.inputs]
        longest = float(counts[0].max(initial=1)) if counts else 1.0
        return float(max(self.lengths.values(), default=longest))


class Padding:
    """What model.json says of lengths and batches.

    Args:
      serving: its "serving".
    """

    def __init__(self, serving: Mapping[str, Any]):
        self._padded = serving.get("padded") or {}
        self._cropped = serving.get("cropped") or {}
        self._unbatched_signature = (serving.get("streaming") or {}).get("signature")
        limit = (serving.get("limits") or {}).get("max_batch")
        allowed = sorted(serving.get("allowed_batches") or [1])
        self.allowed = [size for size in allowed if limit is None or size <= limit] or [1]

    @property
    def max_batch(self) -> int:
        """The most rows of a call."""
        return self.allowed[-1]

    def fit(self, signature: str, inputs: Arrays) -> Fitted:
        """The inputs with what lies behind their longest row left out.

        Of the signature for streaming, whose rows in a call must all be as long, nothing is left
        out, and requests of it share no call.

        Raises InvalidInput for a length beyond the rows given, or beyond the longest bucket.
        """
        if signature == self._unbatched_signature:
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
        """The number of rows of the next call when `rows` wait: one of the allowed batches.

        It is more than `rows` only where little of it would be padding.
        """
        if rows >= self.max_batch:
            return self.max_batch
        place = bisect.bisect_left(self.allowed, rows)
        above = self.allowed[place]
        if above - rows <= MAX_PADDING_SHARE * above or place == 0:
            return above
        return self.allowed[place - 1]

    def stack(
        self, rows: Sequence[Mapping[str, np.ndarray]], lengths: Mapping[str, int], size: int
    ) -> Arrays:
        """One batch of `size` rows, the first one repeated where there are fewer.

        Args:
          rows: the inputs of each, without the batch's axis.
          lengths: of padded axes, as in Fitted; zeros fill them.
          size: at least the number of rows.
        """
        filled = [*rows, *[rows[0]] * (size - len(rows))]
        batch = {}
        for name in rows[0]:
            arrays = [row[name] for row in filled]
            if name in lengths:
                axis = self._padded[name]["axis"] - 1
                arrays = [_zero_padded(array, axis, lengths[name]) for array in arrays]
            batch[name] = np.stack(arrays)
        return batch

    def crop(self, outputs: Arrays) -> Arrays:
        """The outputs of one request, none longer than its longest row."""
        cropped = dict(outputs)
        for name, rule in self._cropped.items():
            if name in outputs and rule["length"] in outputs:
                longest = int(outputs[rule["length"]].max())
                cropped[name] = _truncated(outputs[name], rule["axis"], longest)
        return cropped


def _trimmed_input(name: str, rule: Mapping[str, Any], inputs: Arrays) -> tuple[np.ndarray, int]:
    """The input as long as its longest row, and the bucket for it."""
    array, length = inputs[name], rule["length"]
    longest, given = int(inputs[length].max()), array.shape[rule["axis"]]
    if longest > given:
        raise InvalidInput(f"`{length}` must be at most the {given} of `{name}`, got {longest}.")
    buckets = rule.get("buckets") or [longest]
    if longest > buckets[-1]:
        raise InvalidInput(f"`{length}` must be at most {buckets[-1]}, got {longest}.")
    bucket = buckets[bisect.bisect_left(buckets, longest)]
    return _truncated(array, rule["axis"], longest), bucket


def _truncated(array: np.ndarray, axis: int, length: int) -> np.ndarray:
    return array[(slice(None),) * axis + (slice(length),)]


def _zero_padded(array: np.ndarray, axis: int, length: int) -> np.ndarray:
    """The array with zeros behind it, `length` long."""
    missing = length - array.shape[axis]
    if not missing:
        return array
    return np.pad(array, [(0, missing if n == axis else 0) for n in range(array.ndim)])
