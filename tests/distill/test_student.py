"""The student: its condition, its noise, and sound that is the same in any chunk and batch."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from marks import some_slow
from students import FRAMES, HOP, student_of

from distill.model import Request, condition_between, generate, stream
from distill.student import ParallelWaveNet
from wavenet.config import WaveNetConfig
from wavenet.network import WaveNet

STEP = 1.0 / 32768.0
SAMPLES = FRAMES * HOP


def frames_of(student: ParallelWaveNet, batch: int = 1, count: int = FRAMES):
    generator = np.random.default_rng(3)
    frames = generator.random((batch, count, student.config.feature_channels), np.float32)
    # As flat as speech: rounding must not decide the linear prediction.
    return 0.6 + 0.2 * frames if student.residual else frames


def request_of(student: ParallelWaveNet, rows=(0,), **options) -> Request:
    frames = np.repeat(frames_of(student), len(rows), 0)
    return Request(**{"num_samples": SAMPLES, "rows": rows, "frames": frames, **options})


SLOW = ("plain", "residual")  # of which `tests/laws` has the law


@pytest.mark.parametrize("kind", ["residual, bunches", *some_slow(SLOW, SLOW)])
def test_sound_in_chunks_is_the_whole_within_one_step(kind):
    student = student_of(kind)
    request = request_of(student)
    whole = np.concatenate(
        list(stream(student, request, "tensorflow", SAMPLES, first_samples=SAMPLES)), 1
    )
    assert whole.shape == (1, SAMPLES)
    sizes = ((HOP, HOP), (3 * HOP, HOP), (7 * HOP + 1, 2 * HOP))
    for backend, (chunk, first) in itertools.product(("numba", "tensorflow"), sizes):
        parts = list(stream(student, request, backend, chunk, first))
        assert len(parts) > 2
        np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=STEP)


@pytest.mark.parametrize("kind", ["plain", "residual"])
def test_condition_in_stretches_is_the_whole(kind):
    student = student_of(kind)
    request = request_of(student)
    phase_cycles = tf.zeros([1], tf.float64)
    whole, _ = student.condition(tf.constant(request.frames), None, SAMPLES)
    parts, cuts = [], [0, HOP, 2 * HOP, 9 * HOP, SAMPLES - 5]
    for first, last in itertools.pairwise(cuts):
        part, phase_cycles = condition_between(student, request, first, last, phase_cycles)
        parts.append(part)
    kept = zip(zip(*map(tf.nest.flatten, parts), strict=True), tf.nest.flatten(whole), strict=True)
    for made, wanted in kept:
        if wanted is not None:
            joined = tf.concat(made, 1)
            np.testing.assert_allclose(joined, wanted[:, : joined.shape[1]], atol=1e-5)
            assert joined.shape[1] == wanted.shape[1] * cuts[-1] // SAMPLES


def test_temperature_scales_the_noise_and_zero_makes_seeds_alike():
    student = student_of("plain")
    still = [generate(student, request_of(student, seed=s, temperature=0.0)) for s in (1, 2)]
    np.testing.assert_array_equal(*still)
    spread = []
    for temperature in (0.3, 1.0):
        sounds = [
            generate(student, request_of(student, seed=s, temperature=temperature))
            for s in range(4)
        ]
        spread.append(np.std(np.array(sounds) - np.mean(sounds, 0)))
    assert spread[0] < 0.6 * spread[1]


@pytest.mark.usefixtures("eager")
def test_bfloat16_stays_close_to_float32():
    single = generate(student_of("plain"), request_of(student_of("plain")), "tensorflow")
    half_student = student_of("plain", compute_dtype="bfloat16")
    half = generate(half_student, request_of(half_student))
    assert np.abs(single - half).max() > 0
    assert np.sqrt(np.mean((single - half) ** 2)) < 0.03 * np.sqrt(np.mean(single**2))


@pytest.mark.parametrize("kind", ["speakers", "residual, bunches"])
def test_every_weight_matters_to_the_sound(kind):
    student = student_of(kind)
    speaker = tf.constant([1]) if student.config.speakers else None
    with tf.GradientTape() as tape:
        condition, _ = student.condition(tf.constant(frames_of(student)), speaker)
        drawn = student.draw(student.noise(0, [0], 0, SAMPLES), condition)
        total = tf.reduce_sum(drawn.output**2)
    kept = student.residual.conditioner.stored_variables if student.residual else ()
    for variable, gradient in zip(
        student.trainable_variables, tape.gradient(total, student.trainable_variables), strict=True
    ):
        if any(variable is other for other in kept):
            continue
        assert np.any(tf.convert_to_tensor(gradient).numpy() != 0.0), variable.name


def test_conditioner_starts_as_the_teachers_in_its_first_channels():
    config = student_of("plain").config
    student = ParallelWaveNet(config)
    few = config.condition_channels - 2
    teacher = WaveNet(
        WaveNetConfig(
            layers=2,
            stacks=1,
            feature_channels=config.feature_channels,
            condition_channels=few,
            upsample_factors=config.upsample_factors,
        ),
        seed=5,
    )
    student.start_from(teacher.upsampler)
    frames = tf.constant(frames_of(student))
    ours, theirs = student.upsampler(frames), teacher.upsampler(frames)
    np.testing.assert_allclose(ours[..., :few], theirs, atol=1e-5)
    with pytest.raises(ValueError, match="`teacher_upsampler` must have this student's frames"):
        student_of("speakers", upsample_factors=(2, 2)).start_from(teacher.upsampler)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(num_samples=0), "`num_samples` must be at least 1"),
        (dict(temperature=-1.0), "`temperature` must be at least 0"),
        (dict(num_samples=SAMPLES + 1), "`frames` must cover"),
        (dict(frames=None), r"must be a dict with frames: float32 .*, got none"),
        (dict(speaker=np.array([0])), "got frames, speaker"),
    ],
)
def test_wrong_requests_are_named(change, message):
    student = student_of("plain")
    with pytest.raises(ValueError, match=message):
        generate(student, request_of(student, **change))
