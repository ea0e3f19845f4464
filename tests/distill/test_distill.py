"""Distillation end to end: the teacher is only read, runs resume, students speak."""

import dataclasses
import functools
import json
import math
import re
import shutil
import tracemalloc

import numpy as np
import pytest
import sound_bundles
from hostile_files import refused
from marks import some_slow
from runs import NEVER, assert_same, eagerly, newest, speech, unevaluated, wavenet_run

import onepass
from distill import model as models
from distill import training
from distill.config import PRESETS, ClipConfig, DistillConfig, LossConfig, StudentConfig
from distill.student import ParallelWaveNet
from distill.teacher import load_teacher
from distill.training import HealthMetrics, collapse_warnings
from onepass.foundation.metrics import read_metrics
from onepass.foundation.rules import UserError
from onepass.foundation.run_directory import RunDirectory
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.training_run import train
from wavenet import optional_packages
from wavenet.config import MelConvention
from wavenet.data import audio

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
BRIEF = dict(num_steps=1, evaluate_every_steps=1)


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


def teacher_run():
    return wavenet_run("tiny")


def distil_in(workdir, config=SMALL):
    """Distils a configuration in a folder; gives the outcome and the lines said."""
    said, teacher = [], load_teacher(teacher_run())
    recipe = training.StudentRecipe("tiny", config, speech(), teacher, teacher_run())
    with eagerly():
        return train(recipe, workdir, said.append), said


@pytest.fixture
def distil(tmp_path):
    """Distils a configuration in tmp_path / "run"."""
    return functools.partial(distil_in, tmp_path / "run")


@pytest.fixture(scope="module")
def student_run(tmp_path_factory):
    """A student of two steps."""
    run = tmp_path_factory.mktemp("student") / "run"
    with unevaluated():
        distil_in(run, changed(loop=dict(num_steps=2)))
    return run


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_resumed_distillation_is_the_uninterrupted_one_bit_for_bit(student_run, tmp_path):
    before, run = content(teacher_run()), shutil.copytree(student_run, tmp_path / "run")
    outcome, said = distil_in(run)
    assert outcome.step == 4 and "resuming from step 2" in said[-1]
    distil_in(tmp_path / "whole")
    assert_same(newest(run), newest(tmp_path / "whole"))
    assert content(teacher_run()) == before  # the teacher is read and never written
    line = read_metrics(tmp_path / "whole")[-1]
    assert {"loss", "kl", "entropy", "multi", "squared", "contrastive"} <= set(line)


@pytest.mark.slow
def test_the_perceptual_terms_train_their_own_classifier_once(distil, tmp_path, monkeypatch):
    real, trained = training.train_units, []

    def few(corpus, **options):
        trained.append(1)
        return real(corpus, num_units=4, channels=4, steps=3, **options)

    monkeypatch.setattr(training, "train_units", few)
    for steps in (2, 3):
        distil(changed(loss=dict(feature=1.0, style=1.0), loop=dict(num_steps=steps)))
    assert len(trained) == 1
    assert {"feature", "style"} <= set(read_metrics(tmp_path / "run")[-1])


@pytest.mark.slow
def test_evaluations_leave_metrics_sounds_and_images(distil, tmp_path, watched):
    distil(changed(loop=BRIEF, loss={**OFF, "multi": 1.0}))
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
    distil(changed(loop=BRIEF, loss={**OFF, "multi": 1.0}))
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


@pytest.mark.parametrize(
    ("teacher", "line"),
    [
        ("of 16 kHz", r".*16000 Hz.*24000 Hz"),
        ("student", r".*holds a parallel-wavenet, expected a wavenet\.$"),
        ("softmax", r".*softmax.*logistic or gaussian"),
        ("nowhere", r".*There is no run directory"),
        ("untrained", r".*has no checkpoint yet"),
        ("its workdir", r".*--workdir of its own"),
    ],
)
def test_what_is_no_teacher_is_named(mistake, student_run, tmp_path, teacher, line):
    bare = shutil.copytree(teacher_run(), tmp_path / "bare")
    shutil.rmtree(bare / "checkpoints")
    folders = {"student": student_run, "nowhere": tmp_path / "nowhere", "untrained": bare}
    folders["softmax"] = sound_bundles.model_folder("softmax, frames")
    workdir = teacher_run() if teacher == "its workdir" else tmp_path / "run"
    preset = "student-residual-24k" if teacher == "of 16 kHz" else "student-smoke"
    words = ("--teacher", folders.get(teacher, teacher_run()), "--workdir", workdir)
    assert re.match(line, mistake("distill", preset, *words))
    assert not (tmp_path / "run" / "config.json").exists()


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (dict(student=dict(feature_channels=80, upsample_factors=(16, 16))), "follows from the te"),
        (dict(student=dict(upsample_factors=(10, 20))), "follows from the teacher"),
        (dict(student=dict(speakers=3)), "follows from the teacher"),
        (dict(clips=dict(clip_samples=2561)), "multiple of the teacher's hop, 256"),
        (dict(clips=dict(batch_size=1)), "a batch of at least 2"),
        (dict(student=dict(condition_channels=2)), "must be at least the teacher's, 4, got 2"),
    ],
)
def test_other_frames_and_conditioners_than_the_teachers_are_refused(wrong, line):
    teacher = load_teacher(teacher_run())
    with pytest.raises(UserError, match=line):
        training.new_student(changed(**wrong).resolve_settings(teacher, teacher_run()), teacher)


