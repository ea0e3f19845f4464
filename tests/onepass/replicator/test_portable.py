"""Exported steps and samplers, trained and run by JAX."""

import argparse
import dataclasses
import errno
import json
import os
import re
import shutil
import types
from pathlib import Path

import jax
import numpy as np
import points
import pytest
import soundfile
import tensorflow as tf
from carried import assert_equal, assert_same_training, run_alone
from runs import silent

from onepass.foundation.files import read_npz
from onepass.foundation.interrupt import StopRequest
from onepass.foundation.rules import UserError
from onepass.foundation.run_directory import Checkpoints, RunDirectory
from onepass.replicator.portable import export as portable
from onepass.replicator.portable import run as portable_run
from onepass.replicator.portable.export import adopt, export_portable
from onepass.replicator.portable.manifest import copy_runner, read_manifest
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.loop import Trainer
from onepass.replicator.training.state import TrainState, compile_step
from wavenet import training
from wavenet.config import DataConfig, TrainConfig, WaveNetConfig
from wavenet.network import WaveNet

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROOT = Path(__file__).resolve().parents[3]
RATE_HZ = 16000
NETWORK = WaveNetConfig(
    layers=2, stacks=1, filter_width=2, residual_channels=8, gate_channels=8, skip_channels=8,
    front_width=4, linear_prediction=True, components=2, condition_channels=4, speaker_channels=3,
    upsample_factors=(8, 8),
)  # fmt: skip
CONFIG = TrainConfig(
    NETWORK,
    DataConfig(
        RATE_HZ, ("mel",), by_speaker=True, mel_bands=6, mel_window_samples=256, clip_samples=256,
        batch_size=3, min_seconds=0.01,
    ),
    OptimizerConfig(warmup_steps=2, decay="cosine"),
    LoopConfig(num_steps=8),
    seed=5,
)  # fmt: skip
PLAIN = {"layers": 1, "stacks": 1, "residual_channels": 4, "gate_channels": 4, "skip_channels": 4}


GOOD = {"bad_step": -1}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    lengths = {"train/a.wav": 900, "train/b.wav": 200, "train/c.wav": 555, "dev/d.wav": 600}
    for seed, (name, samples) in enumerate(lengths.items()):
        (folder / name).parent.mkdir(exist_ok=True)
        noise = np.random.default_rng(seed).normal(0, 0.03, samples)
        tone = 0.1 * np.sin(0.05 * (seed + 1) * np.arange(samples))
        soundfile.write(folder / name, noise + tone, RATE_HZ, subtype="PCM_16")
    (folder / "train.tsv").write_text("file\tspeaker\na.wav\tbob\nb.wav\tann\nc.wav\tbob\n")
    (folder / "dev.tsv").write_text("file\tspeaker\nd.wav\tann\n")
    return folder


@pytest.fixture(scope="module")
def prepared(data):
    config = CONFIG.resolve_settings(2)
    return config, training.prepare_corpus(training.scan_folder(data, CONFIG), config, None)


@pytest.fixture(scope="module")
def alone(prepared):
    """A run that never leaves TensorFlow, its arrays by step, and the metrics of the last."""
    config, corpus = prepared
    network = WaveNet(config.network, config.seed)
    state = TrainState(network, config.optimizer, config.loop.num_steps)
    loss = training.ClipLoss(network)
    step = compile_step(state, loss, jit_compile=False)

    def to(end):
        metrics, made = None, int(state.step)
        for batch in training.batches(corpus, config)(made).take(end - made):
            metrics = step(batch)
        return state.arrays(), metrics

    arrays = {step: to(step)[0] for step in (0, 3)}
    arrays[8], metrics = to(8)
    return types.SimpleNamespace(state=state, loss=loss, to=to), arrays, metrics


