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
from distill.any_teacher import ModelTeacher, distill
from distill.flow_student import FlowStudent
from distill.losses.divergence import KL
from distill.losses.terms import Compared
from onepass.bundles.manifest import write_manifest
from onepass.foundation.rules import UserError
from onepass.likelihoods import Categorical, Gaussian, LogisticMixture
from onepass.likelihoods.codec import MuLaw
from onepass.model import Autoregressive
from onepass.models import load_stored
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


def test_a_stored_model_is_a_teacher_without_its_code(tmp_path):
    live, found = Autoregressive(Echo(), Gaussian(levels=256)), []
    for teacher in (live, load(save(live, tmp_path / "saved")), onepass.load(exported())):
        flow = Affine()
        student = FlowStudent([flow], live.codec, noise="normal")
        with eagerly():
            distill(teacher, SILENCE, student=student, steps=10, optimizer=FAST)
        found.append((float(flow.gain), float(flow.log_scale)))
    assert found[0][0] != 0.0
    assert found[1:] == [pytest.approx(found[0], 1e-4)] * 2


@pytest.mark.parametrize("is_hostile", [True, False])
def test_the_model_of_a_bundle_is_scanned_before_it_runs(is_hostile, tmp_path):
    folder = shutil.copytree(exported(), tmp_path / "mine" / "1")
    if is_hostile:
        hostile_graphs.edit(folder / "autoregressive", folder, "reading")
    else:
        shutil.rmtree(folder / "autoregressive")
    with pytest.raises(UserError, match="was changed since its export"):
        onepass.load(folder)
    write_manifest(folder)
    line = "disallowed operation: ReadFile" if is_hostile else "holds no model, only its sampler"
    with pytest.raises(UserError, match=line):
        distill(onepass.load(folder), SILENCE, steps=1)


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


def test_what_is_no_teacher_or_no_student_is_named(tmp_path):
    tokens = Autoregressive(lambda x: tf.repeat(x, 16, -1), Categorical(16), codec=MuLaw(16))
    student = onepass.export(FlowStudent([Affine()], MuLaw(16)), tmp_path / "x" / "1", length=24)
    (tmp_path / "autoregressive.json").write_text('{"kind": "other"}')
    for call, line in (
        (lambda: ModelTeacher(tokens), "with `log_density`, got Categorical; for tokens .*draft"),
        (lambda: distill(onepass.load(student), SILENCE, steps=1), "holds no model, only its sam"),
        (lambda: FlowStudent([lambda x: x], MuLaw(16)), r"must return \[batch, time, 2\], got \(1"),
        (lambda: distill(object(), SILENCE, steps=1), "`student` must be given"),
        (lambda: load_stored(tmp_path), "a model of the kind 'other', which is unknown"),
    ):
        with pytest.raises(ValueError, match=line):
            call()
