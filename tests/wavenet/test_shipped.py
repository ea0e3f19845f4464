"""The shipped teacher: a trained network keeps the samplers' laws, and speaks."""

import json

import numpy as np
import pytest
import scipy.ndimage
import tensorflow as tf

from onepass.foundation import locations as shipped_models
from onepass.networks.conditions import only_timed
from onepass.samplers.native import NativeOutputs, on_machine
from wavenet import shipped
from wavenet.data import audio
from wavenet.density import Density
from wavenet.measures import log_mel_distance_db
from wavenet.model import load
from wavenet.samplers.generation import Request, generate, stream
from wavenet.samplers.symbols import SoundSymbols

SAMPLES = 200
TOLERANCE = 1e-4
NEAR = 16  # 16-bit steps that rounding a draw at a border between levels may grow to


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
def test_all_samplers_speak_the_same_waveform_on_from_speech(teacher, speech, levels, monkeypatch):
    # In float32, its own, the naive sampler's prediction is rounded otherwise than the others'.
    monkeypatch.setattr(teacher.network.conditioner.prediction, "_exact", True)
    start = 4000
    frames = teacher.front.frames(speech)[None]
    request = Request(SAMPLES, 5, (0,), frames, prime=levels[:, :start])
    reference = generate(teacher.network, request, "naive")
    for backend in ("cached", "auto"):
        other = generate(teacher.network, request, backend)
        assert np.abs(reference - other).max() <= NEAR
    parts = np.concatenate(list(stream(teacher.network, request, "auto", 64)), 1)
    np.testing.assert_array_equal(generate(teacher.network, request, "auto"), parts)


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


def test_the_fine_structure_of_the_mel_is_worth_bits(teacher, speech, levels):
    frames = teacher.front.frames(speech)
    smooth = scipy.ndimage.uniform_filter1d(frames, 9, axis=1, mode="nearest")
    density = Density(teacher.network)
    fine, rough = (density.log_prob(levels[0], each).mean() for each in (frames, smooth))
    assert (fine - rough) / np.log(2.0) > 0.1


def test_it_knows_more_than_the_linear_prediction_of_its_order(teacher):
    spec = json.loads((shipped_models.folder("shipped-teacher") / "model.json").read_text())
    untrained = spec["quality"]["untrained_predictor"]
    assert untrained["order"] == teacher.config.network.prediction_order
    measured = teacher.spec["quality"]["bits_per_sample"]
    assert measured < untrained["bits_per_sample"]["mean"] - 0.3


def test_most_units_of_its_conditioner_follow_the_frames(teacher):
    conditioner = teacher.network.conditioner
    side = conditioner.side_frames - 1 - conditioner.kernel1.shape[0] // 2
    units = []
    for path in sorted(shipped.recordings_folder().glob("dev/*.flac"))[:4]:
        frames = teacher.front.frames(audio.read(path, teacher.front.sample_rate_hz))
        mel = tf.constant(np.pad(frames, ((side, side), (0, 0)))[None])
        octaves, logit = conditioner.reader(conditioner.standardise_mel(mel))
        pitch = tf.stack([octaves, tf.sigmoid(logit)], -1)
        units.append(conditioner.compute_hidden(frames[None], pitch)[0])
    spread = np.std(np.concatenate(units), 0)
    assert np.mean(spread > 0.05 * np.median(spread)) >= 0.8


def test_its_card_says_where_it_comes_from(teacher):
    folder = shipped_models.folder("shipped-teacher")
    spec = json.loads((folder / "model.json").read_text())
    card = (folder / "card.md").read_text()
    for fact in ("CC0", spec["command"], f"{spec['step']:,} steps", spec["git_revision"]):
        assert fact in card
    assert spec["quality"]["codec"]["flac"] > spec["quality"]["bits_per_sample"]


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
