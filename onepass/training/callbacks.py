"""Call Keras callbacks with the metrics of `fit`; they may end training."""

from collections.abc import Mapping, Sequence
from typing import Any

from onepass.foundation.errors import UserError
from onepass.replicator.training.listener import Listener

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

        if isinstance(callbacks, keras.callbacks.Callback) or not isinstance(
            callbacks, list | tuple
        ):
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
    own = [] if "TensorBoard" in known else _never_called(callback, kind)
    if own:
        name, reason = (
            f"{name}.{own[0]}",
            f"`fit` calls {', '.join(CALLED[:4])} and those of a batch",
        )
    if reason is not None:
        raise UserError(f"`callbacks` cannot have {name}: {reason}.")


def _never_called(callback: Any, kind: type) -> list[str]:
    hooks = [name for name in dir(kind) if name.startswith("on_") and name not in CALLED]
    of_class = [n for n in hooks if getattr(type(callback), n) is not getattr(kind, n)]
    return of_class + [name for name in hooks if name in vars(callback)]
