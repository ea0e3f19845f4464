"""The student: its condition, its noise, and sound that is the same in any chunk and batch."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from students import FRAMES, HOP, student_of

from distill.config import StudentConfig
from distill.model import Request, condition_between, generate, stream
from distill.student import Flow, ParallelWaveNet
from onepass.likelihoods.affine import compose
from onepass.likelihoods.noise import Initial
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


def test_sound_in_chunks_is_the_whole_within_one_step():
    student = student_of("residual, bunches")  # tests/laws has the others
    request = request_of(student)
    chunks = list(stream(student, request, "tensorflow", SAMPLES, first_samples=SAMPLES))
    whole = np.concatenate(chunks, 1)
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
    student, spread = student_of("plain"), []
    for heat in (0.0, 0.3, 1.0):
        requests = [request_of(student, seed=seed, temperature=heat) for seed in range(4)]
        sounds = np.array([generate(student, request) for request in requests])
        spread.append(np.std(sounds - np.mean(sounds, 0)))
    assert spread[0] < 1e-9 < spread[1] < 0.6 * spread[2]


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
    kept, variables = {variable.ref() for variable in kept}, student.trainable_variables
    for variable, gradient in zip(variables, tape.gradient(total, variables), strict=True):
        moves = np.any(tf.convert_to_tensor(gradient).numpy() != 0.0)
        assert moves or variable.ref() in kept, variable.name


def test_conditioner_starts_as_the_teachers_in_its_first_channels():
    student = ParallelWaveNet(student_of("plain").config)
    shared = ("feature_channels", "upsample_factors")
    fields = {name: getattr(student.config, name) for name in shared}
    few = student.config.condition_channels - 2
    teacher = WaveNet(WaveNetConfig(layers=2, stacks=1, condition_channels=few, **fields), seed=5)
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


CONFIG = StudentConfig(
    flows=(2, 3),
    filter_width=2,
    residual_channels=6,
    gate_channels=5,
    front_width=3,
    initial_scale=0.3,
    compute_dtype="float64",
)
TIME = 12
CONFIGS = {
    "single samples": CONFIG,
    "bunches of 4": dataclasses.replace(CONFIG, bunch_samples=4, front_width=9),
}


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


@pytest.fixture
def flow(config):
    """Makes a flow of a seed."""

    def flow(seed: int = 0) -> Flow:
        return lively(Flow(config, Initial(seed), layers=3), seed)

    return flow


def lively(module: tf.Module, seed: int):
    """The module with heads large enough for location and scale to move."""
    generator = np.random.default_rng(seed)
    for variable in module.variables:
        if "head2_kernel" in variable.name:
            variable.assign(generator.normal(0, 0.5, variable.shape))
    return module


def noise_of(batch: int = 2, time: int = TIME, seed: int = 0):
    return tf.constant(np.random.default_rng(seed).logistic(size=(batch, time)))


def test_log_determinant_is_that_of_the_triangular_jacobian(flow):
    z, made = noise_of(batch=1), flow()
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(z)
        drawn = made.forward(z)
    output, *others = (tape.jacobian(part, z)[0, :, 0].numpy() for part in drawn)
    np.testing.assert_allclose(np.diag(output), np.exp(drawn.log_scale[0]), atol=1e-9)
    for each in others:  # location and log-scale, which read earlier noise alone
        np.testing.assert_array_equal(np.triu(each), 0.0)
    assert np.all(np.abs(others).sum(0).diagonal(-1) > 0.0)


def test_composition_is_the_flows_one_after_another(flow):
    first, second, z = flow(1), flow(2), noise_of()
    one = first.forward(z)
    two = second.forward(one.output)
    whole = compose([one, two])
    np.testing.assert_allclose(whole.output, two.output)
    np.testing.assert_allclose(z * tf.exp(whole.log_scale) + whole.location, two.output, atol=1e-12)


def test_total_scale_of_an_untrained_student_is_the_initial_one(config):
    student = ParallelWaveNet(config)
    z = student.noise(0, tf.range(4), 0, 400)
    scale = tf.exp(student.draw(z).log_scale)
    assert abs(float(tf.reduce_mean(scale)) - CONFIG.initial_scale) < 0.3 * CONFIG.initial_scale


def test_log_scale_is_bounded_below(flow):
    made = flow()
    made.head2_bias.assign([0.0, -100.0])
    assert float(tf.reduce_min(made.forward(noise_of()).log_scale)) == CONFIG.min_log_scale


CUTS = {"single samples": [(1,), (5,), (3, 4, 9)], "bunches of 4": [(4,), (8,), (4, 8)]}


@pytest.mark.parametrize(
    ("config", "cuts"), [(n, c) for n in CUTS for c in CUTS[n]], indirect=["config"]
)
def test_chunks_with_carried_past_are_the_whole(flow, config, cuts):
    made, z = flow(), noise_of()
    whole, past, parts = made.forward(z), made.empty_past(2), []
    for start, end in zip((0, *cuts), (*cuts, TIME), strict=True):
        part, past = made(z[:, start:end], None, past)
        parts.append(part.output)
    np.testing.assert_allclose(tf.concat(parts, 1), whole.output, atol=1e-12)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("flows", (), "at least one"),
        ("flows", (3, 0), "at least 1 layer each"),
        ("filter_width", 4, "2 or 3"),
        ("initial_scale", 0.0, "above 0"),
        ("frame_width", 4, "odd"),
        ("bunch_samples", 0, "at least 1"),
    ],
)
def test_impossible_students_are_refused_by_name(field, value, rule):
    with pytest.raises(ValueError, match=f"`{field}` must be {rule}"):
        StudentConfig(**{field: value})


def test_a_sound_may_end_within_a_bunch(flow):
    made, z = flow(), noise_of()
    whole = made.forward(z)
    for time in (1, 5, 11):
        np.testing.assert_allclose(made.forward(z[:, :time]).output, whole.output[:, :time])


def test_bunches_need_enough_of_the_past():
    with pytest.raises(ValueError, match="`front_width` must be at least 8 for bunches"):
        dataclasses.replace(CONFIG, bunch_samples=2)
