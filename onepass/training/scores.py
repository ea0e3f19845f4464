"""Losses and scores of `fit`: checks of the caller's loss, held-out data, and Keras callbacks."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.measures import ends, limit_rows
from onepass.foundation.rules import UserError
from onepass.replicator.training.batches import Batch, GlobalBatchLoss
from onepass.replicator.training.loop import Evaluate, Listener
from onepass.replicator.training.state import LossFn, TrainState
from onepass.training.batches import MEAN, Batches, nest_conditions

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
    if inputs is not None:
        loss_fn.global_inputs = (  # type: ignore[attr-defined]
            lambda batch, replicator: inputs(model, nest_conditions(batch), replicator)
        )
    return loss_fn


def check_mean_over_rows(loss_fn: LossFn, batch: Batch, shares: int) -> None:
    """Raise ValueError if a loss is not a mean over rows, which `shares` compute of their own.

    For two shares a and b, a mean satisfies loss(a, b) = (loss(a, a) + loss(b, b)) / 2; all these
    batches have the same size, so they round alike. A sum satisfies this, too, but violates
    loss(a, a) = loss(a), for which a rough comparison suffices.
    """
    if shares == 1 or isinstance(loss_fn, GlobalBatchLoss):
        return
    function = tf.function(lambda part: loss_fn(part)[0], autograph=False)
    rows = np.arange(len(batch["elements"]) // shares)
    next_rows = rows + len(rows)
    both = np.concatenate([rows, next_rows])
    losses = [
        function({name: tf.gather(value, index) for name, value in batch.items()})
        for index in (both, both, rows, np.tile(rows, 2), np.tile(next_rows, 2))
    ]
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


def scoring(score: Callable[[], Any], state: TrainState, workdir: str | Path | None) -> Evaluate:
    """Return a function that logs a model's score, with its averaged weights, and plots it."""

    def evaluate(log: Any, step: int) -> float:
        with state.swap_in_average():
            value = float(score())
        log.scalars(step, {"dev": value})
        if workdir:
            from onepass.foundation.metrics import write_loss_plot  # imports matplotlib

            write_loss_plot(Path(workdir), isinstance(score, MeanLoss))
        return value

    return evaluate


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


CALLED = (
    *("on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end"),
    *("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end"),
)
# Callbacks that need more than metrics from Keras' `fit`, and the equivalents here.
INSTEAD = {
    "BackupAndRestore": "`workdir` resumes a run exactly",
    "LearningRateScheduler": "pass `schedule`, or an optimiser of Keras that has one",
    "ModelCheckpoint": "`workdir` keeps checkpoints, `patience` the weights of the best score",
    "OrbaxCheckpoint": "`workdir` keeps checkpoints, `patience` the weights of the best score",
    "ProgbarLogger": "`fit` shows its own progress",
    "ReduceLROnPlateau": "pass `schedule`, or an optimiser of Keras that has one",
    "SwapEMAWeights": "`OptimizerConfig.average_decay` averages the weights",
}
OF_TENSORBOARD = ("histogram_freq", "embeddings_freq", "write_images", "write_steps_per_second")


class KerasCallbacks(Listener):
    """A `Listener` that calls Keras callbacks.

    An epoch is `every` updates, or fewer at the end. The logs are the metrics of the last update,
    as in the run's log; `on_epoch_end` also gets the score, if there is one, as "val_loss".
    """

    def __init__(self, callbacks: Sequence[Any], every: int) -> None:
        import keras  # plain TensorFlow models do not need it

        if not isinstance(callbacks, list | tuple):  # a callback is neither
            kind = type(callbacks).__name__
            raise UserError(f"`callbacks` must be a list of Keras callbacks, got {kind}.")
        for callback in callbacks:
            _check(callback, keras.callbacks.Callback)
        self._callbacks, self._every = list(callbacks), every
        self._model = _Model()
        self._open = False  # an epoch has begun

    def begin(self, step: int) -> None:
        """Call `on_train_begin`."""
        for callback in self._callbacks:
            callback.set_params({"epochs": None, "steps": self._every, "verbose": 0})
            callback.set_model(self._model)
        self._call("on_train_begin")

    def updating(self, step: int) -> None:
        """Call `on_train_batch_begin`, after `on_epoch_begin` if an epoch begins."""
        if not self._open:
            self._open = True
            self._call("on_epoch_begin", self._epoch(step))
        self._call("on_train_batch_begin", (step - 1) % self._every)

    def on_update(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Call `on_train_batch_end`; return whether a callback ends training."""
        self._call("on_train_batch_end", (step - 1) % self._every, logs=dict(metrics))
        return self._model.stop_training

    def on_score(self, step: int, metrics: Mapping[str, float], score: float | None) -> bool:
        """Call `on_epoch_end`; return whether a callback ends training."""
        self._open = False
        logs = dict(metrics) if score is None else {**metrics, "val_loss": score}
        self._call("on_epoch_end", self._epoch(step), logs=logs)
        return self._model.stop_training

    def end(self) -> None:
        """Call `on_train_end`."""
        self._call("on_train_end")

    def _epoch(self, step: int) -> int:
        return (step - 1) // self._every

    def _call(self, name: str, *number: int, logs: dict | None = None) -> None:
        for callback in self._callbacks:
            self._model.caller = type(callback).__name__
            getattr(callback, name)(*number, {} if logs is None else dict(logs))


class _NotThereError(UserError, AttributeError):
    """Raised when a callback reads an attribute that its `model` does not have in `fit`."""


class _Model:
    """The object that callbacks see as `model`; through it they can only stop training."""

    def __init__(self) -> None:
        self.stop_training = False
        self.metrics = ()  # `EarlyStopping` reads it; `TensorBoard` the next two
        self.optimizer = self.train_function = None
        self.caller = ""

    def __getattr__(self, name: str) -> Any:
        raise _NotThereError(
            f"`{self.caller}` cannot read `model.{name}` in `fit`: callbacks have the logs and"
            " `model.stop_training`; refer to your model by its variable."
        )


def _check(callback: Any, kind: type) -> None:
    name = type(callback).__name__
    if not isinstance(callback, kind):
        raise UserError(f"`callbacks` must be a list of Keras callbacks, got {name} in it.")
    known = {
        each.__name__ for each in type(callback).__mro__ if each.__module__.startswith("keras")
    }
    reason = next((INSTEAD[each] for each in sorted(known) if each in INSTEAD), None)
    if getattr(callback, "restore_best_weights", False):
        name, reason = f"{name}(restore_best_weights=True)", "`patience` keeps the best weights"
    options = [o for o in OF_TENSORBOARD if "TensorBoard" in known and getattr(callback, o)]
    if options:
        name, reason = f"TensorBoard({options[0]}=...)", "`fit` passes only metrics to it"
    hooks = [n for n in dir(kind) if n.startswith("on_") and n not in CALLED]
    own = [n for n in hooks if getattr(type(callback), n) is not getattr(kind, n)]
    own += [n for n in hooks if n in vars(callback)]
    if own and "TensorBoard" not in known:
        name = f"{name}.{own[0]}"
        reason = f"`fit` calls {', '.join(CALLED[:4])} and those of a batch"
    if reason is not None:
        raise UserError(f"`callbacks` cannot have {name}: {reason}.")
