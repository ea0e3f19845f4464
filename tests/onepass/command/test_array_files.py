"""Files of arrays: wrong ones are refused, and the digest names all weights."""

import dataclasses
import functools

import hostile_files
import keras
import numpy as np
import pytest
from fine_models import LEVELS, mixed, outputs

import onepass
from onepass import likelihoods
from onepass.compression import container, stream
from onepass.compression.arrays import (
    SymbolConditionals,
    digests_of_model,
    kind_of,
)
from onepass.compression.container import read
from onepass.foundation.rules import UserError

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
