"""Intervals cover what they claim to, and say what they were computed from."""

import dataclasses
import json
import math

import numpy as np
import pytest

from onepass.foundation.measures import finite_mean, format_measure, share_of, weighted_mean

TRIALS = 4000


def coverage(measures, truth):
    return np.mean([m.low <= truth <= m.high for m in measures])


@pytest.mark.parametrize("n", [2, 3, 4, 6, 20])
def test_the_interval_of_a_mean_covers_it_as_often_as_it_says(n):
    values = np.random.default_rng(n).normal(3.0, 2.0, [TRIALS, n])
    assert coverage(map(weighted_mean, values), 3.0) == pytest.approx(0.95, abs=0.012)


def test_the_interval_of_an_uneven_weighted_mean_covers_it_too():
    weights = np.array([1.0, 2.0, 3.0, 1.0, 5.0, 2.0])
    values = np.random.default_rng(0).normal(-1.0, 1.0, [TRIALS, len(weights)])
    covered = coverage((weighted_mean(row, weights) for row in values), -1.0)
    assert 0.94 < covered < 0.985


@pytest.mark.parametrize(("n", "share"), [(10, 0.5), (20, 0.9), (50, 0.98), (200, 0.76)])
def test_the_interval_of_a_share_covers_it_about_as_often_as_it_says(n, share):
    found = np.random.default_rng(n).random([TRIALS, n]) < share
    assert 0.91 < coverage(map(share_of, found), share) < 0.995


def test_equal_weights_give_the_textbook_interval():
    measure = weighted_mean(np.array([1.0, 2.0, 4.0]))
    half = 4.30265 * math.sqrt(7.0 / 3.0 / 3.0)
    assert (measure.mean, measure.n) == (pytest.approx(7 / 3), 3)
    assert [measure.low, measure.high] == pytest.approx([7 / 3 - half, 7 / 3 + half], abs=1e-4)
    assert weighted_mean(np.array([1.0, 2.0, 4.0]), np.full(3, 7.0)) == measure


def test_one_value_has_no_interval():
    for measure in (weighted_mean(np.array([2.0])), finite_mean([2.0, math.nan])):
        assert (measure.mean, measure.low, measure.high, measure.n) == (2.0, None, None, 1)
        written = json.loads(json.dumps(dataclasses.asdict(measure), allow_nan=False))
        assert format_measure(written).startswith("2.000 (no interval, n 1")


def test_what_is_not_finite_is_counted():
    measure = finite_mean([1.0, math.nan, 3.0, math.inf])
    assert (measure.mean, measure.n, measure.undefined) == (2.0, 2, 2)
    assert format_measure(dataclasses.asdict(measure)).endswith("n 2, few, 2 undefined)")
    nothing = dataclasses.asdict(finite_mean([math.nan]))
    assert format_measure(nothing) == "nan (no value, 1 undefined)"


@pytest.mark.parametrize("values", [[math.inf, 1.0], [math.inf, -math.inf], [math.nan, 1.0]])
def test_a_mean_of_what_is_not_finite_has_no_interval_and_raises_no_warning(values):
    measure = weighted_mean(np.array(values))
    assert (math.isfinite(measure.mean), measure.low, measure.high) == (False, None, None)


def test_few_values_are_called_few():
    nine, ten = (dataclasses.asdict(weighted_mean(np.arange(float(n)))) for n in (9, 10))
    assert "n 9, few" in format_measure(nine) and format_measure(ten).endswith("n 10)")
    assert "few" in format_measure(dataclasses.asdict(share_of(np.ones(9))))


def test_a_measure_of_an_older_folder_is_still_written():
    older = {"mean": 0.5, "low": 0.25, "high": 0.75}
    assert format_measure(older, 100.0, 1) == "50.0 (95%: 25.0 to 75.0)"
