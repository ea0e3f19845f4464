"""`fit` on several devices gives what it gives on one; a process of its own makes the runs."""

import in_replicas
import numpy as np
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    return in_replicas.run_checks("fit_checks", tmp_path_factory.mktemp("checks"), 500)


def assert_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=5e-6)


@pytest.mark.parametrize("source", ["arrays", "function", "iterable", "dataset"])
def test_two_devices_give_the_weights_and_the_score_of_one(checks, source):
    assert_close(checks("sources")[source], checks("one"))


@pytest.mark.parametrize("mesh", [0, 1])
def test_shards_give_the_weights_and_the_score_of_one_device(checks, mesh):
    assert_close(checks("sharded")[mesh], checks("one"))


def test_a_run_may_change_its_devices(checks):
    assert_close(checks("resumed"), checks("one"))


def test_patience_ends_on_two_devices_as_on_one(checks):
    one, two = checks("patience")
    assert one[:3] == two[:3] == (6, 2, "no improvement")
    assert_close(two[3:], one[3:])


def test_a_loss_over_the_global_batch_gives_the_same_weights_on_any_number_of_devices(checks):
    one, *others = checks("global")
    assert_close(others, [one] * len(others))


def test_rows_of_different_lengths_give_the_same_weights_on_any_number_of_devices(checks):
    one, *others = checks("ragged")
    for other in others:
        assert_close(other, one)


@pytest.mark.parametrize(
    ("source", "kind", "line"),
    [
        ("ends", "UserError", "The batches ended after 2"),
        ("shape", "ValueError", "all batches must have the same shapes, got {'elements': [2, 40]"),
        ("nan", "ValueError", "`elements` must be finite, got nan at [0, 0]"),
        ("rows", "UserError", "`batch_size` must be a multiple of 2"),
        ("global", "ValueError", "`loss` must be a mean over rows, or have `global_inputs`, for 2"),
    ],
)
def test_what_is_wrong_with_a_batch_is_named_on_several_devices_too(checks, source, kind, line):
    found = checks("errors")[source]
    assert found[0] == kind and line in found[1]
