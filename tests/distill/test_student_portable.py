"""Students exported: distilled by JAX with a frozen teacher, and drawn in one pass by it."""

import functools

import jax
import numpy as np
import pytest
from carried import assert_equal, assert_same_training, run_alone
from runs import NEVER, newest, speech, wavenet_run

import onepass
from distill import training
from distill.config import PRESETS
from distill.losses.perceptual import train_units
from distill.teacher import load_teacher
from distill.training import UNITS
from onepass.replicator.portable import run as portable_run
from onepass.replicator.portable.manifest import read_manifest
from wavenet import training as wavenet_training
from wavenet.data.clips import ClipBatches

OPTIONS = f"""--student.flows 1 2 --student.residual-channels 4 --student.gate-channels 4
    --student.front-width 4 --student.condition-channels 6 --loss.draws 2
    --loss.squared 1 --loss.feature 1 --loss.contrastive 0.3
    --clips.clip-samples 2560 --clips.batch-size 2 --optimizer.warmup-steps 3
    --seed 5 --loop.num-steps 4 --loop.evaluate-every-steps {NEVER}"""


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Nothing is evaluated, the classifier learns for a moment, and JAX does not optimise."""
    brief = functools.partial(train_units, num_units=8, channels=8, steps=2)
    with pytest.MonkeyPatch.context() as patch:
        for module in (training, wavenet_training):
            patch.setattr(module, "EvaluationCallback", lambda *_: lambda log, step: 1.0)
        patch.setattr(training, "train_units", brief)
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def places():
    """Recordings, a WaveNet of two steps, and the words of a distillation but for its run."""
    teacher = wavenet_run("tiny")
    words = ["distill", "student-smoke", *OPTIONS.split(), "--teacher", str(teacher)]
    return speech(), teacher, words


@pytest.fixture(scope="module")
def exported(places, tmp_path_factory):
    """Return the folder exported for a run that does not exist yet, and the path of that run."""
    folder = tmp_path_factory.mktemp("exported")
    out, workdir = folder / "out", folder / "run"
    assert onepass.main([*places[2], "--workdir", str(workdir), "--portable", str(out)]) == 0
    return out, workdir


@pytest.mark.slow
def test_run_py_draws_the_clips_of_the_distillation(exported, places):
    out, _ = exported
    data, path, _ = places
    teacher, config = load_teacher(path), PRESETS["student-smoke"].config
    drawn = portable_run.open_batches(out, read_manifest(out)["training"]["batches"])
    corpus = training.corpus_for(config, teacher, data, None, lambda line: None)
    expected = next(iter(ClipBatches(corpus, 2560, 2, 5, ("mel",))(7)))
    assert_equal(drawn(7), {name: value.numpy() for name, value in expected.items()})
    assert drawn(7)["frames"].shape == (2, 10, 8)


@pytest.mark.slow
def test_a_distillation_may_cross_to_jax_and_back(exported, places, tmp_path):
    out, workdir = exported
    assert onepass.main([*places[2], "--workdir", str(tmp_path / "alone")]) == 0
    done = run_alone(out, "--steps", "3", devices=2)
    assert done.returncode == 0, done.stderr
    assert "2 x cpu: training from step 0 to 3" in done.stderr
    assert onepass.main([*places[2], "--workdir", str(workdir), "--adopt", str(out)]) == 0
    found, expected = newest(workdir), newest(tmp_path / "alone")
    start = portable_run.read_npz(out / "checkpoints/step_00000000.npz")
    # Rectified features of the classifier may lie on either side of 0 by rounding.
    assert_same_training(found, expected, start, moments=1e-4)
    # The classifier that the loss was of is not trained again.
    assert (workdir / UNITS).read_bytes() == (out / UNITS).read_bytes()


@pytest.mark.slow
def test_the_teacher_travels_unchanged(exported, places):
    out, _ = exported
    described = read_manifest(out)["functions"]["step"]
    frozen = portable_run.read_weights(out, described)
    teacher = load_teacher(places[1])
    held = [frozen[f"teacher/{i:03d}"] for i, _ in enumerate(teacher.network.variables)]
    for ours, theirs in zip(held, teacher.network.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
