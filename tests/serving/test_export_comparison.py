"""An export whose program does not draw what the model draws is refused and leaves nothing."""

import image_bundles
import keras
import numpy as np
import own_models
import pytest
import sound_bundles
import tensorflow as tf
from marks import some_slow
from own_models import SEED, model

import onepass
import serving
from examples.own_distribution import LEVELS
from onepass import likelihoods
from onepass.bundles import export, functions, own_functions
from onepass.foundation.errors import UserError
from onepass.storage.save import difference

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
    step, make = own_functions.cached_chunk, functions.density_functions

    def late(network, distribution, noise, *rest):
        return step(network, distribution, tf.roll(noise, 1, 1), *rest)

    def other(live, *rest):
        wide = onepass.Autoregressive(live.network, likelihoods.Gaussian(levels=LEVELS))
        return make(wide, *rest)

    if what == "draw":
        monkeypatch.setattr(own_functions, "cached_chunk", late)
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
