"""Top-k and top-p keep the symbols that sorting keeps."""

import numpy as np
import pytest
import tensorflow as tf

from onepass.interface import OPTIONS
from onepass.likelihoods import Categorical
from onepass.likelihoods.truncated import Choice, Truncated, truncate_logits


def choice(temperature=1.0, **options):
    return Choice(tf.constant(temperature), **{n: tf.constant(x) for n, x in options.items()})


def kept_by_sorting(logits, temperature, top_k=0, top_p=1.0, min_p=0.0):
    odds = np.exp((logits - logits.max()) / temperature)
    odds /= odds.sum()
    order = np.argsort(-odds)[: top_k or None]
    cumulative = np.cumsum(odds[order]) / odds[order].sum()
    kept = order[: np.searchsorted(cumulative, top_p) + 1]
    return set(kept[odds[kept] >= min_p * odds.max()])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("levels", [2, 37, 5000])
def test_the_kept_symbols_are_those_of_sorting(levels, compiled):
    logits = np.random.default_rng(levels).normal(size=[6, levels]).astype(np.float32) * 3.0
    function = tf.function(truncate_logits, jit_compile=True) if compiled else truncate_logits
    for temperature, options in [
        (1.0, {}), (1.0, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}), (1.0, {"top_k": 1}),
        (1.0, {"top_k": 7}), (1.0, {"top_k": 10**6}), (0.7, {"top_p": 0.9}), (2.0, {"top_p": 0.37}),
        (1.0, {"top_k": 5, "top_p": 0.6}), (1.0, {"top_p": 1e-6}), (1.0, {"min_p": 0.03}),
        (0.5, {"min_p": 1.0}), (1.5, {"min_p": 0.2, "top_k": 4}),
        (2.0, {"min_p": 0.1, "top_p": 0.8}),
    ]:  # fmt: skip
        found = np.isfinite(function(tf.constant(logits), choice(temperature, **options)))
        for row in range(6):
            wanted = kept_by_sorting(logits[row].astype(np.float64), temperature, **options)
            assert set(np.flatnonzero(found[row])) == wanted, (temperature, options)


def test_equal_logits_are_kept_together():
    logits = tf.constant([[1.0, 3.0, 3.0, 3.0, -2.0]])
    assert np.isfinite(truncate_logits(logits, choice(top_k=2)))[0].tolist() == [
        False,
        *[True] * 3,
        False,
    ]


def test_without_truncation_the_symbols_are_the_distributions():
    distribution = Categorical(50)
    parameters = tf.random.stateless_normal([200, 3, 50], [1, 2])
    noise = tf.reshape(distribution.noise(3, tf.range(200), 0, 3), [200, 3, 1])
    for temperature in (0.0, 0.5, 1.0):
        drawn = Truncated(distribution).sample(parameters, noise, choice(temperature))
        np.testing.assert_array_equal(drawn, distribution.sample(parameters, noise, temperature))


def test_frequencies_are_those_of_the_kept_symbols():
    logits = tf.constant([2.0, 1.0, 0.0, -1.0])
    parameters = tf.broadcast_to(logits, [20000, 1, 4])
    distribution = Truncated(Categorical(4))
    noise = Categorical(4).noise(0, tf.range(20000), 0, 1)
    drawn = distribution.sample(parameters, noise, choice(top_k=2)).numpy().ravel()
    share = np.exp(2.0) / (np.exp(2.0) + np.exp(1.0))
    assert set(drawn) == {0, 1}
    assert abs((drawn == 0).mean() - share) < 4 * np.sqrt(share * (1 - share) / 20000)


def test_a_row_may_have_its_own_choice():
    logits = tf.constant(np.random.default_rng(0).normal(size=[3, 1, 20]), tf.float32)
    rows = Choice(
        tf.constant([[1.0], [0.5], [2.0]]), tf.constant([[1], [0], [4]]), tf.constant(1.0)
    )
    found = truncate_logits(logits, rows)
    assert np.isfinite(found).sum(-1).ravel().tolist() == [1, 20, 4]


