"""Distillation end to end: the teacher is only read, runs resume, students speak."""

import contextlib
import dataclasses
import functools
import json
import math
import shutil
import tracemalloc

import numpy as np
import pytest
import sound_bundles
import tensorflow as tf
from runs import NEVER, assert_same, eagerly, newest, speech, unevaluated, wavenet_run

import onepass
from distill import model as models
from distill import training
from distill.config import PRESETS, ClipConfig, DistillConfig, LossConfig, StudentConfig
from distill.losses.objective import Objective, Parts
from distill.student import ParallelWaveNet
from distill.teacher import WaveNetDensity, load_teacher
from distill.training import HealthMetrics, collapse_warnings
from onepass.foundation.errors import UserError
from onepass.foundation.metrics import read_metrics
from onepass.foundation.run_directory import RunDirectory
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.training_run import train
from wavenet import optional_packages
from wavenet.data import audio
from wavenet.features.conventions import MelConvention

SMALL = DistillConfig(
    StudentConfig(
        flows=(1, 2), filter_width=2, residual_channels=4, gate_channels=4, front_width=4,
        condition_channels=6, sample_rate_hz=16_000,
    ),
    LossConfig(draws=2, squared=1.0, magnitude=1.0, contrastive=0.3),
    ClipConfig(clip_samples=2560, batch_size=2),
    OptimizerConfig(learning_rate=1e-2, warmup_steps=3),
    LoopConfig(num_steps=4, report_every_steps=1, evaluate_every_steps=NEVER),
)  # fmt: skip
OFF = dict(kl=0.0, squared=0.0, magnitude=0.0, multi=0.0, contrastive=0.0)


def changed(**parts) -> DistillConfig:
    """SMALL with fields of its parts replaced, as in loss=dict(kl=0.0)."""
    made = {name: dataclasses.replace(getattr(SMALL, name), **x) for name, x in parts.items()}
    return dataclasses.replace(SMALL, **made)


@pytest.fixture(autouse=True)
def quick(request):
    """Evaluations give 1.0 and no sound, but for `watched` tests."""
    with unevaluated(students="watched" not in request.fixturenames):
        yield


@pytest.fixture
def watched():
    """Asks for real evaluations."""


@pytest.fixture(scope="module")
def data():
    return speech()


@pytest.fixture(scope="module")
def teacher_run():
    return wavenet_run("tiny")


@pytest.fixture(scope="module")
def distil_in(teacher_run, data):
    """Distils a configuration in a folder; gives the outcome and the lines said."""

    def distil_in(workdir, config=SMALL, traced=False):
        said, teacher = [], load_teacher(teacher_run)
        recipe = training.StudentRecipe("tiny", config, data, teacher, teacher_run)
        with contextlib.nullcontext() if traced else eagerly():
            return train(recipe, workdir, said.append), said

    return distil_in


@pytest.fixture
def distil(distil_in, tmp_path):
    """Distils a configuration in tmp_path / "run"."""
    return functools.partial(distil_in, tmp_path / "run")


@pytest.fixture(scope="module")
def student_run(distil_in, tmp_path_factory):
    """A student of two steps."""
    run = tmp_path_factory.mktemp("student") / "run"
    with unevaluated():
        distil_in(run, changed(loop=dict(num_steps=2)))
    return run


@pytest.fixture(scope="module")
def whole(distil_in, teacher_run, tmp_path_factory):
    """A student of four steps, and what the teacher's folder held before."""
    run, before = tmp_path_factory.mktemp("whole") / "run", content(teacher_run)
    with unevaluated():
        distil_in(run)
    return run, before


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def objective_of(config, teacher_run, data):
    """The objective of a configuration, and a batch of real speech for it."""
    teacher = load_teacher(teacher_run)
    config = config.resolve_settings(teacher, teacher_run)
    corpus = training.corpus_for(config, teacher, data, None, lambda line: None)
    student, step = training.new_student(config, teacher), tf.Variable(0, trainable=False)
    objective = Objective(student, WaveNetDensity(teacher.network), config.loss, 0, Parts(step))
    return objective, next(iter(training.batches(corpus, config, teacher)(0)))


