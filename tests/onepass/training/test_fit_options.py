"""`fit`: validation, patience, callbacks of Keras and the picture of the losses."""

import csv
import dataclasses
import functools
import io
import itertools
import math
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from fit_models import ADAM, WAVES, drawn, squared, trained
from PIL import Image

from onepass.foundation import measures
from onepass.foundation.metrics import loss_curves, loss_figure, read_metrics
from onepass.foundation.rules import UserError
from onepass.training.scores import KerasCallbacks

pytestmark = pytest.mark.usefixtures("eager")  # `test_fit` traces the same steps
HELD_OUT = WAVES[::-1] * np.float32(0.5)
HELD_OUT_ROWS = tf.data.Dataset.from_tensor_slices(HELD_OUT).batch(5)
SCORES = {2: 5.0, 4: 3.0, 6: 4.0, 8: 3.0, 10: 2.0, 12: 9.0}  # 3.0 again is no improvement


class Scripted:
    """Scores of a script; remembers the weights that it was asked to score."""

    def __init__(self, scores=SCORES, order=None):
        self._scores, self._steps, self.kernels = scores, iter(order or scores), {}

    def __call__(self, model):
        step = next(self._steps)
        self.kernels[step] = model.network.kernel.numpy()
        return self._scores[step]


def until(score, steps=12, patience=2, **options):
    return trained(steps=steps, evaluate=score, evaluate_every=2, patience=patience, **options)


def test_patience_ends_at_its_score_with_the_weights_of_the_best():
    score = Scripted()
    weights, outcome = until(score, optimizer=keras.optimizers.SGD(0.05))
    assert (outcome.step, outcome.reason, outcome.best_step) == (8, "no improvement", 4)
    assert outcome.scores == tuple(SCORES.items())[:4]
    np.testing.assert_array_equal(weights, score.kernels[4])
    assert (score.kernels[4] != score.kernels[8]).any()


def test_a_run_resumed_after_every_score_ends_at_the_same_update(tmp_path):
    score = Scripted()
    for steps in (4, 6, 12, 12):
        weights, outcome = until(score, steps, workdir=tmp_path)
    assert (outcome.step, outcome.reason, outcome.best_step) == (8, "no improvement", 4)
    assert outcome.scores == tuple(SCORES.items())[:4]
    np.testing.assert_array_equal(weights, score.kernels[4])
    whole = Scripted()
    np.testing.assert_array_equal(until(whole)[0], weights)
    more = until(score, patience=3, workdir=tmp_path)[1]
    assert (more.step, more.reason, more.best_step) == (12, "done", 10)


def test_a_score_that_is_made_again_counts_once(tmp_path):
    score = Scripted({2: 1.0, 4: 2.0, 6: 2.0, 8: 2.0}, order=[2, 4, 2, 4, 6, 8])
    until(score, 4, workdir=tmp_path, patience=3)
    for path in (tmp_path / "checkpoints").glob("step_00000004.npz"):
        path.write_bytes(b"damaged")
    outcome = until(score, workdir=tmp_path, patience=3)[1]  # from step 2 on
    assert [step for step, _ in outcome.scores] == [2, 4, 6, 8] and outcome.step == 8


def test_all_steps_done_leave_the_weights_of_the_best_score_too():
    score = Scripted({2: 1.0, 4: math.nan, 6: 2.0})
    weights, outcome = until(score, 6, patience=5)
    assert outcome.reason == "done" and math.isnan(outcome.scores[1][1])
    np.testing.assert_array_equal(weights, score.kernels[2])
    alone, outcome = trained(steps=6, evaluate=Scripted({2: 1.0, 4: 3.0, 6: 2.0}), evaluate_every=2)
    assert outcome.best_step == 2 and (alone != weights).any()  # without patience: the last


def test_scores_that_are_never_finite_end_it_with_the_last_weights():
    score = Scripted(dict.fromkeys([2, 4, 6], math.nan))
    weights, outcome = until(score, patience=3)
    assert (outcome.step, outcome.reason, outcome.best_step) == (6, "no improvement", None)
    np.testing.assert_array_equal(weights, score.kernels[6])


@functools.cache
def held_out_scores():
    return trained(evaluate=HELD_OUT, evaluate_every=2)[1].scores


class Reiterated:
    """Batches that can be read again, without end."""

    def __iter__(self):
        return itertools.cycle([HELD_OUT])


def of_unknown_length():
    return tf.data.Dataset.from_generator(Reiterated, output_signature=tf.TensorSpec([12, 40]))


PARTS = [HELD_OUT[:5], HELD_OUT[5:]]
ENDING = {
    "dictionary": lambda: {"elements": HELD_OUT},
    "parts": lambda: PARTS,
    "ending generator": lambda: (part for part in PARTS),
    "repeated": lambda: HELD_OUT_ROWS.repeat(3),
}
ENDLESS = {
    "generator": lambda: (HELD_OUT for _ in itertools.count()),
    "cycle": lambda: itertools.cycle([HELD_OUT]),
    "iterable": Reiterated,
    "unknown": of_unknown_length,
}


