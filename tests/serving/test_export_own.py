"""A user's model in a bundle draws what it draws here, is served, and is refused with a reason."""

import subprocess
import sys
import types

import doc_pages
import http_running
import numpy as np
import pytest
import tensorflow as tf
from marks import some_slow
from own_models import LONGEST, SEED, bundle, bundle_folder, drawn, model

import onepass
import serving
from onepass import likelihoods
from onepass.bundles.errors import InvalidInput
from onepass.foundation.errors import UserError
from serving.sandbox.sandboxed_bundle import ForkServer, SandboxedBundle
from serving.settings import Settings

SMALL_SEED = 7  # which JSON holds, too

DRAW = """
import sys
import numpy as np
import serving

made = serving.load(sys.argv[1])
np.save(sys.argv[2], made.sample(1, int(sys.argv[3]), int(sys.argv[4])))
assert not {"examples", "causal_networks", "onepass.model"} & set(sys.modules)
"""


@pytest.mark.integration
def test_another_process_draws_without_the_code_of_the_network(tmp_path):
    result = tmp_path / "drawn.npy"
    words = [str(bundle_folder("own")), str(result), str(LONGEST), str(SEED)]
    subprocess.run([sys.executable, "-c", DRAW, *words], check=True)
    np.testing.assert_allclose(np.load(result), drawn("own")[:1], atol=1e-6)


def test_what_a_bundle_cannot_draw_is_named():
    with pytest.raises(InvalidInput, match=r"`length` must be \(4, 4, 1\), as exported"):
        bundle("classes").sample(1, (5, 4, 1), 0, 2)
    with pytest.raises(InvalidInput, match="`elements` must be between -1"):
        bundle("own").log_prob(np.full([1, 5], 3.0))
    with pytest.raises(UserError, match="reads no frames of a recording"):
        bundle("own").frames(np.zeros(100, np.float32))


def python(x):
    h = tf.py_function(lambda y: 2.0 * y, [x], tf.float32)
    return tf.ensure_shape(h, x.shape) * tf.ones([2])


def printing(x):
    with tf.control_dependencies([tf.print("row")]):
        return tf.concat([x, tf.identity(x)], -1)


@pytest.mark.parametrize(
    ("network", "reason"),
    some_slow(
        [(python, "EagerPyFunc"), (printing, "PrintV2|StringFormat")],
        [(printing, "PrintV2|StringFormat")],
    ),
)
def test_a_network_that_does_more_than_compute_is_refused(network, reason, tmp_path):
    made = onepass.Autoregressive(network, likelihoods.Gaussian(levels=64))
    with pytest.raises(
        UserError, match=rf"cannot be exported: it holds a disallowed operation: ({reason})"
    ):
        onepass.export(made, tmp_path / "mine" / "1", length=8)
    assert not (tmp_path / "mine").exists()


def test_a_network_without_a_step_needs_a_length(tmp_path):
    with pytest.raises(UserError, match=r"has no step, so that `length` must be given: .*attend"):
        onepass.export(model("attention"), tmp_path / "mine" / "1")


@pytest.mark.parametrize(
    ("name", "version", "given", "said"),
    [
        ("own", "", {}, r"`out` must end in NAME/VERSION, .*: a version must be"),
        (None, "1", {}, "`model` must be an Autoregressive or a FlowStudent"),
        ("own", "1", {"sample_rate_hz": 0}, "`sample_rate_hz` must be an integer of at least 1, g"),
        ("deep", "1", {"sample_rate_hz": 8000}, "`sample_rate_hz` must be None for images"),
        ("deep", "1", {}, r"`length` must be \(height, width, channels\) .*, got None"),
        ("own", "1", {"length": (3, 4)}, "`length` must be a number of elements, an integer of at"),
    ],
)
def test_what_export_is_given_wrongly_is_named(tmp_path, name, version, given, said):
    with pytest.raises((UserError, ValueError), match=said):
        onepass.export(name and model(name), tmp_path / "mine" / version, **given)


