"""Training for so many seconds: the batches, the updates, and the way there and back."""

import dataclasses
import json
import shutil
import subprocess
import sys

import image_runs
import numpy as np
import pytest
from image_runs import ADAM, config_of, data_of

from benchmarks.gpu import timed_export, timed_training
from onepass.foundation.files import read_npz
from onepass.replicator.portable import run as portable_run
from onepass.replicator.portable.export import export_portable
from pixelcnn.data import batch_sampling
from pixelcnn.model import load
from pixelcnn.training import ImageRecipe

ALONE = """
import runpy, sys
for name in ("tensorflow", "onepass", "pixelcnn", "benchmarks"):
    sys.modules[name] = None
sys.argv = ["timed_training.py", *sys.argv[1:]]
runpy.run_path("timed_training.py", run_name="__main__")
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder of a tiny PixelCNN with dropped labels and moved images, and the same packed."""
    whole, packed = (tmp_path_factory.mktemp("hands") / name for name in ("whole", "packed"))
    config = config_of("pixelcnn")
    config = dataclasses.replace(
        config,
        conditioning=dataclasses.replace(config.conditioning, dropout=0.3),
        data=dataclasses.replace(config.data, flip=True, shift=2),
        optimizer=dataclasses.replace(ADAM, decay="constant"),
    )
    recipe = ImageRecipe("tiny", config, data_of("pixelcnn"))
    export_portable(recipe, whole, log=image_runs.silent)
    shutil.copytree(whole, packed, dirs_exist_ok=True)
    timed_export.pack(packed, data_of("pixelcnn"))
    return whole, packed


def trainer_of(folder, steps):
    return timed_training.Trainer(folder, steps, portable_run, batch_sampling)


def test_batches_cut_on_the_device_are_those_of_the_pipeline(exported):
    trainer, steps = trainer_of(exported[1], 1), range(900, 910)
    drawn = batch_sampling.open_batches(exported[1], trainer.settings)
    count = len(trainer.stored["levels"])
    plan = timed_training.batch_plan(batch_sampling, trainer.settings, count, steps)
    for number, step in enumerate(steps):
        rows = {name: array[number] for name, array in plan.items()}
        found = timed_training.cut_batch(trainer.stored, rows, trainer.settings["shift"])
        expected = drawn(step)
        assert found.keys() == expected.keys()
        for name in found:
            np.testing.assert_array_equal(found[name], expected[name])


def test_updates_at_the_whole_rate_are_those_of_run_py(exported):
    whole, packed = exported
    reference, trainer = portable_run.Training(whole), trainer_of(packed, 3)
    for step in range(3):
        reference.advance(reference.batch(step))
    assert bool(trainer.advance(0, 1.0)[0])
    expected = reference.arrays()
    assert trainer.step == expected["step"] == 3
    for name, array in expected.items():
        np.testing.assert_allclose(trainer.state[name], array, rtol=1e-4, atol=1e-6)


def test_updates_at_a_rate_of_zero_move_nothing(exported):
    trainer = trainer_of(exported[1], 2)
    before = trainer.averages()
    trainer.advance(0, 0.0)
    for name, array in trainer.averages().items():
        np.testing.assert_allclose(array, before[name], rtol=1e-6)
        np.testing.assert_array_equal(trainer.state[f"weights/{name}"], before[name])


def test_files_stay_below_their_size_and_do_not_mix_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(timed_training, "PART_BYTES", 100)
    arrays = {name: np.arange(20, dtype=np.float32) + i for i, name in enumerate("abc")}
    timed_training.write_parts(tmp_path, arrays, 7)
    assert len([*tmp_path.iterdir()]) == 3
    found = timed_training.read_parts(tmp_path)
    assert found.pop("step") == 7 and found.keys() == arrays.keys()
    np.savez(tmp_path / "averages_1.npz", step=np.int32(8))
    with pytest.raises(ValueError, match="another step"):
        timed_training.read_parts(tmp_path)


@pytest.mark.integration
def test_it_learns_alone_and_what_comes_back_evaluates_equal(exported, tmp_path):
    packed, back = exported[1], tmp_path / "back"
    back.mkdir()
    command = [sys.executable, "-c", ALONE, "--folder", ".", "--out", str(back)]
    done = subprocess.run(
        [*command, "--seconds", "3", "--evaluations", "3"], cwd=packed, capture_output=True,
        text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (back / "metrics.jsonl").read_text().splitlines()]
    assert np.mean(lines[-1]["halves"]) < np.mean(lines[0]["halves"])
    step = timed_export.unpack(packed, back, tmp_path / "run")
    best = next(line for line in lines if line["step"] == step)
    known = read_npz(tmp_path / "run" / "checkpoints" / f"step_{step:08d}.npz")
    assert known["step"] == step
    dev = image_runs.toys(image_runs.DEV, 2)
    images, labels = dev["images"][..., np.newaxis], dev["labels"].tolist()
    nats = load(tmp_path / "run").log_prob(images, [image_runs.CLASSES[i] for i in labels])
    bits = -nats / (np.log(2) * 8 * 8)
    assert bits[::2].mean() == pytest.approx(best["halves"][0], rel=1e-4)
    assert bits[1::2].mean() == pytest.approx(best["halves"][1], rel=1e-4)
