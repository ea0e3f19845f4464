"""`fit` on several devices gives what it gives on one; a process of its own makes the runs."""

import in_replicas
import numpy as np
import pytest
from fit_models import trained


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    return in_replicas.run_checks("fit_checks", tmp_path_factory.mktemp("checks"), 500)


def assert_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
        else:
            np.testing.assert_allclose(one, other, rtol=0, atol=2e-6)


@pytest.mark.parametrize("source", ["arrays", "function", "iterable", "dataset"])
def test_two_devices_give_the_weights_of_one_from_every_source(checks, source):
    found = checks("sources")
    assert_close(found[source, "local:2"], found[source, "single"])
    assert_close(found[source, "single"], found["arrays", "single"])


@pytest.mark.parametrize("strategy", ["local:2", "sharded:2x1"])
@pytest.mark.parametrize("score", ["arrays", "function"])
def test_devices_are_evaluated_as_one(checks, score, strategy):
    found = checks("evaluation")
    assert_close(found[score, strategy], found[score, "single"])
    assert found[score, strategy][1] is not None


def test_the_score_of_arrays_is_their_mean_loss(checks):
    found = checks("evaluation")
    assert_close(found["arrays", "single"], found["function", "single"])


def test_a_run_may_change_its_devices(checks):
    np.testing.assert_allclose(checks("resumed")[0], trained()[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("source", "kind", "line"),
    [
        ("ends", "UserError", "The batches ended after 2"),
        ("shape", "ValueError", "all batches must have the same shape, got `elements` (2, 40)"),
        ("nan", "ValueError", "`elements` must be finite, got nan at [0, 0]"),
        ("rows", "UserError", "`batch_size` must be a multiple of 2"),
    ],
)
def test_what_is_wrong_with_a_batch_is_named_on_several_devices_too(checks, source, kind, line):
    found = checks("errors")[source]
    assert found[0] == kind and line in found[1]
