"""Discriminators: each player's gradient is its own, and shares of a batch agree."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from runs import NEVER, assert_same, newest, silent, speech, unevaluated, wavenet_run

from distill import training
from distill.config import ClipConfig, DiscriminatorConfig, DistillConfig, LossConfig, StudentConfig
from distill.losses.discriminators import Discriminators
from distill.teacher import load_teacher
from onepass.foundation.metrics import read_metrics
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.state import TrainState, compile_step
from onepass.replicator.training.training_run import train

SMALL = DiscriminatorConfig(spectra=(64, 128), periods=(3,), channels=4)


def sounds(seed: int, rows: int = 4, samples: int = 600) -> tf.Tensor:
    """Noise in [-0.5, 0.5], float32 [rows, samples]."""
    draw = np.random.default_rng(seed).uniform(-0.5, 0.5, [rows, samples])
    return tf.constant(draw, tf.float32)


@pytest.fixture(scope="module")
def discriminators():
    return Discriminators(SMALL, seed=3)


def test_each_loss_gives_a_gradient_to_its_own_player_alone(discriminators):
    sound, recorded, weights = sounds(0), sounds(1), list(discriminators.trainable_variables)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(sound)
        adversarial, matching, scoring = discriminators.losses(sound, recorded)
    for loss in (adversarial, matching):
        assert tf.reduce_any(tape.gradient(loss, sound) != 0.0)
        assert all(gradient is None for gradient in tape.gradient(loss, weights))
    assert tape.gradient(scoring, sound) is None
    assert all(tf.reduce_any(g != 0.0) for g in tape.gradient(scoring, weights))


@pytest.mark.parametrize("shares", [2, 4])
def test_the_mean_of_shares_is_the_loss_of_the_batch(discriminators, shares):
    sound, recorded = sounds(0), sounds(1)
    pairs = zip(tf.split(sound, shares), tf.split(recorded, shares), strict=True)
    parts = np.mean([discriminators.losses(*pair) for pair in pairs], 0)
    np.testing.assert_allclose(parts, discriminators.losses(sound, recorded), rtol=1e-5)


class _Scaled(tf.Module):
    """A student of one weight: noise times a gain."""

    def __init__(self):
        super().__init__(name="scaled")
        self.gain = tf.Variable(0.1)


def test_one_update_moves_both_players_and_they_learn_from_each_other():
    student, critics = _Scaled(), Discriminators(SMALL)
    optimizer = OptimizerConfig(learning_rate=1e-2, warmup_steps=1, decay="constant")
    state = TrainState(student, optimizer, 60, opponent=critics)
    recorded, noise = sounds(1), sounds(0)

    def loss(batch):
        adversarial, matching, scoring = critics.losses(student.gain * batch, recorded)
        return adversarial + matching + scoring, {"scoring": scoring}

    step = compile_step(state, loss, jit_compile=False)
    rated = [float(step(noise)["scoring"]) for _ in range(60)]
    assert min(rated) < 0.8 * rated[0]  # the critics tell quiet noise from loud
    assert float(student.gain) > 0.2  # and the student grows louder


STUDENT = StudentConfig(
    flows=(1, 2), filter_width=2, residual_channels=4, gate_channels=4, front_width=4,
    sample_rate_hz=16_000,
)  # fmt: skip
# A small distillation against discriminators, which count from its second update on.
CONFIG = DistillConfig(
    STUDENT,
    LossConfig(draws=2, adversarial=1.0, matching=2.0, adversarial_after=2),
    ClipConfig(clip_samples=2560, batch_size=2),
    OptimizerConfig(learning_rate=1e-2, warmup_steps=3),
    LoopConfig(num_steps=4, report_every_steps=1, evaluate_every_steps=NEVER),
    discriminators=SMALL,
)


@pytest.fixture
def distil(tmp_path):
    """Distils into a folder, with nothing evaluated."""

    def distil(name: str, config: DistillConfig):
        run = wavenet_run("tiny")
        recipe = training.StudentRecipe("tiny", config, speech(), load_teacher(run), run)
        with unevaluated():
            train(recipe, tmp_path / name, silent)
        return tmp_path / name

    return distil


@pytest.mark.slow
def test_a_resumed_run_against_discriminators_is_the_uninterrupted_one(distil):
    part = dataclasses.replace(CONFIG.loop, num_steps=2)
    distil("resumed", dataclasses.replace(CONFIG, loop=part))
    resumed, whole = distil("resumed", CONFIG), distil("whole", CONFIG)
    arrays = newest(whole)
    assert any(name.startswith("weights/opponent/") for name in arrays)
    assert_same(newest(resumed), arrays)
    logged = [line for line in read_metrics(whole) if "adversarial" in line]
    assert all(line["discriminator"] > 0.0 for line in logged) and len(logged) == 4


@pytest.mark.slow
def test_a_student_starts_from_another_ones_weights(distil):
    first = distil("first", CONFIG)
    steady = dataclasses.replace(CONFIG.optimizer, learning_rate=1e-9)
    brief = dataclasses.replace(CONFIG.loop, num_steps=1)
    start = dataclasses.replace(CONFIG, optimizer=steady, start_from=str(first), loop=brief)
    second = newest(distil("second", start))
    for name, value in newest(first).items():
        if name.startswith("average/") and "opponent" not in name:
            np.testing.assert_allclose(second[name], value, atol=1e-6)
