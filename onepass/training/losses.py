"""Check the caller's loss when it is traced, and compute the scores of evaluations."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.replicator.training.accumulation import Batch, GlobalBatchLoss
from onepass.replicator.training.state import LossFn, TrainState
from onepass.training.batches import nest_conditions
from onepass.training.rows import MEAN

Loss = Callable[[Any, Batch], Any]


def check_loss(loss: Loss, model: Any) -> LossFn:
    """Return the loss as a function from a batch to a scalar and a dict of metrics.

    The function raises ValueError if the loss is not a floating scalar, or a metric is not a
    scalar. It is a `GlobalBatchLoss` if the loss has `global_inputs(model, batch, replicator)`.
    """

    def loss_fn(batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        result = loss(model, nest_conditions(batch))
        value, metrics = result if isinstance(result, tuple) else (result, {})
        scalars = {
            name: _scalar(tf.cast(metric, tf.float32), f"metric `{name}`")
            for name, metric in metrics.items()
        }
        return _scalar(value, "`loss`"), scalars

    inputs = getattr(loss, "global_inputs", None)
    if inputs is None:
        return loss_fn
    return _OfGlobalBatch(
        loss_fn, lambda batch, replicator: inputs(model, nest_conditions(batch), replicator)
    )


class _OfGlobalBatch:
    """A loss that reads values of the global batch, a `GlobalBatchLoss`."""

    def __init__(self, loss_fn: LossFn, global_inputs: Callable[[Batch, Any], Batch]) -> None:
        self._loss_fn, self.global_inputs = loss_fn, global_inputs

    def __call__(self, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        return self._loss_fn(batch)


def check_mean_over_rows(loss_fn: LossFn, batch: Batch, shares: int) -> None:
    """Raise ValueError if a loss is not a mean over rows.

    Replicas and microbatches compute the loss of their share, and the update is for the mean of
    these losses. For two shares a and b, a mean satisfies loss(a, b) = (loss(a, a) + loss(b, b)) /
    2; all these batches have the same size, so they round alike. A sum satisfies this, too, but
    violates loss(a, a) = loss(a), for which a rough comparison suffices.
    """
    if shares == 1 or isinstance(loss_fn, GlobalBatchLoss):
        return
    function = tf.function(lambda part: loss_fn(part)[0], autograph=False)
    rows = np.arange(len(batch["elements"]) // shares)
    both = np.concatenate([rows, rows + len(rows)])

    def of(index: np.ndarray) -> tf.Tensor:
        return function({name: tf.gather(value, index) for name, value in batch.items()})

    parts = (both, both, rows, np.tile(rows, 2), np.tile(rows + len(rows), 2))
    losses = [of(index) for index in parts]
    rounding = 1e-5 if losses[0].dtype.size > 2 else 3e-2
    whole, again, share, first, second = map(float, losses)
    mean, size = 0.5 * (first + second), abs(first) + abs(second)
    is_mean = abs(whole - mean) <= rounding * size + 1e-5
    is_mean = is_mean and abs(first - share) <= 0.1 * size + 1e-5
    if whole == again and not is_mean:
        raise ValueError(
            f"`loss` must be a mean over rows, or have `global_inputs`, for {shares} replicas and"
            f" microbatches: of two shares it is {whole:g}, their mean is {mean:g}; of a share"
            f" {share:g}, of the same repeated {first:g}."
        )


def _scalar(value: Any, name: str) -> tf.Tensor:
    if not tf.is_tensor(value):
        raise ValueError(f"{name} must be a scalar tensor, got {type(value).__name__}.")
    if value.shape.rank != 0 or not value.dtype.is_floating:
        kind = f"{value.dtype.name} of shape {value.shape}"
        raise ValueError(f"{name} must be a floating scalar, got {kind}; take its mean.")
    return value


class Score:
    """A callable that scores a model with its averaged weights, for `Trainer.train`."""

    def __init__(
        self, score: Callable[[], Any], state: TrainState, then: Callable[[], None] | None = None
    ) -> None:
        self._score, self._state, self._then = score, state, then

    def __call__(self, log: Any, step: int) -> float:
        """Compute the score, log it as "dev", and return it."""
        with self._state.swap_in_average():
            value = float(self._score())
        log.scalars(step, {"dev": value})
        if self._then is not None:
            self._then()
        return value


class MeanLoss:
    """A callable that returns the mean of a loss over the same held-out batches on every call."""

    def __init__(self, loss_fn: LossFn, parts: Callable[[], Iterable[Batch]], name: str) -> None:
        self._name = name
        self._loss = tf.function(lambda batch: loss_fn(batch)[0], autograph=False)
        self._parts = parts

    def __call__(self) -> float:
        """Return the mean; a batch's weight is its number of rows times its mean length, if any."""
        total, rows = 0.0, 0.0
        for part in self._parts():
            count = len(part["elements"]) * float(part.get(MEAN, [1.0])[0])
            total, rows = total + count * float(self._loss(part)), rows + count
        if not rows:
            raise ValueError(f"`{self._name}` must have at least one batch, got none.")
        return total / rows
