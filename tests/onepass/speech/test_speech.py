"""The text front end: phonemes, alignment, the networks in both arithmetics, the shipped voice."""

import dataclasses
import functools
import json
import os
import shutil
import stat
import subprocess
import sys
import types

import numpy as np
import pytest
import tensorflow as tf
from marks import needs_espeak

import distill.model
from onepass import speech
from onepass.foundation.rules import UserError
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.state import TrainState
from onepass.speech import evaluate, evaluation, examples, network, train, training, voice
from onepass.speech import phonemes as reading
from onepass.speech.density_training import DensityConfig
from onepass.speech.network import Networks, VoiceConfig
from onepass.speech.phonemes import COMMA, QUESTION, START, STOP, Phoneme, phonemes
from onepass.speech.training import (
    AcousticLossConfig,
    AcousticModel,
    acoustic_loss,
)
from wavenet import shipped as wavenet_shipped
from wavenet.config import MelConvention
from wavenet.data import audio
from wavenet.data.audio import is_recorded
from wavenet.features.frames import above_silence, mel_spectrogram

TEXT = "He was a head shorter than his companion, of almost delicate physique."
SIZES = VoiceConfig(6, 4, 8, (1, 2), 6, (1, 2), 8, (1, 2))


def said(text):
    return [p.symbol for p in phonemes(text)]


def spoken_by(tmp_path, monkeypatch, script):
    """Puts a shell script in the place of espeak-ng, and gives its folder."""
    program = tmp_path / reading.PROGRAM
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


# Phonemes


@needs_espeak
def test_a_text_is_its_phonemes_between_pauses():
    assert said("The ship?") == [START, "D", "@2", "S", "I", "p", QUESTION]
    stressed = [p for p in phonemes("Hello") if p.stress == reading.PRIMARY]
    assert [p.symbol for p in stressed] == ["oU"]


@needs_espeak
def test_words_and_clauses_are_marked():
    found = phonemes("A cat, a dog.")
    starts = [p.symbol for p in found if p.starts_word]
    assert len(starts) == 4 and starts[1] == "k" and starts[3] == "d"
    assert [p.symbol for p in found if p.is_pause] == [START, COMMA, STOP]
    assert [p.clause for p in found if p.symbol in "kd"] == [COMMA, STOP]


@needs_espeak
def test_numbers_signs_and_foreign_letters_are_read_out():
    assert said("It is 3.14").count(STOP) == 1
    for text in ("\u4e2d\u6587", "d\u00e9j\u00e0 vu", "\U0001f600", "100%", "a\tb\r\nc", "- dash"):
        assert len(said(text)) > 2


@needs_espeak
@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("7", "seven"),
        *((f"-{text}", text) for text in ("v fr", "-help", "-version", "w", "f /etc/passwd")),
    ],
)
def test_no_text_is_an_option_or_a_command_of_espeak(text, read, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said(text) == said(read.lstrip("-"))
    assert not list(tmp_path.iterdir())


def test_the_text_is_no_argument_of_the_program(tmp_path, monkeypatch):
    spoken_by(tmp_path, monkeypatch, 'echo "$@" > "$0.arguments"; cat > "$0.text"; exit 1')
    with pytest.raises(speech.EspeakError, match="status 1"):
        phonemes("say $(touch x); `touch y` & | > z")
    assert "touch" not in (tmp_path / "espeak-ng.arguments").read_text()
    assert "`touch y` & | > z" in (tmp_path / "espeak-ng.text").read_text()


@needs_espeak
def test_phonemes_spelt_out_in_the_text_are_not_obeyed():
    assert said("say [[ZZZZ]] now").count("Z") == 0


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "The text is empty."),
        (" \n\t ", "The text is empty."),
        ("\u200b\u2060", "The text is empty."),
        ("...", "There is nothing in the text that can be spoken."),
        ("a\x00b", "The text holds a control character, U+0000, at 1."),
        ("\x1b[31mred", "The text holds a control character, U+001B, at 0."),
        ("\ud800", "The text holds a control character, U+D800, at 0."),
        (3, "The text must be a string, got int."),
    ],
)
def test_a_text_that_cannot_be_spoken_is_refused_in_one_line(text, line):
    with pytest.raises(speech.TextError) as refusal:
        phonemes(text)
    assert str(refusal.value) == line