def processed(scores, seen, *processors):
    """Returns the probabilities of scores [rows, levels] after processors of transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    found = torch.tensor(scores)
    for name, *arguments in processors:
        found = getattr(transformers, name)(*arguments)(torch.tensor(seen), found)
    return torch.softmax(found, -1).numpy()


def test_a_bias_is_added_before_all_else():
    logits = np.random.default_rng(3).normal(size=[5, 7]).astype(np.float32)
    bias = np.zeros(7, np.float32)
    bias[[1, 4]] = [3.0, -2.0]
    found = truncate_logits(tf.constant(logits), choice(0.5, logit_bias=bias, top_k=3))
    expected = truncate_logits(tf.constant(logits + bias), choice(0.5, top_k=3))
    np.testing.assert_array_equal(found, expected)


def test_only_allowed_tokens_are_drawn_even_if_the_model_forbids_them_all():
    logits = np.array([[3.0, 1.0, 0.0, -np.inf, -np.inf]], np.float32)
    for allowed, odds in [([1, 2], [0, np.e, 1, 0, 0]), ([3, 4], [0, 0, 0, 1, 1])]:
        mask = np.isin(np.arange(5), allowed)
        found = tf.nn.softmax(truncate_logits(tf.constant(logits), choice(allowed=mask)))
        np.testing.assert_allclose(found[0], np.array(odds) / np.sum(odds), rtol=1e-6)


def counts_of(seen, levels):
    return np.apply_along_axis(np.bincount, 1, seen, minlength=levels).astype(np.int32)


def test_a_penalty_of_presence_is_subtracted_once_from_what_has_occurred():
    logits = np.random.default_rng(3).normal(size=[5, 7]).astype(np.float32)
    counts = np.random.default_rng(4).integers(0, 4, [5, 7]).astype(np.int32)
    found = truncate_logits(tf.constant(logits), choice(presence_penalty=0.8, counts=counts))
    np.testing.assert_allclose(found, logits - np.float32(0.8) * (counts > 0), rtol=1e-6)


PROCESSORS = {
    "top-k": ({"top_k": 5}, [("TopKLogitsWarper", 5)]),
    "top-p": ({"top_p": 0.7}, [("TopPLogitsWarper", 0.7)]),
    "min-p": ({"min_p": 0.2}, [("MinPLogitsWarper", 0.2)]),
    "bias": (
        {"logit_bias": np.eye(1, 40, 3, dtype=np.float32)[0] * 2.5},
        [("SequenceBiasLogitsProcessor", [[[3], 2.5]])],
    ),
    "min length, before": (
        {"min_length": 7, "stop": np.isin(np.arange(40), [5, 6])},
        [("MinLengthLogitsProcessor", 7, [5, 6])],
    ),
    "min length, after": (
        {"min_length": 6, "stop": np.isin(np.arange(40), [5, 6])},
        [("MinLengthLogitsProcessor", 6, [5, 6])],
    ),
    "repetition": (
        {"repetition_penalty": 1.6},
        [("RepetitionPenaltyLogitsProcessor", 1.6)],
    ),
    "all": (
        {"top_k": 9, "top_p": 0.9, "min_p": 0.05},
        [("TopKLogitsWarper", 9), ("TopPLogitsWarper", 0.9), ("MinPLogitsWarper", 0.05)],
    ),
}


@pytest.mark.parametrize("case", PROCESSORS)
def test_the_probabilities_are_those_of_the_processors_of_transformers(case):
    options, processors = PROCESSORS[case]
    scores = np.random.default_rng(7).normal(size=[4, 40]).astype(np.float32) * 3.0
    seen = np.random.default_rng(8).integers(0, 40, [4, 6])
    settings = choice(0.7, **options, counts=counts_of(seen, 40))
    logits = truncate_logits(tf.constant(scores), settings)
    warpers = [each for each in processors if each[0].endswith("Warper")]
    others = [each for each in processors if each not in warpers]
    expected = processed(scores, seen, *others, ("TemperatureLogitsWarper", 0.7), *warpers)
    np.testing.assert_allclose(tf.nn.softmax(logits / 0.7), expected, atol=1e-6)


def test_the_defaults_of_a_draw_change_no_choice():
    for name, neutral in Choice._field_defaults.items():
        if name in OPTIONS and OPTIONS[name].default is not None:
            assert OPTIONS[name].default == neutral, name
    assert not choice(top_k=0, top_p=1.0, min_p=0.0).differs and choice(min_p=0.1).differs
