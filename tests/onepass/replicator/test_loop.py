"""Every end of the training loop leaves the state on disk, from which the next one resumes."""

import dataclasses
import errno
import math
import os
import signal
import types

import numpy as np
import pytest
import tensorflow as tf
from runs import NEVER, assert_same, newest, steps_of
from toys import Line, line_batch

from onepass.foundation import metrics
from onepass.foundation.rules import UserError
from onepass.foundation.run_directory import RunDirectory
from onepass.replicator.training import loop
from onepass.replicator.training.config import OptimizerConfig
from onepass.replicator.training.loop import (
    DONE,
    FINISHED_BEFORE,
    OUT_OF_TIME,
    DivergedError,
    LoopConfig,
    Trainer,
)
from onepass.replicator.training.state import TrainState
from onepass.replicator.training.training_run import train_network

# Few steps of a line are made sooner than a program of them.
pytestmark = pytest.mark.usefixtures("eager")


def batches(start, poisoned=None):
    number = start
    while True:
        batch = line_batch(number)
        number += 1
        yield {**batch, "y": batch["y"] * math.nan} if number == poisoned else batch


@pytest.fixture
def train(tmp_path):
    """Trains a line in a folder of that name; gives outcome, lines said and evaluations."""

    def train(
        name="run", at=None, poisoned=None, rate=0.1, decay="constant", begin=None, **options
    ):
        run = RunDirectory.create(tmp_path / name, {})
        called = []

        def evaluate(log, step):
            called.append(step)
            (at or {}).get(step, lambda: None)()
            return 1.0 / step

        config = LoopConfig(**{"num_steps": 8, "report_every_steps": 1,
                               "evaluate_every_steps": NEVER, **options})  # fmt: skip
        line = Line()
        state = TrainState(line, OptimizerConfig(rate, 2, decay), config.num_steps)
        try:
            trainer = Trainer(run, state, line.loss, config)
            said = trainer.resume(begin)
            outcome = trainer.train(batches(trainer.step, poisoned), evaluate)
        finally:
            run.unlock()
        return outcome, said, called

    return train


def interrupt():
    signal.raise_signal(signal.SIGINT)  # now, where a kill may reach another thread, later


def test_a_run_in_parts_is_the_whole_run_bit_for_bit(train, tmp_path):
    train("whole")
    for num_steps in (1, 3, 8):
        train("parts", num_steps=num_steps)
    assert_same(newest(tmp_path / "parts"), newest(tmp_path / "whole"))
    assert steps_of(tmp_path / "parts") == steps_of(tmp_path / "whole") == list(range(1, 9))