def test_a_huge_text_is_refused_before_anything_runs(monkeypatch):
    monkeypatch.setattr(subprocess, "run", None)
    with pytest.raises(speech.TextError, match=r"1000 characters at most, got 1000000"):
        phonemes("a" * 1_000_000)


@needs_espeak
def test_the_longest_texts_are_read_or_refused(monkeypatch):
    for text in ("9" * 1000, "a, b, c, " * 111, "\u00e9" * 1000, "supercalifragilistic " * 47):
        assert len(phonemes(text)) > 100
    monkeypatch.setattr(reading, "MAX_PHONEMES", 100)
    with pytest.raises(speech.TextError, match="100 phonemes at most"):
        phonemes("a, b, c, " * 100)


def test_without_espeak_one_line_says_how_to_install_it(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(speech.EspeakError) as refusal:
        phonemes("Hello.")
    line = str(refusal.value)
    assert "not installed" in line and "apt-get install espeak-ng" in line and "\n" not in line


def test_a_program_that_hangs_or_breaks_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "TIMEOUT_SECONDS", 0.2)
    spoken_by(tmp_path, monkeypatch, "exec sleep 30")
    with pytest.raises(speech.EspeakError, match="no answer in"):
        phonemes("Hello.")
    spoken_by(tmp_path, monkeypatch, "cat > /dev/null; echo h/@/l")
    with pytest.raises(speech.EspeakError, match="0 of 1 clauses"):
        phonemes("Hello.")


def test_a_symbol_that_is_not_known_is_its_nearest_relative():
    symbols = {"I": 1, "aI": 2, "@": 3, "u:": 4}
    spoken = [Phoneme(s) for s in ("I#", "aI3", "@2", "u-", "Z")]
    assert network.numbers(spoken, symbols).tolist() == [1, 2, 3, 4, 3]
    assert network.numbers(spoken, {"I": 1}).tolist() == [1, *[network.UNKNOWN] * 4]


# Alignment


def recordings(seed=0, count=12):
    """Sounds of four units, [frames, 5], each around a mean of its own, and where units change."""
    random = np.random.default_rng(seed)
    means = np.array([[4, 0, 0, 0, 0], [0, 4, 0, 0, 0], [0, 0, 4, 0, 0], [0, 0, 0, 4, 0]])
    units = [random.permutation(4)[: random.integers(3, 5)] for _ in range(count)]
    lengths = [random.integers(4, 20, len(u)) for u in units]
    owner = [np.repeat(u, n) for u, n in zip(units, lengths, strict=True)]
    sounds = [means[o] + random.normal(0.0, 0.5, (len(o), 5)) for o in owner]
    return sounds, units, lengths


def test_boundaries_of_known_units_are_recovered():
    sounds, units, lengths = recordings()
    chains = [examples.chain(u, [False] * len(u)) for u in units]
    guesses = [
        examples.initial_path(len(x), c, np.ones(len(c.state)))
        for x, c in zip(sounds, chains, strict=True)
    ]
    found = examples.align(sounds, chains, guesses, 4 * examples.STATES)
    wrong = [
        np.abs(np.cumsum(examples.durations(p, c)) - np.cumsum(n)).max()
        for p, c, n in zip(found.paths, chains, lengths, strict=True)
    ]
    guessed = [
        np.abs(np.cumsum(examples.durations(p, c)) - np.cumsum(n)).max()
        for p, c, n in zip(guesses, chains, lengths, strict=True)
    ]
    assert max(wrong) <= 1 and max(guessed) > 4
    assert min(found.gain) > -1e-6


def every_path(frames, skippable):
    """Return all paths from a first to a last state, by their definition."""
    states = len(skippable)
    firsts = [0] + ([1] if skippable[0] else [])
    lasts = {states - 1} | ({states - 2} if skippable[-1] else set())
    paths = [[first] for first in firsts]
    for _ in range(frames - 1):
        with_silence = []
        for path in paths:
            j = path[-1]
            with_silence += [[*path, n] for n in (j, j + 1) if n < states]
            if j + 2 < states and skippable[j + 1]:
                with_silence.append([*path, j + 2])
        paths = with_silence
    return [path for path in paths if path[-1] in lasts]


