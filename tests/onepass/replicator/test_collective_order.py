"""The order rule: what would hang or go wrong in silence is one readable error instead."""

import re

import pytest
from in_replicas import run_checks

pytestmark = pytest.mark.integration

RULE = "Replicas must call the same primitives in the same order with the same shapes; "


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    return run_checks("order_checks", tmp_path_factory.mktemp("order"))


def test_another_order_names_the_call_the_replicas_and_both_orders(checks):
    assert checks("refused")["order"] == (
        "CollectiveOrderError",
        RULE + "call 2 of the step is `all_reduce[max](float32[3])` on replica 0 and "
        "`all_gather(float32[3])` on replica 2. Order on replica 0: all_sum(float32[2]), "
        "all_reduce[max](float32[3]); on replica 2: all_sum(float32[2]), all_gather(float32[3]).",
    )


@pytest.mark.parametrize(
    ("check", "here", "there"),
    [
        ("shape", "`all_sum(float32[2])` on replica 0", "`all_sum(float32[3])` on replica 1"),
        ("dtype", "`all_sum(float32[])` on replica 0", "`all_sum(float64[])` on replica 1"),
        ("source", "`broadcast[0](float32[])` on replica 0", "`broadcast[1](float32[])` on"),
        ("missing_call", "`all_sum(float32[])` on replica 0", "missing on replica 3"),
        ("extra_call", "missing on replica 0", "`all_sum(float32[])` on replica 3"),
        ("gradient", "`gradient of all_sum(float32[])` on replica 0", "missing on replica 1"),
    ],
)
def test_a_call_that_differs_is_named(checks, check, here, there):
    kind, message = checks("refused")[check]
    assert kind == "CollectiveOrderError"
    assert message.startswith(RULE)
    assert here in message and f"and {there}" in message
    assert "\n" not in message


def test_shapes_that_only_a_run_knows_are_named(checks):
    kind, message = checks("unknown_shape")
    assert kind == "CollectiveOrderError"
    shapes = re.fullmatch(
        re.escape(RULE) + r"one gave a tensor of shape (\[[2-5]\]), another of shape (\[[2-5]\])\.",
        message,
    )
    assert shapes and shapes[1] != shapes[2]


@pytest.mark.parametrize(
    ("check", "place"),
    [
        ("cond", "tf.cond"),
        ("while", "tf.while_loop"),
        ("function", "another tf.function"),
        ("single_in_cond", "tf.cond"),
    ],
)
def test_a_primitive_within_another_graph_is_refused(checks, check, place):
    assert checks("refused")[check] == (
        "CollectiveOrderError",
        f"`all_sum` is called within {place}, where some replicas might not call it; call it "
        "directly in the step.",
    )


def test_a_primitive_outside_a_step_is_refused(checks):
    found = checks("outside")
    assert len(found) == 2 * 7
    for (_, name), message in found.items():
        assert message == f"`{name}` may only be called in a step."


def test_a_refused_step_leaves_the_replicator_whole(checks):
    assert checks("after_refusal") == 2.0


def test_variables_that_a_step_makes_are_refused_in_one_line(checks):
    kind, message = checks("variables")
    assert kind == "UserError"
    assert re.fullmatch(
        r"A step must not create variables( \(`.+`\))?: create them in `scope\(\)`, those of an "
        r"optimizer with `optimizer\.build\(variables\)`\.",
        message,
    )