def test_no_gradient_of_any_term_reaches_the_teacher(teacher_run, data):
    objective, batch = objective_of(SMALL, teacher_run, data)
    teacher, student = objective.teacher, objective.student
    with tf.GradientTape(persistent=True) as tape:
        loss, values = objective(batch)
    assert all(g is None for g in tape.gradient(loss, teacher.network.variables))
    assert all(g is not None for g in tape.gradient(loss, student.trainable_variables))
    assert set(values) == {
        *("kl", "cross_entropy", "entropy", "contrastive"),
        *("squared", "magnitude", "multi", "level_db"),
    }
    parts = values["kl"] - 0.3 * values["contrastive"]
    spectra = values["squared"] + values["magnitude"] + values["multi"]
    np.testing.assert_allclose(loss, parts + spectra, rtol=1e-5)
    np.testing.assert_allclose(values["kl"], values["cross_entropy"] - values["entropy"], rtol=1e-4)


def test_a_resumed_distillation_is_the_uninterrupted_one_bit_for_bit(
    distil, student_run, whole, teacher_run, tmp_path
):
    shutil.copytree(student_run, tmp_path / "run")
    outcome, said = distil()
    assert outcome.step == 4
    assert "resuming from step 2" in said[-1]
    assert_same(newest(tmp_path / "run"), newest(whole[0]))
    assert content(teacher_run) == whole[1]  # the teacher is read and never written
    line = read_metrics(whole[0])[-1]
    assert {"loss", "kl", "entropy", "multi", "squared", "contrastive"} <= set(line)


@pytest.mark.slow
@pytest.mark.parametrize("term", ["kl", "multi"])
def test_distilling_lowers_the_term_that_it_is_given_on_real_speech(distil, tmp_path, term):
    distil(changed(loop=dict(num_steps=60), loss={**OFF, term: 1.0}), traced=True)
    values = [line[term] for line in read_metrics(tmp_path / "run") if term in line]
    assert np.mean(values[-8:]) < 0.8 * np.mean(values[:4])


@pytest.mark.slow
def test_the_perceptual_terms_train_their_own_classifier_once(distil, tmp_path, monkeypatch):
    real, trained = training.train_units, []

    def few(corpus, **options):
        trained.append(1)
        return real(corpus, num_units=4, channels=4, steps=3, **options)

    monkeypatch.setattr(training, "train_units", few)
    config = changed(loss=dict(feature=1.0, style=1.0))
    for steps in (2, 3):
        distil(dataclasses.replace(config, loop=dataclasses.replace(config.loop, num_steps=steps)))
    assert len(trained) == 1
    assert {"feature", "style"} <= set(read_metrics(tmp_path / "run")[-1])


@pytest.mark.slow
def test_evaluations_leave_metrics_sounds_and_images(distil, tmp_path, watched):
    loop, loss = dict(num_steps=1, evaluate_every_steps=1), {**OFF, "multi": 1.0}
    distil(changed(loop=loop, loss=loss))
    line = read_metrics(tmp_path / "run")[-1]
    assert {"dev_stft_distance", "dev_level_db", "dev_entropy"} <= set(line)
    best = RunDirectory.open(tmp_path / "run").checkpoints().best_score()
    assert best == pytest.approx(line["dev_stft_distance"])  # the KL is off
    assert line["dev_kl"] > 0
    samples = tmp_path / "run" / "samples"
    for name in ("teacher.wav", "recorded.wav", "step_00000001.wav"):
        sound = audio.read(samples / name, 16_000)
        assert len(sound) > 16_000 and np.std(sound) > 1e-4
    assert (samples / "step_00000001.png").stat().st_size > 10_000


@pytest.mark.slow
def test_without_pyworld_all_but_the_voice_is_measured(distil, tmp_path, watched, monkeypatch):
    monkeypatch.setattr(optional_packages, "is_installed", lambda package: package != "pyworld")
    distil(changed(loop=dict(num_steps=1, evaluate_every_steps=1), loss={**OFF, "multi": 1.0}))
    line = read_metrics(tmp_path / "run")[-1]
    assert line["dev_kl"] > 0 and "dev_voiced" not in line


