"""Training can be stopped at any step, in any way, and goes on as if it had not been."""

import contextlib
import dataclasses
import json
import shutil
import signal
import time
import types

import numpy as np
import pytest
import soundfile
import tensorflow as tf
from marks import some_slow
from processes import ROOT, TensorflowProcess
from runs import NEVER, TINY, assert_same, eagerly, looped, newest, options, recordings, steps_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from vocoders import vocoder_of

import onepass
from onepass.foundation.metrics import read_metrics
from onepass.foundation.model_folders import averages, variable_names
from onepass.foundation.rules import UserError, to_json
from onepass.replicator.training import training_run as recipes
from onepass.replicator.training.loop import DONE
from wavenet import training
from wavenet.config import DataConfig
from wavenet.dev_recordings import dev_recordings
from wavenet.model import make_network

COMMAND = ROOT / "onepass" / "__main__.py"
SECONDS = 90.0
SLOTS = {"step", "weights", "first", "second", "average"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return recordings(tmp_path_factory.mktemp("data") / "speech")


def noise(network, request):
    shape = (len(request.rows), request.num_samples)
    return np.random.default_rng(0).integers(32000, 33000, shape).astype(np.int32)


@pytest.fixture(autouse=True)
def quick(request, monkeypatch):
    """Evaluations give 1.0 and no sound; those of `watched` tests a noise."""
    if "watched" in request.fixturenames:
        monkeypatch.setattr(training, "generate", noise)
    else:
        monkeypatch.setattr(training.EvaluationCallback, "__call__", lambda *_: 1.0)


@pytest.fixture
def watched():
    """Asks for real evaluations."""


@pytest.fixture
def train(data, tmp_path):
    """Trains a configuration in a folder of that name; gives the outcome and the lines said."""

    def train(config, name="run", traced=False):
        said, recipe = [], training.SpeechRecipe("tiny", config, data)
        with contextlib.nullcontext() if traced else eagerly():
            return recipes.train(recipe, tmp_path / name, said.append), said

    return train


# In this process


KINDS = {
    "mixture, mel": ({}, {}),
    "softmax, speakers": (
        dict(likelihood="categorical", levels=256, front_width=1, linear_prediction=False),
        dict(features=(), by_speaker=True),
    ),
    "gaussian, f0, context": (
        dict(likelihood="gaussian", context_layers=2, context_block_samples=64),
        dict(features=("mel", "f0")),
    ),
}


@pytest.mark.parametrize("kind", some_slow(KINDS, ("mixture, mel", "gaussian, f0, context")))
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(train, tmp_path, kind):
    network, recorded = KINDS[kind]
    config = dataclasses.replace(
        TINY,
        network=dataclasses.replace(TINY.network, **network),
        data=dataclasses.replace(TINY.data, **recorded),
    )
    traced = kind != "softmax, speakers"
    train(looped(config, num_steps=4), "whole", traced)
    train(looped(config, num_steps=2), "parts", traced)
    outcome, said = train(looped(config, num_steps=4), "parts", traced)
    assert (outcome.step, outcome.reason) == (4, DONE)
    assert "resuming from step 2" in said[-1]
    found = newest(tmp_path / "parts")
    assert {name.split("/")[0] for name in found} == SLOTS
    assert_same(found, newest(tmp_path / "whole"))


def test_a_run_of_an_earlier_version_keeps_its_gain_and_notes_what_it_hears(train, tmp_path):
    train(looped(num_steps=1))
    file = tmp_path / "run" / "config.json"
    stored = json.loads(file.read_text())
    older = {name: stored[name] for name in stored if name not in training.HEARD}
    file.write_text(json.dumps({**older, "gain_db": 1.5}))
    outcome, _ = train(looped(num_steps=2))
    assert (outcome.step, outcome.reason) == (2, DONE)
    resumed = json.loads(file.read_text())
    assert resumed["gain_db"] == 1.5 != stored["gain_db"]
    change_db = resumed["level_db"] - stored["level_db"]
    assert abs(change_db - (1.5 - stored["gain_db"])) < 1.0
    assert resumed["frames"].keys() == {"high", "mean", "deviation"}


def test_a_run_starts_from_the_weights_of_a_trained_model(train, tmp_path):
    train(looped(TINY, num_steps=2), "first")
    again = dataclasses.replace(TINY, start_from=str(tmp_path / "first"), seed=1, pitch_steps=0)
    network = make_network(again.resolve_settings(1))
    training.prepare_network(network, again, corpus=None)
    learnt = averages(newest(tmp_path / "first"))
    names = variable_names(network)
    assert_same(learnt, dict(zip(names, network.trainable_variables, strict=True)))
    outcome, _ = train(looped(again, num_steps=1), "second")
    assert (outcome.step, outcome.reason) == (1, DONE)


def test_a_run_does_not_start_from_a_model_of_another_network(train, tmp_path):
    train(looped(TINY, num_steps=1), "first")
    network = dataclasses.replace(TINY.network, skip_channels=TINY.network.skip_channels + 1)
    again = dataclasses.replace(TINY, network=network, start_from=str(tmp_path / "first"))
    with pytest.raises(UserError, match="first do not fit the configuration of the network"):
        train(looped(again, num_steps=1), "second")


@pytest.mark.parametrize("pitch_steps", [0, 5])
@pytest.mark.parametrize("bins", [0, 12])
def test_a_reader_of_f0_learns_where_steps_are_given(monkeypatch, bins, pitch_steps):
    trained = vocoder_of("prediction, pitch")
    network = vocoder_of("prediction, pitch", seed=1, pitch_bins=bins)
    weights = {
        name: each.numpy()
        for name, each in zip(variable_names(trained), trained.trainable_variables, strict=True)
    }
    taught = []
    stored = to_json(TINY)
    monkeypatch.setattr(training, "read_stored_model", lambda path, _: (stored, weights, {}))
    monkeypatch.setattr(training, "train_reader", lambda _, reader, *__: taught.append(reader))
    monkeypatch.setattr(training, "reader_error", lambda *_: (10.0, 0.1))
    config = dataclasses.replace(TINY, start_from="trained", pitch_steps=pitch_steps)
    training.prepare_network(network, config, None)
    assert taught == [network.conditioner.reader] * bool(pitch_steps)
    own, theirs = (net.conditioner.reader.kernels[0] for net in (network, trained))
    assert np.array_equal(own, theirs) == (bins == 0)  # of the same size it goes on from theirs
    np.testing.assert_array_equal(network.front_kernel, trained.front_kernel)
    np.testing.assert_array_equal(network.conditioner.kernel1, trained.conditioner.kernel1)


def test_the_loss_falls_on_real_speech(train, tmp_path):
    config = looped(num_steps=80)
    longer = dataclasses.replace(config, data=dataclasses.replace(config.data, clip_samples=2048))
    train(longer, traced=True)
    lines = read_metrics(tmp_path / "run")
    bits = [line["bits_per_sample"] for line in lines]
    assert np.mean(bits[-10:]) < np.mean(bits[:5]) - 0.3
    np.testing.assert_allclose(bits, [line["loss"] / np.log(2) for line in lines], rtol=1e-5)


def test_evaluations_leave_figures_sound_and_plots(train, tmp_path, watched):
    outcome, _ = train(looped(num_steps=4, evaluate_every_steps=2))
    run = tmp_path / "run"
    dev = [r["dev_bits_per_sample"] for r in read_metrics(run) if "dev_bits_per_sample" in r]
    assert outcome.best_score == min(dev) and len(dev) == 2
    names = {f"step_0000000{step}.{kind}" for step in (2, 4) for kind in ("png", "wav")}
    assert {path.name for path in (run / "samples").iterdir()} == names
    sound, rate_hz = soundfile.read(run / "samples" / "step_00000004.wav")
    assert rate_hz == 16_000 and len(sound) == 32_000
    events = EventAccumulator(str(run / "events"), {"tensors": 0})
    events.Reload()
    shown = {
        name: [tf.make_ndarray(each.tensor_proto) for each in events.Tensors(name)]
        for name in ("dev_bits_per_sample", "sample", "spectrogram")
    }
    np.testing.assert_allclose(shown["dev_bits_per_sample"], dev, rtol=1e-6)
    assert [sound[0, 0][:4] for sound in shown["sample"]] == [b"RIFF"] * 2
    assert [image[2][1:4] for image in shown["spectrogram"]] == [b"PNG"] * 2


# Speakers


@pytest.fixture
def voices(data, tmp_path):
    """A corpus in which ann and cat speak in train, bob and cat in dev."""
    files = iter([*sorted(data.glob("train/*")), *data.glob("dev/*")])
    for place in ("train/ann", "train/cat", "dev/bob", "dev/cat"):
        (tmp_path / "voices" / place).mkdir(parents=True)
        shutil.copy(next(files), tmp_path / "voices" / place / "sound.flac")
    config = dataclasses.replace(TINY, data=DataConfig(16_000, by_speaker=True))
    report = training.scan_folder(tmp_path / "voices", config)
    return training.prepare_corpus(report, config, None)


def knowing(speakers):
    return types.SimpleNamespace(config=types.SimpleNamespace(speakers=speakers))


@pytest.mark.parametrize(
    ("count", "known", "expected"),
    [
        (2, ("ann", "cat"), {"dev/cat/sound.flac": 1}),  # others are left out
        (3, ("cat", "zoe", "bob"), {"dev/bob/sound.flac": 2, "dev/cat/sound.flac": 0}),
        (0, (), {"dev/bob/sound.flac": 2, "dev/cat/sound.flac": 1}),
    ],
)
def test_dev_recordings_are_of_speakers_that_the_model_knows_by_name(
    voices, count, known, expected
):
    assert voices.speakers == ("ann", "cat", "bob")
    items = dev_recordings(knowing(count), voices, (), known)
    assert {item["name"]: item["speaker"] for item in items} == expected
    with pytest.raises(UserError, match=r"the model knows \(zoe\); they are of bob, cat"):
        dev_recordings(knowing(1), voices, (), ("zoe",))


def test_no_more_than_the_beginning_of_a_long_recording_is_evaluated(data, monkeypatch):
    config = TINY.resolve_settings(1)
    corpus = training.prepare_corpus(training.scan_folder(data, config), config, None)
    (whole,) = dev_recordings(knowing(0), corpus, ("mel",), ())
    monkeypatch.setattr("wavenet.dev_recordings.LONGEST_SECONDS", 1)
    (cut,) = dev_recordings(knowing(0), corpus, ("mel",), ())
    for name, length in (("waveform", 16_000), ("samples", 16_000), ("frames", 63)):
        assert len(cut[name]) == length < len(whole[name])
        np.testing.assert_array_equal(cut[name], whole[name][:length])


# In a process of its own


def lines_of(run):
    with contextlib.suppress(FileNotFoundError):
        return (run / "metrics.jsonl").read_text().count("\n")
    return 0


def start(data, run):
    """`onepass train` in a process of its own, once it has made a few steps more."""
    endless = options(looped(num_steps=NEVER, save_every_minutes=0.0))
    words = ["train", "wavenet-smoke", *endless, "--data", data, "--workdir", run]
    process = TensorflowProcess(COMMAND, run.with_suffix(".log"), *words)
    before, patience = lines_of(run), time.monotonic() + SECONDS
    while lines_of(run) < before + 3 and process.is_running() and time.monotonic() < patience:
        time.sleep(0.02)
    return process


@pytest.mark.integration
def test_a_run_stopped_by_signals_and_shot_is_the_uninterrupted_one_bit_for_bit(
    data, tmp_path, mistake
):
    run, last = tmp_path / "run", 0
    words = ["train", "wavenet-smoke", "--data", str(data)]
    for number, status in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)):
        process = start(data, run)
        try:
            if number == signal.SIGTERM:
                assert mistake(*words, *options(looped()), "--workdir", run) == (
                    f"The run directory {run} is in use by process {process.pid}; wait for it or "
                    "choose another --workdir."
                )
            process.signal(number)
            assert process.ended(SECONDS) == status
        finally:
            process.kill()
        step, out = int(newest(run)["step"]), process.output()
        assert step >= last + 3 and "Traceback" not in out
        last = step
        if number != signal.SIGKILL:
            said = f"{number.name}: saving a checkpoint at step {step} and exiting.\n"
            assert out.count(said) == 1 and f"Stopped at step {step} ({number.name})" in out
            assert "Rerun the same command to resume." in out
    for workdir in (run, tmp_path / "whole"):
        places = [*options(looped(num_steps=last + 3)), "--workdir", str(workdir)]
        assert onepass.main([*words, *places]) == 0
    assert_same(newest(run), newest(tmp_path / "whole"))
    assert steps_of(run) == list(range(1, last + 4))
    assert not list((run / "checkpoints").glob(".*"))
