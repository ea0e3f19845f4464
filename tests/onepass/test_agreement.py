"""However a model is sampled, stored and exported, a seed gives the same elements.

Whole passes (`naive`) are what every other way is compared with: cached steps, the fixed point, a
draft, any batch and chunks, a prefix of what is drawn, a stored model, a bundle.
"""

import functools
from typing import NamedTuple

import attention_networks
import causal_networks
import indexing_networks
import keras
import numpy as np
import pytest
import tensorflow as tf
from attention_networks import SPEC, TOKENS

import onepass
from examples.own_distribution import Laplace
from onepass.likelihoods import Categorical, Gaussian, Integers, LogisticMixture
from onepass.likelihoods.codec import MuLaw, Reals
from onepass.model import Autoregressive
from onepass.storage import load, save

layers = keras.layers
NUM, SEED = 3, 5
CODES = 5
RANDOM = np.random.default_rng(0)


def of_tokens(network):
    return Autoregressive(network, Categorical(TOKENS), codec=Integers(TOKENS), inputs=SPEC)


def of_float64(distribution, **options):
    channels = options.get("condition_channels", 0)
    network = causal_networks.Dilated(distribution.num_parameters, channels)
    return Autoregressive(network, distribution, inputs=causal_networks.FLOAT64, **options)


def with_conditions(*kinds):
    network = causal_networks.conditioned(*kinds)
    return Autoregressive(network, Categorical(8), codec=Integers(8))


def with_integers(axes):
    """A model whose condition at every time is an integer, with or without an axis of channels."""
    waves, kinds = keras.Input([None, 1]), keras.Input([None, 1][: axes - 1], dtype="int32")
    h = layers.Embedding(5, 3)(kinds)
    h = layers.Concatenate()([waves, h if axes == 2 else layers.Reshape([-1, 3])(h)])
    network = keras.Model([waves, kinds], layers.Dense(2)(h))
    return Autoregressive(network, Gaussian(16), start=0.25)


def with_start():
    """A model of tokens that reads one that is never drawn before the first."""
    inputs = keras.Input([None], dtype="int32")
    h = layers.Conv1D(3, 3, padding="causal")(layers.Embedding(7, 3)(inputs))
    network = keras.Model(inputs, layers.Dense(6)(h))
    return Autoregressive(network, Categorical(6), start=6)


class Experts(layers.Layer):
    """A mixture of experts, of which every time step gathers the best."""

    def build(self, shape):
        self.route = self.add_weight(shape=(shape[-1], 3))
        self.kernel = self.add_weight(shape=(3, shape[-1], shape[-1]))

    def call(self, h):
        shares = tf.nn.softmax(tf.tensordot(h, self.route, 1))
        best = tf.argmax(shares, -1)[..., None]
        every = tf.einsum("btc,ecd->bted", h, self.kernel)
        return tf.gather(every, best, batch_dims=2)[..., 0, :]


def of_scan():
    """A model of an associative scan."""
    scan = indexing_networks.associative_scan()
    return Autoregressive(lambda x: scan(tf.tile(x, [1, 1, 4]))[..., :2], Gaussian(256))


def of_layer(layer, hidden=()):
    """A model of tokens with a layer, whose logits forbid some of the tokens."""
    inputs = keras.Input([None], dtype="int32")
    h = layers.Conv1D(8, 2, padding="causal", activation="tanh")(layers.Embedding(7, 8)(inputs))
    logits = layers.Dense(7, kernel_initializer="random_normal")(h + layer(h))
    mask = np.where(np.isin(np.arange(7), hidden), -np.inf, 0.0).astype("float32")
    return Autoregressive(keras.Model(inputs, logits + mask), Categorical(7))


def of_images(channels, **options):
    distribution = LogisticMixture(levels=4096, components=2)
    network = causal_networks.MaskedImage(channels, channels * distribution.num_parameters)
    inputs = tf.TensorSpec([None, None, None, channels])
    return Autoregressive(network, distribution, order="raster", inputs=inputs, **options)


