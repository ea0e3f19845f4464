"""Scores of `fit`, from held-out data or a function, and the plot of the losses."""

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from onepass.foundation.ending import ends, limit_rows
from onepass.foundation.errors import UserError
from onepass.replicator.training.accumulation import Batch
from onepass.replicator.training.state import LossFn
from onepass.training.batches import Batches
from onepass.training.losses import MeanLoss


def held_out_score(
    model: Any,
    loss_fn: LossFn,
    read: Callable[..., Batches],
    validation: Any,
    evaluate: Any,
    log: Callable[[str], None],
) -> Callable[[], Any] | None:
    """Return a function that computes a score, or None if there is neither data nor a function."""
    if validation is not None and evaluate is not None:
        raise UserError("`validation` and `evaluate` are two ways to a score; pass one of them.")
    if _is_function(validation):
        raise UserError(
            "`validation` must be data that ends, not a function; a function from the model to a"
            " score is `evaluate`."
        )
    if _is_function(evaluate):
        return lambda: evaluate(model)
    for name, data in (("validation", validation), ("evaluate", evaluate)):
        if data is not None:
            return MeanLoss(loss_fn, _held_out(data, read, name, log), name)
    return None


def _held_out(
    data: Any, read: Callable[..., Batches], name: str, log: Callable[[str], None]
) -> Callable[[], Iterable[Batch]]:
    """Return a function that returns held-out batches, kept if an iterator has them only once."""
    does_end, batches = ends(data, name), read(data, name=name)
    if does_end:
        return batches.parts
    said = functools.cache(log)  # once, not with every score

    def parts() -> Iterator[Batch]:
        return limit_rows(batches.parts(), lambda part: len(part["elements"]), name, said)

    if not isinstance(data, Iterator):
        return parts
    return functools.cache(lambda: list(parts()))


def _is_function(given: Any) -> bool:
    return callable(given) and not isinstance(given, tf.data.Dataset)


def drawing(workdir: str | Path | None, score: Any) -> Callable[[], None] | None:
    """Return a function that plots a run's losses, or None without a run directory."""
    if not workdir:
        return None
    from onepass.foundation.loss_plot import write_loss_plot  # imports matplotlib

    return functools.partial(write_loss_plot, Path(workdir), isinstance(score, MeanLoss))
