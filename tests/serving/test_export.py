"""What export writes draws what the model draws, or it is refused and leaves nothing."""

import subprocess
import sys
import types

import doc_pages
import http_running
import image_bundles
import keras
import numpy as np
import own_models
import pytest
import sound_bundles
import tensorflow as tf
from marks import some_slow
from own_models import LONGEST, SEED, bundle, bundle_folder, drawn, model

import onepass
import serving
from examples.own_distribution import LEVELS
from onepass import likelihoods
from onepass.bundles import export, functions
from onepass.bundles.errors import InvalidInput
from onepass.foundation.rules import UserError
from onepass.storage.models import difference

SHORT = 8


def write_other_weights(monkeypatch):
    """Programs are written with other weights than the model has."""
    write = tf.saved_model.save

    def save(module, *rest):
        weights = [each for each in module.weights if each.dtype.is_floating]
        before = [each.numpy() for each in weights]
        for n, each in enumerate(weights):
            each.assign(np.random.default_rng(n).normal(size=each.shape))
        write(module, *rest)
        for each, values in zip(weights, before, strict=True):
            each.assign(values)

    monkeypatch.setattr(tf.saved_model, "save", save)


OWN = ("pairs", "tiles", "voices", "attention", "tokens", "student")


def length_of(name):
    return own_models.LENGTHS.get(name, SHORT)


@pytest.mark.parametrize("name", some_slow(OWN, ("attention", "tokens", "student")))
def test_a_bundle_with_other_weights_is_refused_and_older_versions_are_left(
    name, tmp_path, monkeypatch
):
    live, place = model(name), tmp_path / "mine"
    onepass.export(live, place / "1", length=length_of(name))
    write_other_weights(monkeypatch)
    with pytest.raises(UserError, match=r"cannot be exported: read back, its (draw|log-probab)"):
        onepass.export(live, place / "2", length=length_of(name))
    assert [path.name for path in place.iterdir()] == ["1"]
    old = serving.load(place)
    if live.kind != "autoregressive" or not live.conditions:
        expected = live.sample(1, length_of(name), SEED)
        np.testing.assert_allclose(old.sample(1, length_of(name), SEED), expected, atol=1e-3)


OTHERS = {"pixelcnn": image_bundles, "multiscale": image_bundles} | dict.fromkeys(
    ("plain", "softmax, frames", "vocoder"), sound_bundles
)


SELDOM = ("multiscale", "softmax, frames", "vocoder")


@pytest.mark.parametrize("kind", some_slow([*OTHERS], SELDOM))
def test_a_bundle_of_images_or_sounds_with_other_weights_is_refused(
    kind, tmp_path, monkeypatch, capsys
):
    folder = OTHERS[kind].model_folder(kind)
    write_other_weights(monkeypatch)
    assert onepass.main(["export", str(folder), "--out", str(tmp_path / "mine" / "1")]) == 2
    assert "cannot be exported: read back, its draw differs by" in capsys.readouterr().err
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("what", ["draw", "log-probability"])
def test_a_bundle_whose_steps_draw_or_score_something_else_is_refused(what, tmp_path, monkeypatch):
    step, make = functions.cached_chunk, functions.density_functions

    def late(network, distribution, noise, *rest):
        return step(network, distribution, tf.roll(noise, 1, 1), *rest)

    def other(live, *rest):
        wide = onepass.Autoregressive(live.network, likelihoods.Gaussian(levels=LEVELS))
        return make(wide, *rest)

    if what == "draw":
        monkeypatch.setattr(functions, "cached_chunk", late)
    else:
        monkeypatch.setattr(functions, "density_functions", other)
    with pytest.raises(UserError, match=f"read back, its {what} differs by"):
        onepass.export(model("pairs"), tmp_path / "mine" / "1", length=SHORT)
    assert not (tmp_path / "mine").exists()


def logarithmic(function):
    """Return a model whose outputs are finite for some conditions only."""

    def network(x, condition):
        h = tf.pad(x, [[0, 0], [1, 0], [0, 0]])[:, :-1] + function(condition)
        return tf.concat([h, tf.zeros_like(h)], -1)

    spec = tf.TensorSpec([None, None, 1])
    gaussian = likelihoods.Gaussian(levels=256)
    return onepass.Autoregressive(network, gaussian, inputs=spec, conditions={"condition": spec})


@pytest.mark.parametrize("function", [tf.math.log, tf.sqrt, lambda c: tf.math.log(-c)])
def test_a_network_of_conditions_that_are_not_negative_is_exported(function, tmp_path):
    onepass.export(logarithmic(function), tmp_path / "mine" / "1", length=SHORT)
    assert (tmp_path / "mine" / "1").is_dir()


def test_an_export_says_that_no_conditions_were_found_to_compare_it_by(tmp_path):
    live = logarithmic(lambda condition: tf.math.log(-1.0 - condition))
    with pytest.warns(UserWarning, match="draw was not compared .* refuses conditions: "):
        onepass.export(live, tmp_path / "mine" / "1", length=SHORT)
    assert (tmp_path / "mine" / "1").is_dir()