MODELS = {
    "rotary": lambda: of_tokens(attention_networks.Rotary()),
    "mini gpt": lambda: of_tokens(attention_networks.mini_gpt()),
    "windowed": lambda: of_tokens(attention_networks.Windowed()),
    "linear": lambda: of_tokens(attention_networks.Linear()),
    "mixture": lambda: of_float64(LogisticMixture(levels=256, components=3)),
    "mu-law": lambda: of_float64(Categorical(16), codec=MuLaw(16), condition_channels=2),
    "embedding": lambda: Autoregressive(
        causal_networks.embedding_of(8), Categorical(8), codec=MuLaw(8)
    ),
    "own distribution": lambda: Autoregressive(causal_networks.Gated(2), Laplace()),
    "recurrent": lambda: Autoregressive(causal_networks.lstm_after_convolution(), Gaussian(None)),
    "start": with_start,
    "scale": lambda: Autoregressive(
        causal_networks.convolved(1, 2), Gaussian(256), input_scale=(0, 255), start=-1
    ),
    "speaker": lambda: with_conditions("speaker"),
    "memory": lambda: with_conditions("memory"),
    "conditions": lambda: with_conditions("speaker", "mel", "memory"),
    "integers": lambda: with_integers(2),
    "integers of channels": lambda: with_integers(3),
    "stereo": lambda: Autoregressive(
        causal_networks.convolved(2, 4), Gaussian(256), input_scale=(0, 1), start=0.1
    ),
    "attention of channels": lambda: Autoregressive(
        causal_networks.convolved(2, 12, True), LogisticMixture(64, 2)
    ),
    "codes": lambda: Autoregressive(
        causal_networks.codebooks(CODES), Categorical(CODES), start=CODES
    ),
    "reals": lambda: Autoregressive(
        causal_networks.convolved(2, 4), Gaussian(None), codec=Reals(unit=2.0)
    ),
    "scan": of_scan,
    "experts": lambda: of_layer(Experts()),
    "forbidden": lambda: of_layer(layers.GRU(8, return_sequences=True), [0, 3]),
    "images": lambda: of_images(1),
    "images of channels": lambda: of_images(2),
    "images on a scale": lambda: of_images(1, input_scale=(0, 1)),
}
# `test_speculative` has drafts of other kinds.
DRAFTS = {"rotary": "linear", "start": "start", "scale": "scale"}
LOOSE = {"recurrent", "scale", "stereo", "attention of channels", "reals"}  # by rounding
LENGTHS = {"windowed": 66, "linear": 66, "mini gpt": 66}
LENGTHS |= dict.fromkeys(("images", "images of channels", "images on a scale"), (4, 3))
MEL = RANDOM.normal(size=[NUM, 30, 2]).astype(np.float32)
MEMORY = RANDOM.normal(size=[NUM, 5, 3]).astype(np.float32)
SPEAKERS = np.array([0, 3, 2], np.int32)
CONDITIONS = {
    "mu-law": MEL,
    "speaker": SPEAKERS,
    "memory": MEMORY,
    "conditions": {"speaker": SPEAKERS, "mel": MEL, "memory": MEMORY},
    "integers": RANDOM.integers(0, 5, [NUM, 30]).astype(np.int32),
    "integers of channels": RANDOM.integers(0, 5, [NUM, 30, 1]).astype(np.int32),
}


def tokens(*shape, seed=1):
    return np.random.default_rng(seed).integers(0, TOKENS, shape)


PROMPT = tokens(9)  # of every row
PROMPTS_OF_ROWS = [tokens(1), tokens(20), tokens(12)]
PROMPTS = {
    "prefix": {"prefix": tokens(3, 11)},
    "long prefix": {"prefix": tokens(3, 29)},
    "whole prefix": {"prefix": tokens(3, 30)},
    "one prefix": {"prefix": PROMPT},
    "lengths": {"prefix": [tokens(1), tokens(20), tokens(12)]},
    "empty": {"prefix": [tokens(0), tokens(20), tokens(12)]},
    "top-k": {"top_k": 3, "temperature": 1.5},
    "top-p": {"top_p": 0.6, "prefix": tokens(3, 4)},
    "min-p": {"min_p": 0.2, "temperature": [0.5, 1.0, 2.0], "prefix": tokens(3, 4)},
    "logit bias": {"logit_bias": {3: 2.0, 7: -1e9, 0: 1.5}, "temperature": [0.0, 1.0, 2.0]},
    "allowed": {"allowed": [2, 4, 9], "top_p": 0.9, "prefix": tokens(3, 4)},
    "stop": {"stop": 4, "prefix": [tokens(2), tokens(25), tokens(9)]},
    "stops": {"stop": [4, 9, 11], "prefix": [tokens(2), tokens(25), tokens(9)]},
    "min length": {"stop": [4, 9], "min_length": 18, "prefix": [tokens(2), tokens(25), tokens(9)]},
    "repetition": {"repetition_penalty": 1.7, "prefix": PROMPTS_OF_ROWS},
    "presence": {"presence_penalty": 2.0, "top_p": 0.9, "prefix": PROMPTS_OF_ROWS},
    "rows": {
        "temperature": [0.0, 0.5, 1.5],
        "top_k": 5,
        "prefix": [tokens(1), tokens(20), tokens(12)],
        "stop": 4,
    },
}


class Case(NamedTuple):
    """A model, how long its samples are, and what is asked of them."""

    model: str
    options: dict

    @property
    def length(self):
        size = LENGTHS.get(self.model, 30)
        return (*size, 1 + (self.model == "images of channels")) if self.raster else size

    @property
    def raster(self):
        return self.model.startswith("images")

    def of_rows(self, count):
        """The options of the first rows."""
        return {key: _first(value, count, key) for key, value in self.options.items()}

    def draw(self, model=None, num=NUM, length=None, **changed):
        options = self.of_rows(num) | changed
        return (model or made(self.model)).sample(num, length or self.length, SEED, **options)

    def same(self, found, expected):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=2e-5 if self.model in LOOSE else 0.0)


