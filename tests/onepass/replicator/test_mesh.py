"""A mesh of devices trains as one device does, with variables that are really in shards."""

import numpy as np
import pytest
from in_replicas import run_checks
from runs import assert_same

pytestmark = pytest.mark.integration

LIMIT_SECONDS = 280


@pytest.fixture(scope="module")
def check(tmp_path_factory):
    return run_checks("sharded_checks", tmp_path_factory.mktemp("sharded"), LIMIT_SECONDS)


def assert_close(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        scale = max(np.max(np.abs(value)), 1e-12)
        assert np.max(np.abs(found[name] - value)) / scale < 1e-5, name


@pytest.mark.parametrize("layouts", ["automatic", "by name"])
def test_twenty_steps_on_2x2_are_those_of_one_device(check, layouts):
    arrays, losses = check("training")["alone"]
    found, found_losses = check("training")[layouts]
    assert found["step"] == 20
    assert_close(found, arrays)
    np.testing.assert_allclose(found_losses, losses, rtol=1e-5)
    assert losses[-1] < 0.7 * losses[0]


def test_without_layouts_every_slot_is_cut_wherever_it_divides(check):
    parts = check("parts")["automatic"]
    for kind in ("weights", "first", "second", "average"):
        assert parts[f"{kind}/rows"] == [3, 2]
        assert parts[f"{kind}/kernel"] == [2, 2, 3]
        assert parts[f"{kind}/bias"] == [3]
        assert parts[f"{kind}/scale"] == []
    assert parts["step"] == []


def test_a_pattern_cuts_a_weight_and_its_moments_and_nothing_else(check):
    parts = check("parts")["by name"]
    for kind in ("weights", "first", "second", "average"):
        assert parts[f"{kind}/kernel"] == [2, 4, 3]
        assert parts[f"{kind}/rows"] == [6, 4]


def test_a_whole_variable_serves_any_function_and_is_cut_up_again(check):
    found, expected, bias, parts = check("whole")
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(bias, np.ones(6))
    assert [part.shape for part in parts] == [(3,)] * 4


def test_the_average_stands_in_for_the_weights(check):
    before, inside, around, after = check("averaged")
    averages = [value for name, value in before.items() if name.startswith("average/")]
    weights = [value for name, value in before.items() if name.startswith("weights/")]
    assert any(np.any(a != w) for a, w in zip(averages, weights, strict=True))
    for found in (inside, around):
        for value, average in zip(found, averages, strict=True):
            np.testing.assert_array_equal(value, average)
    assert_same(after, before)


def test_arrays_cross_to_one_device_and_to_another_mesh(check):
    of_mesh, of_one, of_other = check("restored")
    assert of_mesh["step"] == 20
    assert_same(of_one, of_mesh)
    assert_same(of_other, of_mesh)


def test_a_step_that_is_not_finite_changes_nothing(check):
    loss, before, after = check("not_finite")
    assert np.isnan(loss) and before["step"] == 20
    assert_same(after, before)


@pytest.mark.parametrize("layouts", ["automatic", "by name", "two steps a call"])
def test_a_step_function_is_one_global_computation(check, layouts):
    expected, loss, rows, _, _ = check("step_functions")["alone"]
    found, found_loss, found_rows, ended, nothing = check("step_functions")[layouts]
    assert ended and nothing is None
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
    assert found_loss == pytest.approx(loss, rel=1e-5)
    np.testing.assert_array_equal(found_rows, rows)


REFUSALS = {
    "devices": "`devices` must be 1 to 4 (CPU), got 8",
    "size": "`mesh` must have sizes of at least 1, got batch=0.",
    "no batch": "`mesh` must have a dimension 'batch', got rows.",
    "name": "`layouts`: 'kernel' names 'modle'; the dimensions of the mesh are batch, model.",
    "expression": "`layouts`: '(' must be a regular expression",
    "axes": "`layouts`: 'kernel' must have an entry for each of the 3 axes of `kernel`, got 2.",
    "does not divide": "`layouts`: 'bias' cuts axis 0 of `bias`, of size 6, along 'batch', but its "
    "4 devices do not divide it.",
    "nothing": "`layouts`: 'kernle' is found in the name of no variable; names are rows, kernel, "
    "bias, scale.",
    "rows": "The rows of a global batch must be a multiple of 2 shards, got 5.",
    "unread": "`other:0` is read on each device but is not in `reads`.",
    "outside": "`all_sum` may only be called in a step.",
}


@pytest.mark.parametrize("case", REFUSALS)
def test_mistakes_are_explained_in_a_line(check, case):
    kind, words = check("refusals")[case]
    assert kind == {"unread": "ValueError", "outside": "RuntimeError"}.get(case, "UserError")
    assert REFUSALS[case] in words and "\n" not in words