@pytest.fixture(scope="module")
def workdir(data, prepared, alone, tmp_path_factory):
    """A run directory at step 3."""
    config, corpus = prepared
    recipe = training.SpeechRecipe("tiny", CONFIG, data)
    stored = recipe.describe_run("wavenet", config, **training.describe_corpus(corpus))
    run = RunDirectory.create(tmp_path_factory.mktemp("run"), stored)
    run.checkpoints().save(3, alone[1][3])
    run.unlock()
    return run.path


@pytest.fixture(scope="module")
def folder(data, workdir, tmp_path_factory):
    """Return the folder exported from the run directory."""
    folder = tmp_path_factory.mktemp("exported")
    recipe = training.SpeechRecipe("tiny", CONFIG, data)
    return export_portable(recipe, folder, workdir, log=silent)


def test_run_py_draws_the_batches_of_the_pipeline(folder, prepared):
    config, corpus = prepared
    settings = read_manifest(folder)["training"]["batches"]
    drawn = portable_run.open_batches(folder, settings)
    for step in (0, 1, 1_000_000):
        expected = next(iter(training.batches(corpus, config)(step)))
        found = drawn(step)
        assert found.keys() == expected.keys() - {"levels"}
        for name in found:
            np.testing.assert_array_equal(found[name], expected[name])
            assert found[name].dtype == expected[name].dtype.as_numpy_dtype
    lengths = {clip.sum() for step in range(50) for clip in drawn(step)["mask"]}
    assert lengths == {200, 256}  # the recording shorter than a clip is among them


def test_five_steps_in_jax_equal_five_in_tensorflow(folder, alone):
    _, arrays, _ = alone
    run = portable_run.Training(folder)
    assert_equal(run.arrays(), arrays[3])
    for step in range(3, 8):
        run.advance(run.batch(step))
    assert_same_training(run.arrays(), arrays[8], arrays[3])
    assert run._advance._cache_size() == 1  # a second compilation may cost minutes


