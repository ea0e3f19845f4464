"""Margins bound what outputs within their tolerances do to odds, whatever the distribution."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import special

import onepass
from onepass import likelihoods
from onepass.compression import odds
from onepass.compression.odds import Categorical, Mixture
from onepass.compression.stream import Decoder, Encoder, Layout, depth_of, odds_of
from onepass.foundation.rules import UserError

FEW, MANY = 256, 65536
DISTRIBUTIONS = {
    "Gaussian": likelihoods.Gaussian,
    "GaussianMixture": lambda levels: likelihoods.GaussianMixture(levels, 3),
    "LogisticMixture": lambda levels: likelihoods.LogisticMixture(levels, 3),
    "one logistic": lambda levels: likelihoods.LogisticMixture(levels, 1),
}
# From far below one level, of 8 and of 16 bits, to more than the range.
LOG_SCALES = [(-15.0, -10.0), (-10.0, -5.0), (-5.0, 0.0), (0.0, 3.0)]
TOLERANCES = [0.0, 1e-5, 1e-3, 1e-2]


def outputs_of(distribution, count, scales, draws):
    """Outputs of a network, and levels near the means, in the tails and anywhere."""
    logits, means, _ = distribution.sections
    parts = [
        3.0 * draws.normal(size=[count, logits]),
        draws.uniform(-1.1, 1.1, [count, means]) * draws.choice([0.0, 1e-3, 1.0], [count, 1]),
        draws.uniform(*scales, [count, means]),
    ]
    half = 0.5 * (distribution.levels - 1)
    far = draws.normal(size=count) * draws.choice([0.5, 5.0, 50.0], count)
    near = half * (parts[1][:, 0] + 1.0 + np.exp(parts[2][:, 0]) * far)
    anywhere = draws.integers(0, distribution.levels, count)
    levels = np.where(draws.uniform(size=count) < 0.2, anywhere, np.rint(near))
    return np.concatenate(parts, 1), np.clip(levels, 0, distribution.levels - 1).astype(np.int64)


def corners(shape, draws):
    """Signs of all outputs [corners, *shape]: all up, all down, each kind alone, and at random."""
    alone = np.zeros([shape[1], *shape])
    for axis, signs in enumerate(alone):
        signs[:, axis] = draws.choice([-1.0, 1.0], shape[0])
    ends, at_random = np.ones([1, *shape]), draws.choice([-1.0, 1.0], [6, *shape])
    return np.concatenate([ends, -ends, alone, at_random, draws.uniform(-1.0, 1.0, [1, *shape])])


def flat(signs, outputs, off):
    """Outputs that are off by these signs of their tolerances, [corners x count, outputs]."""
    return (outputs + signs * off).reshape(-1, outputs.shape[-1])


def shift_of(moved, signs, known, depth, before):
    """Return the distance of odds in all corners from those before, [corners, count, bits]."""
    odds = odds_of(moved, np.tile(known, len(signs)), depth)
    return np.abs(odds.t.reshape(-1, *before.t.shape) - before.t)


@pytest.mark.parametrize("levels", [FEW, MANY, 100])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_no_corner_of_the_outputs_moves_odds_by_more_than_their_margin(name, levels):
    distribution, draws = DISTRIBUTIONS[name](levels), np.random.default_rng(0)
    depth = depth_of(levels)
    for scales in LOG_SCALES:
        for tolerance in TOLERANCES:
            outputs, known = outputs_of(distribution, 60, scales, draws)
            off = odds.tolerances(outputs, tolerance)
            for narrowest in (None, odds.narrowest_of(tolerance), 0.0):
                before = odds_of(
                    odds.closed_form(distribution, outputs, off, narrowest), known, depth
                )
                # Without a tolerance, outputs are not off.
                signs = corners(outputs.shape, draws)[: None if tolerance else 1]
                other = odds.closed_form(distribution, flat(signs, outputs, off), None, narrowest)
                shift = shift_of(other, signs, known, depth, before)
                assert np.all(shift <= before.margin), (scales, tolerance, narrowest)


@pytest.mark.parametrize("tolerance", [1e-6, 1e-4, 1e-2, 0.5, 3.0])
def test_no_corner_of_logits_moves_odds_by_more_than_their_margin(tolerance):
    draws = np.random.default_rng(0)
    for levels, spread in ((2, 1.0), (50, 10.0), (256, 100.0)):
        logits, known = spread * draws.normal(size=[40, levels]), draws.integers(0, levels, 40)
        off = np.broadcast_to(tolerance, logits.shape).copy()
        depth = depth_of(levels)
        before = odds_of(Categorical(logits, off), known, depth)
        halves = np.where(np.arange(levels) < known[:, None], -1.0, 1.0)
        signs = np.concatenate([[halves, -halves], corners(logits.shape, draws)])
        moved = Categorical(flat(signs, logits, off), np.tile(off, (len(signs), 1)))
        assert np.all(shift_of(moved, signs, known, depth, before) <= before.margin)


@pytest.mark.parametrize("mask", [-np.inf, -1e30, -1e9, -2e4])
@pytest.mark.parametrize("tolerance", [1e-6, 1e-3, 0.1])
def test_masks_of_logits_have_no_mass_at_any_corner_and_widen_no_margin(mask, tolerance):
    """The masked levels are the same in all elements, or others in each."""
    draws = np.random.default_rng(0)
    logits, levels = 3.0 * draws.normal(size=[40, 50]), 50
    for is_masked in (np.arange(levels) % 3 == 0, draws.uniform(size=logits.shape) < 0.4):
        is_masked = np.broadcast_to(is_masked, logits.shape)
        masked = np.where(is_masked, mask, logits)
        known = np.argmax(np.where(is_masked, -np.inf, draws.uniform(size=logits.shape)), 1)
        off, depth = odds.tolerances(masked, tolerance), depth_of(levels)
        before = odds_of(Categorical(masked, off), known, depth)
        assert np.all(off[~is_masked] <= odds.tolerances(10.0 * logits, tolerance)[~is_masked])
        assert np.isfinite(before.t).all() and np.isfinite(before.margin).all()
        signs = corners(logits.shape, draws)
        moved = Categorical(flat(signs, masked, off), np.tile(off, (len(signs), 1)))
        assert np.all(shift_of(moved, signs, known, depth, before) <= before.margin)
        low = np.where(is_masked, -np.inf, logits)
        alone = odds_of(Categorical(low, np.where(is_masked, 0.0, off)), known, depth)
        np.testing.assert_array_equal(before.t, alone.t)
        np.testing.assert_allclose(before.margin, alone.margin, atol=1e-12)


class Tabulated(likelihoods.Categorical):
    """The same distribution, of which only the log probabilities are known."""

    form = None


@pytest.mark.parametrize("kind", [likelihoods.Categorical, Tabulated])
@pytest.mark.parametrize("mask", [-np.inf, -1e9])
def test_a_level_that_the_model_forbids_costs_nothing_and_is_refused_where_it_is_used(kind, mask):
    table = np.random.default_rng(0).normal(size=[8, 8]).astype(np.float32)
    hidden = np.where(np.arange(8) < 4, 0.0, mask).astype(np.float32)
    rows = np.random.default_rng(1).integers(0, 4, [2, 400]).astype(np.int32)
    files = {}
    for name, added in (("forbidden", hidden), ("allowed", np.zeros(8, np.float32))):
        model = onepass.Autoregressive(
            lambda x, added=added: tf.gather(table, x) + added,
            kind(8),
            inputs=tf.TensorSpec([None, None], tf.int32),
        )
        files[name] = onepass.compress(model, rows, verify=False)
        if name == "forbidden":
            nats = -float(tf.reduce_sum(model.log_prob(rows)))
            assert len(files[name]) < 1.03 * nats / np.log(256) + 200
            np.testing.assert_array_equal(onepass.decompress(model, files[name]), rows)
            other = rows.copy()
            other[1, 7], other[1, 9] = 6, 5
            with pytest.raises(UserError, match=r"probability zero to the level 6 at \(1, 7\)"):
                onepass.compress(model, other, verify=False)
    assert len(files["forbidden"]) + 60 < len(files["allowed"])


def test_known_levels_move_weights_by_no_more_than_their_tolerance():
    draws = np.random.default_rng(0)
    for scales in ((-4.0, 0.0), (0.0, 3.0), (3.0, 6.0)):
        for tolerance in (1e-5, 1e-2, 1.0):
            shape = [200, 3]
            arrays = [draws.normal(size=shape), draws.uniform(0, 255, shape)]
            arrays.append(draws.uniform(*scales, shape))
            offs = (0.0 * arrays[0], tolerance * arrays[1], tolerance * np.abs(arrays[2]))
            known = draws.integers(0, 256, 200)
            known[:20], known[20:40] = 0, 255
            weights, off = Mixture(256, *arrays, offs).condition_on_levels(known)
            for _ in range(10):
                moved = [
                    array + draws.choice([-1.0, 1.0], shape) * by
                    for array, by in zip(arrays, offs, strict=True)
                ]
                again, _ = Mixture(256, *moved, None).condition_on_levels(known)
                assert np.all(np.abs(again - weights) <= off + 1e-12 * np.abs(weights))


def test_margins_are_little_more_than_the_largest_shift():
    distribution, draws = likelihoods.LogisticMixture(MANY, 3), np.random.default_rng(0)
    outputs, known = outputs_of(distribution, 200, (-9.0, -4.0), draws)
    off = odds.tolerances(outputs, 1e-5)
    before = odds_of(odds.closed_form(distribution, outputs, off), known, 16)
    signs = corners(outputs.shape, draws)
    moved = odds.closed_form(distribution, flat(signs, outputs, off), None)
    shift = shift_of(moved, signs, known, 16, before).max(0)
    assert before.margin.mean() < 1.3 * shift.mean()


@pytest.mark.parametrize("tolerance", [1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("levels", [FEW, MANY])
def test_streams_decode_at_every_tolerance(levels, tolerance):
    distribution, draws = likelihoods.Gaussian(levels), np.random.default_rng(0)
    outputs, known = outputs_of(distribution, 2000, (-10.0, -5.0), draws)
    off, layout = odds.tolerances(outputs, tolerance), Layout(depth_of(levels), 1, 1, 2000)
    for narrowest in (None, odds.narrowest_of(tolerance)):
        encoder = Encoder(layout)
        closed = odds.closed_form(distribution, outputs, off, narrowest)
        encoder.add([odds_of(closed, known, layout.depth)], 0, [len(known)])
        stream = encoder.finish()
        assert 8 * len(stream) <= (layout.depth + 0.1) * len(known)
        for signs in (1.0, -1.0, draws.choice([-1.0, 1.0], outputs.shape)):
            moved = odds.closed_form(distribution, outputs + signs * off, None, narrowest)
            found = Decoder(stream, layout).levels(moved, 2000, 0, 0)
            np.testing.assert_array_equal(found, known)


def bits_of(distribution, outputs, known, tolerance):
    """The bits of a level in a stream, without its head."""
    encoder = Encoder(Layout(16, 1, 1, len(known)))
    off = odds.tolerances(outputs, tolerance)
    closed = odds.closed_form(distribution, outputs, off, odds.narrowest_of(tolerance))
    encoder.add([odds_of(closed, known, 16)], 0, [len(known)])
    return 8 * len(encoder.finish()) / len(known)


@pytest.mark.parametrize(("tolerance", "most", "count"), [(0.0, 0.02, 20000), (1e-5, 0.06, 5000)])
def test_digital_silence_takes_hardly_any_bits(tolerance, most, count):
    silence, known = likelihoods.LogisticMixture(MANY, 2), np.full(count, 32768)
    outputs = np.tile([0.0, 0.0, 1 / 65535, 1 / 65535, -14.0, -14.0], [count, 1])  # level 32768
    assert bits_of(silence, outputs, known, tolerance) < most


@pytest.mark.parametrize(("tolerance", "most"), [(0.0, 0.03), (1e-5, 0.06)])
def test_a_quiet_narrow_distribution_takes_little_more_than_its_own_bits(tolerance, most):
    draws, count = np.random.default_rng(0), 5000
    means, scale = 1e-3 * draws.normal(size=count), np.exp(-10.0)
    outputs = np.stack([means, np.full(count, -10.0)], 1)
    half = 0.5 * (MANY - 1)
    known = np.rint(half * (means + 1.0 + scale * draws.normal(size=count))).astype(np.int64)
    edges = (known[:, None] + [-0.5, 0.5] - half * (means[:, None] + 1.0)) / (half * scale)
    own = -np.log2(np.diff(special.ndtr(edges), axis=1)).mean()
    assert bits_of(likelihoods.Gaussian(MANY), outputs, known, tolerance) < own + most


def test_tolerances_are_of_each_output_and_no_less_than_of_its_like():
    outputs = np.array([[1.0, 0.0], [-3.0, 2.0]])
    found = odds.tolerances(outputs, 1e-5)
    like = np.sqrt([5.0, 2.0])
    expected = 1e-5 * (np.abs(outputs) + odds.LEAST_SHARE * like)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