@pytest.fixture
def hung_up():
    """Restore the action of SIGHUP in a program that was not started by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.usefixtures("hung_up")
def test_a_signal_saves_at_the_next_step_and_the_schedule_goes_on_as_planned(train, tmp_path, name):
    at = {5: lambda: os.kill(os.getpid(), signal.Signals[name])}
    outcome, _, _ = train(at=at, evaluate_every_steps=5, decay="cosine")
    assert (outcome.step, outcome.reason) == (5, name)
    assert newest(tmp_path / "run")["step"] == 5
    assert train(evaluate_every_steps=5, decay="cosine")[0].reason == DONE
    train("whole", decay="cosine")
    assert_same(newest(tmp_path / "run"), newest(tmp_path / "whole"))


@pytest.mark.usefixtures("hung_up")
def test_nohup_is_respected(train):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    at = {4: lambda: os.kill(os.getpid(), signal.SIGHUP)}
    assert train(at=at, evaluate_every_steps=4)[0].reason == DONE


def test_a_signal_at_the_last_step_comes_too_late(train):
    assert train(at={8: interrupt})[0].reason == DONE


def test_a_second_ctrl_c_insists(train, tmp_path):
    def twice():
        interrupt()
        interrupt()

    with pytest.raises(KeyboardInterrupt):
        train(at={5: twice}, evaluate_every_steps=5)
    assert newest(tmp_path / "run")["step"] == 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_evaluation_that_was_cut_off_is_made_up_for(train):
    def cut_off():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(at={4: cut_off}, evaluate_every_steps=4)
    assert train(evaluate_every_steps=4)[2] == [4, 8]


def test_evaluations_are_at_every_interval_and_at_the_end(train):
    outcome, _, called = train(evaluate_every_steps=3)
    assert called == [3, 6, 8]
    assert outcome.best_score == 1 / 8
    assert train(evaluate_every_steps=3, num_steps=10)[2] == [9, 10]


@pytest.mark.parametrize("num_steps", [2, 1])
def test_a_finished_run_says_so_and_does_nothing(train, tmp_path, num_steps):
    train(num_steps=2)
    before = newest(tmp_path / "run")
    outcome, _, called = train(num_steps=num_steps)
    assert (outcome.step, outcome.reason, outcome.best_score) == (2, FINISHED_BEFORE, 0.5)
    assert called == []
    assert_same(newest(tmp_path / "run"), before)


def test_time_that_is_up_ends_training_with_what_there_is(train, tmp_path):
    outcome, _, called = train(num_steps=NEVER, max_minutes=1e-9)
    assert (outcome.step, outcome.reason) == (1, OUT_OF_TIME)
    assert newest(tmp_path / "run")["step"] == 1
    assert called == [1] and (outcome.best_step, outcome.best_score) == (1, 1.0)


@pytest.fixture
def clock(monkeypatch):
    """A clock of the loop that only this test moves: `clock.now`, in seconds."""
    clock = types.SimpleNamespace(now=0.0, perf_counter=loop.time.perf_counter)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(loop, "time", clock)
    return clock


def test_the_time_limit_holds_what_comes_before_the_first_step(train, clock):
    def begin():
        clock.now += 61.0

    outcome, _, _ = train(begin=begin, max_minutes=1.0)
    assert (outcome.step, outcome.reason, outcome.seconds) == (1, OUT_OF_TIME, 61.0)


def test_the_time_limit_leaves_time_for_the_last_evaluation(train, clock):
    def pass_seconds():
        clock.now += 20.0

    slow = dict.fromkeys(range(1, 100), pass_seconds)
    outcome, _, called = train(at=slow, evaluate_every_steps=2, num_steps=99, max_minutes=1.5)
    assert (outcome.reason, called, outcome.seconds) == (OUT_OF_TIME, [2, 4, 6, 8], 80.0)


def test_a_stop_says_which_weights_are_used_where_they_are_not_the_newest(train, tmp_path):
    train(evaluate_every_steps=4, num_steps=6)
    RunDirectory.open(tmp_path / "run").checkpoints().mark_scored(4, 0.0)
    outcome, _, _ = train(evaluate_every_steps=4, keep_checkpoints=1)
    assert outcome.best_step == 4  # which outlives newer ones
    used = ", best 0.000 at step 4, used by evaluate, sample and export. Next"
    assert used in outcome.summary(tmp_path, "best {:.3f}", "Next")
    newest_is_best = dataclasses.replace(outcome, best_step=8)
    assert "best 0.000. Next" in newest_is_best.summary(tmp_path, "best {:.3f}", "Next")


def test_metrics_are_continuous_when_a_run_goes_back_to_an_older_checkpoint(train, tmp_path):
    run = tmp_path / "run"
    train(num_steps=3)
    train(num_steps=6)
    path = run / "checkpoints" / "step_00000006.npz"
    path.write_bytes(path.read_bytes()[:1000])
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "lo')
    assert [line["step"] for line in metrics.read_metrics(run)] == [1, 2, 3, 4, 5, 6]
    _, said, _ = train(num_steps=8)
    assert said == [f"{path} is damaged and was renamed (.damaged); resuming from step 3."]
    assert path.with_suffix(".damaged").exists()
    assert steps_of(run) == list(range(1, 9))
    train("whole")
    assert_same(newest(run), newest(tmp_path / "whole"))


def test_a_run_whose_checkpoints_are_all_damaged_is_left_alone(train, tmp_path):
    train(num_steps=2)
    path = tmp_path / "run" / "checkpoints" / "step_00000002.npz"
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"Every checkpoint in .* is damaged .step_00000002\.npz"):
        train()
    assert path.exists() and steps_of(tmp_path / "run") == [1, 2]


def test_reports_hold_what_was_measured(train, tmp_path):
    train(report_every_steps=4)
    lines = metrics.read_metrics(tmp_path / "run")
    assert [line["step"] for line in lines] == [4, 8]
    for line in lines:
        np.testing.assert_allclose(line["root"] ** 2, line["loss"], rtol=1e-5)
        assert line["steps_per_second"] > 1 and line["learning_rate"] == pytest.approx(0.1)


def test_a_loss_that_is_no_number_ends_training_with_the_state_before_it(train, tmp_path):
    with pytest.raises(DivergedError) as raised:
        train(poisoned=4, save_every_minutes=0, keep_checkpoints=1)
    message = str(raised.value)
    assert "Step 4 had loss nan and gradient norm nan and was not applied" in message
    assert "(step 3)" in message and "lower --optimizer.learning-rate" in message
    train("until", num_steps=3)
    assert_same(newest(tmp_path / "run"), newest(tmp_path / "until"))


def test_a_state_gone_wild_pushes_no_earlier_checkpoint_out(train, tmp_path):
    train(num_steps=2)
    (tmp_path / "run" / "checkpoints" / "scores.json").unlink()
    for _ in range(2):
        with pytest.raises(DivergedError, match=r"Step 4 had .*\(step 2, 3\)"):
            train(rate=1e30, keep_checkpoints=1)
    assert RunDirectory.open(tmp_path / "run").checkpoints().steps() == [2, 3]
    assert all(np.all(np.isfinite(array)) for array in newest(tmp_path / "run").values())


def full_disk(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_under_the_metrics_does_not_lose_the_state(train, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "open", full_disk, raising=False)
    saved = r"run/metrics\.jsonl: No space left on device\. Training stopped; step 1 is saved in"
    with pytest.raises(UserError, match=saved):
        train()
    assert newest(tmp_path / "run")["step"] == 1


def too_large(*_):
    raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")


@pytest.mark.parametrize(
    ("fail", "said"),
    [
        (full_disk, r"Cannot write a file: No space.* step 3 is saved"),
        (too_large, r"evaluation on dev at step 3 does not fit into memory.*step 3 is saved"),
    ],
)
def test_an_evaluation_that_finds_no_room_does_not_lose_the_state(train, fail, said):
    with pytest.raises(UserError, match=said):
        train(at={3: fail}, evaluate_every_steps=3)
    assert train(evaluate_every_steps=3)[2] == [3, 6, 8]


def test_events_that_cannot_be_written_end_in_words(train, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events").write_text("a file")
    with pytest.raises(UserError, match=r"Cannot write .*run/events: .*No step was completed"):
        train()


def test_a_disk_full_for_checkpoints_too_keeps_the_newest_there_is(train, tmp_path, monkeypatch):
    train(num_steps=2)
    monkeypatch.setattr("numpy.savez", full_disk)
    with pytest.raises(UserError) as raised:
        train(num_steps=4)
    assert "step_00000004.npz: No space left on device" in str(raised.value)
    assert str(raised.value).endswith("at step 4; the newest checkpoint is step 2.")
    assert newest(tmp_path / "run")["step"] == 2


def test_a_step_that_does_not_fit_into_memory_is_said_in_words(train, monkeypatch):
    monkeypatch.setattr(loop, "compile_step", lambda *_: too_large)
    with pytest.raises(UserError, match=r"does not fit into memory.*No step was completed"):
        train()


@pytest.mark.parametrize(
    ("kind", "rule", "figures"),
    [
        (LoopConfig, "at least 1", {"num_steps": 0, "report_every_steps": 0}),
        (LoopConfig, "at least 1", {"evaluate_every_steps": -1, "keep_checkpoints": 0}),
        (LoopConfig, "at least 0", {"max_minutes": math.nan, "save_every_minutes": -1.0}),
        (LoopConfig, "at least 0", {"patience": -1}),
        (OptimizerConfig, "above 0 and finite", {"learning_rate": 0.0, "epsilon": math.inf}),
        (OptimizerConfig, "above 0 and finite", {"learning_rate": math.nan}),
        (OptimizerConfig, r"in \[0, 1\)", {"beta1": 1.0, "average_decay": -0.1}),
        (OptimizerConfig, "at least 0", {"warmup_steps": -1, "clip_norm": -1.0}),
        (OptimizerConfig, "at least 1", {"halve_every_steps": 0}),
    ],
)
def test_a_figure_out_of_range_is_named_with_its_rule(kind, rule, figures):
    for field, value in figures.items():
        with pytest.raises(ValueError, match=f"`{field}` must be {rule}, got {value}"):
            kind(**{field: value})


def train_line(workdir, at=None):
    """Train a line by `train_network`; `at`: step -> what happens as its batch is read."""
    line = Line()

    def read(start, *_):
        for step, batch in enumerate(batches(start), start):
            (at or {}).get(step, lambda: None)()
            yield batch

    config = OptimizerConfig(0.1, 2, average_decay=0.5)
    return line, train_network(line, line.loss, config, LoopConfig(8), read, workdir=workdir)


def test_a_network_in_memory_ends_with_the_averages_of_the_run_on_disk(tmp_path):
    stored = tmp_path / "run"
    (line, outcome), (other, _) = train_line(None), train_line(stored)
    assert (outcome.step, outcome.reason, outcome.best_score) == (8, DONE, None)
    arrays = newest(stored)
    for each in (line, other):
        np.testing.assert_array_equal(each.slope, arrays["average/slope"])
        np.testing.assert_array_equal(each.offset, arrays["average/offset"])
    assert not np.array_equal(line.slope, arrays["weights/slope"])


def test_a_signal_interrupts_a_network_in_memory_and_ends_a_run_on_disk(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train_line(None, at={3: interrupt})
    _, outcome = train_line(tmp_path / "run", at={3: interrupt})
    assert (outcome.step, outcome.reason) == (4, "SIGINT")
    line, outcome = train_line(tmp_path / "run")
    assert (outcome.step, outcome.reason) == (8, DONE)
    np.testing.assert_array_equal(line.slope, train_line(None)[0].slope)


def test_a_network_in_memory_that_diverges_says_so():
    line = Line()
    with pytest.raises(DivergedError, match="lower learning rate"):
        train_network(
            line, line.loss, OptimizerConfig(), LoopConfig(8), lambda *_: batches(0, poisoned=3)
        )
