"""Measure nats and bits per element of data, with a 95% interval over examples."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import numpy as np

from foundation.arguments import whole_number
from foundation.errors import UserError
from foundation.intervals import Measure, weighted_mean


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
    model: Any, data: Iterable, condition: Any = None, *, batch_size: int = 16
) -> Evaluation:
    """Measure the log-likelihood of data under a model.

    Args:
      model: a model with `log_prob`: an `Autoregressive`, a bundle or a served model.
      data: [num, time] or [num, height, width, channels]; or an iterable of examples without the
        first axis, which may differ in length. All examples have equal weight.
      condition: [num, ...], for a model with a condition, or a dict of conditions by name; a
        single number is the condition of all rows.
      batch_size: number of examples per batch.

    Returns:
      The log-likelihood with its interval.

    Raises:
      UserError: the model has no log-probabilities, there are no examples, a condition does not
        have one row per example.
      ValueError: the data does not fit the model, `batch_size` is not an integer of at least 1, or
        the network is not causal.
    """
    if not hasattr(model, "log_prob"):
        raise UserError(
            f"`model` must have log-probabilities to be evaluated, got {type(model).__name__}."
        )
    batch_size = whole_number(batch_size, "batch_size")
    check = getattr(model, "check_causal", None)
    if check is not None:  # the results of a network that looks ahead are not code lengths
        check()
    is_named = isinstance(condition, dict)
    given = condition if is_named else {} if condition is None else {"condition": condition}
    if isinstance(data, Sized):
        _check_rows(given, len(data))
    nats: list[float] = []
    elements = 0
    for rows in _batches(data, batch_size):
        part = {
            name: x[len(nats) : len(nats) + len(rows)] if np.ndim(x) else x
            for name, x in given.items()
        }
        found = model.log_prob(rows, part if is_named else part.get("condition"))
        found = np.asarray(found, np.float64)
        nats += [-float(row.sum()) / rows[0].size for row in found]
        elements += rows.size
    if not nats:
        raise UserError("`data` must contain an example.")
    _check_rows(given, len(nats))
    each = np.array(nats)
    return Evaluation(weighted_mean(each), weighted_mean(each / math.log(2.0)), elements)


def _check_rows(given: dict[str, Any], count: int) -> None:
    """Raise UserError unless every condition has `count` rows, or is one number for all rows."""
    for name, each in given.items():
        if np.ndim(each) and len(each) != count:
            raise UserError(f"`{name}` must have {count} rows, got {len(each)}.")


def _batches(rows: Iterable, size: int) -> Iterator[np.ndarray]:
    """Yield batches of at most `size` consecutive rows of equal shape."""
    together: list[np.ndarray] = []
    for row in map(np.asarray, rows):
        if together and (row.shape != together[0].shape or len(together) == size):
            yield np.stack(together)
            together = []
        together.append(row)
    if together:
        yield np.stack(together)