def test_microbatches_elsewhere_are_divided_by_the_samples_of_the_whole_batch(
    data, prepared, tmp_path
):
    config, corpus = prepared
    whole = training.ClipLoss(WaveNet(config.network, config.seed))
    optimizer = dataclasses.replace(CONFIG.optimizer, accumulate=3)
    recipe = training.SpeechRecipe("tiny", dataclasses.replace(CONFIG, optimizer=optimizer), data)
    run = portable_run.Training(export_portable(recipe, tmp_path / "parts", log=silent))
    batches = training.batches(corpus, config)(0)
    padded = next(each for each in batches if len(set(each["mask"].numpy().sum(1))) > 1)
    expected = float(whole(padded)[0])
    given = {name: array.numpy() for name, array in padded.items() if name != "levels"}
    assert float(run.advance(given)["loss"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.integration
def test_training_may_cross_to_jax_and_back(folder, workdir, alone, tmp_path):
    run, arrays, metrics = alone
    out = Path(shutil.copytree(folder, tmp_path / "carried"))
    done = run_alone(out, "--steps", "6", "--report-steps", "2", devices=3)
    assert done.returncode == 0, done.stderr
    assert "3 x cpu: training from step 3 to 6" in done.stderr
    assert "training: 6/6 steps" in done.stderr
    assert adopt(out, workdir) == 6

    trainer = Trainer(RunDirectory.open(workdir), run.state, run.loss, CONFIG.loop)
    assert trainer.resume() == []
    assert trainer.step == 6
    found, last = run.to(8)
    assert_same_training(found, arrays[8], arrays[3])
    assert float(last["loss"]) == pytest.approx(float(metrics["loss"]), rel=1e-6)
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [4, 6]


@pytest.mark.slow
def test_a_narrow_wavenet_is_laid_out_by_rows_and_trains_as_before(folder, alone, tmp_path):
    out = Path(shutil.copytree(folder, tmp_path / "carried"))
    # A network that lets the small step gain from its devices.
    done = run_alone(out, "--mesh", "1x3", "--layout", "auto", "--link", "100", devices=3)
    assert done.returncode == 0, done.stderr
    layout = json.loads((out / "layout.json").read_text())
    assert all(cut[0] == "model" and not any(cut[1:]) for cut in layout["batch"].values() if cut)
    assert not any(any(cut) for cut in layout["state"].values())
    found = read_npz(out / "checkpoints/step_00000008.npz")
    assert_same_training(found, alone[1][8], alone[1][3])


@pytest.mark.slow
def test_a_gaussian_step_is_portable(tmp_path):
    network = WaveNet(WaveNetConfig(likelihood="gaussian", **PLAIN), seed=1)
    state = TrainState(network, OptimizerConfig(warmup_steps=1), 10)
    spec = {name: tf.TensorSpec([1, 64], tf.float32) for name in ("waveform", "mask")}
    step = portable.training_step(state, training.ClipLoss(network))
    portable.export_function(step, spec, tmp_path, "step", variables=state.slots())
    batch = {"waveform": np.linspace(-0.5, 0.9, 64, dtype=np.float32)[None] ** 3}
    batch["mask"] = np.ones([1, 64], np.float32)
    moved = portable_run.load(tmp_path, "step")(**batch)
    expected = step({name: tf.constant(value) for name, value in batch.items()})
    assert moved.keys() == expected.keys()
    for name in moved:
        np.testing.assert_allclose(moved[name], expected[name], rtol=2e-4, atol=1e-6)


class Line(tf.Module):
    """y = slope x, the least that can be trained."""

    def __init__(self):
        super().__init__()
        self.slope = tf.Variable([1.0, -2.0, 0.5])


@pytest.fixture
def line(tmp_path):
    """A folder to train in, the state that was exported to it, and its loss."""
    network, scale = Line(), tf.Variable([2.0, 0.0, -1.0])

    def loss(batch):
        value = tf.reduce_mean(tf.square(batch["x"] * (network.slope - scale)))
        return value, {"largest": tf.reduce_max(batch["x"])}

    state = TrainState(network, OptimizerConfig(learning_rate=0.1), 12)
    spec = {"x": tf.TensorSpec([4, 3], tf.float32)}
    folder = portable.export_training(
        tmp_path / "line", state, loss, spec, batch_module=points, batches=GOOD,
        config={"name": "line", "loop": 1}, changeable=("loop",), frozen={"scale": scale},
    )  # fmt: skip
    return folder, state, loss


def options(**changes):
    known = {"steps": None, "minutes": 0.0, "save_minutes": 5.0, "keep": 2, "report_steps": 5}
    known |= dict.fromkeys(("devices", "mesh", "layout", "memory", "link"))
    return argparse.Namespace(**known | changes)


def steps_in(folder):
    return Checkpoints(folder / "checkpoints").steps()


def test_any_pure_step_trains_frozen_variables_and_all(line):
    folder, state, loss = line
    assert portable_run.train(folder, options()) == "done"
    step, drawn = compile_step(state, loss, jit_compile=False), points.open_batches(None, GOOD)
    for number in range(12):
        metrics = step({"x": tf.constant(drawn(number)["x"])})
    found = read_npz(folder / "checkpoints/step_00000012.npz")
    for name, expected in state.arrays().items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5)
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in lines] == [5, 10, 12]
    assert lines[-1]["loss"] == pytest.approx(float(metrics["loss"]), rel=1e-5)
    assert lines[-1]["largest"] == float(metrics["largest"])


def test_a_step_that_is_not_finite_ends_the_run_before_it(line):
    folder, _, _ = line
    portable_run.train(folder, options(steps=3))
    good = read_npz(folder / "checkpoints/step_00000003.npz")
    (folder / "checkpoints/step_00000003.npz").unlink()
    manifest = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(manifest.replace('"bad_step": -1', '"bad_step": 3'))
    with pytest.raises(portable_run.UserError, match=r"Step 4 gave a loss .* not finite"):
        portable_run.train(folder, options())
    assert steps_in(folder) == [0, 3]
    assert_equal(read_npz(folder / "checkpoints/step_00000003.npz"), good)


