"""A caller's loss, checked when it is traced, and the score of an evaluation."""

from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from replicator.training.accumulation import Batch
from replicator.training.state import LossFn, TrainState

Loss = Callable[[Any, Batch], Any]


def checked(loss: Loss, model: Any) -> LossFn:
    """Return the loss as a function from a batch to a scalar and a dict of metrics.

    The function raises ValueError if the loss or a metric is not a floating scalar.

    Args:
      loss: from the model and a batch to a scalar, or to that and a dict of scalars.
      model: its first argument.
    """

    def loss_fn(batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        result = loss(model, batch)
        value, metrics = result if isinstance(result, tuple) else (result, {})
        scalars = {
            name: _scalar(tf.cast(metric, tf.float32), f"metric `{name}`")
            for name, metric in metrics.items()
        }
        return _scalar(value, "`loss`"), scalars

    return loss_fn


def _scalar(value: Any, name: str) -> tf.Tensor:
    if not tf.is_tensor(value):
        raise ValueError(f"{name} must be a scalar tensor, got {type(value).__name__}.")
    if value.shape.rank != 0 or not value.dtype.is_floating:
        kind = f"{value.dtype.name} of shape {value.shape}"
        raise ValueError(f"{name} must be a floating scalar, got {kind}; take its mean.")
    return value


class Score:
    """The score of a model with its averaged weights, as `Trainer.train` calls it.

    Args:
      score: computes it; lower is better.
      state: whose average the model uses during the call.
    """

    def __init__(self, score: Callable[[], Any], state: TrainState):
        self._score, self._state = score, state

    def __call__(self, log: Any, step: int) -> float:
        """Return the score, and write it to the log as "dev"."""
        with self._state.averaged():
            value = float(self._score())
        log.scalars(step, {"dev": value})
        return value


class MeanLoss:
    """The mean of a loss over the rows of held-out data.

    Args:
      loss_fn: of a batch; compiled here.
      parts: returns batches, the same in every call.
    """

    def __init__(self, loss_fn: LossFn, parts: Callable[[], Iterable[Batch]]):
        self._loss = tf.function(lambda batch: loss_fn(batch)[0], autograph=False)
        self._parts = parts

    def __call__(self) -> float:
        """Return the mean, with each part weighted by its rows.

        Raises:
          ValueError: there is no part.
        """
        total, rows = 0.0, 0
        for part in self._parts():
            count = len(part["elements"])
            total, rows = total + count * float(self._loss(part)), rows + count
        if not rows:
            raise ValueError(
                "`evaluate` must have a batch; pass arrays, or an iterable that can be restarted."
            )
        return total / rows
