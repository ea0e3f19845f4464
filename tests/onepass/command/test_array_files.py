"""Files of arrays: wrong ones are refused, and the digest names all weights."""

import dataclasses
import functools

import hostile_files
import keras
import numpy as np
import pytest
from fine_models import LEVELS, Steps, mixed, outputs

import onepass
from onepass import likelihoods
from onepass.compression import container, stream
from onepass.compression.arrays import (
    Rows,
    SymbolConditionals,
    digests_of_model,
    kind_of,
    rank_names,
)
from onepass.compression.conditionals import Coding, decode, encode
from onepass.compression.container import read
from onepass.foundation.errors import UserError
from onepass.foundation.progress import Progress

pytest.importorskip("constriction")


def test_a_file_with_wrong_fields_is_refused():
    made = onepass.Autoregressive(mixed, likelihoods.GaussianMixture(LEVELS, 3))
    elements = made.sample(num=2, length=6, seed=1)
    found = read(onepass.compress(made, elements, verify=False))
    kind = kind_of(made)
    kind.digests = functools.cache(kind.digests)  # each is a trace
    hostile_files.check(
        found,
        functools.partial(container.decompress, kind),
        lambda decoded: np.array_equal(decoded, elements),
        count=20,
    )


@pytest.mark.parametrize("declared", ["as many as the bytes allow", "as many rows"])
def test_a_small_file_that_declares_millions_of_elements_is_left_when_its_bytes_end(
    monkeypatch, declared
):
    monkeypatch.setattr(stream, "DRY_CALLS", 100)
    made = onepass.Autoregressive(outputs, likelihoods.Gaussian(16))
    found = read(onepass.compress(made, made.sample(num=1, length=100, seed=1), verify=False))
    shape = (1, 3_000_000, 1, 1) if "rows" not in declared else (1000, 3000, 1, 1)
    # Groups of 65,535 pixels, of one choice bit each, so that the choices fit.
    streams = tuple(b"\x01\xff\xff" + each[3:] for each in found.streams)
    data = dataclasses.replace(found, shape=shape, streams=streams).to_bytes()
    assert len(data) == 2930
    steps, pixels = [], stream.Decoder.pixels
    monkeypatch.setattr(stream.Decoder, "pixels", lambda *given: steps.append(1) or pixels(*given))
    with pytest.raises(UserError, match="a stream of 3,000,000 pixels or samples ends before"):
        onepass.decompress(made, data)
    assert 100 < len(steps) < 400


def test_a_file_of_more_elements_than_the_caller_takes_is_refused_before_a_step(monkeypatch):
    made = onepass.Autoregressive(outputs, likelihoods.Gaussian(16))
    elements = made.sample(num=2, length=30, seed=1)
    data = onepass.compress(made, elements, verify=False)
    np.testing.assert_array_equal(onepass.decompress(made, data, max_elements=60), elements)
    monkeypatch.setattr(stream.Decoder, "pixels", None)
    with pytest.raises(UserError, match="at most `max_elements` = 59 elements, got 60"):
        onepass.decompress(made, data, max_elements=59)


def test_progress_counts_every_element_of_encoding_verifying_and_decoding(monkeypatch):
    counts = {}

    class Counting(Progress):
        def advance(self, count=1, **figures):
            counts[self.title] = counts.get(self.title, 0) + count
            assert self.total == 60

    monkeypatch.setattr(container, "Progress", Counting)
    made = onepass.Autoregressive(outputs, likelihoods.Gaussian(16))
    elements = made.sample(num=2, length=30, seed=1)
    kind = kind_of(made)
    data = container.compress(kind, elements, verify=True, progress=True)
    container.decompress(kind, data, progress="decompressing")
    assert counts == {"compressing": 60, "verifying": 60, "decompressing": 60}
    counts.clear()
    onepass.decompress(made, onepass.compress(made, elements))
    assert counts == {}


def test_outputs_that_are_not_finite_are_refused():
    made = onepass.Autoregressive(
        lambda x: outputs(x) / (x + 2.0 - 2.0 - x), likelihoods.Gaussian(16)
    )
    with pytest.raises(UserError, match="must have finite outputs to compress"):
        onepass.compress(made, np.zeros([1, 4], np.float32))


def test_an_empty_array_is_refused():
    made = onepass.Autoregressive(outputs, likelihoods.Gaussian(LEVELS))
    with pytest.raises(UserError, match="`elements` must not be empty"):
        onepass.compress(made, np.zeros([0, 4], np.float32))


