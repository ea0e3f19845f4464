"""`distill` with teachers that the library has never seen."""

import functools
import shutil

import hostile_graphs
import made_once
import numpy as np
import pytest
import tensorflow as tf
from runs import eagerly

import onepass
from distill.any_teacher import ModelTeacher, distill, flow_student
from distill.flow_student import FlowStudent
from distill.losses.divergence import KL
from distill.losses.terms import Compared
from onepass.bundles.manifest import write_manifest
from onepass.foundation.errors import UserError
from onepass.likelihoods import Categorical, Gaussian, LogisticMixture
from onepass.likelihoods.codec import MuLaw
from onepass.model import Autoregressive
from onepass.replicator.training.config import OptimizerConfig
from onepass.storage import load, save

FAST = OptimizerConfig(learning_rate=3e-2, warmup_steps=2, average_decay=0.0)
SILENCE = np.zeros([4, 24], np.float32)


class Echo(tf.Module):
    """A teacher whose mean is half of the element before, with a scale of exp(-2)."""

    def __init__(self, condition_channels=0):
        super().__init__()
        self.gain = tf.Variable(0.5)
        self.condition_channels = condition_channels

    def __call__(self, x, *condition):
        mean = self.gain * x + (0.1 * condition[0] if condition else 0.0)
        return tf.concat([mean, tf.zeros_like(mean) - 2.0], -1)


class Affine(tf.Module):
    """A flow whose mean is a gain times the noise before."""

    def __init__(self):
        super().__init__()
        self.gain, self.log_scale = tf.Variable(0.0), tf.Variable(-1.0)

    def __call__(self, z, *condition):
        offset = self.gain * condition[0] if condition else 0.0
        return tf.concat([self.gain * z + offset, tf.zeros_like(z) + self.log_scale], -1)


def test_a_student_of_gaussian_conditionals_comes_to_the_teacher():
    teacher = Autoregressive(Echo(), Gaussian(levels=256))
    flow = Affine()
    student = FlowStudent([flow], teacher.codec, noise="normal")
    assert distill(teacher, SILENCE, student=student, steps=150, optimizer=FAST) is student
    # x_t = s z_t + g z_(t-1) is the mean of the teacher where g = s / 2.
    assert float(flow.log_scale) == pytest.approx(-2.0, abs=0.15)
    assert float(flow.gain) == pytest.approx(0.5 * np.exp(-2.0), abs=0.03)
    assert float(teacher.network.gain) == 0.5


@functools.cache
def exported():
    """The bundle of a teacher, which is read and never written."""
    live = Autoregressive(Echo(), Gaussian(levels=256))
    return onepass.export(live, made_once.own_folder() / "echo" / "1", length=24)


def two_logistics(x):
    """The network of a mixture whose components are alike."""
    means = tf.concat([0.5 * x, 0.5 * x], -1)
    return tf.concat([tf.zeros_like(means), means, tf.zeros_like(means) - 3.0], -1)


