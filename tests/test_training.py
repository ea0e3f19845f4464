"""Training can be stopped at any step, in any way, and goes on as if it had not been."""

import contextlib
import dataclasses
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from runs import NEVER, TINY, assert_same, looped, newest, options, recordings, steps_of

import onepass
from replicator import loop, metrics
from replicator.errors import UserError
from replicator.loop import DONE, FINISHED_BEFORE, OUT_OF_TIME, DivergedError
from wavenet import training, watching
from wavenet.audio import AudioError

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 90.0
SLOTS = ("weights/", "first/", "second/", "average/")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return recordings(tmp_path_factory.mktemp("data") / "speech")


@pytest.fixture(autouse=True)
def quick_sound(monkeypatch):
    """The sound of an evaluation is noise; what generation makes is tested elsewhere."""

    def generate(network, request):
        shape = (len(request.rows), request.num_samples)
        return np.random.default_rng(0).integers(32000, 33000, shape).astype(np.int32)

    monkeypatch.setattr(watching, "generate", generate)


@pytest.fixture
def train(data, tmp_path):
    """Trains a configuration in a folder of that name; gives the outcome and the lines said."""

    def train(config, name="run"):
        said = []
        outcome = training.train("tiny", config, data, tmp_path / name, said.append)
        return outcome, said

    return train