def test_another_teacher_is_refused_for_a_run(student_run, tmp_path):
    other = shutil.copytree(student_run, tmp_path / "run")
    teacher = load_teacher(teacher_run())
    weight = teacher.network.variables[0]
    weight.assign(weight + 1.0)
    config = changed(loop=dict(num_steps=2))
    with pytest.raises(UserError, match="teacher_weights is"):
        train(training.StudentRecipe("tiny", config, speech(), teacher, teacher_run()), other)


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
def test_a_student_is_evaluated_beside_its_teacher_and_baselines(student_run, capsys, tmp_path):
    page, cooler = tmp_path / "page.html", "student_at_0.5"
    (tmp_path / "other").symlink_to(student_run)
    shutil.copytree(speech() / "dev", tmp_path / "vocoder")
    words = ["evaluate", str(student_run), "--data", str(speech()), "--spoken", "1", "--json"]
    words += ["--temperatures", "0.5", "--teacher-temperatures", "0.5"]
    words += ["--beside", str(tmp_path / "other"), str(tmp_path / "vocoder")]
    assert onepass.main([*words, "--listening-page", str(page)]) == 0
    figures = json.loads(capsys.readouterr().out)
    own, against = figures["measures"], figures["against"]
    unknown = {"griffin_lim", "griffin_lim_mel_consistent", "world", "recording", "vocoder"}
    known = {"teacher", "teacher_at_0.5", "untrained", cooler, "other", "other_at_0.5"}
    assert set(against) == {*known, *unknown}
    assert {name for name, system in against.items() if system["density"]} == known
    assert against["other"]["measures"] == own != against[cooler]["measures"]
    assert page.read_text().count("<audio") == 1 + len(against)
    assert {"pesq", "stoi", "f0_error_cents", "voicing_error"} <= set(own)
    assert all(set(system["measures"]) == set(own) for system in against.values())
    same = against["vocoder"]["measures"]  # its sounds are the recordings
    assert same["level_difference_db"]["mean"] == pytest.approx(0.0, abs=0.01)
    assert same["pesq"]["mean"] > 4.0
    assert against["griffin_lim"]["measures"]["stoi"]["mean"] > own["stoi"]["mean"]
    assert np.isfinite(figures["kl_nats"]["mean"])


@pytest.mark.slow
def test_an_exported_student_speaks_as_its_run_and_its_card_shows_all(student_run, tmp_path):
    out = tmp_path / "model"
    words = ["export", str(student_run), "--out", str(out), "--data-licence", "CC0.", "--bare"]
    assert onepass.main([*words, "--temperature", "0.5"]) == 0
    run, folder = models.load(student_run), models.load(out)
    frames = run.front.frames(np.sin(np.arange(4096) / 9).astype(np.float32))
    for at, temperature in ((1.0, 1.0), (0.5, None)):  # the declared one is the default
        spoken = folder.sample(condition=frames, seed=3, temperature=temperature)
        np.testing.assert_array_equal(run.sample(condition=frames, seed=3, temperature=at), spoken)
    card = (out / "card.md").read_text()
    for word in ("CC0.", "griffin lim", "student at 0.5", "untrained", "onepass distill tiny"):
        assert word in card
    assert str(student_run.parent) not in card


MEL = np.full((6, 8), -3.0, np.float32)
BROKEN = MEL.copy()
BROKEN[1, 1] = np.nan


@pytest.mark.parametrize("model", some_slow(["student", "teacher"], ("teacher",)))
def test_a_mel_from_a_file_is_spoken_to_its_end(student_run, tmp_path, model):
    np.save(tmp_path / "mel.npy", MEL)
    run, out = student_run if model == "student" else teacher_run(), tmp_path / "out"
    words = ["sample", run, "--mel", tmp_path / "mel.npy", "--out", out]
    assert onepass.main([str(word) for word in words]) == 0
    sound = audio.read(out / "mel_0_0.wav", 16_000)
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


@pytest.fixture(scope="module")
def student(student_run):
    return models.load_student(student_run)


def test_one_frame_is_spoken_and_frames_that_are_none_are_said(student):
    sound = student.sample(condition=np.full((1, 8), 0.5, np.float32))
    assert sound.shape == (1, 256) and np.isfinite(sound).all() and np.std(sound) > 0
    for frames, complaint in (
        (np.zeros((5, 9), np.float32), "frames of 8 channels"),
        (np.zeros((2, 3, 8), np.float32), "frames of 8 channels"),
        (MEL[:0], "The mel is empty"),
        (BROKEN, "NaN or infinity, first in frame 1"),
    ):
        assert complaint in refused(student.sample, condition=frames)


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
