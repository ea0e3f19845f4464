"""Inverse autoregressive flows: their inverse, their determinant, their order in time."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from distill.config import StudentConfig
from distill.student import Flow, ParallelWaveNet
from onepass.likelihoods.affine import compose
from onepass.likelihoods.noise import Initial

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


def noise(batch: int = 2, time: int = TIME, seed: int = 0):
    return tf.constant(np.random.default_rng(seed).logistic(size=(batch, time)))


def test_inverse_undoes_the_flow(flow):
    z, made = noise(), flow()
    output, inverted = made.forward(z).output, tf.zeros_like(z)
    for _ in range(z.shape[1]):  # each pass settles at least one more sample
        _, location, log_scale = made.forward(inverted)
        inverted = (output - location) * tf.exp(-log_scale)
    np.testing.assert_allclose(inverted, z, atol=1e-9)


def test_log_determinant_is_that_of_the_numeric_jacobian(flow):
    z, step = noise(batch=1).numpy(), 1e-6
    made = flow()
    columns = []
    for t in range(TIME):
        up, down = z.copy(), z.copy()
        up[0, t] += step
        down[0, t] -= step
        difference = made.forward(tf.constant(up)).output - made.forward(tf.constant(down)).output
        columns.append(difference.numpy()[0] / (2 * step))
    sign, log_determinant = np.linalg.slogdet(np.stack(columns, 1))
    assert sign == 1
    own = tf.reduce_sum(made.forward(tf.constant(z)).log_scale)
    np.testing.assert_allclose(own, log_determinant, atol=1e-6)


def test_location_and_scale_depend_on_earlier_noise_only(flow):
    z = noise(batch=1)
    made = flow()
    for t in range(1, TIME):
        with tf.GradientTape() as tape:
            tape.watch(z)
            _, location, log_scale = made.forward(z)
            probe = location[0, t] + log_scale[0, t]
        gradient = tape.gradient(probe, z).numpy()[0]
        assert np.all(gradient[t:] == 0.0)
        assert gradient[t - 1] != 0.0


def test_composition_is_the_flows_one_after_another(flow):
    first, second, z = flow(1), flow(2), noise()
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
    assert float(tf.reduce_min(made.forward(noise()).log_scale)) == CONFIG.min_log_scale


CUTS = {"single samples": [(1,), (5,), (3, 4, 9)], "bunches of 4": [(4,), (8,), (4, 8)]}


@pytest.mark.parametrize(
    ("config", "cuts"), [(n, c) for n in CUTS for c in CUTS[n]], indirect=["config"]
)
def test_chunks_with_carried_past_are_the_whole(flow, config, cuts):
    made, z = flow(), noise()
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
    made, z = flow(), noise()
    whole = made.forward(z)
    for time in (1, 5, 11):
        np.testing.assert_allclose(made.forward(z[:, :time]).output, whole.output[:, :time])


def test_bunches_need_enough_of_the_past():
    with pytest.raises(ValueError, match="`front_width` must be at least 8 for bunches"):
        dataclasses.replace(CONFIG, bunch_samples=2)