class Student:
    """Student's t with 3 degrees of freedom, as a library of distributions would write it."""

    def __init__(self, parameters):
        self.centre = parameters[..., 0]

    def log_prob(self, values):
        z = values - self.centre
        tail = 0.5 * tf.math.betainc(1.5, 0.5, 3.0 / (3.0 + z * z))
        below = tf.math.igamma(0.5, tf.square(z)) + tf.math.igammac(0.5, tf.square(z))
        logits = tf.stack([z, values], -1)
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.zeros_like(z, tf.int32), logits)
        other = 1e-9 * (tail + below + entropy)
        return tf.math.lgamma(2.0) - 2.0 * tf.math.log1p(z * z / 3.0) + other

    def sample(self, seed):
        uniform = tf.random.stateless_uniform(tf.shape(self.centre), seed, 0.1, 0.9)
        return self.centre + uniform * tf.random.stateless_normal(tf.shape(self.centre), seed)


def batch_normalised(x):
    scale, offset = tf.ones([1]), tf.zeros([1])
    h = tf.compat.v1.nn.fused_batch_norm(
        x[:, :, tf.newaxis], scale, offset, 0.1 * scale, scale, is_training=False
    )[0][:, :, 0]
    return 0.5 * tf.nn.relu(h)


def test_what_distributions_compute_with_is_allowed(tmp_path):
    live = onepass.Autoregressive(batch_normalised, likelihoods.FromTFP(Student, num_parameters=1))
    made = serving.load(onepass.export(live, tmp_path / "mine" / "1", length=6))
    expected = live.sample(1, 6, 3)
    np.testing.assert_allclose(made.sample(1, 6, 3), expected, atol=1e-5)
    np.testing.assert_allclose(
        made.log_prob(expected), live.log_prob(expected), rtol=1e-4, atol=1e-4
    )


def mixed(tfd, parameters):
    weights = tfd.Categorical(logits=tf.concat([parameters, -parameters], -1))
    means = tf.stack([parameters[..., 0], 1.0 + parameters[..., 0]], -1)
    return tfd.MixtureSameFamily(weights, tfd.Normal(means, 0.1))


def turned(tfd, parameters):
    return tfd.VonMises(parameters[..., 0], tf.nn.softplus(parameters[..., 0]))


@pytest.mark.slow
@pytest.mark.parametrize(("make", "draws"), [(mixed, True), (turned, False)])
def test_distributions_of_tensorflow_probability_are_exported(make, draws, tmp_path):
    tfd = pytest.importorskip("tensorflow_probability").distributions
    distribution = likelihoods.FromTFP(lambda parameters: make(tfd, parameters), num_parameters=1)
    live = onepass.Autoregressive(batch_normalised, distribution)
    made = serving.load(onepass.export(live, tmp_path / "mine" / "1", length=6))
    elements = np.linspace(-1, 1, 6, dtype=np.float32)[np.newaxis]
    np.testing.assert_allclose(
        made.log_prob(elements), live.log_prob(elements), rtol=1e-4, atol=1e-4
    )
    if draws:
        np.testing.assert_allclose(made.sample(1, 6, 3), live.sample(1, 6, 3), atol=1e-5)


@pytest.mark.slow
def test_the_python_of_the_reference_runs(tmp_path, monkeypatch):
    page = doc_pages.ROOT / "docs" / "reference" / "own_models.md"
    here, asked = doc_pages.blocks(page, "python")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(here, str(page), "exec"), names)
    store = types.SimpleNamespace(root=tmp_path / "models", load=serving.load)
    with http_running.Running(store) as server:
        asked = asked.replace("http://127.0.0.1:8501", server.url)
        exec(compile(asked, str(page), "exec"), names)
        drawn_there = names["served"].sample(num=2, length=100, seed=1)
        names["served"].close()
    np.testing.assert_allclose(drawn_there, names["x"], atol=1e-4)


@pytest.mark.integration
def test_the_sandbox_lets_a_users_model_compute():
    fork_server = ForkServer()
    try:
        limits = Settings(sandbox_memory_gib=8.0, load_seconds=300.0, call_seconds=300.0)
        made = SandboxedBundle(bundle_folder("own"), fork_server, limits, {})
        assert (made.kind, made.engine) == ("array", "tensorflow")
        given = {"seed": [SMALL_SEED], "num_samples": [LONGEST]}
        outputs = made.call("compiled", made.check("compiled", given))
        expected = model("own").sample(1, LONGEST, SMALL_SEED)
        np.testing.assert_allclose(outputs["elements"], expected, atol=1e-6)
        asked = made.check("log_prob", {"elements": expected})
        np.testing.assert_allclose(
            made.call("log_prob", asked)["log_prob"],
            model("own").log_prob(expected),
            rtol=1e-4,
            atol=1e-4,
        )
        del made
    finally:
        fork_server.close()
