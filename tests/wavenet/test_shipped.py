"""The shipped teacher: a trained network keeps the samplers' laws, and speaks."""

import json

import numpy as np
import pytest
import tensorflow as tf

from onepass.foundation import model_folders as shipped_models
from onepass.networks.conditions import only_timed
from onepass.samplers.native import NativeOutputs, on_machine
from wavenet import shipped
from wavenet.data import audio
from wavenet.measures import log_mel_distance_db
from wavenet.model import load
from wavenet.samplers.symbols import SoundSymbols

SAMPLES = 200
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def teacher():
    return load("shipped-teacher")


@pytest.fixture(scope="module")
def speech(teacher):
    """A shipped dev recording at the teacher's rate, from where the voice begins."""
    path = sorted(shipped.recordings_folder().glob("dev/*.flac"))[0]
    return audio.read(path, teacher.front.sample_rate_hz)[: teacher.front.sample_rate_hz]


@pytest.fixture(scope="module")
def levels(teacher, speech):
    amplified = tf.constant(audio.amplify(speech, teacher.front.gain_db))
    return teacher.network.codec.encode(amplified).numpy()[None]


def test_cached_conditionals_equal_teacher_forced_ones_on_speech(teacher, speech, levels):
    network, samples = teacher.network, 4000 + SAMPLES
    condition = network.condition(tf.constant(teacher.front.frames(speech)[None]))[:, :samples]
    inputs = network.inputs(tf.constant(levels[:, :samples]))
    whole = network(inputs, condition)
    given = only_timed(condition)
    steps = on_machine(NativeOutputs, SoundSymbols(network), network.likelihood)
    state = steps.begin(1, samples, given)
    delayed = tf.concat([state.of_one["input"], inputs[:, :-1]], 1)
    cached, _ = steps.outputs(delayed, given, state)
    np.testing.assert_allclose(cached, whole, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.slow
def test_it_speaks_at_the_level_and_with_the_spectrum_of_recordings(teacher):
    mel = teacher.config.data.mel(teacher.config.network.hop_samples)
    generator, levels_db, distances = np.random.default_rng(0), [], []
    for path in sorted(shipped.recordings_folder().glob("dev/*.flac"))[:4]:
        speech = audio.read(path, teacher.front.sample_rate_hz)
        sound = teacher.sample(condition=teacher.front.frames(speech), length=len(speech))[0]
        noise = generator.normal(0, np.std(speech), len(speech)).astype(np.float32)
        distances.append([log_mel_distance_db(x, speech, mel) for x in (sound, noise)])
        levels_db.append(audio.rms_db(sound) - audio.rms_db(speech))
        assert np.mean(np.abs(sound) >= audio.FULL_SCALE) == 0.0
    spoken, noisy = np.mean(distances, 0)
    assert spoken < 0.3 * noisy
    assert abs(np.mean(levels_db)) < 0.5


def test_its_card_says_where_it_comes_from(teacher):
    folder = shipped_models.folder("shipped-teacher")
    spec = json.loads((folder / "model.json").read_text())
    card = (folder / "card.md").read_text()
    for fact in ("CC0", spec["command"], f"{spec['step']:,} steps", spec["git_revision"]):
        assert fact in card
    quality, bits = spec["quality"], spec["quality"]["bits_per_sample"]
    assert quality["codec"]["flac"] > bits
    assert quality["untrained_predictor"]["bits_per_sample"]["mean"] > bits + 0.3


def test_the_universal_teacher_reads_the_mel_of_hifigan():
    mel = load("shipped-universal-teacher").spec["features"]["mel"]
    assert (mel["sample_rate_hz"], mel["hop_samples"], mel["bands"]) == (22_050, 256, 80)
    assert (mel["high_hz"], mel["log"], mel["padding"]) == (8_000.0, "natural", "reflect")


def test_of_two_voices_each_is_likelier_under_its_own_name():
    model = load("shipped-two-voices")
    assert model.front.speakers == ("kathleen", "nathalie")
    path = sorted(shipped.recordings_folder().glob("dev/*.flac"))[0]
    speech = audio.read(path, model.front.sample_rate_hz)[: model.front.sample_rate_hz]
    frames = model.front.frames(speech)
    own, other = (
        np.mean(model.log_prob(speech, frames, speaker=name)) for name in model.front.speakers
    )
    assert own > other
    card = (shipped_models.folder("shipped-two-voices") / "card.md").read_text()
    assert "| | kathleen | nathalie |" in card
