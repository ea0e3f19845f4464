"""`onepass sample` for sounds: levels, names of files, mel files and what is said of recordings."""

import shutil
import types

import numpy as np
import pytest
import sound_bundles
import soundfile

import onepass
from onepass.command.sample import sound
from wavenet.data import audio
from wavenet.data.audio import at_recorded_level

VOCODER, STUDENT, FREE = "vocoder", "plain", "mixture, context, speakers"
RATE_HZ = sound_bundles.RATE_HZ


def voice(level_db, samples=1600, seed=5):
    """Noise that comes and goes, float32 [samples]."""
    wave = np.random.default_rng(seed).normal(size=samples) * np.sin(np.arange(samples) / 300)
    return audio.amplify(wave, level_db - audio.rms_db(wave))


def sample(kind, out, *words):
    folder = sound_bundles.model_folder(kind)
    return onepass.main(["sample", str(folder), "--out", str(out), *map(str, words)])


def named(folder):
    return sorted(path.name for path in folder.glob("*"))


@pytest.mark.parametrize(
    ("name", "file"),
    [("../../.bashrc", "_.bashrc_0_0.wav"), ("-rf", "_-rf_0_0.wav"), ("a/..", "unnamed_0_0.wav")],
)
def test_no_name_of_a_servers_example_leaves_the_folder(tmp_path, name, file):
    names = ("recording", "mel", "text", "phonemes", "pronunciations", "example", "seconds")
    sources = dict.fromkeys((*names, "force"))
    given = types.SimpleNamespace(**sources, num=1, seed=0, out=tmp_path)
    spec = {"condition": "frames", "sample_rate_hz": RATE_HZ}
    model = types.SimpleNamespace(spec=spec, examples=lambda: [{"name": name}])
    assert sound.ServedSound(given, model, {}).paths == [tmp_path / file]


@pytest.mark.parametrize(("kind", "level_db"), [(VOCODER, -60.0), (STUDENT, -22.0)])
def test_a_sound_of_frames_of_a_recording_gets_its_level_back(kind, level_db):
    model = sound_bundles.model(kind)
    waveform = voice(level_db)
    frames = model.front.frames(waveform)
    assert frames.gain_db == model.front.level_gain_db(waveform)
    assert abs(audio.rms_db(waveform) + frames.gain_db + 20.0) < 6.01  # near what is aimed at
    own = model.sample(condition=np.asarray(frames), seed=3)
    sound = model.sample(condition=frames, seed=3)
    np.testing.assert_array_equal(sound, at_recorded_level(own, frames.gain_db))
    chunks = list(model.stream(condition=frames, seed=3, chunk=200))
    np.testing.assert_allclose(np.concatenate(chunks, 1), sound, atol=1e-4)


def test_a_recording_of_another_level_has_its_likelihood_at_the_models():
    model, quiet = sound_bundles.model(VOCODER), voice(-63.0)
    frames = model.front.frames(quiet)
    assert frames.gain_db > model.front.gain_db + 20
    brought = audio.amplify(quiet, frames.gain_db - model.front.gain_db)
    np.testing.assert_allclose(
        model.log_prob(quiet, frames), model.log_prob(brought, np.asarray(frames)), atol=0.05
    )


def test_files_are_named_by_the_recording_and_not_written_over(tmp_path, capsys):
    audio.write(tmp_path / "Ann 1.wav", voice(-20.0), RATE_HZ)
    words = ["--recording", tmp_path / "Ann 1.wav", "--num", 2, "--seed", 7]
    assert sample(STUDENT, tmp_path / "out", *words) == 0
    names = [f"Ann 1_7_{row}.{kind}" for row in (0, 1) for kind in ("png", "wav")]
    assert named(tmp_path / "out") == names
    before = (tmp_path / "out" / names[1]).read_bytes()
    capsys.readouterr()
    assert sample(STUDENT, tmp_path / "out", *words, "--temperature", 0.5) == 2
    line = f"onepass: {tmp_path / 'out' / names[1]} already exists; --overwrite replaces it.\n"
    assert capsys.readouterr().err == line
    assert (tmp_path / "out" / names[1]).read_bytes() == before
    again = [*words, "--temperature", 0.5, "--overwrite"]
    assert sample(STUDENT, tmp_path / "out", *again) == 0
    assert (tmp_path / "out" / names[1]).read_bytes() != before


