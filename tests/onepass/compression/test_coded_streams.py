"""Streams give back levels, at the bits that their distributions say, by nearly equal ones too."""

import dataclasses
import math

import numpy as np
import pytest
from marks import some_slow
from scipy import special

from onepass.compression import stream
from onepass.compression.odds import Categorical, Mixture
from onepass.compression.stream import Decoder, Encoder, Layout, alone, depth_of, odds_of
from onepass.foundation.rules import UserError

COMPONENTS = 3


def mixtures(count, levels, seed=0, normal=False):
    """Mixtures, and levels drawn from them."""
    draws = np.random.default_rng(seed)
    weights = draws.normal(size=[count, 1 if normal else COMPONENTS])
    means = draws.uniform(0, levels, [count, 1]) + draws.normal(size=weights.shape) * levels / 50
    scales = draws.normal(size=weights.shape) * 0.5 + math.log(levels / 200)
    tolerances = tuple(1e-5 * np.abs(array) for array in (weights, means, scales))
    mixture = Mixture(levels, weights, means, scales, tolerances, normal)
    cumulative = np.cumsum(special.softmax(weights, -1), -1)
    chosen = (draws.uniform(size=[count, 1]) >= cumulative[:, :-1]).sum(1)
    noise = draws.normal(size=count) if normal else draws.logistic(size=count)
    rows = np.arange(count)
    drawn = np.rint(means[rows, chosen] + np.exp(scales[rows, chosen]) * noise)
    return mixture, np.clip(drawn, 0, levels - 1).astype(np.int64)


def masses(mixture):
    """The probability of every level, float64 [elements, levels], by the cumulative function."""
    edges = np.arange(1, mixture.levels) - 0.5
    z = (edges[:, None] - mixture.means[:, None]) * np.exp(-mixture.log_scales[:, None])
    below = special.ndtr(z) if mixture.normal else special.expit(z)
    cumulative = (below * special.softmax(mixture.log_weights, -1)[:, None]).sum(-1)
    return np.diff(cumulative, prepend=0.0, append=1.0)


def moved(mixture, draws, amount=1.0):
    """The mixture as another processor might have it, within the tolerances."""
    arrays = (mixture.log_weights, mixture.means, mixture.log_scales)
    signs = [draws.choice([-amount, 0.0, amount], array.shape) for array in arrays]
    found = [a + s * off for a, s, off in zip(arrays, signs, mixture.tolerances, strict=True)]
    return mixture._replace(log_weights=found[0], means=found[1], log_scales=found[2])


def rows_of(mixture, part):
    """Some rows of a mixture."""
    return mixture._replace(
        log_weights=mixture.log_weights[part],
        means=mixture.means[part],
        log_scales=mixture.log_scales[part],
        tolerances=tuple(off[part] for off in mixture.tolerances),
    )