@pytest.mark.parametrize("seed", range(6))
def test_the_best_path_is_the_best_of_all(seed):
    random = np.random.default_rng(seed)
    scores = random.normal(size=(6, 5))
    skippable = np.array([seed % 2 == 0, False, True, False, seed % 3 == 0])
    path = examples.best_path(scores, skippable)
    best = max(every_path(6, skippable), key=lambda p: scores[np.arange(6), p].sum())
    assert path.tolist() == best


def test_a_pause_that_was_not_made_gets_no_frame():
    means = np.array([[5.0, 0.0], [0.0, 5.0], [-5.0, -5.0]])
    chain = examples.chain([0, 2, 1], [False, True, False])
    for true in ([6, 0, 6], [6, 5, 6]):
        x = np.repeat(means[[0, 2, 1]], true, axis=0)
        scores = -np.sum((x[:, None] - means[chain.state // examples.STATES]) ** 2, axis=2)
        path = examples.best_path(scores, chain.skippable)
        assert examples.durations(path, chain).tolist() == true


def test_too_few_frames_are_refused():
    with pytest.raises(ValueError, match="at least 3 frames, got 2"):
        examples.best_path(np.zeros((2, 3)), np.zeros(3, bool))


def test_short_pauses_belong_to_the_phoneme_before():
    spoken = [Phoneme(s) for s in (START, "a", COMMA, "b", COMMA, "c", STOP)]
    made, lengths = examples._pauses_made(spoken, np.array([2, 5, 1, 6, 9, 7, 4]))
    assert [p.symbol for p in made] == ["a", "b", COMMA, "c", STOP]
    assert lengths.tolist() == [8, 6, 9, 7, 4]


# Networks


def toy_row(seed=0, phonemes=5):
    """An example of four bands and its scale."""
    random = np.random.default_rng(seed)
    lengths = random.integers(2, 7, phonemes)
    frames = int(lengths.sum())
    names = ["^", "a", "b", "c", "."]
    spoken = tuple(Phoneme(names[n % 5], n % 3, n % 2 == 0) for n in range(phonemes))
    pitch = np.stack([random.normal(0, 0.2, frames), random.random(frames) > 0.4], axis=1)
    mel = random.random((frames, 4)).astype(np.float32)
    example = examples.Example("x", "x", spoken, lengths, mel, pitch.astype(np.float32))
    scale = training.Scale(
        {name: n + 1 for n, name in enumerate(names)},
        {
            "harmonics": random.normal(size=(113, 4)).astype(np.float32),
            "mel_mean": np.full(4, 0.5, np.float32),
            "mel_std": np.full(4, 0.3, np.float32),
        },
        {"low_hz": 90.0, "steps_per_octave": 48.0, "range_nats": 11.5},
        np.zeros(4, np.float32),
    )
    return example, scale


def batch_of(examples_, scale, phonemes, frames):
    batch = training.stack_rows(
        [training.network_inputs(e, scale) for e in examples_], phonemes, frames
    )
    everything = np.ones((len(examples_), SIZES.encoder_channels), np.float32)
    batch |= {"kept_by_mel": everything, "kept_by_melody": everything}
    return {name: tf.constant(value) for name, value in batch.items()}


def test_both_arithmetics_agree_and_padding_moves_nothing():
    model = AcousticModel(SIZES, seed=1)
    toys = [toy_row(seed, count) for seed, count in ((0, 5), (1, 9))]
    scale = toys[0][1]
    lengths, melody, mel = model(batch_of([e for e, _ in toys], scale, 12, 70))
    weights = {name: variable.numpy() for name, variable in model.weights.items()}
    for n, (example, _) in enumerate(toys):
        row, on = training.network_inputs(example, scale), Networks(np, SIZES, weights)
        hidden, logs = on.encoder(row["numbers"], row["contexts"], 1.0)
        spread = hidden[row["phoneme_of_frame"]]
        sung = on.melody(spread, row["positions"], 1.0)
        made = on.mel(spread, row["positions"], row["pitch"], row["harmonics"], 1.0)
        np.testing.assert_allclose(lengths[n, : len(logs)], logs, atol=1e-5)
        np.testing.assert_allclose(melody[n, : len(sung)], sung, atol=1e-5)
        np.testing.assert_allclose(mel[n, : len(made)], made, atol=1e-5)


def test_one_recording_can_be_learnt():
    model = AcousticModel(SIZES)
    example, scale = toy_row()
    batch = batch_of([example], scale, 5, 30)
    state = TrainState(model, OptimizerConfig(learning_rate=0.02, warmup_steps=5), 100)
    loss = functools.partial(acoustic_loss, model, AcousticLossConfig())

    @tf.function(autograph=False)
    def step():
        values, frame_measures = state.update(loss, batch)
        state.assign(values)
        return frame_measures

    before = {name: float(value) for name, value in step().items()}
    for _ in range(100):
        after = step()
    for name in ("mel", "duration", "pitch", "voicing"):
        assert float(after[name]) < 0.5 * before[name], name


def test_batches_are_a_function_of_seed_and_step():
    train = [toy_row(seed, 6)[0] for seed in range(5)]
    scale, config = toy_row()[1], training.SpeechConfig(batch_frames=200)

    def taken(seed, start, count):
        given = dataclasses.replace(config, seed=seed)
        stream = training.batches(train, scale, given, 8, start)
        return [next(stream)["mel"] for _ in range(count)]

    whole = taken(0, 0, 4)
    np.testing.assert_array_equal(whole[3], taken(0, 3, 1)[0])
    assert not np.array_equal(whole[3], taken(1, 3, 1)[0])


def test_harmonics_lie_where_those_of_a_tone_lie():
    mel = MelConvention(16_000, 200)
    time = np.arange(16_000) / 16_000
    tone = 0.02 * sum(np.sin(2 * np.pi * 180.0 * n * time) for n in range(1, 40))
    synthesised = mel_spectrogram(tone.astype(np.float32), mel)[40]
    low = slice(4, 40)
    assert np.corrcoef(training.pulses(180.0, mel)[low], synthesised[low])[0, 1] > 0.85
    assert np.corrcoef(training.pulses(240.0, mel)[low], synthesised[low])[0, 1] < 0.5


# The shipped voice


@needs_espeak
def test_frames_are_as_many_as_the_durations_say(any_student):
    spoken = phonemes(TEXT)
    own = voice.shipped_voice(any_student.spec)
    lengths, hidden = own.durations(spoken)
    frames = speech.text_frames(any_student, TEXT)
    assert len(lengths) == len(spoken) and lengths.min() >= 1
    assert frames.shape == (lengths.sum(), 80) and frames.dtype == np.float32
    assert np.isfinite(frames).all() and frames.min() >= 0.0 and frames.max() < 1.2
    np.testing.assert_array_equal(frames, own.mel(hidden, lengths))
    assert own.draws and is_recorded(frames)  # they have a recording's detail: refined by default
    expected = dataclasses.replace(own, spec={**own.spec, "temperature": 0.0})
    assert not is_recorded(speech.text_frames(any_student, TEXT, voice=expected))


@needs_espeak
def test_the_same_text_gives_the_same_frames_and_another_gives_others(any_student):
    first = speech.text_frames(any_student, TEXT)
    np.testing.assert_array_equal(first, speech.text_frames(any_student, TEXT))
    faster = speech.text_frames(any_student, TEXT, speed=2.0)
    assert len(faster) == pytest.approx(len(first) / 2, abs=8)
    with pytest.raises(speech.TextError, match="speed"):
        speech.text_frames(any_student, TEXT, speed=float("nan"))


@needs_espeak
def test_frames_lie_nearer_to_the_recording_than_any_other_shipped_one(any_student):
    mel = MelConvention.from_dict(any_student.spec["features"]["mel"])
    folder = wavenet_shipped.recordings_folder()
    table = (folder / "dev.tsv").read_text().splitlines()[1:]
    rows = [line.split("\t") for line in table][:4]
    recorded = []
    for row in rows:
        waveform = audio.read(folder / "dev" / row[0], mel.sample_rate_hz)
        waveform = audio.amplify(waveform, any_student.spec["gain_db"])
        recorded.append(above_silence(mel_spectrogram(waveform, mel), mel))
    for n, row in enumerate(rows):
        made = speech.text_frames(any_student, row[2])
        away = [evaluation.warped_distance_db(made, other, 100.0) for other in recorded]
        assert int(np.argmin(away)) == n


def test_a_model_of_another_convention_is_refused(student):
    mel = student.spec["features"]["mel"]
    for name, value in (("hop_samples", 300), ("sample_rate_hz", 24_000), ("scale", "htk")):
        other = {"features": {"mel": {**mel, name: value}, "f0": None}}
        with pytest.raises(UserError, match=f"`{name}` {mel[name]}; .* with {value}"):
            speech.text_frames(types.SimpleNamespace(spec=other), TEXT)
    for features, line in (
        ({"mel": None, "f0": None}, "this one does not"),
        ({"mel": mel, "f0": {"hop_samples": 200}}, "also reads F0 frames"),
        (None, "this one does not"),
    ):
        with pytest.raises(UserError, match=line):
            speech.text_frames(types.SimpleNamespace(spec={"features": features}), TEXT)


@needs_espeak
def test_a_text_that_lasts_too_long_is_refused(any_student, monkeypatch):
    monkeypatch.setattr(voice, "MAX_FRAMES", 100)
    with pytest.raises(speech.TextError, match=r"1\.(161|25) s at most"):
        speech.text_frames(any_student, TEXT)


def test_a_damaged_voice_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no voice"):
        speech.load_voice(tmp_path)
    own = voice.shipped_voice()
    train.write(tmp_path, own)
    assert speech.load_voice(tmp_path).symbols == own.symbols
    short = {name: value for name, value in own.weights.items() if name != "mel_head"}
    train.write(tmp_path, dataclasses.replace(own, weights=short))
    with pytest.raises(UserError, match="mel_head"):
        speech.load_voice(tmp_path)
    train.write(tmp_path, dataclasses.replace(own, weights={**short, "mel_head": np.ones(3)}))
    with pytest.raises(UserError, match=r"`mel_head` must hold \(96, 160\) numbers, got \(3,\)"):
        speech.load_voice(tmp_path)
    whole = (tmp_path / "weights.npz").read_bytes()
    (tmp_path / "weights.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="holds no voice"):
        speech.load_voice(tmp_path)


@pytest.mark.integration
def test_speaking_needs_numpy_alone():
    code = (
        "import sys, onepass.speech as s; s.shipped_voice();"
        "print([m for m in ('tensorflow', 'wavenet', 'distill', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_same_sound_said_slower_is_at_no_distance():
    frames = np.random.default_rng(0).random((30, 8))
    assert evaluation.warped_distance_db(frames, np.repeat(frames, 2, axis=0), 100.0) < 1e-4
    other = np.random.default_rng(1).random((30, 8))
    assert evaluation.warped_distance_db(frames, other, 100.0) > 10.0


@pytest.mark.slow
@needs_espeak
def test_the_commands_make_a_voice_that_a_model_speaks_with_and_measure_it(tmp_path, capsys):
    source, data = wavenet_shipped.recordings_folder(), tmp_path / "data"
    for split, count in (("train", 6), ("dev", 2)):
        (data / split).mkdir(parents=True)
        lines = (source / f"{split}.tsv").read_text().splitlines()[: count + 1]
        (data / f"{split}.tsv").write_text("\n".join(lines) + "\n")
        for line in lines[1:]:
            name = line.split("\t")[0]
            shutil.copy(source / split / name, data / split / name)
    loop = LoopConfig(num_steps=2, evaluate_every_steps=2)
    config = training.SpeechConfig(loop=loop, batch_frames=300)
    density = DensityConfig(channels=8, loop=loop)
    given = train.Arguments(
        data, tmp_path / "run", config, density, out=tmp_path / "voice", spoken=2
    )
    assert train.main(given) == 0
    own = speech.load_voice(tmp_path / "voice")
    assert own.config.density_channels == 8 and own.temperature == density.temperature
    model = distill.model.load("shipped")
    frames = speech.text_frames(model, "Yes.", voice=own)
    assert model.sample(condition=frames).shape == (1, len(frames) * model.front.hop_samples)
    assert len(list((tmp_path / "run" / "spoken").glob("*.wav"))) == 2
    assert "| text spoken |" in (tmp_path / "voice" / "card.md").read_text()
    capsys.readouterr()
    assert evaluate.main(evaluate.Arguments(data, voice=tmp_path / "voice", spoken=2)) == 0
    figures, stored = json.loads(capsys.readouterr().out), own.spec["quality"]["speech"]
    assert figures.keys() == stored.keys()  # measured before the weights were rounded to half
    distance = figures["warped_distance_text_db"]
    assert distance == pytest.approx(stored["warped_distance_text_db"], rel=0.02)
