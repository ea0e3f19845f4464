"""Make batches from arrays, rows, an iterable, `tf.data` or a function of the step."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import UserError, check_unmasked
from onepass.likelihoods.codec import Codec
from onepass.networks.elements import (
    Layout,
    as_array,
    check_elements,
    check_finite,
    fill_after_end,
    filler,
    list_rows,
    pad_rows,
)
from onepass.replicator.training.batches import Batch, as_dataset
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
        elements, lengths = arrays.get(ELEMENTS), arrays.get(LENGTHS)
        if lengths is not None:
            if elements is None or rank == 4 or elements.ndim != rank:
                raise ValueError("`lengths` needs `elements` in time order.")
            arrays[ELEMENTS], arrays[LENGTHS] = fill_after_end(elements, lengths, codec)
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


KEYS = ("elements", "condition")
NAMED = "condition/"  # prefix of condition names in flat batches


def nest_conditions(batch: Batch) -> dict[str, Any]:
    """Return a flat batch with its named conditions as a dict under the key `condition`."""
    named = {key.removeprefix(NAMED): x for key, x in batch.items() if key.startswith(NAMED)}
    others = {key: x for key, x in batch.items() if not key.startswith(NAMED)}
    return {**others, "condition": named} if named else others


def _flat(batch: dict[str, Any]) -> dict[str, Any]:
    """Put each named condition of a batch under its own key; the inverse of `nest_conditions`."""
    named = batch.get("condition")
    if not isinstance(named, dict):
        return batch
    others = {key: x for key, x in batch.items() if key != "condition"}
    return others | {f"{NAMED}{name}": x for name, x in named.items()}


class Batches:
    """Reproducible batches that can start at any step.

    Every batch has `step` and `row`, int32 [rows] each, from which losses that draw random numbers
    can derive their noise. A batch with `lengths` also has `mean_length`, the mean over its rows
    before replicas or microbatches split it. The source is what `fit` takes: arrays give `rows`
    random rows for each batch, and an iterable is restarted when it ends.
    """

    def __init__(
        self,
        source: Any,
        codec: Codec,
        layout: Layout,
        rows: int,
        seed: int,
        name: str = "batches",
        takes: Callable[[int], bool] = lambda length: True,
    ) -> None:
        self._source, self._codec, self._layout = source, codec, layout
        self._rows, self._seed = rows, seed
        self._takes, self._one_length = takes, False
        self._arrays: Padded | None = None
        self._error: BaseException | None = None  # raised inside tf.data, which changes its type
        is_list = isinstance(source, list) and list_rows(source, layout.rank - 1) is not None
        is_rows = is_list or isinstance(source, tf.RaggedTensor)
        if is_rows or isinstance(source, np.ndarray | tuple | dict) or tf.is_tensor(source):
            self._arrays = self._check_batch({"elements": source} if is_rows else source)
        elif not callable(source) and not isinstance(source, Iterable):
            raise ValueError(
                f"`{name}` must be arrays, an iterable, a tf.data.Dataset or a function of the"
                f" step, got {type(source).__name__}."
            )
        elif isinstance(source, list) and source and np.ndim(source[0]) == layout.rank - 1:
            raise ValueError(
                f"`{name}` must be an array of {len(source)} images of one size, got a list of"
                " images of different ones."
            )

    def example(self) -> Batch:
        """Return the first batch without consuming it."""
        if isinstance(self._source, Iterator):
            first = next(_endless(self._source))
            self._source = itertools.chain([first], self._source)
            return next(self._number_batches([first], 0))
        return next(iter(self.starting_at(0)))

    def starting_at(self, step: int) -> Iterable[Batch]:
        """Return endless batches, starting with the batch of a given step."""
        if self._arrays is not None:
            free = () if self._one_length else self._arrays.ragged
            draw = functools.partial(self._draw_batch, self._arrays)
            return as_dataset(draw, step, rows=self._rows, free=free)
        if callable(self._source) and not isinstance(self._source, tf.data.Dataset):
            return self._number_batches(map(self._source, itertools.count(step)), step)
        return self._number_batches(itertools.islice(_endless(self._source), step, None), step)

    def shard(self, step: int, index: int, count: int) -> tf.data.Dataset:
        """Return part `index` of `count` equal parts of each batch's rows, starting at a step."""
        self._one_length = True  # all devices need the same shape
        example = self.example()  # must come first: it replaces a source that is an iterator
        batches = self.starting_at(step)
        if not isinstance(batches, tf.data.Dataset):
            spec = {name: tf.TensorSpec(x.shape, x.dtype) for name, x in example.items()}
            alike = functools.partial(self._alike, batches, spec)
            batches = tf.data.Dataset.from_generator(alike, output_signature=spec)
        if count == 1:
            return batches
        return batches.map(lambda batch: {n: tf.split(x, count)[index] for n, x in batch.items()})

    def parts(self) -> Iterator[Batch]:
        """Yield all rows once: in batches of `rows` from arrays, otherwise batch by batch."""
        if self._arrays is None:
            yield from self._number_batches(self._source, 0)
            return
        for start in range(0, len(self._arrays.arrays["elements"]), self._rows):
            rows = self._arrays.take_rows(slice(start, start + self._rows))
            part = self._pad_to_bucket(rows).arrays
            numbers = {"row": np.arange(start, start + len(part["elements"]), dtype=np.int32)}
            yield {name: tf.constant(x) for name, x in _add_addresses(numbers | part, 0).items()}

    @contextlib.contextmanager
    def raising_own_errors(self) -> Iterator[None]:
        """Raise the source's original error instead of the error to which tf.data converts it."""
        try:
            yield
        except tf.errors.OpError:
            if self._error is None:
                raise
            raise self._error from None

    def _alike(self, batches: Iterable[Batch], spec: dict[str, tf.TensorSpec]) -> Iterator[Batch]:
        """Return an iterator over batches that, after an error, raises it again on every call.

        Otherwise only one device would see the error, and the others would wait forever.
        """
        iterator, first = iter(batches), {name: list(x.shape) for name, x in sorted(spec.items())}

        def following() -> Batch:
            if self._error is not None:
                raise self._error
            try:
                batch = next(iterator)
                shapes = {name: list(x.shape) for name, x in sorted(batch.items())}
                if shapes != first:
                    raise ValueError(
                        "on several devices all batches must have the same shapes, got "
                        f"{shapes} after {first}."
                    )
            except Exception as error:
                self._error = error
                raise
            return batch

        return iter(following, None)

    def _number_batches(self, batches: Iterable, first: int) -> Iterator[Batch]:
        for step, batch in enumerate(batches, first):
            arrays = _add_addresses(self._pad_to_bucket(self._check_batch(batch)).arrays, step)
            yield {name: tf.constant(array) for name, array in arrays.items()}

    def _draw_batch(self, batch: Padded, step: int) -> dict[str, np.ndarray]:
        count = len(batch.arrays["elements"])
        generator = np.random.default_rng([self._seed, step])
        rows = generator.choice(count, self._rows, replace=count < self._rows)
        return _add_addresses(self._pad_to_bucket(batch.take_rows(rows)).arrays, step)

    def _pad_to_bucket(self, batch: Padded) -> Padded:
        """Return a batch padded to one of a few lengths; with `shard`, arrays keep a single one."""
        if not batch.ragged or (self._arrays is not None and self._one_length):
            return batch
        longest = max(batch.longest, 1)
        length = bucket(longest)
        length = length if self._arrays is None else min(length, self._arrays.longest)
        return batch.of_length(length if self._takes(length) else longest)

    def _check_batch(self, batch: Any) -> Padded:
        if isinstance(batch, tuple | list):
            if not 1 <= len(batch) <= len(KEYS):
                raise ValueError(
                    "a batch must be elements, or elements and a condition, got"
                    f" {len(batch)} arrays; pass further arrays by name, in a dict."
                )
            batch = dict(zip(KEYS, batch, strict=False))
        if not isinstance(batch, dict):
            batch = {"elements": batch}
        if "elements" not in batch:
            raise ValueError(f"a batch must have the key `elements`, got {sorted(batch)}.")
        found = padded_arrays(_flat(batch), self._codec, self._layout.rank)
        elements = found.arrays["elements"]
        if not elements.size:
            raise ValueError(f"`elements` must not be empty, got shape {list(elements.shape)}.")
        check_elements(elements, self._codec, self._layout)
        for name, array in found.arrays.items():
            if array.shape[:1] != elements.shape[:1]:
                rule = f"must have {len(elements)} rows, as `elements`"
                raise ValueError(f"`{name}` {rule}, got shape {list(array.shape)}.")
            if (name == "condition" or name.startswith(NAMED)) and array.dtype.kind in "fOSU":
                check_finite(array, name)
        return found


def _add_addresses(arrays: dict[str, np.ndarray], step: int) -> dict[str, np.ndarray]:
    rows = len(arrays["elements"])
    added = {"step": np.full(rows, step, np.int32), "row": np.arange(rows, dtype=np.int32)}
    if LENGTHS in arrays:
        # The mean over rows of sums divided by it is that over all elements that are not padding.
        added[MEAN] = np.full(rows, float(arrays[LENGTHS].mean()) or 1.0, np.float32)
    return added | arrays


def _endless(source: Iterable) -> Iterator:
    while True:
        count = 0
        for item in source:
            count += 1
            yield item
        if not count or iter(source) is source:
            raise UserError(
                f"The batches ended after {count}; pass an iterable that can be restarted, or a"
                " function of the step."
            )


BatchSource = np.ndarray | tuple | dict | Iterable | Callable[[int], Any]