@pytest.mark.parametrize("kind", [*ENDING, *ENDLESS])
def test_validation_is_the_mean_loss_of_what_ends_or_of_the_first_rows(kind, monkeypatch):
    # All rows of what ends, or the held-out data twice.
    monkeypatch.setattr(measures, "MOST_ROWS", 12 if kind in ENDING else 24)
    lines, validation = [], (ENDING | ENDLESS)[kind]()
    outcome = trained(validation=validation, evaluate_every=2, log=lines.append)[1]
    np.testing.assert_allclose(outcome.scores, held_out_scores(), rtol=1e-5)
    said = [line for line in lines if "may have no end" in line]
    assert len(said) == (kind in ENDLESS)
    assert all("`validation`" in line and "first 24 rows" in line for line in said)


def test_a_score_that_takes_long_says_that_it_is_computed(monkeypatch):
    said = threading.Event()

    class Heard(io.StringIO):
        def write(self, text):
            if "step 2: scoring on dev: " in text:
                said.set()
            return super().write(text)

    monkeypatch.setattr("sys.stderr", Heard())
    monkeypatch.setattr("onepass.foundation.progress.SECONDS", 0.01)
    outcome = trained(steps=2, evaluate=lambda model: 0.0 if said.wait(60.0) else 1.0)[1]
    assert outcome.scores == ((2, 0.0),)


def rows_of(model, batch):
    return tf.reduce_mean(model.log_prob(batch["elements"]), axis=1)


def of_array_metric(model, batch):
    return tf.reduce_mean(rows_of(model, batch)), {"a": tf.ones(2)}


def summed(model, batch):
    return tf.reduce_sum(rows_of(model, batch))