def test_a_file_that_cannot_be_decoded_is_not_returned(monkeypatch):
    made = onepass.Autoregressive(outputs, likelihoods.Gaussian(LEVELS))
    elements, reading = made.sample(num=2, length=50, seed=1), SymbolConditionals.read

    def moved(conditionals, shape, condition, coding, decoder):
        coding = dataclasses.replace(coding, moved=lambda rows: rows * 1.01)
        return reading(conditionals, shape, condition, coding, decoder)

    monkeypatch.setattr(SymbolConditionals, "read", moved)
    with pytest.raises(UserError, match="could not be decoded again, and is not written"):
        onepass.compress(made, elements)
    assert onepass.compress(made, elements, verify=False)


@pytest.mark.parametrize("tolerance", [0.0, 1e-4, 1e-3])
def test_verified_files_are_returned_at_every_tolerance(tolerance):
    made = onepass.Autoregressive(mixed, likelihoods.LogisticMixture(LEVELS, 3))
    elements = made.sample(num=2, length=50, seed=1)
    data = onepass.compress(made, elements, tolerance=tolerance, verify=True)
    np.testing.assert_array_equal(onepass.decompress(made, data), elements)


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [0.0, 1e-5, 1e-3])
def test_masses_in_float32_do_not_move_odds_beyond_their_margins(tolerance):
    made = onepass.Autoregressive(outputs, likelihoods.FromTFP(Steps, 2, LEVELS))
    symbols = made.symbols(made.sample(num=2, length=500, seed=1)).numpy()
    conditionals, coding = SymbolConditionals(made), Coding("cumulative", 0.0)
    tolerant = dataclasses.replace(coding, tolerance=tolerance)
    stream = encode(conditionals, symbols, Rows(), tolerant)
    draws = np.random.default_rng(0)
    for share in (0.5, 0.95):
        # Without a tolerance, what float32 rounds.
        by = max(share * tolerance, 2e-8)

        def moved(rows, by=by):
            return rows * (1.0 + by * draws.choice([-1.0, 1.0], rows.shape))

        off = dataclasses.replace(coding, moved=moved)
        found = decode(conditionals, stream, symbols.shape, Rows(), off)
        np.testing.assert_array_equal(found, symbols)


def normalised():
    """A network with statistics and a frozen layer."""
    layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dense(16)]
    network = keras.Sequential([keras.Input([None, 1]), *layers])
    network.layers[0].trainable = False
    return network


def own_digest(model):
    return digests_of_model(model)[0]


def digest(network):
    return own_digest(onepass.Autoregressive(network, likelihoods.Categorical(16)))


def test_the_digest_is_over_what_the_network_reads():
    network = normalised()
    usual, others = digest(network), [{"start": 0.5}, {"input_scale": (0, 1)}]
    others.append({"input_scale": (0, 1), "start": 0.0})
    found = [
        own_digest(onepass.Autoregressive(network, likelihoods.Categorical(16), **options))
        for options in others
    ]
    assert len({usual, *found}) == 4
    spelt = {"start": 0.0, "input_scale": (-1.0, 1.0)}
    again = onepass.Autoregressive(network, likelihoods.Categorical(16), **spelt)
    assert own_digest(again) == usual


def test_the_digest_is_over_every_variable_by_name(tmp_path):
    network = normalised()
    made = onepass.Autoregressive(network, likelihoods.Categorical(16))
    found = own_digest(made)
    assert own_digest(onepass.load(onepass.save(made, tmp_path / "mine"))) == found
    for variable in network.variables:
        right = variable.numpy()
        changed = right.copy()
        changed.flat[-1] += 0.5
        variable.assign(changed)
        assert own_digest(made) != found, variable.path
        variable.assign(right)
    assert own_digest(made) == found
    gamma, beta = network.layers[1].gamma, network.layers[1].beta
    (one, other) = gamma.numpy(), beta.numpy()
    gamma.assign(other)
    beta.assign(one)
    assert own_digest(made) != found


def test_the_digest_does_not_depend_on_how_many_layers_were_made_before():
    first, second = normalised(), normalised()
    second.set_weights(first.get_weights())
    assert digest(first) == digest(second)


def test_numbers_in_names_become_ranks():
    later = ["net_9/dense_9/w:0", "net_9/dense_10/w:0", "net_9/b:0", "net_9/x_1y"]
    first = ["net/dense/w:0", "net/dense_1/w:0", "net/b:0", "net/x_1y"]
    assert list(rank_names(later).values()) == list(rank_names(first).values())
    assert len(set(rank_names(later).values())) == 4
