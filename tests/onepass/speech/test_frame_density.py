"""Frames that are drawn have the log-density of their noise, and depend on earlier ones alone."""

import dataclasses
import types

import numpy as np
import pytest
import tensorflow as tf

from onepass import speech
from onepass.replicator.training.config import LoopConfig
from onepass.speech import density_training, frame_density, train, voice
from onepass.speech.density_training import LOG_ROOT, DensityConfig, FrameDensity
from onepass.speech.examples import Example
from onepass.speech.network import Networks, VoiceConfig, positions
from onepass.speech.phonemes import START, STOP, Phoneme

FRAMES, BANDS = 12, 80
CONFIG = VoiceConfig(6, BANDS, density_channels=10, density_layers=2, density_past=3)
LENGTHS = np.array([5, 7])


def arrays(seed=0):
    """Expected frames, pitch, positions, noise."""
    random = np.random.default_rng(seed)
    made = [random.normal(size=(FRAMES, size)).astype(np.float32) for size in (BANDS, 2, BANDS)]
    return made[0], made[1], positions(LENGTHS), made[2]


@pytest.fixture(scope="module")
def weights():
    random = np.random.default_rng(1)
    differences = random.normal(size=(400, BANDS)) @ random.normal(size=(BANDS, BANDS)) + 0.3
    fixed = frame_density.statistics(differences.astype(np.float32))
    flat = (differences - fixed["density_shift"]) @ fixed["density_whiten"]
    np.testing.assert_allclose(np.cov(flat.T), np.eye(BANDS), atol=1e-3)
    learnt = frame_density.initial_density(CONFIG, seed=2)
    return {**learnt, **fixed}


def batch_of(whitened, expected, pitch, where):
    batch = {"whitened": whitened, "expected": expected, "pitch": pitch, "positions": where}
    return {name: tf.constant(value[None], tf.float32) for name, value in batch.items()}


def density_of(weights):
    density = FrameDensity(CONFIG)
    for name, variable in density.weights.items():
        variable.assign(weights[name])
    return density


def test_drawn_frames_have_the_log_density_of_their_noise(weights):
    expected, pitch, where, noise = arrays()
    networks = Networks(np, CONFIG, weights)
    found = frame_density.draw_differences(networks, expected, pitch, where, noise)
    flat = (found - weights["density_shift"]) @ weights["density_whiten"]
    nats = density_of(weights).nats(batch_of(flat, expected, pitch, where))[0]
    known = frame_density.context(networks, expected, pitch, where)
    padded = np.pad(flat, ((3, 0), (0, 0)))
    past = np.concatenate([padded[3 - k : 3 - k + FRAMES] for k in (1, 2, 3)], 1)
    _, log_scales = frame_density.conditional(networks, past, known)
    of_noise = np.sum(0.5 * noise**2 + LOG_ROOT, -1)
    np.testing.assert_allclose(nats, of_noise + log_scales.sum(-1), rtol=1e-3)


def test_a_frame_depends_on_earlier_frames_alone(weights):
    expected, pitch, where, whitened = arrays(3)
    batch = batch_of(whitened, expected, pitch, where)
    density = density_of(weights)
    with tf.GradientTape() as tape:
        tape.watch(batch["whitened"])
        nats = density.nats(batch)[0, 6]
    gradient = np.abs(tape.gradient(nats, batch["whitened"])[0]).max(-1)
    assert (gradient[3:7] > 0).all() and not gradient[:3].any() and not gradient[7:].any()


def test_batches_from_a_step_on_are_those_of_an_uninterrupted_run():
    random = np.random.default_rng(0)
    rows = [{"whitened": random.normal(size=(n, 3)), "mask": np.ones(n)} for n in (20, 45, 70)]
    config = DensityConfig(clips=2, clip_frames=30)
    every = density_training.batches(rows, config)
    later = density_training.batches(rows, config, start_step=2)
    first, _, third = next(every), next(every), next(every)
    resumed = next(later)
    np.testing.assert_array_equal(resumed["whitened"], third["whitened"])
    assert not np.array_equal(first["whitened"], third["whitened"])
    assert first["whitened"].shape[1] <= 30 and first["mask"].sum() > 30


def recording(seed):
    random = np.random.default_rng(seed)
    spoken = (Phoneme(START, clause=STOP), Phoneme("a", clause=STOP), Phoneme(STOP, clause=STOP))
    steps = np.cumsum(random.normal(0.0, 0.02, (40, BANDS)), 0)
    mel = (0.5 + steps).astype(np.float32)
    return Example(str(seed), "a", spoken, np.array([5, 30, 5]), mel, np.zeros([40, 2], np.float32))


def test_training_lowers_the_nats_and_the_voice_keeps_the_density(tmp_path, capsys):
    shipped = dataclasses.replace(voice.shipped_voice())
    fixed = {name: shipped.weights[name] for name in ("harmonics", "mel_mean", "mel_std")}
    silence = np.zeros(BANDS, np.float32)
    scale = types.SimpleNamespace(
        symbols=shipped.symbols, weights=fixed, table=shipped.spec["harmonics"], silence=silence
    )
    seen = [recording(n) for n in range(6)]
    examples = {"train": seen, "dev": seen[:2]}
    loop = LoopConfig(num_steps=60, evaluate_every_steps=30, report_every_steps=10)
    config = DensityConfig(channels=8, layers=1, past=2, clips=4, clip_frames=30, loop=loop)
    plain = dataclasses.replace(
        shipped,
        config=dataclasses.replace(shipped.config, density_channels=0),
        spec={**shipped.spec, "temperature": 0.0},
    )
    made, outcome = density_training.train_density(plain, examples, scale, config, tmp_path / "run")
    assert outcome.step == 60 and outcome.best_score < 1.3  # white noise has 1.42
    trained = {"steps": 60, "training_seconds": 1, "machine": "one", "command": "x"}
    train.write(
        tmp_path / "voice", dataclasses.replace(made, spec={**made.spec, "density": trained})
    )
    stored = speech.load_voice(tmp_path / "voice")
    hidden = np.random.default_rng(0).normal(size=(2, 96)).astype(np.float32)
    pitch = np.zeros([12, 2], np.float32)
    drawn = stored.mel(hidden, LENGTHS, pitch)
    np.testing.assert_array_equal(drawn, stored.mel(hidden, LENGTHS, pitch))
    cold, expected = stored.mel(hidden, LENGTHS, pitch, 0.0), plain.mel(hidden, LENGTHS, pitch)
    np.testing.assert_allclose(cold, expected, atol=2e-3)  # weights are stored as float16
    assert np.abs(drawn - cold).max() > 0.01