WELL = HealthMetrics(-0.5, -5.0, -5.2, 0.6, 0.7)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, None),
        (dict(level_db=-20.0), "silent"),
        (dict(level_db=float("-inf")), "silent"),
        (dict(entropy_nats=-9.0), "noise dies out"),
        (dict(voiced=0.1), "whispers"),
        (dict(voiced=0.0, recorded_voiced=0.05), None),
        (dict(voiced=math.nan, recorded_voiced=math.nan), None),  # not measured
    ],
)
def test_a_collapse_is_said_in_plain_words(change, word):
    found = collapse_warnings(dataclasses.replace(WELL, **change))
    assert len(found) == (word is not None)
    assert word is None or word in found[0]


# The command line


def test_another_rate_than_the_teachers_is_refused(mistake, teacher_run, tmp_path):
    line = mistake(
        "distill", "student-residual-24k", "--teacher", teacher_run, "--workdir", tmp_path / "run"
    )
    assert "16000 Hz" in line and "24000 Hz" in line
    assert not (tmp_path / "run" / "config.json").exists()


def test_other_frames_than_the_teachers_are_refused(teacher_run):
    teacher = load_teacher(teacher_run)
    frames = dict(feature_channels=80, upsample_factors=(16, 16))
    for wrong in (frames, dict(upsample_factors=(10, 20)), dict(speakers=3)):
        with pytest.raises(UserError, match="follows from the teacher"):
            changed(student=wrong).resolve_settings(teacher, teacher_run)
    with pytest.raises(UserError, match="multiple of the teacher's hop, 256"):
        changed(clips=dict(clip_samples=2561)).resolve_settings(teacher, teacher_run)
    with pytest.raises(UserError, match="a batch of at least 2"):
        changed(clips=dict(batch_size=1)).resolve_settings(teacher, teacher_run)


def test_a_conditioner_smaller_than_the_teachers_is_refused(teacher_run):
    teacher = load_teacher(teacher_run)
    config = changed(student=dict(condition_channels=2)).resolve_settings(teacher, teacher_run)
    with pytest.raises(UserError, match=r"must be at least the teacher's, 4, got 2"):
        training.new_student(config, teacher)


def test_a_student_is_no_teacher(mistake, student_run, tmp_path):
    line = mistake(
        "distill", "student-smoke", "--teacher", student_run, "--workdir", tmp_path / "run"
    )
    assert line.endswith("holds a parallel-wavenet, expected a wavenet.")


def test_a_softmax_is_no_teacher(mistake, tmp_path):
    softmax = sound_bundles.model_folder("softmax, frames")
    line = mistake("distill", "student-smoke", "--teacher", softmax, "--workdir", tmp_path / "run")
    assert "softmax" in line and "logistic or gaussian" in line


def test_a_missing_teacher_and_one_without_checkpoints_are_named(mistake, teacher_run, tmp_path):
    words = ("distill", "student-smoke", "--workdir", tmp_path / "run", "--teacher")
    assert "There is no run directory" in mistake(*words, tmp_path / "nowhere")
    bare = shutil.copytree(teacher_run, tmp_path / "bare")
    shutil.rmtree(bare / "checkpoints")
    assert "has no checkpoint yet" in mistake(*words, bare)


def test_the_teachers_own_folder_is_no_workdir(mistake, teacher_run):
    line = mistake("distill", "student-smoke", "--teacher", teacher_run, "--workdir", teacher_run)
    assert "--workdir of its own" in line


def test_another_teacher_is_refused_for_a_run(teacher_run, data, student_run, tmp_path):
    other = shutil.copytree(student_run, tmp_path / "run")
    teacher = load_teacher(teacher_run)
    weight = teacher.network.variables[0]
    weight.assign(weight + 1.0)
    config = changed(loop=dict(num_steps=2))
    with pytest.raises(UserError, match="teacher_weights is"):
        train(training.StudentRecipe("tiny", config, data, teacher, teacher_run), other)