def test_a_stop_signal_or_the_time_saves_and_ends(line):
    folder, _, _ = line
    stop = StopRequest()
    stop.signal_name = "SIGTERM"
    assert portable_run.train(folder, options(), stop) == "SIGTERM"
    assert steps_in(folder) == [0, 1]
    assert portable_run.train(folder, options(minutes=1e-9)) == "time"
    assert steps_in(folder) == [1, 2]
    assert portable_run.train(folder, options(steps=2)) == "done"


def test_run_py_imports_only_what_is_copied_with_it(tmp_path):
    copy_runner(tmp_path)
    texts = [path.read_text() for path in tmp_path.rglob("*.py")]
    names = {name for text in texts for name in re.findall(r"^from (onepass[\w.]*)", text, re.M)}
    paths = [tmp_path / name.replace(".", "/") for name in names]
    assert len(names) > 5 and {name.split(".")[0] for name in names} == {"onepass_run"}
    assert [p for p in paths if not (p.is_dir() or p.with_suffix(".py").exists())] == []


def test_a_damaged_checkpoint_is_passed_over_and_its_metrics_dropped(line):
    folder, _, _ = line
    for steps in (2, 4):
        portable_run.train(folder, options(steps=steps, report_steps=1))
    path = folder / "checkpoints/step_00000004.npz"
    path.write_bytes(path.read_bytes()[:-200])
    portable_run.train(folder, options(steps=3, report_steps=1))
    assert steps_in(folder) == [2, 3]
    assert path.with_suffix(".damaged").exists()
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in lines] == [1, 2, 3]


def test_old_checkpoints_go_but_the_best_stays(line):
    folder, _, _ = line
    (folder / "checkpoints/scores.json").write_text("[[0, 1.0]]")
    portable_run.train(folder, options(steps=4, save_minutes=0.0, keep=2))
    assert steps_in(folder) == [0, 3, 4]


def test_a_mistake_is_one_line_and_status_2_and_a_full_disk_is_none(line, monkeypatch, capsys):
    folder, _, _ = line
    (folder / "manifest.json").write_text('{"format": 99}')
    rule = "must have format 1, the only one that this version reads."
    assert portable_run.main(["--folder", str(folder)]) == 2
    assert capsys.readouterr().err == f"error: {folder}/manifest.json {rule}\n"

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "step.npz")

    monkeypatch.setattr(portable_run, "train", full)
    assert portable_run.main(["--folder", str(folder)]) == 1
    assert "No space left on device: 'step.npz'" in capsys.readouterr().err


def test_adoption_makes_a_run_and_refuses_what_does_not_fit(line, tmp_path):
    folder, _, _ = line
    portable_run.train(folder, options(steps=2))
    workdir = tmp_path / "run"
    assert adopt(folder, workdir) == 2
    assert RunDirectory.open(workdir).config() == {"name": "line", "loop": 1}
    with pytest.raises(UserError, match=r"is already at step 2; .* has step 2"):
        adopt(folder, workdir)
    (workdir / "config.json").write_text('{"name": "line", "loop": 7}')
    portable_run.train(folder, options(steps=3))
    assert adopt(folder, workdir) == 3
    assert RunDirectory.open(workdir).config()["loop"] == 7
    (workdir / "config.json").write_text('{"name": "curve", "loop": 1}')
    with pytest.raises(UserError, match="name is curve there, line here"):
        adopt(folder, workdir)
    arrays = read_npz(folder / "checkpoints/step_00000003.npz")
    np.savez(folder / "checkpoints/step_00000003.npz", **arrays | {"weights/slope": np.zeros(2)})
    with pytest.raises(UserError, match=r"`weights/slope` must be float32 \[3\]"):
        adopt(folder, tmp_path / "other")
    with pytest.raises(UserError, match="is not an exported folder: no manifest"):
        adopt(workdir, tmp_path / "other")