def _first(value, count, key):
    if isinstance(value, dict) and key == "condition":
        return {name: _first(each, count, key) for name, each in value.items()}
    by_row = key in ("temperature", "prefix", "condition") and value is not PROMPT
    return value if isinstance(value, int | float) or not by_row else value[:count]


CASES = {
    name: Case(name, {"condition": CONDITIONS[name]} if name in CONDITIONS else {})
    for name in MODELS
}
CASES |= {f"rotary, {name}": Case("rotary", options) for name, options in PROMPTS.items()}
SHORT = [0.5 * np.tanh(MEL[0, :12]), 0.5 * np.tanh(MEL[1, :3]), np.zeros([0, 2])]
CASES["stereo, lengths"] = Case("stereo", {"prefix": SHORT})
CASES["forbidden, top-k"] = Case("forbidden", {"top_k": 6, "temperature": [0.0, 0.5, 1.5]})
CASES["forbidden, allowed"] = Case("forbidden", {"allowed": {1, 3, 5}})
CASES["codes, repetition"] = Case("codes", {"repetition_penalty": 3.0})
CASES["codes, rows"] = Case("codes", {"top_k": 2, "temperature": [1.0, 0.0, 0.5]})


@functools.cache
def made(name):
    keras.utils.set_random_seed(1)
    return MODELS[name]()


@functools.cache
def drawn(name):
    """What whole passes draw."""
    return CASES[name].draw(method="naive")


@pytest.mark.parametrize("name", CASES)
def test_every_method_draws_what_whole_passes_draw(name):
    case, expected = CASES[name], drawn(name)
    for method in ("auto",) if case.raster else ("auto", "cached", "fixed-point"):
        case.same(case.draw(method=method), expected)
    if case.model in DRAFTS:
        case.same(case.draw(method="speculative", draft=made(DRAFTS[case.model])), expected)


@pytest.mark.parametrize("name", CASES)
def test_a_row_a_beginning_and_the_chunks_are_parts_of_the_whole(name):
    case, expected = CASES[name], drawn(name)
    case.same(case.draw(num=1), expected[:1])
    if case.raster:
        return
    if not case.options:
        case.same(case.draw(length=9), expected[:, :9])
    model = made(case.model)
    chunks = list(model.stream(length=case.length, seed=SEED, num=NUM, chunk=7, **case.options))
    assert "prefix" in case.options or {chunk.shape[1] for chunk in chunks[:-1]} == {7}
    found = np.concatenate(chunks, 1)
    case.same(found, expected[:, : found.shape[1]])
    assert found.shape[1] == case.length or "stop" in case.options


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if not case.raster])
def test_a_sample_continues_a_prefix_of_itself(name):
    case, expected = CASES[name], drawn(name)
    if "prefix" not in case.options:
        case.same(case.draw(prefix=expected[:, :12]), expected)  # some of it in one pass
        return
    for row, known in enumerate(case.options["prefix"]):
        if np.ndim(known):
            np.testing.assert_allclose(expected[row, : len(known)], known, atol=0.01)


@pytest.mark.parametrize("name", CASES)
def test_a_stored_model_draws_and_judges_the_same(name, tmp_path):
    case, expected = CASES[name], drawn(name)
    loaded = load(save(made(case.model), tmp_path / "stored"))
    assert loaded.sample_rate_hz is None
    for num in (1, NUM):  # a stored step, and one of more rows
        case.same(case.draw(loaded, num), expected[:num])
    if not case.raster:
        case.same(case.draw(loaded, method="fixed-point"), expected)
    rest = (case.options["condition"],) if "condition" in case.options else ()
    nats = made(case.model).log_prob(expected, *rest)
    np.testing.assert_allclose(loaded.log_prob(expected, *rest), nats, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("forbidden")])
def test_a_forbidden_token_is_never_drawn_and_has_no_probability(name):
    case, expected = CASES[name], drawn(name)
    assert not np.isin(expected, [0, 3]).any()
    _, nats = case.draw(return_log_prob=True)
    assert np.isfinite(nats).all()
    np.testing.assert_allclose(nats, made("forbidden").log_prob(expected), atol=1e-5)
    other = expected.copy()
    other[:, 4] = 3
    assert np.isneginf(made("forbidden").log_prob(other)[:, 4]).all()
    draft = made("forbidden")
    case.same(case.draw(method="speculative", draft=draft), expected)


@pytest.mark.parametrize("name", ["start", "integers", "integers of channels"])
def test_a_bundle_draws_the_same(name, tmp_path):
    case, expected = CASES[name], drawn(name)
    model = onepass.export(made(name), tmp_path / "models" / "1", length=case.length)
    condition = {n: x.reshape([NUM, -1, 1]) for n, x in case.options.items()}
    found = onepass.load(model).sample(NUM, case.length, SEED, **condition)
    np.testing.assert_allclose(found, expected, atol=1e-6)