def test_a_student_speaks_from_the_command_line(student_run, tmp_path, capsys):
    words = ["sample", str(student_run), "--out", str(tmp_path), "--num", "2", "--seconds", "0.5"]
    assert onepass.main(words) == 0
    assert "of real time" in capsys.readouterr().out
    one, two = (audio.read(tmp_path / f"arctic_a0099_0_{i}.wav", 16_000) for i in range(2))
    assert len(one) == len(two) == 8000 and np.abs(one - two).max() > 1e-3
    assert (tmp_path / "arctic_a0099_0_0.png").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--prime-seconds 0.1", "cannot continue a recording"),
        ("--method naive", "must be one of auto, numba, numba-bfloat16, tensorflow"),
        ("--speaker eve", "knows no speakers"),
        ("--temperature -1", "`--temperature` must be at least 0"),
    ],
)
def test_what_a_student_cannot_do_is_said(mistake, student_run, tmp_path, words, complaint):
    assert complaint in mistake("sample", student_run, "--out", tmp_path, *words.split())


@pytest.mark.slow
def test_a_student_is_evaluated_beside_its_teacher_and_baselines(
    student_run, data, capsys, tmp_path
):
    page = tmp_path / "page.html"
    words = ["evaluate", str(student_run), "--data", str(data), "--spoken", "1", "--json"]
    (tmp_path / "other").symlink_to(student_run)
    words += ["--temperatures", "0.5", "--teacher-temperatures", "0.5"]
    shutil.copytree(data / "dev", tmp_path / "vocoder")
    words += ["--beside", str(tmp_path / "other"), str(tmp_path / "vocoder")]
    assert onepass.main([*words, "--listening-page", str(page)]) == 0
    figures = json.loads(capsys.readouterr().out)
    unknown = {"griffin_lim", "griffin_lim_mel_consistent", "world", "recording", "vocoder"}
    cooler = "student_at_0.5"
    known = {"teacher", "teacher_at_0.5", "untrained", cooler, "other", "other_at_0.5"}
    assert set(figures["against"]) == {*known, *unknown}
    assert {name for name, system in figures["against"].items() if system["density"]} == known
    assert figures["against"]["other"]["measures"] == figures["measures"]
    assert figures["against"][cooler]["measures"] != figures["measures"]
    assert page.read_text().count("<audio") == 1 + len(figures["against"])
    names = set(figures["measures"])
    assert {"pesq", "stoi", "f0_error_cents", "voicing_error"} <= names
    assert all(set(system["measures"]) == names for system in figures["against"].values())
    same = figures["against"]["vocoder"]["measures"]  # its sounds are the recordings
    assert same["level_difference_db"]["mean"] == pytest.approx(0.0, abs=0.01)
    assert same["pesq"]["mean"] > 4.0
    griffin_lim = figures["against"]["griffin_lim"]["measures"]
    assert griffin_lim["stoi"]["mean"] > figures["measures"]["stoi"]["mean"]
    assert np.isfinite(figures["kl_nats"]["mean"])


@pytest.mark.slow
def test_an_exported_student_speaks_as_its_run_and_its_card_shows_all(
    student_run, tmp_path, capsys, monkeypatch
):
    words = ["export", str(student_run), "--out", str(tmp_path / "model"), "--data-licence", "CC0."]
    assert onepass.main([*words, "--bare", "--temperature", "0.5"]) == 0
    run, folder = models.load(student_run), models.load(tmp_path / "model")
    frames = run.front.frames(np.sin(np.arange(4096) / 9).astype(np.float32))
    for at, temperature in ((1.0, 1.0), (0.5, None)):  # the declared one is the default
        spoken = folder.sample(condition=frames, seed=3, temperature=temperature)
        np.testing.assert_array_equal(run.sample(condition=frames, seed=3, temperature=at), spoken)
    card = (tmp_path / "model" / "card.md").read_text()
    for word in ("CC0.", "griffin lim", "student at 0.5", "untrained", "onepass distill tiny"):
        assert word in card
    assert str(student_run.parent) not in card


MEL = np.full((6, 8), -3.0, np.float32)
BROKEN = MEL.copy()
BROKEN[1, 1] = np.nan


