"""Measure nats and bits per element of data, with a 95% interval over examples."""

import dataclasses
import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from onepass.foundation.measures import (
    MOST_ROWS,
    Measure,
    ends,
    limit_rows,
    measure_code_lengths,
    weighted_mean,
)
from onepass.foundation.rules import UserError, check_unmasked, whole_number
from onepass.interface import Model

CONDITION, ELEMENTS, LENGTHS = "condition", "elements", "lengths"
TWICE = "`condition` must be None where `data` has conditions."


class Example(NamedTuple):
    """One row of a data set."""

    elements: np.ndarray
    conditions: dict[str, Any]
    length: int | None = None  # number of its elements in time that are no padding; None: all
    shared: Mapping[str, Any] = MappingProxyType({})  # numbers for all rows

    @property
    def alike(self) -> tuple:
        """The shapes that rows of one batch have in common."""
        shapes = ((name, np.shape(value)) for name, value in sorted(self.conditions.items()))
        return self.elements.shape, *shapes, self.length is None, *sorted(self.shared.items())


class Batch(NamedTuple):
    """Consecutive rows of equal shape, with the condition and the lengths for `log_prob`."""

    elements: np.ndarray
    condition: Any
    lengths: np.ndarray | None

    @property
    def sizes(self) -> list[int]:
        """Number of elements of each row, without padding."""
        rows, whole = len(self.elements), int(np.prod(self.elements.shape[1:]))
        if self.lengths is None:
            return [whole] * rows
        return [int(length) * whole // self.elements.shape[1] for length in self.lengths]


def _rank_of(model: Any) -> int:
    layout = getattr(model, "layout", None)
    if layout is not None:
        return int(layout.rank)
    order = (getattr(model, "spec", None) or {}).get("order", "time")
    return 4 if order == "raster" or getattr(model, "makes", None) == "images" else 2


def examples(data: Any, condition: Any, rank: int) -> Iterator[Example]:
    """Yield the rows of a data set."""
    is_pair = isinstance(data, tuple) and 0 < len(data) <= 2 and np.ndim(data[0]) == rank
    if is_pair or isinstance(data, Mapping):
        yield from _of_batch(data, condition, rank)
        return
    given, number = _by_name(condition), 0
    if hasattr(data, "__len__") and not hasattr(data, "cardinality"):
        _check_rows(given, len(data))
    check_unmasked(data, ELEMENTS)
    for item in data:
        if isinstance(item, Mapping | tuple) or np.ndim(item) == rank:
            found = list(_of_batch(item, None, rank))
        else:
            check_unmasked(item, ELEMENTS)
            found = [Example(np.asarray(item), {})]
        for each in found:
            if given and (each.conditions or each.shared):
                raise UserError(TWICE)
            if given:
                each = each._replace(conditions=_row(given, number), shared=_shared(given))
            yield each
            number += 1
    _check_rows(given, number)


def batches(rows: Iterable[Example], size: int) -> Iterator[Batch]:
    """Yield batches of at most `size` consecutive rows of equal shapes."""
    for _, alike in itertools.groupby(rows, lambda row: row.alike):
        while together := list(itertools.islice(alike, size)):
            first, conditions = together[0], dict(together[0].shared)
            for name in first.conditions:
                conditions[name] = _stack([row.conditions[name] for row in together])
            lengths = None if first.length is None else np.array([row.length for row in together])
            only = set(conditions) <= {CONDITION}
            condition = conditions.get(CONDITION) if only else conditions
            yield Batch(np.stack([row.elements for row in together]), condition, lengths)


def _stack(rows: list[Any]) -> Any:
    """Return rows as one array, or as they are if they know more, such as a recording's gain."""
    is_own_type = isinstance(rows[0], np.ndarray) and type(rows[0]) is not np.ndarray
    return rows if is_own_type else np.stack(rows)


def _of_batch(batch: Any, condition: Any, rank: int) -> Iterator[Example]:
    fields = batch if isinstance(batch, Mapping) else None
    if fields is None:
        parts = batch if isinstance(batch, tuple) else (batch,)
        fields = dict(zip((ELEMENTS, CONDITION), parts, strict=False))
    if ELEMENTS not in fields:
        raise UserError(f"`data` must have the key `elements`, got {sorted(fields)}.")
    if condition is not None and fields.get(CONDITION) is not None:
        raise UserError(TWICE)
    given = _by_name(fields.get(CONDITION) if condition is None else condition)
    rows, lengths = fields[ELEMENTS], fields.get(LENGTHS)
    check_unmasked(rows, ELEMENTS)
    if not isinstance(rows, list) and np.ndim(rows) == rank - 1:  # one example
        yield Example(np.asarray(rows), given, None if lengths is None else int(lengths))
        return
    _check_rows(given | ({} if lengths is None else {LENGTHS: np.asarray(lengths)}), len(rows))
    for number, row in enumerate(rows):
        length = None if lengths is None else int(lengths[number])
        yield Example(np.asarray(row), _row(given, number), length, _shared(given))


def _by_name(condition: Any) -> dict[str, Any]:
    if condition is None:
        return {}
    named = condition if isinstance(condition, Mapping) else {CONDITION: condition}
    for name, value in named.items():
        check_unmasked(value, name)
    return {name: _rows(value) for name, value in named.items()}


def _rows(value: Any) -> Any:
    if isinstance(value, list | tuple) and any(isinstance(row, np.ndarray) for row in value):
        return value  # of different shapes, perhaps
    return value if np.ndim(value) == 0 else np.asanyarray(value)


def _has_rows(value: Any) -> bool:
    return isinstance(value, list | tuple) or np.ndim(value) > 0


def _row(conditions: Mapping[str, Any], number: int) -> dict[str, Any]:
    for name, value in conditions.items():
        if _has_rows(value) and number >= len(value):
            raise UserError(f"`{name}` must have a row for each example, got {len(value)}.")
    return {name: value[number] for name, value in conditions.items() if _has_rows(value)}


def _shared(conditions: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in conditions.items() if not _has_rows(value)}


def _check_rows(conditions: Mapping[str, Any], count: int) -> None:
    for name, each in conditions.items():
        if _has_rows(each) and len(each) != count:
            raise UserError(f"`{name}` must have {count} rows, got {len(each)}.")


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The results of evaluating a model on data.

    Attributes:
      nats: mean negative log-likelihood per element (`mean`), its 95% interval over examples by
        Student's t (`low`, `high`; None for a single example), and the number of examples (`n`).
      bits: the same values in bits; for integer elements these are bits per dimension.
      elements: number of elements.
      cost: nats per element by which the likelihood is lower than with float32 weights, on the same
        data, with its interval over examples; None for float32.
    """

    nats: Measure
    bits: Measure
    elements: int
    cost: Measure | None = None


def evaluate(
    model: Any,
    data: Any,
    condition: Any = None,
    *,
    batch_size: int = 16,
    most_rows: int | None = MOST_ROWS,
    weights: str = "float32",
) -> Evaluation:
    """Measure the log-likelihood of data under a model.

    Args:
      model: a model with `log_prob`: an `Autoregressive`, a WaveNet, an image model, a bundle or a
        served model.
      data: what `fit` takes: elements [num, time, ...] or [num, height, width, channels], a list of
        rows of different lengths, a pair of elements and condition, a dict of arrays (`elements`,
        `condition`, `lengths` of padded rows), or an iterable or `tf.data` dataset of such batches
        or of single examples. All examples have equal weight.
      condition: [num, ...], for a model with a condition, or a dict of conditions by name, where
        `data` has none; a single number is the condition of all rows.
      batch_size: number of examples per batch.
      most_rows: number of examples that are read at most of a generator, or of another iterable
        whose length is unknown, with a warning if there are more; None: all, until it ends.
      weights: the `weights` of `sample` whose model is evaluated; other ones than float32 cost a
        pass more, by which `cost` is measured.

    Returns:
      The log-likelihood with its interval.

    Raises:
      UserError: the model has no log-probabilities, there are no examples, the data has no end, or
        a condition does not have one row per example.
      ValueError: the data does not fit the model, `batch_size` or `most_rows` is not an integer of
        at least 1, or the network is not causal.
    """
    if getattr(type(model), "log_prob", Model.log_prob) is Model.log_prob:
        raise UserError(
            f"`model` must have log-probabilities to be evaluated, got {type(model).__name__}."
        )
    batch_size = whole_number(batch_size, "batch_size")
    most = None if most_rows is None else whole_number(most_rows, "most_rows")
    if callable(data) and not hasattr(data, "__iter__"):
        raise UserError("`data` must be data that ends, not a function.")
    check = getattr(model, "check_causal", None)
    if check is not None:  # the results of a network that looks ahead are not code lengths
        check()
    rows: Iterator[Example] = examples(data, condition, _rank_of(model))
    if not ends(data, "data") and most is not None:
        rows = limit_rows(rows, lambda row: 1, "data", _warn, most)

    costs: list[float] = []

    def log_prob(batch: Batch) -> Any:
        options: dict[str, Any] = {} if batch.lengths is None else {"lengths": batch.lengths}
        exact = model.log_prob(batch.elements, batch.condition, **options)
        if weights == "float32":
            return exact
        found = model.log_prob(batch.elements, batch.condition, weights=weights, **options)
        lost = np.asarray(exact, np.float64) - np.asarray(found, np.float64)
        costs.extend(lost.reshape([len(lost), -1]).sum(1) / batch.sizes)
        return found

    found = measure_code_lengths(batches(rows, batch_size), log_prob, lambda batch: batch.sizes)
    return Evaluation(
        weighted_mean(found.nats_per_element),
        weighted_mean(found.bits_per_element),
        int(found.sizes.sum()),
        weighted_mean(np.array(costs)) if costs else None,
    )


def _warn(message: str) -> None:
    warnings.warn(f"{message[:-1]}, or `most_rows=None`.", stacklevel=5)