def encoded(mixture, levels, calls):
    """The stream, and its layout."""
    layout = Layout(depth_of(mixture.levels), 1, 1, len(levels))
    encoder = Encoder(layout)
    encoder.add([odds_of(mixture, levels, layout.depth)], 0, [len(levels) // calls] * calls)
    return encoder.finish(), layout


def decoded(stream, layout, mixture, calls):
    """The levels of a stream, in as many calls."""
    decoder, size = Decoder(stream, layout), layout.pixels // calls
    parts = [rows_of(mixture, slice(i * size, (i + 1) * size)) for i in range(calls)]
    return np.concatenate([decoder.levels(part, size, 0, 0) for part in parts])


@pytest.mark.parametrize(
    ("levels", "normal"),
    some_slow(
        [(256, False), (256, True), (100, False), (2, True), (65536, False)],
        [(256, True), (2, True), (65536, False)],
    ),
)
def test_levels_come_back_by_distributions_that_are_off_by_their_tolerances(levels, normal):
    mixture, drawn = mixtures(3000, levels, normal=normal)
    stream, layout = encoded(mixture, drawn, 5)
    other = moved(mixture, np.random.default_rng(1))
    np.testing.assert_array_equal(decoded(stream, layout, other, 5), drawn)


def certain(count, level):
    """Distributions that give nearly all their mass to one level of eight, and these levels."""
    logits = np.full([count, 8], -40.0)
    logits[:, level] = 0.0
    return Categorical(logits, np.zeros_like(logits)), np.full(count, level)


def taken(stream, layout, row):
    """The levels of a stream that is read pixel by pixel, with the same distribution for each."""
    decoder = Decoder(stream, layout)
    return np.array([decoder.pixels(alone(row), 1)[0, 0] for _ in range(layout.pixels)])


@pytest.mark.parametrize("level", [0, 3, 7])
@pytest.mark.parametrize("more", [0, 1, 7])
def test_levels_that_cost_next_to_nothing_come_back_after_the_last_word(monkeypatch, level, more):
    monkeypatch.setattr(stream, "DRY_CALLS", 40)
    count = 400 + more
    distribution, levels = certain(count, level)
    levels[: 3 * more] = more  # levels that cost much come first
    made, layout = encoded(distribution, levels, count)
    row = Categorical(distribution.logits[:1], distribution.tolerance[:1])
    np.testing.assert_array_equal(taken(made, layout, row), levels)


@pytest.mark.parametrize("level", [0, 3])
def test_a_stream_has_few_calls_left_when_its_words_end(monkeypatch, level):
    monkeypatch.setattr(stream, "DRY_CALLS", 40)
    distribution, levels = certain(500, level)
    row = Categorical(distribution.logits[:1], distribution.tolerance[:1])
    made, layout = encoded(distribution, levels[:30], 30)
    longer = dataclasses.replace(layout, pixels=500)
    with pytest.raises(UserError, match="a stream of 500 pixels or samples ends before number 4"):
        taken(made, longer, row)
    draws = np.random.default_rng(level).integers(0, 256, 4 * 5, dtype=np.uint8)
    head = made[: len(made) - len(made[5:]) // 4 * 4]
    even = Categorical(np.zeros([1, 8]), np.zeros([1, 8]))
    with pytest.raises(UserError, match="a stream of 500 pixels or samples ends before"):
        taken(head + draws.tobytes(), longer, even)


def test_progress_counts_every_pixel():
    mixture, levels = mixtures(60, 256)
    made, layout = encoded(mixture, levels, 20)
    counts = []
    decoder = Decoder(made, layout, counts.append)
    for i in range(20):
        decoder.pixels(alone(rows_of(mixture, slice(3 * i, 3 * i + 3))), 3)
    assert counts == [3] * 20


def test_a_stream_takes_the_bits_that_the_distributions_say():
    mixture, drawn = mixtures(20000, 256)
    bits = -np.log2(masses(mixture)[np.arange(len(drawn)), drawn]).sum()
    loose = 8 * len(encoded(mixture, drawn, 1)[0]) / bits
    zeros = tuple(np.zeros_like(off) for off in mixture.tolerances)
    tight = 8 * len(encoded(mixture._replace(tolerances=zeros), drawn, 1)[0]) / bits
    assert 1.0 <= tight < 1.002  # 13 bytes are of the head and the last word
    assert tight < loose < 1.01


def test_odds_are_those_of_the_masses():
    mixture, levels = mixtures(40, 64)
    odds, mass = odds_of(mixture, levels, 6), masses(mixture)
    low = levels & ~1
    rows = np.arange(40)
    below, above = mass[rows, low] + 1e-5 / 64, mass[rows, low + 1] + 1e-5 / 64
    expected = np.log(above / below)
    expected = np.sign(expected) * 3 * (1 - np.exp(-np.abs(expected) / 3))
    np.testing.assert_allclose(odds.t[:, -1], expected, atol=1e-6)


def test_known_levels_move_the_weights_as_their_masses_say():
    mixture, levels = mixtures(200, 64)
    levels[:20], levels[20:40] = 0, 63
    found, off = mixture.condition_on_levels(levels)
    z = lambda edge: (edge[:, None] - mixture.means) * np.exp(-mixture.log_scales)  # noqa: E731
    high = np.where(levels[:, None] == 63, 1.0, special.expit(z(levels + 0.5)))
    low = np.where(levels[:, None] == 0, 0.0, special.expit(z(levels - 0.5)))
    seen = high - low > 1e-9
    expected = mixture.log_weights + np.log(np.maximum(high - low, 1e-300))
    np.testing.assert_allclose(found[seen], expected[seen], atol=1e-5)
    again, _ = moved(mixture, np.random.default_rng(3)).condition_on_levels(levels)
    assert np.all(np.abs(again - found) <= 1.01 * off + 1e-9)


def test_probabilities_are_integers_that_sum_to_one_and_never_vanish():
    grids = stream.grids()
    ones = grids.probabilities * 2.0**stream.PRECISION
    np.testing.assert_array_equal(ones, np.rint(ones))
    assert ones.min() >= 1 and ones.max() <= 2**stream.PRECISION - 1


@pytest.mark.parametrize("is_wide", [False, True])
def test_levels_beyond_all_mass_and_margins_beyond_all_grids_are_coded(is_wide):
    mixture, _ = mixtures(300, 256)
    levels = np.where(mixture.means[:, 0] > 128, 0, 255)
    if is_wide:
        wide = tuple(np.full_like(off, 5.0) for off in mixture.tolerances)
        mixture = mixture._replace(tolerances=wide)
    stream, layout = encoded(mixture, levels, 1)
    other = moved(mixture, np.random.default_rng(0), 0.5)
    np.testing.assert_array_equal(decoded(stream, layout, other, 1), levels)
