"""Measure nats and bits per element of data, with a 95% interval over examples."""

import dataclasses
import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from onepass.evaluation_batches import Example, batches, examples, rank_of
from onepass.foundation.arguments import whole_number
from onepass.foundation.ending import MOST_ROWS, ends, limit_rows
from onepass.foundation.errors import UserError
from onepass.foundation.intervals import Measure, weighted_mean
from onepass.interface import Model


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """The results of evaluating a model on data.

    Attributes:
      nats: mean negative log-likelihood per element (`mean`), its 95% interval over examples by
        Student's t (`low`, `high`; None for a single example), and the number of examples (`n`).
      bits: the same values in bits; for integer elements these are bits per dimension.
      elements: number of elements.
    """

    nats: Measure
    bits: Measure
    elements: int


def evaluate(
    model: Any,
    data: Any,
    condition: Any = None,
    *,
    batch_size: int = 16,
    most_rows: int | None = MOST_ROWS,
) -> Evaluation:
    """Measure the log-likelihood of data under a model.

    Args:
      model: a model with `log_prob`: an `Autoregressive`, a bundle or a served model.
      data: what `fit` takes: elements [num, time, ...] or [num, height, width, channels], a list of
        rows of different lengths, a pair of elements and condition, a dict of arrays (`elements`,
        `condition`, `lengths` of padded rows), or an iterable or `tf.data` dataset of such batches
        or of single examples. All examples have equal weight.
      condition: [num, ...], for a model with a condition, or a dict of conditions by name, where
        `data` has none; a single number is the condition of all rows.
      batch_size: number of examples per batch.
      most_rows: number of examples that are read at most of a generator, or of another iterable
        whose length is unknown, with a warning if there are more; None: all, until it ends.

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
    rows: Iterator[Example] = examples(data, condition, rank_of(model))
    if not ends(data, "data") and most is not None:
        rows = limit_rows(rows, lambda row: 1, "data", _warn, most)
    nats: list[float] = []
    elements = 0
    for batch in batches(rows, batch_size):
        lengths = {} if batch.lengths is None else {"lengths": batch.lengths}
        found = np.asarray(model.log_prob(batch.elements, batch.condition, **lengths), np.float64)
        sizes = batch.sizes
        nats += [-float(row.sum()) / max(size, 1) for row, size in zip(found, sizes, strict=True)]
        elements += sum(sizes)
    if not nats:
        raise UserError("`data` must contain an example.")
    each = np.array(nats)
    return Evaluation(weighted_mean(each), weighted_mean(each / math.log(2.0)), elements)


def _warn(message: str) -> None:
    warnings.warn(f"{message[:-1]}, or `most_rows=None`.", stacklevel=5)
