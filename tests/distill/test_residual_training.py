"""Distilling in the residual's domain, from a vocoder of two steps."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from carried import assert_equal, joined, run_alone
from runs import NEVER, TINY, newest, silent, speech, unevaluated, wavenet_run

from distill import evaluation, training
from distill import model as models
from distill.config import ClipConfig, DistillConfig, LossConfig, StudentConfig
from distill.teacher import WaveNetDensity, load_teacher
from onepass.foundation.rules import UserError
from onepass.replicator.portable import run as portable_run
from onepass.replicator.portable.export import export_portable
from onepass.replicator.portable.manifest import read_manifest
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.training_run import train

HOP = 80
TEACHER = dataclasses.replace(
    TINY,
    network=dataclasses.replace(
        TINY.network, linear_prediction=False, front_width=8, input_gain=1.0,
        upsample_factors=(HOP,), conditioner_units=8, prediction_order=6, pitch_taps=3,
        pitch_bins=30, bunch_samples=4, head_channels=4,
    ),
    data=dataclasses.replace(TINY.data, clip_samples=640, left_samples=160),
    pitch_steps=2,
)  # fmt: skip
SMALL = DistillConfig(
    StudentConfig(
        flows=(1, 2), filter_width=2, residual_channels=4, gate_channels=4, front_width=4,
        domain="residual", source="pulses", sample_rate_hz=16_000, initial_scale=0.2,
    ),
    LossConfig(draws=2, multi=1.0, contrastive=0.3),
    ClipConfig(clip_samples=1600, left_samples=320, batch_size=2),
    OptimizerConfig(learning_rate=1e-2, warmup_steps=3),
    LoopConfig(num_steps=4, report_every_steps=1, evaluate_every_steps=NEVER),
)  # fmt: skip


def teacher_run():
    return wavenet_run("vocoder", TEACHER)


def teacher_of():
    return load_teacher(teacher_run())


def recipe_of(config):
    return training.StudentRecipe("tiny", config, speech(), teacher_of(), teacher_run())


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Evaluations give 1.0 and no sound."""
    with unevaluated():
        yield


def test_clips_with_neighbours_have_the_condition_of_the_middle_of_the_whole():
    density = WaveNetDensity(teacher_of().network)
    frames = np.random.default_rng(0).random((1, 40, 8), np.float32)
    whole = density.condition(tf.constant(frames), None, 40 * HOP)
    inner = density.condition(tf.constant(frames[:, 7:33]), None, 10 * HOP, side_frames=8)
    rows = 15 * whole.shape[1] // 40
    np.testing.assert_allclose(inner, whole[:, rows : rows + inner.shape[1]], atol=1e-5)


@pytest.mark.slow
def test_a_distilled_student_speaks_and_is_evaluated(tmp_path):
    train(recipe_of(SMALL), tmp_path / "run", silent)
    model, teacher = models.load_student(tmp_path / "run"), teacher_of()
    frames = np.random.default_rng(0).random((12, 8), np.float32)
    sounds = [model.sample(condition=frames, seed=1, method=b) for b in ("numba", "tensorflow")]
    assert sounds[0].shape == (1, 12 * HOP)
    np.testing.assert_allclose(*sounds, atol=1e-4)
    corpus = training.corpus_for(model.config, teacher, speech(), None, silent)
    recorded = corpus.splits["dev"][0].waveform[: 12 * HOP]
    items = [{"waveform": recorded, "frames": frames, "speaker": 0}]
    close = evaluation.closeness(model, teacher, items, seed=0)
    assert 0.0 < close["acceptance"]["probability"]["mean"] <= 1.0
    assert np.isfinite(close["kl_nats"]["mean"])
    compared = evaluation.systems(model, teacher, corpus.mel, seed=0)
    filtered = compared["source_filter"](items[0], 12 * HOP)
    assert filtered.shape == (12 * HOP,) and np.abs(filtered).max() > 0


@pytest.mark.slow
def test_the_exported_step_reads_the_clips_of_the_run_and_descends_as_it_does(tmp_path):
    # Terms that are well-conditioned here: the log magnitude of a silent bin is made of what was
    # rounded, and another clip's prediction makes of these tones residuals without measure.
    loss = LossConfig(draws=2, multi=0.0, squared=1.0)
    short = dataclasses.replace(SMALL.loop, num_steps=1)
    small, out = dataclasses.replace(SMALL, loss=loss, loop=short), tmp_path / "out"
    export_portable(recipe_of(small), out, log=silent)
    config = small.resolve_settings(teacher_of(), teacher_run())
    corpus = training.corpus_for(config, teacher_of(), speech(), None, silent)
    expected = next(iter(training.batches(corpus, config, teacher_of())(7)))
    drawn = portable_run.open_batches(out, read_manifest(out)["training"]["batches"])
    assert_equal(drawn(7), {name: value.numpy() for name, value in expected.items()})
    done = run_alone(out, "--steps", "1")
    assert done.returncode == 0, done.stderr
    train(recipe_of(small), tmp_path / "run", silent)
    ours, theirs = (joined(newest(run), "first") for run in (out, tmp_path / "run"))
    assert np.linalg.norm(ours - theirs) < 1e-3 * np.linalg.norm(theirs)


@pytest.mark.parametrize("source", ["none", "pulses"])
def test_the_student_has_the_teachers_prediction_and_conditioner(source):
    teacher = teacher_of()
    config = dataclasses.replace(SMALL, student=dataclasses.replace(SMALL.student, source=source))
    student = training.new_student(config.resolve_settings(teacher, teacher_run()), teacher)
    frames = tf.constant(np.random.default_rng(0).random((1, 12, 8), np.float32))
    condition, _ = student.condition(frames)
    made = teacher.network.split(teacher.network.rows(frames))
    np.testing.assert_allclose(condition.prediction.coefficients, made.coefficients, atol=1e-6)
    np.testing.assert_allclose(condition.prediction.log_gain, made.log_gain, atol=1e-6)
    np.testing.assert_allclose(condition.held, made.local, atol=1e-6)


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        (dict(prediction_order=0, pitch_taps=0), "`student.domain` must be wave"),
        (dict(pitch_taps=0), "`student.source` must be none"),
    ],
)
def test_a_teacher_that_lacks_what_the_student_needs_is_refused(lacking, message):
    teacher = teacher_of()
    network = dataclasses.replace(teacher.config.network, **lacking)
    config = dataclasses.replace(teacher.config, network=network)
    other = dataclasses.replace(teacher, model=dataclasses.replace(teacher.model, config=config))
    with pytest.raises(UserError, match=message):
        SMALL.resolve_settings(other, teacher_run())
