"""Drafts of a student, verified by its teacher, have the teacher's law."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from marks import some_slow
from networks import moved
from scipy.stats import chi2
from students import MEL, student_of
from vocoders import SMALL, vocoder_with

from distill.config import StudentConfig
from distill.model import SoundDraft, sound_draft
from distill.student import ParallelWaveNet
from onepass.foundation.rules import UserError
from onepass.likelihoods import LogisticMixture, codec, noise
from onepass.samplers.speculative import (
    Address,
    SymbolDistributions,
    accept_proposals,
    draw_residuals,
)
from wavenet.config import WaveNetConfig
from wavenet.front import PassCount, Request
from wavenet.network import WaveNet
from wavenet.samplers.generation import SpeculativeSampler, generate

LEVELS, TIME, ROWS = 4, 3, 4000


def sampler_of(student, network, block_samples=64, rule="rejection"):
    """A sampler without XLA, which takes longer to compile than these sounds to make."""
    draft = SoundDraft(student, network.codec)
    sampler = SpeculativeSampler(network, draft, rule, block_samples)
    sampler._block = tf.function(sampler.block, autograph=False)
    return sampler


@pytest.fixture(scope="module")
def teacher():
    config = WaveNetConfig(
        levels=LEVELS, layers=2, stacks=1, filter_width=2, residual_channels=4, gate_channels=4,
        skip_channels=4, components=2, min_log_scale=-0.7,
    )  # fmt: skip
    return moved(WaveNet(config, 3), 0.3, 7)


@pytest.fixture(scope="module")
def joint(teacher):
    """The teacher's probability of every sound of TIME samples, by enumeration."""
    sounds = np.array(list(itertools.product(range(LEVELS), repeat=TIME)), np.int32)
    parameters = teacher(teacher.inputs(tf.constant(sounds)))
    return np.exp(teacher.likelihood.log_prob(parameters, sounds).numpy().sum(1))


def student_with(**fields):
    small = dict(filter_width=2, residual_channels=4, gate_channels=4, initial_scale=0.6)
    return moved(ParallelWaveNet(StudentConfig(flows=(1, 1), **small, **fields)), 0.2, 8)


def fits(drawn, probabilities):
    """Return the probability of so large a chi-square, of sounds [rows, time]."""
    number = drawn @ (LEVELS ** np.arange(drawn.shape[1])[::-1])
    counts = np.bincount(number, minlength=len(probabilities))
    expected = len(drawn) * probabilities
    return chi2.sf(np.sum((counts - expected) ** 2 / expected), len(probabilities) - 1)


@pytest.mark.parametrize("kind", some_slow(["logistic", "normal"], ("normal",)))
def test_the_joint_law_is_the_teachers(teacher, joint, kind):
    student, rows = student_with(noise=kind), tuple(range(ROWS))
    count = PassCount()
    blocks = sampler_of(student, teacher, 4).stream(Request(TIME, 5, rows), count)
    assert joint.sum() == pytest.approx(1.0, abs=1e-5) and joint.min() * ROWS > 1.0
    assert fits(np.concatenate(list(blocks), 1), joint) > 0.01
    assert 0.2 < count.acceptance < 0.8
    alone = student.draw(student.noise(5, rows, 0, TIME)).output
    assert fits(codec.nearest(alone, LEVELS).numpy(), joint) < 1e-9


# Of the first 24 samples by rejection.
LEVELS_OF_VERSION_0_2 = [
    *(16, 0, 15, 0, 0, 0, 0, 29, 1, 37, 63, 8, 0, 0, 56, 17, 0, 0, 27, 0, 28, 22, 55, 0),
]


def test_levels_by_rejection_are_those_of_version_0_2(teacher):
    network = moved(WaveNet(dataclasses.replace(teacher.config, levels=64), 3), 0.3, 7)
    parts = sampler_of(student_with(), network, 8).stream(Request(24, 5, (0,)), PassCount())
    assert np.concatenate(list(parts), 1)[0].tolist() == LEVELS_OF_VERSION_0_2


