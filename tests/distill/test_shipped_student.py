"""The shipped students: they keep the laws on real speech, and their flows are worth their work."""

import json

import numpy as np
import pytest

import onepass
from distill.evaluation import systems
from distill.model import load_student, teacher_of
from distill.teacher import load_teacher
from onepass.command import quickstart, unseen_networks
from onepass.foundation import model_folders as shipped_students
from onepass.foundation.rules import UserError
from wavenet import shipped
from wavenet.data import audio, corpus
from wavenet.evaluation import dev_corpus
from wavenet.measures import measure


@pytest.fixture(scope="module", params=["shipped", "shipped-kathleen"])
def student(request):
    return load_student(request.param)


@pytest.fixture(scope="module")
def recordings(student):
    """Four dev recordings, at the student's level."""
    paths = sorted(shipped.recordings_folder().glob("dev/*.flac"))[:4]
    sounds = [audio.read(path, student.front.sample_rate_hz) for path in paths]
    return [audio.amplify(sound[:32_000], student.front.gain_db) for sound in sounds]


def test_students_of_other_rates_or_no_student_do_not_draft():
    teacher, other = onepass.load("shipped-teacher"), onepass.load("shipped")
    fitting = onepass.load("shipped-kathleen")
    for line, given in (
        ("needs the model's `sample_rate_hz`, 16000; it has 22050", dict(draft=other)),
        ('`draft` must be given for `method="speculative"`', {}),
        (r"`method` must be one of auto, .*, got 'fast'", dict(method="fast")),
        ("must be coupling or rejection, got 'luck'", dict(draft=fitting, acceptance="luck")),
        ("and for no other", dict(method="auto", draft=other)),
    ):
        with pytest.raises(UserError, match=line):
            teacher.sample(1, 40, 7, **{"method": "speculative", **given})
    with pytest.raises(UserError, match="for a WaveNet as `load` returns it"):
        other.as_draft(teacher.autoregressive)


@pytest.mark.slow
def test_it_speaks_at_the_level_of_recordings_and_better_than_its_source_and_untrained(
    student, recordings
):
    mel = student.front.data.mel(student.front.hop_samples)
    compared = systems(student, load_teacher(teacher_of(student)), mel, seed=0)
    measured = {}
    for name in ("student", "source_filter", "untrained"):
        each = []
        for recording in recordings:
            item = {"frames": student.front.frames_at_level(recording), "speaker": 0}
            sound = compared[name](item, len(recording))
            assert np.mean(np.abs(sound) >= audio.FULL_SCALE) == 0.0
            each.append(measure(sound, recording, student.front.sample_rate_hz, mel))
        measured[name] = {key: np.nanmean([m[key] for m in each]) for key in each[0]}
    ours = measured.pop("student")
    assert abs(ours["level_difference_db"]) < 1.0
    assert 4.5 < ours["residual_kurtosis"] < 7.5  # speech has 6
    for other in measured.values():
        assert ours["pesq"] > other["pesq"] + 0.3
        assert ours["stoi"] > other["stoi"]
        assert ours["log_mel_distance_db"] < other["log_mel_distance_db"]


@pytest.mark.parametrize("change_db", [0.0, -30.0, 14.0])
def test_copy_synthesis_has_the_level_of_the_recording(student, change_db):
    for path in sorted(shipped.recordings_folder().glob("dev/*.flac"))[::3]:
        speech = audio.amplify(audio.read(path, student.front.sample_rate_hz), change_db)
        speech = np.clip(speech, -0.97, 0.97)
        sound = student.sample(condition=student.front.frames(speech), length=len(speech))[0]
        assert abs(audio.rms_db(sound) - audio.rms_db(speech)) < 0.5
        assert np.mean(np.abs(sound) >= audio.FULL_SCALE) < 1e-3


def test_it_speaks_at_the_temperature_that_it_declares(student, recordings):
    frames = student.front.frames_at_level(recordings[0])[:40]
    assert student.front.temperature == 0.8
    np.testing.assert_array_equal(
        student.sample(condition=frames, seed=1),
        student.sample(condition=frames, seed=1, temperature=0.8),
    )


def test_dev_recordings_need_no_package_that_estimates_f0(student, monkeypatch):
    def missing(*_, **__):
        raise AssertionError("F0 was estimated.")

    monkeypatch.setattr(corpus, "fundamental_frequency", missing)
    teacher = load_teacher(teacher_of(student))
    assert len(dev_corpus(teacher, shipped.recordings_folder()).splits["dev"]) > 1


@pytest.mark.parametrize("name", shipped_students.names_in("distill"))
def test_its_card_says_where_it_comes_from(name):
    folder = shipped_students.folder(name)
    spec = json.loads((folder / "model.json").read_text())
    card = (folder / "card.md").read_text()
    for fact in ("CC0", spec["command"], f"{spec['step']:,} steps", spec["git_revision"]):
        assert fact in card
    assert spec["teacher_weights"] in card
    against = {"teacher", "untrained", "source_filter", "griffin_lim", "student_at_0.8"}
    assert against <= set(spec["quality"]["against"])
    assert (folder / "weights.npz").stat().st_size < 5e6


@pytest.mark.integration  # a whole command
def test_quickstart_speaks_measures_draws_and_reports(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(quickstart, "SETS", {"digits": quickstart.SETS["digits"]})
    monkeypatch.setattr(quickstart, "IMAGES", 3)
    monkeypatch.setattr(unseen_networks, "TOKENS", 8)
    monkeypatch.setattr(unseen_networks, "is_installed", lambda package: False)
    out = tmp_path / "not" / "there yet"
    words = ["--no-train", "--spoken", "1", "--seconds", "0.5"]
    assert onepass.main(["quickstart", "--out", str(out), *words]) == 0
    report = (out / "report.md").read_text()
    assert report in capsys.readouterr().out
    assert "| Keras | " in report and "| 8 of 8 |" in report and "onepass[torch]" in report
    assert "| student, in one pass |" in report and "griffin lim" not in report
    rate_hz = load_student("shipped").front.sample_rate_hz
    student, recorded = (audio.read(out / f"{n}.wav", rate_hz) for n in ("student", "recorded"))
    assert len(student) == len(recorded) > rate_hz
    assert abs(audio.rms_db(student) - audio.rms_db(recorded)) < 2.0
    assert len(audio.read(out / "teacher.wav", rate_hz)) == rate_hz // 2
    assert len(audio.read(out / "untrained.wav", rate_hz)) == len(recorded)
    assert (out / "spectrograms.png").stat().st_size > 10_000
    written = [*quickstart.FILES, *quickstart.image_files()]
    assert sorted(path.name for path in out.iterdir()) == sorted(written)
    for image in ("digits-multiscale.png", "digits-pixel-by-pixel.png", "digits-growing.gif"):
        assert (out / image).stat().st_size > 1000