def test_what_cannot_be_trained_is_refused_in_one_line(line):
    with pytest.raises(portable_run.UserError, match=r"must be one of \[1\], got 3: there are 1"):
        portable_run.train(line[0], options(devices=3))
    (line[0] / "batches.py").unlink()
    with pytest.raises(portable_run.UserError, match=r"cannot be sampled: .*No such file"):
        portable_run.train(line[0], options())


def test_an_exported_function_may_read_the_average_of_what_was_trained(line):
    folder, _, _ = line
    portable_run.train(folder, options(steps=4))
    network = Line()
    portable.export_function(
        lambda given: {"y": given["x"] * network.slope}, {"x": tf.TensorSpec([3], tf.float32)},
        folder, "times", variables=portable.named_weights(network),
    )  # fmt: skip
    x = np.ones(3, np.float32)
    average = read_npz(folder / "checkpoints/step_00000004.npz")["average/slope"]
    call = portable_run.load(folder, "times", portable_run.averages(folder))
    np.testing.assert_array_equal(call(x=x)["y"], average)
    untrained = portable_run.load(folder, "times")(x=x)["y"]
    np.testing.assert_array_equal(untrained, [1.0, -2.0, 0.5])


def test_an_export_does_not_overwrite_a_trained_folder(line):
    given = dict(batch_module=points, batches={}, config={})
    with pytest.raises(UserError, match="already has checkpoints of an exported run"):
        portable.export_training(*line, {}, **given)


def test_no_source_path_is_in_an_artifact(folder):
    artifact = (folder / "step.stablehlo").read_bytes()
    assert str(ROOT).encode() not in artifact
    assert b".py" not in artifact


def test_tensor_float_32_can_be_forbidden(tmp_path):
    square = {"x": tf.TensorSpec([8, 8], tf.float32)}
    for allowed in (True, False):
        portable.export_function(
            lambda given: {"y": tf.matmul(given["x"], given["x"])}, square, tmp_path, "square",
            variables={}, tensor_float_32=allowed,
        )  # fmt: skip
        described = portable_run.read_manifest(tmp_path)["functions"]["square"]
        call = portable_run.load_exported(tmp_path, described).call
        text = jax.jit(call).lower(np.zeros((8, 8), np.float32)).as_text()
        assert ("precision = [HIGHEST, HIGHEST]" in text) == (not allowed)


def test_bfloat16_variables_travel(tmp_path):
    weight = tf.Variable(tf.constant([1.5, -3.0], tf.bfloat16))
    spec = {"x": tf.TensorSpec([2], tf.bfloat16)}
    portable.export_function(
        lambda given: {"y": given["x"] * weight}, spec, tmp_path, "scale",
        variables={"weight": weight},
    )  # fmt: skip
    x = np.array([2.0, 0.5], jax.numpy.bfloat16)
    found = portable_run.load(tmp_path, "scale")(x=x)["y"]
    assert found.dtype == jax.numpy.bfloat16
    np.testing.assert_array_equal(np.float32(found), [3.0, -1.5])


@pytest.mark.parametrize(
    ("fn", "spec", "why"),
    [
        (lambda x: tf.linalg.qr(x).q, tf.TensorSpec([2, 2], tf.float32), "custom_call"),
        (lambda x: x + 1, tf.TensorSpec([2], tf.int64), "got i64"),
        (lambda x: x + 1, tf.TensorSpec([None], tf.float32), "`x` must have a static shape"),
        (lambda x: x + tf.Variable(1.0), tf.TensorSpec([], tf.float32), "tf.function"),
    ],
)
def test_what_cannot_travel_is_refused(tmp_path, fn, spec, why):
    with pytest.raises(ValueError, match=why):
        portable.export_function(
            lambda given: {"y": fn(given["x"])}, {"x": spec}, tmp_path, "f", variables={}
        )
    weight = tf.Variable(1.0)
    with pytest.raises(ValueError, match="`variables` must hold every variable"):
        portable.export_function(lambda _: {"y": weight + 1.0}, {}, tmp_path, "f", variables={})
