"""Code lengths are sums over rows and parts, for whatever gives log-probabilities."""

import math

import numpy as np
import pytest

from onepass.foundation.measures import measure_code_lengths
from onepass.foundation.rules import UserError

BATCHES = [np.log([[0.5, 0.25], [1.0, 1.0]]), np.log([[0.125, 0.5]])]  # of 2 elements each


def test_code_lengths_are_sums_over_rows_whatever_the_batches():
    for batches in (BATCHES, np.concatenate(BATCHES)[:, np.newaxis]):
        found = measure_code_lengths(batches, lambda x: x, lambda x: [x.shape[1]] * len(x))
        np.testing.assert_allclose(found.bits_per_element, [1.5, 0.0, 2.0])
        np.testing.assert_allclose(found.nats, np.log(2.0) * np.array([3.0, 0.0, 4.0]))
        assert found.mean_bits == pytest.approx(7 / 6)


def test_parts_add_up_and_longer_rows_weigh_more():
    found = measure_code_lengths(
        BATCHES,
        lambda x: {"first": x[:, :1], "rest": x[:, 1]},
        lambda x: np.full(len(x), 8 if len(x) == 1 else 2),
    )
    assert set(found.parts) == {"first", "rest"}
    np.testing.assert_allclose(found.parts["first"], np.log(2.0) * np.array([1.0, 0.0, 3.0]))
    np.testing.assert_allclose(found.nats, found.parts["first"] + found.parts["rest"])
    np.testing.assert_allclose(found.bits_per_element, [1.5, 0.0, 0.5])
    assert found.mean_bits == pytest.approx(7 / 12)


def test_small_rounding_does_not_add_up_over_long_rows():
    found = measure_code_lengths(
        [np.full([1, 1_000_000], -0.1, np.float32)], lambda x: x, lambda x: [x.shape[1]]
    )
    assert found.nats[0] == pytest.approx(1e6 * float(np.float32(0.1)), rel=1e-10)
    assert math.isfinite(found.mean_bits)


def test_no_examples_are_refused_and_no_elements_need_no_bits():
    found = measure_code_lengths([np.zeros([1, 0])], lambda x: x, lambda x: [0])
    assert found.bits_per_element.tolist() == [0.0]
    with pytest.raises(UserError, match="`data` must contain an example"):
        measure_code_lengths([], lambda x: x, len)