@pytest.mark.parametrize(
    ("network", "distribution", "noise"),
    [
        (Echo(), Gaussian(levels=256), "normal"),
        pytest.param(
            *(two_logistics, LogisticMixture(levels=256, components=2), "logistic"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_stored_model_is_a_teacher_without_its_code(network, distribution, noise, tmp_path):
    live = Autoregressive(network, distribution)
    stored = load(save(live, tmp_path / "saved"))
    if noise == "normal":
        bundle = onepass.load(exported())
    else:
        bundle = onepass.load(onepass.export(live, tmp_path / "mine" / "1", length=24))
    flows = []
    for teacher in (live, stored, bundle):
        flows.append(Affine())
        student = FlowStudent([flows[-1]], live.codec, noise=noise)
        with eagerly():
            distill(teacher, SILENCE, student=student, steps=10, optimizer=FAST)
    first, *others = [(float(flow.gain), float(flow.log_scale)) for flow in flows]
    assert first[0] != 0.0
    for other in others:
        assert other == pytest.approx(first, 1e-4)


def changed(folder):
    shutil.rmtree(folder / "autoregressive")
    return "holds no model, only its sampler"


def hostile(folder):
    hostile_graphs.edit(folder / "autoregressive", folder, "reading")
    return "disallowed operation: ReadFile"


@pytest.mark.parametrize("change", [changed, hostile])
def test_the_model_of_a_bundle_is_scanned_before_it_runs(change, tmp_path):
    folder = shutil.copytree(exported(), tmp_path / "mine" / "1")
    line = change(folder)
    with pytest.raises(UserError, match="was changed since its export"):
        onepass.load(folder)
    write_manifest(folder)
    with pytest.raises(UserError, match=line):
        distill(onepass.load(folder), SILENCE, steps=1)


def test_the_bundle_of_a_student_is_no_teacher(tmp_path):
    student = FlowStudent([Affine()], MuLaw(16))
    bundle = onepass.load(onepass.export(student, tmp_path / "mine" / "1", length=24))
    with pytest.raises(UserError, match="holds no model, only its sampler"):
        distill(bundle, SILENCE, steps=1)


def test_a_mixture_is_a_teacher_by_draws():
    flow = Affine()
    teacher = Autoregressive(two_logistics, LogisticMixture(levels=256, components=2))
    student = FlowStudent([flow], teacher.codec)
    distill(teacher, SILENCE, student=student, steps=120, loss=[KL(draws=8)], optimizer=FAST)
    assert float(flow.log_scale) == pytest.approx(-3.0, abs=0.3)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("dtype", [tf.float64, tf.bfloat16])
def test_a_teacher_that_computes_in_another_type_has_the_density_of_one_in_float32(dtype):
    def outputs(x):
        return tf.concat([0.5 * x, tf.zeros_like(x) - 2.0], -1)

    spec = tf.TensorSpec([None, None, 1], dtype)
    other = Autoregressive(outputs, Gaussian(levels=256), inputs=spec)
    values = tf.constant([[0.5, -0.25, 0.125]])
    found = ModelTeacher(other).conditionals(values, None).log_density(values)
    plain = ModelTeacher(Autoregressive(outputs, Gaussian(levels=256)))
    np.testing.assert_allclose(found, plain.conditionals(values, None).log_density(values), 1e-6)
    with eagerly():
        distill(other, SILENCE, steps=1)


def test_terms_are_functions_in_a_list():
    seen = []

    def level(draw):
        seen.append(draw.output.output.shape)
        return tf.reduce_mean(tf.square(draw.output.output))

    def distance(drawn, recorded):
        return tf.reduce_mean(tf.square(drawn - recorded), -1)

    teacher = Autoregressive(Echo(), Gaussian(levels=256))
    student = FlowStudent([Affine()], teacher.codec, noise="normal")
    distill(teacher, SILENCE, student=student, steps=1, loss=[KL(), level, Compared(distance, 0.1)])
    assert seen[0] == [16, 24]


@pytest.mark.usefixtures("eager")
def test_a_condition_reaches_teacher_and_student():
    teacher = Autoregressive(Echo(), Gaussian(levels=256), condition_channels=1)
    condition = np.ones([4, 24, 1], np.float32)
    student = FlowStudent([Affine()], teacher.codec, condition_channels=1, noise="normal")
    distill(teacher, (SILENCE, condition), student=student, steps=40, optimizer=FAST)
    assert float(student.networks[0].gain) > 0.02
    assert (student.sample(4, 24, 1, condition) != student.sample(4, 24, 1, -condition)).any()


def test_elements_depend_on_earlier_noise_alone():
    student = flow_student(Autoregressive(Echo(), Gaussian(levels=256)))
    for network in student.networks:
        network.layers[-1].kernel.assign(tf.ones_like(network.layers[-1].kernel) * 0.1)
    noise = student.noise(0, tf.range(1), 24)
    later = tf.concat([noise[:, :12], -noise[:, 12:]], 1)
    first, second = student.draw(noise), student.draw(later)
    np.testing.assert_allclose(first.output[:, :12], second.output[:, :12], atol=1e-6)
    np.testing.assert_allclose(first.location[:, 12], second.location[:, 12], atol=1e-6)
    np.testing.assert_allclose(
        noise * tf.exp(first.log_scale) + first.location, first.output, rtol=1e-4, atol=1e-5
    )


def test_a_teacher_without_a_density_is_named():
    model = Autoregressive(lambda x: tf.repeat(x, 16, -1), Categorical(levels=16), codec=MuLaw(16))
    with pytest.raises(
        ValueError, match=r"with `log_density`, got Categorical; for tokens .*draft"
    ):
        ModelTeacher(model)


def test_a_network_with_other_outputs_is_named():
    with pytest.raises(ValueError, match=r"must return \[batch, time, 2\], got \(1, 4, 1\)"):
        FlowStudent([lambda x: x], MuLaw(16))


def test_without_a_model_a_student_is_needed():
    with pytest.raises(ValueError, match="`student` must be given"):
        distill(object(), SILENCE, steps=1)