HALVES = {"optimizer": dataclasses.replace(ADAM, accumulate=2)}
NO_MEAN = "`loss` must be a mean over rows, or have `global_inputs`"
WRONG = {
    "no steps": ({"steps": 0}, "`steps` must be an integer of at least 1, got 0."),
    "half a step": ({"steps": 2.5}, "`steps` must be an integer of at least 1, got 2.5."),
    "never": ({"evaluate_every": 0}, "`evaluate_every` must be an integer of at least 1, got 0."),
    "no rows": ({"batch_size": -1}, "`batch_size` must be an integer of at least 1, got -1."),
    "loss of rows": ({"loss": rows_of}, "floating scalar, got float32 of shape (4,); take its me"),
    "nothing": ({"loss": lambda *_: None}, "`loss` must be a scalar tensor, got NoneType."),
    "integer": ({"loss": lambda *_: tf.constant(1)}, "`loss` must be a floating scalar, got int32"),
    "array metric": (
        {"loss": of_array_metric},
        "metric `a` must be a floating scalar, got float32",
    ),
    "squared": ({"loss": squared} | HALVES, NO_MEAN),
    "summed": ({"loss": summed} | HALVES, NO_MEAN),
    "two": ({"validation": WAVES, "evaluate": len}, "`validation` and `evaluate` are two ways"),
    "function": ({"validation": drawn}, "`validation` must be data that ends, not a function"),
    "kind": ({"validation": 3}, "`validation` must be arrays, an iterable"),
    "none": ({"validation": iter([])}, "`validation` must have at least one batch, got none."),
    "endless": ({"validation": HELD_OUT_ROWS.repeat()}, "`validation` must be data that ends, got"),
    "endless score": ({"evaluate": HELD_OUT_ROWS.repeat()}, "`evaluate` must be data that ends"),
    "no score": ({"patience": 2}, "`patience` needs scores: pass `validation`, or `evaluate`."),
    "zero": ({"patience": 0, "validation": WAVES}, "`patience` must be an integer of at least 1"),
    "one": ({"callbacks": keras.callbacks.History()}, "must be a list of Keras callbacks, got Hi"),
    "other": ({"callbacks": [print]}, "must be a list of Keras callbacks, got builtin_function"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_is_one_line(kind):
    options, line = WRONG[kind]
    with pytest.raises(ValueError) as caught:
        trained(**options)
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_a_callback_sees_the_numbers_of_the_log(tmp_path):
    begun, updates, epochs = [], {}, {}
    callback = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: begun.append("begin"),
        on_train_end=lambda logs: begun.append("end"),
        on_epoch_begin=lambda epoch, logs: begun.append(epoch),
        on_train_batch_end=lambda batch, logs: updates.setdefault(len(updates) + 1, (batch, logs)),
        on_epoch_end=lambda epoch, logs: epochs.setdefault(epoch, logs),
    )
    options = {"validation": HELD_OUT, "evaluate_every": 4, "callbacks": [callback]}
    weights, outcome = trained(workdir=tmp_path, **options)
    assert begun == ["begin", 0, 1, "end"]
    assert [batch for batch, _ in updates.values()] == [0, 1, 2, 3, 0, 1]
    losses = {line["step"]: line for line in read_metrics(tmp_path) if "loss" in line}
    for step, record in losses.items():
        logs = updates[step][1]
        assert logs == {name: record[name] for name in logs}
        assert {"loss", "bits", "learning_rate"} <= logs.keys()
    assert sorted(losses) == [4, 6]
    for (step, score), logs in zip(outcome.scores, epochs.values(), strict=True):
        assert logs == {**updates[step][1], "val_loss": score}
    np.testing.assert_array_equal(weights, trained()[0])
    epochs.clear()
    trained(callbacks=[callback], evaluate_every=3)
    assert sorted(epochs) == [0, 1] and not any("val_loss" in logs for logs in epochs.values())


def test_keras_early_stopping_ends_where_patience_does(tmp_path):
    stop = keras.callbacks.EarlyStopping("val_loss", patience=2)
    table = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    score = Scripted()
    options = {"evaluate_every": 2, "callbacks": [stop, table], "workdir": tmp_path / "run"}
    weights, outcome = trained(steps=12, evaluate=score, **options)
    assert (outcome.step, outcome.reason) == (8, "callback")
    np.testing.assert_array_equal(weights, score.kernels[8])
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [float(row["val_loss"]) for row in rows] == [5.0, 3.0, 4.0, 3.0]
    logged = [line["loss"] for line in read_metrics(tmp_path / "run") if "loss" in line]
    assert [float(row["loss"]) for row in rows] == logged


class Stopping(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.model.stop_training = True


def test_a_callback_ends_it_after_its_update_which_is_scored_and_resumed(tmp_path):
    options = {"validation": HELD_OUT, "evaluate_every": 5, "workdir": tmp_path}
    outcome = trained(callbacks=[Stopping()], **options)[1]
    assert (outcome.step, outcome.reason) == (3, "callback")
    assert [step for step, _ in outcome.scores] == [3]
    weights, outcome = trained(**options)
    assert outcome.step == 6
    np.testing.assert_array_equal(weights, trained()[0])


def test_tensorboard_of_keras_writes_figures(tmp_path):
    callback = keras.callbacks.TensorBoard(tmp_path / "board", update_freq="batch")
    trained(callbacks=[callback, keras.callbacks.TerminateOnNaN()], validation=HELD_OUT)
    assert list((tmp_path / "board" / "train").iterdir())
    assert list((tmp_path / "board" / "validation").iterdir())


class Evaluated(keras.callbacks.Callback):
    def on_test_end(self, logs=None): ...


class Looking(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.save("model.keras")


of_keras = keras.callbacks
REFUSED = {
    "ModelCheckpoint": (lambda: of_keras.ModelCheckpoint("a.keras"), "`workdir` keeps checkpoints"),
    "BackupAndRestore": (lambda: of_keras.BackupAndRestore("a"), "`workdir` resumes"),
    "LearningRateScheduler": (lambda: of_keras.LearningRateScheduler(len), "pass `schedule`"),
    "ReduceLROnPlateau": (lambda: of_keras.ReduceLROnPlateau(), "pass `schedule`"),
    "EarlyStopping(restore_best_weights=True)": (
        lambda: of_keras.EarlyStopping(restore_best_weights=True),
        "`patience` keeps the best weights",
    ),
    "TensorBoard(histogram_freq=...)": (
        lambda: of_keras.TensorBoard("a", histogram_freq=1),
        "`fit` passes only metrics to it",
    ),
    "Evaluated.on_test_end": (Evaluated, "`fit` calls on_train_begin, on_train_end"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_callback_that_needs_more_is_refused_by_name_before_training(name):
    make, instead = REFUSED[name]
    with pytest.raises(UserError) as caught:
        KerasCallbacks([make()], 10)
    line = str(caught.value)
    assert line.startswith(f"`callbacks` cannot have {name}: ") and instead in line


def test_a_callback_that_looks_for_a_keras_model_is_refused_when_it_does():
    with pytest.raises(UserError, match=r"`Looking` cannot read `model.save` in `fit`: callbacks"):
        trained(callbacks=[Looking()], validation=HELD_OUT)


def image(folder):
    with Image.open(folder / "loss.png") as drawn_image:
        return drawn_image.size, np.asarray(drawn_image.convert("RGB"))


def test_the_losses_are_drawn_at_every_score(tmp_path):
    trained(steps=2, validation=HELD_OUT, evaluate_every=2, workdir=tmp_path)
    size, first = image(tmp_path)
    trained(validation=HELD_OUT, evaluate_every=2, workdir=tmp_path)
    again, second = image(tmp_path)
    assert size == again == (800, 400) and (first != second).any() and np.ptp(second) > 100
    curves = loss_curves(tmp_path)
    assert curves["loss"][0] == curves["dev"][0] == [2, 4, 6]
    assert len(loss_figure(tmp_path, True).axes) == 1


def test_a_score_of_another_kind_has_a_panel_of_its_own(tmp_path):
    trained(evaluate=lambda model: math.nan, evaluate_every=3, workdir=tmp_path)
    assert image(tmp_path)[0] == (800, 600)
    loss, score = loss_figure(tmp_path, False).axes
    assert loss.get_ylabel() == "loss" and score.get_ylabel() == "score, lower is better"
    assert loss_curves(tmp_path)["dev"] == ([], [])