def test_an_export_says_that_the_model_itself_cannot_be_stored_next_to_its_sampler(
    tmp_path, monkeypatch
):
    def save(*_):
        raise UserError("The model cannot be stored: its layer.")

    monkeypatch.setattr(export, "save", save)
    line = "The bundle has a sampler, but no `autoregressive`: The model cannot be stored: its"
    with pytest.warns(UserWarning, match=line):
        onepass.export(model("pairs"), tmp_path / "mine" / "1", length=SHORT)
    with pytest.raises(UserError, match="holds no model, only its sampler"):
        _ = serving.load(tmp_path / "mine").autoregressive


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_rounding_is_no_difference(policy, tmp_path):
    keras.mixed_precision.set_global_policy(policy)
    try:
        given = keras.Input([None, 1])
        hidden = keras.layers.GRU(16, return_sequences=True)(given)
        network = keras.Model(given, keras.layers.Dense(2, dtype="float32")(hidden))
    finally:
        keras.mixed_precision.set_global_policy("float32")
    live = onepass.Autoregressive(network, likelihoods.Gaussian(levels=None))
    onepass.export(live, tmp_path / "mine" / "1", length=SHORT)


def test_a_share_of_elements_may_move_and_no_more():
    expected = np.arange(8)
    moved = np.where(expected < 2, expected + 3, expected)
    assert difference(expected, moved, 0.0, moved=0.25) == ""
    assert difference(expected, moved, 0.0, moved=0.2) == "differs by 0.38"
    assert difference(expected, moved, 0.5) == ""
    assert "has the shape [7] in place of [8]" in difference(expected, moved[1:])
    assert difference(np.array([0.0, np.inf]), np.array([0.0, 1.0])) == "is not finite elsewhere"
    assert difference(np.array([0.0, 1.0]), np.array([0.0, np.nan])) == "is not finite elsewhere"


def test_log_probabilities_of_a_network_that_loops_over_time_are_those_of_the_model(tmp_path):
    keras.utils.set_random_seed(2)
    inputs = keras.Input([None], dtype="int32")
    h = keras.layers.GRU(3, return_sequences=True)(keras.layers.Embedding(5, 3)(inputs))
    outputs = keras.layers.TimeDistributed(keras.layers.Dense(5))(h)
    live = onepass.Autoregressive(keras.Model(inputs, outputs), likelihoods.Categorical(5))
    made = serving.load(onepass.export(live, tmp_path / "own" / "1", length=9))
    drawn, nats = made.sample(2, 9, 1, prefix=[1, 2], return_log_prob=True)
    np.testing.assert_allclose(nats, live.log_prob(drawn), atol=1e-5)
    for length in (1, 4, 9):
        part = drawn[:, :length]
        np.testing.assert_allclose(made.log_prob(part), live.log_prob(part), atol=1e-5)


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


@pytest.mark.parametrize(
    ("name", "version", "given", "said"),
    [
        ("own", "", {}, r"`out` must end in NAME/VERSION, .*: a version must be"),
        (None, "1", {}, "`model` must be an Autoregressive or a FlowStudent"),
        ("own", "1", {"sample_rate_hz": 0}, "`sample_rate_hz` must be an integer of at least 1, g"),
        ("deep", "1", {"sample_rate_hz": 8000}, "`sample_rate_hz` must be None for images"),
        ("deep", "1", {}, r"`length` must be \(height, width, channels\) .*, got None"),
        ("own", "1", {"length": (3, 4)}, "`length` must be a number of elements, an integer of at"),
        ("attention", "1", {}, r"has no step, so that `length` must be given: .*attend"),
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


def mixed(parameters):
    tfd = pytest.importorskip("tensorflow_probability").distributions
    weights = tfd.Categorical(logits=tf.concat([parameters, -parameters], -1))
    means = tf.stack([parameters[..., 0], 1.0 + parameters[..., 0]], -1)
    return tfd.MixtureSameFamily(weights, tfd.Normal(means, 0.1))


def turned(parameters):
    tfd = pytest.importorskip("tensorflow_probability").distributions
    return tfd.VonMises(parameters[..., 0], tf.nn.softplus(parameters[..., 0]))


def batch_normalised(x):
    scale, offset = tf.ones([1]), tf.zeros([1])
    h = tf.compat.v1.nn.fused_batch_norm(
        x[:, :, tf.newaxis], scale, offset, 0.1 * scale, scale, is_training=False
    )[0][:, :, 0]
    return 0.5 * tf.nn.relu(h)


@pytest.mark.parametrize(
    "make",
    [Student, *(pytest.param(each, marks=pytest.mark.slow) for each in (mixed, turned))],
)
def test_what_distributions_compute_with_is_allowed(make, tmp_path):
    live = onepass.Autoregressive(batch_normalised, likelihoods.FromTFP(make, num_parameters=1))
    made = serving.load(onepass.export(live, tmp_path / "mine" / "1", length=6))
    elements = np.linspace(-1, 1, 6, dtype=np.float32)[np.newaxis]
    nats = live.log_prob(elements)
    np.testing.assert_allclose(made.log_prob(elements), nats, rtol=1e-4, atol=1e-4)
    if make is not turned:
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