def test_a_file_that_is_there_is_refused_before_any_recording_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(sound, "source_of", None)
    (tmp_path / "x_0_0.png").write_bytes(b"")
    assert sample(STUDENT, tmp_path, "--recording", tmp_path / "x.wav") == 2


def test_the_command_writes_what_generate_gives_and_says_what_the_file_is(tmp_path, capsys):
    wave = voice(-40.0, 8000)
    soundfile.write(tmp_path / "a.wav", np.stack([wave, -wave], 1), 22_050, subtype="FLOAT")
    assert sample(STUDENT, tmp_path / "out", "--recording", tmp_path / "a.wav") == 0
    said = capsys.readouterr().err
    assert f"{tmp_path / 'a.wav'}: its 2 channels cancel each other, the loudest is taken\n" in said
    assert f"{tmp_path / 'a.wav'}: is resampled from 22,050 Hz to 4,000 Hz\n" in said
    model, known = sound_bundles.model(STUDENT), audio.read(tmp_path / "a.wav", RATE_HZ)
    expected = model.sample(condition=model.front.frames(known), length=len(known))[0]
    written, _ = soundfile.read(tmp_path / "out" / "a_0_0.wav", dtype="int16")
    np.testing.assert_allclose(written, audio.to_int16(expected), atol=1)


def test_what_reaches_full_scale_is_limited_and_counted(tmp_path, capsys, monkeypatch):
    audio.write(tmp_path / "a.wav", np.clip(voice(-3.0), -1.0, 1.0), RATE_HZ)
    loud = np.full([1, 400], 0.9, np.float32)
    loud[0, 7:10] = 0.2
    model = type(sound_bundles.model(STUDENT))
    monkeypatch.setattr(model, "stream", lambda *_, **__: iter([loud]))
    assert sample(STUDENT, tmp_path / "out", "--recording", tmp_path / "a.wav") == 0
    path = tmp_path / "out" / "a_0_0.wav"
    out = capsys.readouterr().out
    assert f"{path}: 397 samples reached full scale and were limited\n" in out
    written, _ = soundfile.read(path, dtype="int16")
    assert np.abs(written).max() <= 32767 and audio.peak_db(written / 32768) > -0.1


def test_a_very_short_sound_of_nothing_is_counted_in_samples_and_has_no_speed(tmp_path, capsys):
    assert sample(FREE, tmp_path, "--seconds", 0.0125) == 0
    assert named(tmp_path) == ["sample_0_0.png", "sample_0_0.wav"]
    out = capsys.readouterr().out
    assert "sample_0_0.wav: 50 samples, peak" in out and "\n50 samples of sound in " in out
    assert "real time" not in out


@pytest.fixture
def knowing(tmp_path):
    """A copy of the student's folder whose model.json says what its frames were."""
    folder = shutil.copytree(sound_bundles.model_folder(STUDENT), tmp_path / "model")
    text = (folder / "model.json").read_text()
    known = '"frames": {"high": 1.1, "mean": 0.54, "deviation": 0.16},'
    (folder / "model.json").write_text(text.replace("{", "{" + known, 1))
    return folder


def test_a_mel_of_another_convention_is_refused_unless_forced(knowing, tmp_path, capsys):
    np.save(tmp_path / "mel.npy", np.full([30, 7], 0.2, np.float32))  # magnitudes
    words = ["sample", str(knowing), "--mel", str(tmp_path / "mel.npy")]
    words += ["--out", str(tmp_path / "out")]
    assert onepass.main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"onepass: {tmp_path / 'mel.npy'} is of another convention: mean 0.20")
    assert "natural logarithms of magnitudes" in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()
    assert onepass.main([*words, "--force"]) == 0
    assert named(tmp_path / "out") == ["mel_0_0.png", "mel_0_0.wav"]


def test_a_mel_as_hifi_gan_stores_it_is_taken_unchanged(tmp_path):
    frames = np.random.default_rng(0).uniform(-6.0, -4.0, [30, 7]).astype(np.float32)
    ways = {"plain": frames, "turned": frames.T, "file": frames.T[None], "batch": frames[None]}
    for name, mel in ways.items():
        np.save(tmp_path / f"{name}.npy", mel)
        assert sample(STUDENT, tmp_path / "out", "--mel", tmp_path / f"{name}.npy") == 0
    plain, *others = (audio.read(tmp_path / "out" / f"{name}_0_0.wav") for name in ways)
    assert all(np.array_equal(plain, other) for other in others)


