"""What prompts, top-k, temperatures and ends of rows mean, and which have no meaning."""

import attention_networks
import causal_networks
import numpy as np
import pytest
from attention_networks import SPEC, TOKENS

from onepass.likelihoods import Categorical, Gaussian, Integers
from onepass.model import Autoregressive

LENGTH = 30


@pytest.fixture(scope="module")
def model():
    network = attention_networks.Rotary()
    return Autoregressive(network, Categorical(TOKENS), codec=Integers(TOKENS), inputs=SPEC)


def tokens(*shape, seed=1):
    return np.random.default_rng(seed).integers(0, TOKENS, shape)


def test_a_row_ends_with_its_stop_token_and_not_within_its_prefix(model):
    prefix = [np.array([4, 4]), np.array([1])]
    free = model.sample(2, 200, 2, prefix=prefix)
    for stop in ([4], {9, 4, 2}):
        asked = 4 if stop == [4] else stop
        drawn = model.sample(2, 200, 2, prefix=prefix, stop=asked)
        for row, own, known in zip(drawn, free, (2, 1), strict=True):
            end = known + int(np.argmax(np.isin(own[known:], list(stop))))
            np.testing.assert_array_equal(row[: end + 1], own[: end + 1])
            assert (row[end:] == own[end]).all()


def test_log_probabilities_are_the_models_at_temperature_one(model):
    options = {"prefix": tokens(2, 5), "top_k": 3, "temperature": 0.7, "stop": 4}
    drawn, nats = model.sample(2, LENGTH, 1, return_log_prob=True, **options)
    after = np.cumsum((drawn == 4) & (np.arange(LENGTH) >= 5), 1) > 1
    np.testing.assert_allclose(nats[~after], model.log_prob(drawn).numpy()[~after], atol=1e-4)
    assert (nats[after] == 0.0).all()


def test_a_model_of_real_numbers_has_no_stop_and_no_most_probable_symbols():
    model = Autoregressive(causal_networks.convolved(1, 2), Gaussian(None))
    with pytest.raises(ValueError, match="`stop` needs a model of integer symbols"):
        model.sample(1, 12, 1, stop=0.5)
    with pytest.raises(ValueError, match="distribution over tokens"):
        model.sample(1, 12, 1, top_k=2)


def test_no_stop_is_drawn_before_the_least_length_and_any_stop_after(model):
    prefix, stop = tokens(2, 3), [4, 9]
    drawn = model.sample(2, 200, 2, prefix=prefix, stop=stop, min_length=40)
    assert not np.isin(drawn[:, 3:40], stop).any()
    ends = 40 + np.argmax(np.isin(drawn[:, 40:], stop), 1)
    assert (ends < 190).all()
    for row, end in zip(drawn, ends, strict=True):
        assert (row[end:] == row[end]).all()
    # It counts the prefix, and changes nothing without a stop.
    free = model.sample(2, 30, 2, prefix=prefix)
    np.testing.assert_array_equal(model.sample(2, 30, 2, prefix=prefix, min_length=20), free)
    np.testing.assert_array_equal(
        model.sample(2, 30, 2, prefix=prefix, stop=stop, min_length=3),
        model.sample(2, 30, 2, prefix=prefix, stop=stop),
    )


def logits_of(model, drawn):
    return np.asarray(model.conditionals(drawn), np.float64)


def penalised(logits, drawn, repetition_penalty=1.0, presence_penalty=0.0):
    found = logits.copy()
    for row, position in np.ndindex(*drawn.shape):
        for token in set(drawn[row, :position].tolist()):
            value = found[row, position, token]
            value = value / repetition_penalty if value > 0 else value * repetition_penalty
            found[row, position, token] = value - presence_penalty
    return found


PENALTIES = [
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.6},
    {"presence_penalty": 1.5},
    {"presence_penalty": -0.7, "repetition_penalty": 1.3},
]


@pytest.mark.parametrize("penalty", PENALTIES)
def test_tokens_that_have_occurred_are_penalised_the_prefix_included(model, penalty):
    prefix = tokens(3, 4)
    drawn = model.sample(3, LENGTH, 1, prefix=prefix, temperature=0.0, **penalty)
    expected = penalised(logits_of(model, drawn), drawn, **penalty)
    np.testing.assert_array_equal(drawn[:, 4:], expected.argmax(-1)[:, 4:])
    free = model.sample(3, LENGTH, 1, prefix=prefix, temperature=0.0)
    assert (free != drawn).any()


BAD = {
    "at most as long": {"prefix": tokens(2, LENGTH + 1)},
    "must have 2 rows": {"prefix": tokens(3, 4)},
    r"in \[0, 12\]": {"prefix": np.full([2, 3], TOKENS)},
    "`stop` must be in": {"stop": TOKENS},
    "`stop` must be a number or a list of numbers, got shape": {"stop": [[1, 2]]},
    r"`top_p` must be a number in \(0, 1\], got 0.0": {"top_p": 0.0},
    r"`top_p` must be a number in \(0, 1\], got 1.5": {"top_p": 1.5},
    "`top_p` must be a number": {"top_p": float("nan")},
    r"`min_p` must be a number in \[0, 1\], got -0.1": {"min_p": -0.1},
    r"`min_p` must be a number in \[0, 1\], got nan": {"min_p": float("nan")},
    "`logit_bias` must be a dict of elements and numbers, got 3": {"logit_bias": 3},
    "`logit_bias` must be a finite number, got inf": {"logit_bias": {1: float("inf")}},
    "`logit_bias` must be one element, a number, got 'a'": {"logit_bias": {"a": 1.0}},
    r"`logit_bias` must be in \[0, 12\]": {"logit_bias": {TOKENS: 1.0}},
    "`allowed` must be a number or a list of numbers, got 'a'": {"allowed": "a"},
    r"`allowed` must be a number or a list of numbers, got shape \[0\]": {"allowed": []},
    r"`allowed` must be in \[0, 12\]": {"allowed": {1, TOKENS}},
    "`min_length` must be an integer of at least 0, got -1": {"min_length": -1},
    "`repetition_penalty` must be a finite number above 0, got 0": {"repetition_penalty": 0},
    "`presence_penalty` must be a finite number, got inf": {"presence_penalty": float("inf")},
    "`top_k` must be an integer": {"top_k": -1},
    "`top_k` must be an integer of": {"top_k": 1.5},
    "one for each of 2 rows": {"temperature": [1.0, 0.5, 0.2]},
    "finite number": {"temperature": [1.0, float("nan")]},
    "elements. must be integers|numbers": {"prefix": np.full([2, 3], "a")},
}


@pytest.mark.parametrize("text", BAD)
def test_arguments_without_a_meaning_are_refused_at_the_call(model, text):
    for call in (
        lambda **o: model.sample(2, LENGTH, 1, **o),
        lambda **o: model.stream(length=LENGTH, seed=1, num=2, **o),
    ):
        with pytest.raises(ValueError, match=text):
            call(**BAD[text])