@pytest.fixture(scope="module")
def uninterrupted(data, tmp_path_factory):
    """The arrays of TINY after its 8 steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watching.Watcher, "__call__", lambda *_: 1.0)
        run = tmp_path_factory.mktemp("uninterrupted") / "run"
        training.train("tiny", TINY, data, run, lambda _: None)
    return newest(run)


# In this process


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(train, tmp_path, uninterrupted):
    train(looped(num_steps=3))
    outcome, said = train(looped(num_steps=8))
    assert (outcome.step, outcome.reason) == (8, DONE)
    assert any("going on from step 3" in line for line in said)
    found = newest(tmp_path / "run")
    assert {name.split("/")[0] + "/" for name in found} == {*SLOTS, "step/"}
    assert_same(found, uninterrupted)


KINDS = {
    "softmax, speakers": (
        dict(likelihood="categorical", levels=256, front_width=1, linear_prediction=False),
        dict(features=(), by_speaker=True),
    ),
    "gaussian, f0, context": (
        dict(likelihood="gaussian", context_layers=2, context_block_samples=64),
        dict(features=("mel", "f0")),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_networks_resume_bit_for_bit_too(train, tmp_path, kind):
    network, recorded = KINDS[kind]
    config = dataclasses.replace(
        TINY,
        network=dataclasses.replace(TINY.network, **network),
        data=dataclasses.replace(TINY.data, **recorded),
    )
    train(looped(config, num_steps=4), "whole")
    train(looped(config, num_steps=2), "parts")
    train(looped(config, num_steps=4), "parts")
    assert_same(newest(tmp_path / "parts"), newest(tmp_path / "whole"))


@contextlib.contextmanager
def calling(monkeypatch, actions):
    """Evaluations that do `actions[step]()` and give the step as the score."""
    called = []

    def evaluate(watcher, log, step):
        called.append(step)
        log.scalars(step, {"dev_bits_per_sample": float(step)})
        actions.get(step, lambda: None)()
        return float(step)

    with monkeypatch.context() as patch:
        patch.setattr(watching.Watcher, "__call__", evaluate)
        yield called


def test_ctrl_c_saves_and_the_schedule_goes_on_as_planned(train, tmp_path, monkeypatch, data):
    config = dataclasses.replace(
        looped(evaluate_every_steps=5),
        optimizer=dataclasses.replace(TINY.optimizer, decay="cosine"),
    )
    with calling(monkeypatch, {}):
        train(config, "whole")
    with calling(monkeypatch, {5: lambda: os.kill(os.getpid(), signal.SIGINT)}):
        assert train(config)[0].reason == "SIGINT"
        assert newest(tmp_path / "run")["step"] == 5
        assert train(config)[0].reason == DONE
    assert_same(newest(tmp_path / "run"), newest(tmp_path / "whole"))


def test_a_second_ctrl_c_insists(train, tmp_path, monkeypatch):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with calling(monkeypatch, {5: twice}), pytest.raises(KeyboardInterrupt):
        train(looped(evaluate_every_steps=5))
    assert newest(tmp_path / "run")["step"] == 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_evaluation_that_was_cut_off_is_made_up_for(train, monkeypatch):
    def killed():
        raise KeyboardInterrupt

    config = looped(evaluate_every_steps=4)
    with calling(monkeypatch, {4: killed}) as called, pytest.raises(KeyboardInterrupt):
        train(config)
    assert called == [4]
    with calling(monkeypatch, {}) as called:
        assert train(config)[0].best_score == 4.0
    assert called == [4, 8]


def test_a_finished_run_says_so_and_does_nothing(train, tmp_path, monkeypatch):
    with calling(monkeypatch, {}) as called:
        train(looped(num_steps=2))
        before = newest(tmp_path / "run")
        for num_steps in (2, 1):
            outcome, _ = train(looped(num_steps=num_steps))
            assert (outcome.step, outcome.reason) == (2, FINISHED_BEFORE)
            assert outcome.best_score == 2.0
    assert called == [2]
    assert_same(newest(tmp_path / "run"), before)


def test_time_that_is_up_ends_training_with_what_there_is(train, tmp_path):
    outcome, _ = train(looped(num_steps=NEVER, max_minutes=1e-6))
    assert (outcome.step, outcome.reason) == (1, OUT_OF_TIME)
    assert newest(tmp_path / "run")["step"] == 1


def test_metrics_are_continuous_when_a_run_goes_back_to_an_older_checkpoint(train, tmp_path):
    run = tmp_path / "run"
    train(looped(num_steps=3))
    train(looped(num_steps=6))
    path = run / "checkpoints" / "step_00000006.npz"
    path.write_bytes(path.read_bytes()[:1000])
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 7, "lo')
    outcome, said = train(looped(num_steps=8))
    assert outcome.step == 8
    assert any("step_00000006.npz is damaged" in line and "from step 3" in line for line in said)
    assert steps_of(run) == list(range(1, 9))
    assert path.with_suffix(".damaged").exists()
    assert [line["step"] for line in metrics.read_metrics(run)][-2:] == [8, 8]


def test_a_run_whose_checkpoints_are_all_damaged_is_left_alone(train, tmp_path):
    train(looped(num_steps=2))
    path = tmp_path / "run" / "checkpoints" / "step_00000002.npz"
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"Every checkpoint in .* is damaged .step_00000002\.npz"):
        train(looped(num_steps=4))
    assert path.exists() and steps_of(tmp_path / "run") == [1, 2]


def test_a_cosine_of_another_length_is_announced(train):
    config = dataclasses.replace(
        TINY, optimizer=dataclasses.replace(TINY.optimizer, decay="cosine")
    )
    train(looped(config, num_steps=2))
    _, said = train(looped(config, num_steps=4))
    assert any("num_steps was 2 and is 4 now" in line for line in said)


def test_the_seed_names_the_run(train, tmp_path, uninterrupted):
    train(dataclasses.replace(TINY, seed=1))
    kernel = "weights/stack/layers/0/gate_kernel"
    assert not np.array_equal(newest(tmp_path / "run")[kernel], uninterrupted[kernel])


def test_the_loss_falls_on_real_speech(train, tmp_path):
    config = looped(num_steps=80)
    train(dataclasses.replace(config, data=dataclasses.replace(config.data, clip_samples=2048)))
    bits = [line["bits_per_sample"] for line in metrics.read_metrics(tmp_path / "run")
            if "loss" in line]  # fmt: skip
    assert np.mean(bits[-10:]) < np.mean(bits[:5]) - 0.3
    for line in metrics.read_metrics(tmp_path / "run"):
        if "loss" in line:
            np.testing.assert_allclose(line["bits_per_sample"], line["loss"] / np.log(2), rtol=1e-5)


# What goes wrong


@pytest.fixture
def poisoned(monkeypatch):
    """The batch after step 3 has a loss that is no number."""
    real = training.batches

    def batches(corpus, config, start_step):
        for number, batch in enumerate(real(corpus, config, start_step), start=start_step + 1):
            yield {**batch, "mask": 0.0 * batch["mask"]} if number == 4 else batch

    monkeypatch.setattr(training, "batches", batches)


def test_a_loss_that_is_no_number_ends_training_with_the_state_before_it(
    train, tmp_path, poisoned, monkeypatch
):
    with pytest.raises(DivergedError) as raised:
        train(looped(save_every_minutes=0, keep_checkpoints=1))
    message = str(raised.value)
    assert "Step 4 gave loss nan" in message and "(step 3)" in message
    assert "lower --optimizer.learning-rate" in message
    train(looped(num_steps=3), "until")
    assert_same(newest(tmp_path / "run"), newest(tmp_path / "until"))


def test_a_state_gone_wild_pushes_no_earlier_checkpoint_out(train, tmp_path):
    wild = dataclasses.replace(TINY.optimizer, learning_rate=1e30, warmup_steps=0)
    config = dataclasses.replace(looped(keep_checkpoints=1), optimizer=wild)
    run = tmp_path / "run"
    with pytest.raises(DivergedError, match=r"Step 2 gave loss \S+ and gradient norm (nan|inf)"):
        train(config)
    for name, array in newest(run).items():
        assert np.all(np.isfinite(array)), name
    with pytest.raises(DivergedError):
        train(config)
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step_00000001.npz"]


def full_disk(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_under_the_metrics_does_not_lose_the_state(train, tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "open", full_disk, raising=False)
    with pytest.raises(UserError) as raised:
        train(looped())
    assert "run/metrics.jsonl: No space left on device. Training stopped; step 1 is saved" in str(
        raised.value
    )
    assert newest(tmp_path / "run")["step"] == 1


@pytest.mark.parametrize("writer", ["audio.write", "spectrogram_png", "Image.open"])
def test_a_full_disk_under_the_samples_does_not_lose_the_state(
    train, tmp_path, monkeypatch, writer
):
    def failing(path, *arguments):
        if writer == "audio.write":
            raise AudioError(path, "cannot be written (No space left on device)")
        full_disk()

    monkeypatch.setattr(f"wavenet.watching.{writer}", failing)
    with pytest.raises(UserError, match=r"No space left on device.*; step 2 is saved in"):
        train(looped(num_steps=2))
    assert newest(tmp_path / "run")["step"] == 2


def test_events_that_cannot_be_written_do_not_lose_the_state(train, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events").write_text("a file")
    with pytest.raises(UserError, match=r"Cannot write .*run/events: .*No step was made"):
        train(TINY)


def test_a_disk_full_for_checkpoints_too_keeps_the_newest_there_is(train, tmp_path, monkeypatch):
    train(looped(num_steps=2))
    monkeypatch.setattr("replicator.checkpoints.np.savez", full_disk)
    with pytest.raises(UserError) as raised:
        train(looped(num_steps=4))
    assert "step_00000004.npz: No space left on device" in str(raised.value)
    assert str(raised.value).endswith("the newest checkpoint is step 2.")
    assert newest(tmp_path / "run")["step"] == 2


def test_a_step_that_does_not_fit_into_memory_is_said_in_words(train, monkeypatch):
    def too_large(batch):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating")

    monkeypatch.setattr(loop, "compile_step", lambda *_: too_large)
    with pytest.raises(UserError, match="does not fit into memory.*No step was made"):
        train(TINY)


def test_dev_speakers_that_train_does_not_have_are_left_out_of_the_score(
    data, tmp_path, monkeypatch
):
    folder = tmp_path / "two"
    for number, file in enumerate([*data.glob("train/*"), *data.glob("dev/*")]):
        for split in ("train", "dev") if number < 2 else ("dev",):
            target = folder / split / f"speaker_{number}"
            target.mkdir(parents=True, exist_ok=True)
            (target / f"{split}.flac").write_bytes(file.read_bytes())
    # A copy of a recording of train is dropped from train, so that only the other one stays.
    config = dataclasses.replace(
        looped(num_steps=1), data=dataclasses.replace(TINY.data, by_speaker=True)
    )
    with pytest.raises(UserError, match="no usable recording for train"):
        training.train("tiny", config, folder, tmp_path / "run", lambda _: None)


# In a process of its own


def lines_of(run):
    with contextlib.suppress(FileNotFoundError):
        return (run / "metrics.jsonl").read_text().count("\n")
    return 0


def start(data, run):
    """`onepass train` in a process of its own, once it has made a few steps more."""
    endless = looped(num_steps=NEVER, save_every_minutes=0.0)
    command = [sys.executable, "onepass.py", "train", "wavenet-smoke", *options(endless)]
    process = subprocess.Popen(
        [*command, "--data", str(data), "--workdir", str(run)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    before, patience = lines_of(run), time.monotonic() + SECONDS
    while lines_of(run) < before + 3 and process.poll() is None and time.monotonic() < patience:
        time.sleep(0.02)
    return process


def ended(process, number):
    """The exit status and both outputs of a process after a signal."""
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def stopped(data, tmp_path_factory):
    """A run that was stopped by SIGTERM, by SIGINT and by SIGKILL, and how each ended."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    endings, process = {}, None
    try:
        for name in ("SIGTERM", "SIGINT", "SIGKILL"):
            process = start(data, run)
            if name == "SIGTERM":
                second = onepass.main(arguments(data, run))
                endings["second"] = second, process.pid
            endings[name] = *ended(process, signal.Signals[name]), newest(run)["step"]
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.communicate()
    return run, endings