def test_of_a_square_mel_it_is_said_which_way_it_is_taken(tmp_path, capsys):
    frames = np.random.default_rng(0).uniform(-6.0, -4.0, [7, 7]).astype(np.float32)
    np.save(tmp_path / "plain.npy", frames)
    np.save(tmp_path / "turned.npy", frames.T[None])
    assert sample(STUDENT, tmp_path / "out", "--mel", tmp_path / "plain.npy") == 0
    note = "plain.npy: 7 x 7 numbers are taken as [frames, bands]; pass [1, 7, 7] if they are"
    assert note in capsys.readouterr().err
    assert sample(STUDENT, tmp_path / "out", "--mel", tmp_path / "turned.npy") == 0
    assert "7 x 7" not in capsys.readouterr().err
    sounds = [audio.read(tmp_path / "out" / f"{name}_0_0.wav") for name in ("plain", "turned")]
    assert np.array_equal(*sounds)


@pytest.mark.parametrize("kind", [STUDENT, VOCODER])
def test_a_recording_of_one_sample_is_named(tmp_path, capsys, kind):
    soundfile.write(tmp_path / "one.wav", np.zeros(1), RATE_HZ)
    assert sample(kind, tmp_path / "out", "--recording", tmp_path / "one.wav") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"onepass: {tmp_path / 'one.wav'}: holds too little sound: 1 samples")


@pytest.fixture
def read(monkeypatch):
    """What the text front end was given, in place of which it gives the same frames."""
    given = []

    def text_frames(model, **words):
        given.append(words)
        return np.full([30, 7], 0.4, np.float32)

    monkeypatch.setattr("onepass.speech.text_frames", text_frames)
    return given


IPA = "h\u0259l\u02c8o\u028a"


def test_words_reach_the_text_front_end_and_name_the_file(tmp_path, read):
    file = tmp_path / "words.txt"
    file.write_text(f"nginx {IPA}\n", encoding="utf-8")
    for words in (
        ("--text", "Good morning, Vienna!", "--speed", 1.5),
        ("--phonemes", IPA),
        ("--text", "Nginx.", "--pronunciations", file),
    ):
        assert sample(STUDENT, tmp_path / "out", *words) == 0
    assert read == [
        {"text": "Good morning, Vienna!", "speed": 1.5, "note": None},
        {"phonemes": IPA, "speed": 1.0, "note": None},
        {"text": "Nginx.", "pronunciations": {"nginx": IPA}, "speed": 1.0, "note": None},
    ]
    names = named(tmp_path / "out")
    assert {"good_morning_vienna_0_0.png", "good_morning_vienna_0_0.wav"} < {*names}


def test_sources_that_exclude_each_other_are_named(tmp_path, capsys, read):
    file = tmp_path / "words.txt"
    file.write_text("nginx\n", encoding="utf-8")
    for words, line in (
        (("--text", "a", "--mel", tmp_path / "mel.npy"), "`--mel` and `--text` exclude each other"),
        (("--text", "a", "--pronunciations", file), f"{file}, line 1: The word nginx must have"),
        (("--text", "a", "--phonemes", IPA), "`--text` and `--phonemes` exclude each other"),
        (("--phonemes", IPA, "--pronunciations", file), "`--pronunciations` needs `--text`."),
    ):
        assert sample(STUDENT, tmp_path / "c", *words) == 2
        assert line in capsys.readouterr().err
    assert read == []


def test_refinement_changes_the_sound_of_a_student_and_is_refused_for_a_teacher(tmp_path, capsys):
    for passes in (0, 2):
        words = ["--refine", passes, "--seconds", 0.2]
        assert sample(STUDENT, tmp_path / str(passes), *words) == 0
    plain, refined = (audio.read(next((tmp_path / passes).glob("*.wav"))) for passes in "02")
    assert plain.shape == refined.shape and np.abs(plain - refined).max() > 1e-3
    assert sample(VOCODER, tmp_path / "out", "--refine", 1) == 2
    assert "`--refine` must be 0: only students" in capsys.readouterr().err
