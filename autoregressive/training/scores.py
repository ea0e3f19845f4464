"""Scores of `fit`, from held-out data or a function, and the plot of the losses."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from autoregressive.training.batches import Batches
from autoregressive.training.losses import MeanLoss
from foundation.errors import UserError
from replicator.training.state import LossFn


def held_out_score(
    model: Any, loss_fn: LossFn, read: Callable[..., Batches], validation: Any, evaluate: Any
) -> Callable[[], Any] | None:
    """Return a function that computes a score, or None if there is neither data nor a function.

    Args:
      model: argument of `evaluate`, if it is a function.
      loss_fn: the loss whose mean over held-out data is the score.
      read: function from a data source to its batches; its argument `name` names the source in
        errors.
      validation: held-out data, or None.
      evaluate: a function from the model to a score, or held-out data, or None.

    Raises:
      UserError: both are given, or `validation` is a function.
      ValueError: the data is invalid.
    """
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
            return MeanLoss(loss_fn, read(data, name=name).parts, name)
    return None


def _is_function(given: Any) -> bool:
    return callable(given) and not isinstance(given, tf.data.Dataset)


def drawing(workdir: str | Path | None, score: Any) -> Callable[[], None] | None:
    """Return a function that plots a run's losses, or None without a run directory."""
    if not workdir:
        return None
    from foundation.loss_plot import write_loss_plot  # imports matplotlib

    return functools.partial(write_loss_plot, Path(workdir), isinstance(score, MeanLoss))
