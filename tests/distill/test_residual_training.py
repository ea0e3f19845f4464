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
from onepass.foundation.errors import UserError
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


@pytest.fixture(scope="module")
def data():
    return speech()


@pytest.fixture(scope="module")
def teacher_run():
    return wavenet_run("vocoder", TEACHER)


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Evaluations give 1.0 and no sound."""
    with unevaluated():
        yield


@pytest.fixture(scope="module")
def distil(teacher_run, data):
    """Distils SMALL, or another, for as many steps or fewer, in a folder."""

    def distil(workdir, start=SMALL, **loop):
        teacher = load_teacher(teacher_run)
        config = dataclasses.replace(start, loop=dataclasses.replace(SMALL.loop, **loop))
        train(training.StudentRecipe("tiny", config, data, teacher, teacher_run), workdir, silent)

    return distil


@pytest.fixture(scope="module")
def whole(distil, tmp_path_factory):
    """A student of four steps."""
    run = tmp_path_factory.mktemp("whole") / "run"
    distil(run)
    return run


def test_clips_with_neighbours_have_the_condition_of_the_middle_of_the_whole(teacher_run):
    density = WaveNetDensity(load_teacher(teacher_run).network)
    frames = np.random.default_rng(0).random((1, 40, 8), np.float32)
    whole = density.condition(tf.constant(frames), None, 40 * HOP)
    inner = density.condition(tf.constant(frames[:, 7:33]), None, 10 * HOP, side_frames=8)
    rows = 15 * whole.shape[1] // 40
    np.testing.assert_allclose(inner, whole[:, rows : rows + inner.shape[1]], atol=1e-5)


@pytest.mark.slow
def test_a_distilled_student_speaks_and_is_evaluated(whole, teacher_run, data):
    model, teacher = models.load_student(whole), load_teacher(teacher_run)
    frames = np.random.default_rng(0).random((12, 8), np.float32)
    sounds = [model.sample(condition=frames, seed=1, method=b) for b in ("numba", "tensorflow")]
    assert sounds[0].shape == (1, 12 * HOP)
    np.testing.assert_allclose(*sounds, atol=1e-4)
    corpus = training.corpus_for(model.config, teacher, data, None, silent)
    items = [{"waveform": corpus.splits["dev"][0].waveform, "frames": frames, "speaker": 0}]
    items[0]["waveform"] = items[0]["waveform"][: 12 * HOP]
    close = evaluation.closeness(model, teacher, items, seed=0)
    assert 0.0 < close["acceptance"]["probability"]["mean"] <= 1.0
    assert np.isfinite(close["kl_nats"]["mean"])
    compared = evaluation.systems(model, teacher, corpus.mel, seed=0)
    filtered = compared["source_filter"](items[0], 12 * HOP)
    assert filtered.shape == (12 * HOP,) and np.abs(filtered).max() > 0


@pytest.mark.slow
def test_the_exported_step_reads_the_clips_of_the_run_and_descends_as_it_does(
    distil, teacher_run, data, tmp_path
):
    # Terms that are well-conditioned here: the log magnitude of a silent bin is made of what was
    # rounded, and another clip's prediction makes of these tones residuals without measure.
    loss = LossConfig(draws=2, multi=0.0, squared=1.0)
    short = dataclasses.replace(SMALL.loop, num_steps=1)
    small = dataclasses.replace(SMALL, loss=loss, loop=short)
    out, teacher = tmp_path / "out", load_teacher(teacher_run)
    recipe = training.StudentRecipe("tiny", small, data, teacher, teacher_run)
    export_portable(recipe, out, log=silent)
    config = small.resolve_settings(teacher, teacher_run)
    corpus = training.corpus_for(config, teacher, data, None, silent)
    expected = next(iter(training.batches(corpus, config, teacher)(7)))
    drawn = portable_run.open_batches(out, read_manifest(out)["training"]["batches"])
    assert_equal(drawn(7), {name: value.numpy() for name, value in expected.items()})
    done = run_alone(out, "--steps", "1")
    assert done.returncode == 0, done.stderr
    distil(tmp_path / "run", small, num_steps=1)
    found, expected = newest(out), newest(tmp_path / "run")
    ours, theirs = (joined(arrays, "first") for arrays in (found, expected))
    assert np.linalg.norm(ours - theirs) < 1e-3 * np.linalg.norm(theirs)


@pytest.mark.parametrize("source", ["none", "pulses"])
def test_the_student_has_the_teachers_prediction_and_conditioner(source, teacher_run):
    teacher = load_teacher(teacher_run)
    config = dataclasses.replace(SMALL, student=dataclasses.replace(SMALL.student, source=source))
    student = training.new_student(config.resolve_settings(teacher, teacher_run), teacher)
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
def test_a_teacher_that_lacks_what_the_student_needs_is_refused(lacking, message, teacher_run):
    teacher = load_teacher(teacher_run)
    network = dataclasses.replace(teacher.config.network, **lacking)
    config = dataclasses.replace(teacher.config, network=network)
    other = dataclasses.replace(teacher, model=dataclasses.replace(teacher.model, config=config))
    with pytest.raises(UserError, match=message):
        SMALL.resolve_settings(other, teacher_run)