def test_one_redrawn_level_has_the_law_of_the_target():
    likelihood, rows = LogisticMixture(LEVELS, 1, -5.0), tf.range(20_000)
    q, p = (
        SymbolDistributions(likelihood, tf.tile([[[0.0, mean, scale]]], [len(rows), 1, 1]))
        for mean, scale in ((0.4, -1.0), (-0.2, -0.5))
    )
    drawn = likelihood.sample(q.parameters, likelihood.noise(1, rows, 0, 1))
    address = Address(noise.as_key(2), rows, tf.zeros_like(rows))
    kept = accept_proposals(drawn, q, p, address)[:, 0]
    first = tf.zeros_like(rows)
    fresh = draw_residuals(q.at(first), p.at(first), address, ~kept)
    law = np.exp([p.at(first).log_prob(first + level)[0].numpy() for level in range(LEVELS)])
    assert fits(np.where(kept, drawn[:, 0], fresh)[:, None], law) > 0.01
    assert fits(drawn.numpy(), law) < 1e-9
    assert accept_proposals(drawn, p, p, address).numpy().all()


@pytest.fixture(scope="module")
def pair():
    """A vocoder of bunches, and a student that makes residuals of the same frames in bunches."""
    config = dict(feature_channels=7, upsample_factors=(20,), levels=256)
    config |= dict(prediction_order=4, pitch_taps=3, bunch_samples=4, components=2)
    student = student_of("residual, bunches", initial_scale=0.3)
    return student, vocoder_with(WaveNetConfig(**(SMALL | config)), MEL)


def frames_of(rows):
    frames = 0.5 + 0.1 * noise.normal(2, [0, 1], 0, 5 * 7)[..., 0].numpy().reshape(2, 5, 7)
    return frames[list(rows)]


@pytest.mark.slow
def test_the_sound_is_the_same_for_every_block_and_batch(pair):
    sounds = []
    for block_samples, rows in ((20, (0, 1)), (60, (1,))):
        count = PassCount()
        request = Request(90, 4, rows, frames_of(rows))
        parts = list(sampler_of(*pair, block_samples).stream(request, count))
        assert 0.1 < count.acceptance < 1.0 and count.samples_per_pass > 1.0
        sounds.append(np.concatenate(parts, 1))
    np.testing.assert_array_equal(sounds[1], sounds[0][1:])
    assert len(np.unique(sounds[0])) > 20


def test_coupled_sound_is_that_of_the_other_samplers(pair):
    request = Request(50, 4, (0, 1), frames_of((0, 1)), temperature=0.7)
    drawn = list(sampler_of(*pair, 20, "coupling").stream(request, PassCount()))
    np.testing.assert_array_equal(np.concatenate(drawn, 1), generate(pair[1], request))


def loaded(network, **spec):
    """A loaded model, as far as drafting asks it: its network and its spec."""
    same = dict(kind="wavenet", sample_rate_hz=4000, hop_samples=20, gain_db=0.0)
    same |= {"features": {}, "speakers": []}
    return SimpleNamespace(network=network, spec=same | spec)


def test_what_cannot_be_drafted_is_refused(pair, teacher):
    student, vocoder = pair
    softmax = WaveNet(dataclasses.replace(teacher.config, likelihood="categorical"))
    spec, other = loaded(student).spec, loaded(student, sample_rate_hz=8000).spec
    frames = np.zeros([1, 2, 7], np.float32)

    def drawn(**given):
        return next(sampler_of(*pair).stream(Request(8, frames=frames, **given), PassCount()))

    for call, line in (
        (lambda: sound_draft(student, spec, loaded(softmax)), "WaveNet with a density, this one"),
        (lambda: sound_draft(student, other, loaded(vocoder)), "`sample_rate_hz`, 4000; it has 8"),
        (lambda: sound_draft(student, spec, vocoder), "as `load` returns it, not for a VocoderWa"),
        (lambda: drawn(temperature=0.5), "temperature must be 1 for drafts"),
        (lambda: drawn(prime=np.zeros([1, 4], np.int32)), "`prefix` must be None for drafts"),
    ):
        with pytest.raises(UserError, match=line):
            call()