@pytest.mark.parametrize(
    "model", ["student_run", pytest.param("teacher_run", marks=pytest.mark.slow)]
)
def test_a_mel_from_a_file_is_spoken_to_its_end(request, tmp_path, model):
    np.save(tmp_path / "mel.npy", MEL)
    words = ["sample", str(request.getfixturevalue(model)), "--mel", str(tmp_path / "mel.npy")]
    assert onepass.main([*words, "--out", str(tmp_path / "out")]) == 0
    sound = audio.read(tmp_path / "out" / "mel_0_0.wav", 16_000)
    assert len(sound) == 6 * 256 and np.std(sound) > 0


@pytest.mark.parametrize(
    ("mel", "complaint"),
    [
        (MEL[:, 1:], "or [1, 8, frames], got (6, 7)"),
        (MEL[0], "or [1, 8, frames], got (8,)"),
        (np.stack([MEL, MEL]), "or [1, 8, frames], got (2, 6, 8)"),
        (np.array([["a"] * 8]), "must hold numbers [frames, 8]"),
        (MEL[:0], "has no frames"),
        (BROKEN, "NaN or infinity, first in frame 1"),
        (np.where(np.isnan(BROKEN), np.inf, MEL), "NaN or infinity, first in frame 1"),
        (None, "cannot be read as an npy file"),
    ],
)
def test_a_mel_that_is_none_is_said_and_leaves_nothing(
    mistake, student_run, tmp_path, mel, complaint
):
    file, out = tmp_path / "mel.npy", tmp_path / "out"
    if mel is None:
        file.write_bytes(b"RIFF no mel")
    else:
        np.save(file, mel)
    assert complaint in mistake("sample", student_run, "--mel", file, "--out", out)
    assert not out.exists() or not list(out.iterdir())


def test_ctrl_c_keeps_what_was_spoken(student_run, tmp_path, monkeypatch):
    real = models.Trained.stream

    def interrupted(self, *arguments, **options):
        yield next(real(self, *arguments, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(models.Trained, "stream", interrupted)
    words = ["sample", str(student_run), "--out", str(tmp_path), "--seconds", "2"]
    assert onepass.main(words) == 130
    assert 0 < len(audio.read(tmp_path / "arctic_a0099_0_0.wav", 16_000)) < 16_000


# Conditions that a student is given


@pytest.fixture(scope="module")
def student(student_run):
    return models.load_student(student_run)


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        (np.zeros((5, 9), np.float32), "frames of 8 channels"),
        (np.zeros((2, 3, 8), np.float32), "frames of 8 channels"),
        (MEL[:0], "The mel is empty"),
        (BROKEN, "NaN or infinity, first in frame 1"),
    ],
)
def test_frames_that_are_none_are_said(student, frames, complaint):
    with pytest.raises(UserError, match=r"^[^\n]+$") as error:
        student.sample(condition=frames)
    assert complaint in str(error.value)


def test_one_frame_is_spoken(student):
    sound = student.sample(condition=np.full((1, 8), 0.5, np.float32))
    assert sound.shape == (1, 256) and np.isfinite(sound).all() and np.std(sound) > 0


@pytest.mark.slow
@pytest.mark.parametrize("minutes", [1, pytest.param(60, marks=pytest.mark.timeout(3600))])
def test_memory_does_not_grow_with_the_length(student, minutes):
    frames = np.full((minutes * 60 * 16_000 // 256, 8), 0.4, np.float32)
    chunks = student.stream(condition=frames, chunk=16_000)
    for _ in range(10):
        next(chunks)
    tracemalloc.start()
    before, samples = tracemalloc.get_traced_memory()[0], 0
    for chunk in chunks:
        samples += chunk.shape[1]
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert samples > 0.9 * minutes * 60 * 16_000 - 11 * 16_000
    assert grown < 2e6


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_student_of_its_rate(name):
    config = PRESETS[name].config.student
    if "paper" in name:
        assert config.flows == (10, 10, 10, 30)
        assert config.residual_channels == config.gate_channels == 64
    small = dataclasses.replace(config, residual_channels=2, gate_channels=2)
    if config.domain == "residual":  # what a run takes from its teacher
        small = dataclasses.replace(small, prediction_order=4, conditioner_units=2)
    mel = MelConvention(config.sample_rate_hz, config.sample_rate_hz // 80, bands=80)
    assert len(ParallelWaveNet(small, mel=mel).flows) == len(config.flows)