def arguments(data, run, **loop):
    return ["train", "wavenet-smoke", *options(looped(**loop)), "--data", str(data),
            "--workdir", str(run)]  # fmt: skip


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_ends_training_in_order(stopped, name, status):
    code, out, err, step = stopped[1][name]
    assert code == status
    assert err == f"{name}: saving at step {step} and leaving.\n"
    assert f"Stopped at step {step} ({name})" in out
    assert "The same command goes on from there." in out


def test_a_process_that_is_shot_leaves_a_whole_checkpoint(stopped):
    assert stopped[1]["SIGKILL"][0] == -signal.SIGKILL
    steps = [stopped[1][name][3] for name in ("SIGTERM", "SIGINT", "SIGKILL")]
    assert 3 <= steps[0] < steps[1] < steps[2]


def test_a_second_process_is_refused_while_the_first_trains(stopped):
    status, pid = stopped[1]["second"]
    assert status == 2


def test_after_all_that_the_run_is_the_uninterrupted_one_bit_for_bit(stopped, data, tmp_path):
    run, endings = stopped
    last = int(endings["SIGKILL"][3]) + 3
    for workdir in (run, tmp_path / "whole"):
        assert onepass.main(arguments(data, workdir, num_steps=last)) == 0
    assert_same(newest(run), newest(tmp_path / "whole"))
    assert steps_of(run) == list(range(1, last + 1))
    assert not list((run / "checkpoints").glob(".*"))
