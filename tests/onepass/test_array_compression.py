"""A user's model compresses arrays, and gives the same levels back."""

import dataclasses
import functools
import math

import numpy as np
import own_models
import pytest
import tensorflow as tf
from fine_models import LEVELS, Steps, mixed, outputs, softmax
from own_models import model

import onepass
from onepass import likelihoods
from onepass.command.verbs import main
from onepass.compression.arrays import Rows, SymbolConditionals, digests_of_model
from onepass.compression.conditionals import Coding, encode
from onepass.compression.container import Container, checksum_of, read
from onepass.foundation.rules import UserError

pytest.importorskip("constriction")
HEADER = 120  # bytes of a file that are not the stream's


class Many(likelihoods.Tabulated):
    levels, num_parameters = LEVELS, 20


FINE = {
    "logistics": lambda: onepass.Autoregressive(mixed, likelihoods.LogisticMixture(LEVELS, 3)),
    "normals": lambda: onepass.Autoregressive(mixed, likelihoods.GaussianMixture(LEVELS, 3)),
    "normal": lambda: onepass.Autoregressive(outputs, likelihoods.Gaussian(LEVELS)),
    "cumulative": lambda: onepass.Autoregressive(outputs, likelihoods.FromTFP(Steps, 2, LEVELS)),
    "softmax": lambda: onepass.Autoregressive(softmax, likelihoods.Categorical(1000)),
}
WAYS = {name: name if name == "cumulative" else "closed" for name in FINE}
REFUSED = {
    "fine": lambda: onepass.Autoregressive(outputs, likelihoods.Gaussian(2 * LEVELS)),
    "many": lambda: onepass.Autoregressive(lambda x: tf.tile(x, [1, 1, 20]), Many()),
}


@functools.cache
def fine(name):
    return FINE[name]()


def drawn():
    """Few elements: a decoder makes a pass for every one."""
    return own_models.drawn("own")[:, :12]


@functools.cache
def compressed():
    """The bytes of `drawn()`, compressed by the live model."""
    return onepass.compress(model("own"), drawn())


@functools.cache
def silence():
    """The bytes of equal levels, compressed by a model of many."""
    return onepass.compress(fine("logistics"), np.zeros([4, 20], np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("name", FINE)
def test_many_levels_take_little_more_than_the_models_own_bits(name):
    made = fine(name)
    elements = made.sample(num=4, length=1000, seed=1)
    data = onepass.compress(made, elements)
    assert read(data).description["odds"] == WAYS[name]
    np.testing.assert_array_equal(onepass.decompress(made, data), elements)
    bits = -float(np.sum(made.log_prob(elements))) / math.log(2.0)
    most = 1.035 if name == "cumulative" else 1.005  # whose masses are known in float32 only
    assert 8 * len(data) < most * bits + 8 * HEADER


@pytest.mark.parametrize("name", FINE)
def test_any_levels_are_kept_however_improbable(name):
    made = fine(name)
    levels = np.random.default_rng(0).integers(0, made.codec.levels, [2, 64], np.int32)
    levels[:, :8] = np.tile([0, made.codec.levels - 1], 4)
    elements = made.codec.decode(levels).numpy()
    found = onepass.decompress(made, onepass.compress(made, elements))
    np.testing.assert_array_equal(found, elements)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logistics", "cumulative", "softmax"])
def test_a_loaded_model_decompresses_many_levels_of_the_live_one_and_the_reverse(name, tmp_path):
    made = fine(name)
    elements = made.sample(num=4, length=100, seed=1)
    loaded = onepass.load(onepass.save(made, tmp_path / "mine"))
    for one, other in ((made, loaded), (loaded, made)):
        data = onepass.compress(one, elements)
        assert read(data).description["odds"] == WAYS[name]
        np.testing.assert_array_equal(onepass.decompress(other, data), elements)


@pytest.mark.parametrize("index", [0, 9, 40, 70, -20, -1])
def test_a_damaged_file_is_refused(index):
    data = bytearray(silence())
    data[index] ^= 1
    with pytest.raises(UserError):
        onepass.decompress(fine("logistics"), bytes(data))


def test_a_file_that_names_no_odds_is_decoded_by_tables_of_all_levels():
    made, elements = model("own"), drawn()
    symbols = made.symbols(elements).numpy()
    stream = encode(SymbolConditionals(made), symbols, Rows(), Coding("table", tolerance=1e-5))
    parts = (digests_of_model(made)[1], made.codec.levels, checksum_of(symbols.astype("<u2")))
    old = Container("arrays", *parts, (*symbols.shape, 1, 1), {}, (stream,)).to_bytes()
    np.testing.assert_array_equal(onepass.decompress(made, old), elements)


def test_a_file_whose_odds_the_model_cannot_compute_is_refused():
    made, found = model("own"), read(compressed())
    changed = dataclasses.replace(found, description=found.description | {"odds": "closed"})
    with pytest.raises(UserError, match="requires odds by 'closed', which the model's"):
        onepass.decompress(made, changed.to_bytes())


@pytest.mark.parametrize("name", ["deep", "conditioned", "attention"])
def test_what_is_decompressed_is_what_was_compressed(name):
    made, given = model(name), own_models.condition(name)
    elements = own_models.drawn(name)
    if name in ("attention", "conditioned"):  # whose decoders make a pass for every element
        elements, given = elements[:, :12], [condition[:, :12] for condition in given]
    data = onepass.compress(made, elements, *given)
    found = onepass.decompress(made, data, *given)
    np.testing.assert_array_equal(found, elements)
    assert found.dtype == elements.dtype
    bits = -float(np.sum(made.log_prob(elements, *given))) / math.log(2.0)
    assert bits < 8 * len(data) < 1.2 * bits + 8 * HEADER


def test_the_command_and_the_live_model_read_what_the_other_compressed(tmp_path, capsys):
    saved, elements = own_models.saved_folder("own"), drawn()
    np.save(tmp_path / "x.npy", elements)
    words = ["compress", saved, tmp_path / "x.npy", "--out", tmp_path / "x.onepass"]
    assert main([str(word) for word in words]) == 0
    assert "bits per element" in capsys.readouterr().out
    data = (tmp_path / "x.onepass").read_bytes()
    np.testing.assert_array_equal(onepass.decompress(model("own"), data), elements)
    (tmp_path / "live.onepass").write_bytes(compressed())
    words = ["decompress", saved, tmp_path / "live.onepass", "--out", tmp_path / "back"]
    assert main([str(word) for word in words]) == 0
    np.testing.assert_array_equal(np.load(tmp_path / "back" / "live.npy"), elements)
    with pytest.raises(UserError, match="requires the model"):
        onepass.decompress(model("conditioned"), data)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("real", "must have 2 to 65536 levels to compress, got real numbers"),
        ("fine", "must have 2 to 65536 levels to compress, got 131072"),
        ("many", "a distribution with `cumulative` to compress 65536 levels of 20 parameters"),
        ("student", "`model` must have exact conditionals to compress, got flow-student"),
    ],
)
def test_what_cannot_compress_is_refused(name, reason):
    made = REFUSED[name]() if name in REFUSED else model(name)
    with pytest.raises(UserError, match=reason):
        onepass.compress(made, np.zeros([1, 4], np.float32))
