"""A bundle with narrow weights draws what the live model draws with them."""

import numpy as np
import pytest
import sound_bundles
from own_models import (
    LONGEST,
    NUM,
    SEED,
    bundle,
    model,
    rows_of,
)

import onepass
from onepass.bundles.errors import InvalidInput
from onepass.foundation.rules import UserError
from onepass.machine import weights


@pytest.fixture(autouse=True)
def all_weights(monkeypatch):
    """Let the smallest matrix be worth fewer bytes."""
    monkeypatch.setattr(weights, "WORTH_NARROWING", 1)


ASKED = {
    "int8": {"prefix": rows_of(3, 20), "top_k": 4, "stop": [3], "min_length": 30},
    "bfloat16": {"temperature": [0.5, 1.2], "return_log_prob": True},
}


@pytest.mark.parametrize("case", ASKED)
def test_a_bundle_draws_what_the_live_model_draws(case):
    made, live, options = bundle("tokens"), model("tokens"), {"weights": case, **ASKED[case]}
    found = as_list(made.sample(NUM, LONGEST, SEED, **options))
    expected = as_list(live.sample(NUM, LONGEST, SEED, **options))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    elements = found[0]
    if "return_log_prob" not in options:
        parts = np.concatenate(list(made.stream(NUM, LONGEST, SEED, chunk=7, **options)), 1)
        np.testing.assert_array_equal(parts, elements[:, : parts.shape[1]])
    nats = made.log_prob(elements, weights=case)
    rounded = live.log_prob(elements, weights=case)
    np.testing.assert_allclose(nats, rounded, rtol=1e-5, atol=1e-5)  # its graph rounds otherwise
    assert (nats != made.log_prob(elements)).any()


def as_list(found):
    return list(found) if isinstance(found, tuple) else [np.asarray(found)]


def test_a_bundle_of_a_wavenet_draws_what_its_folder_draws():
    name, frames = "softmax, frames", np.random.default_rng(0).random([5, 7], np.float32)
    made, live = sound_bundles.bundle(name), sound_bundles.model(name)
    options = {"condition": frames, "seed": SEED, "weights": "int8"}
    expected = live.sample(2, **options)
    np.testing.assert_array_equal(made.sample(2, **options), expected)
    parts = np.concatenate(list(made.stream(2, chunk=20, **options)), 1)
    np.testing.assert_array_equal(parts, expected)
    assert (expected != live.sample(2, condition=frames, seed=SEED)).any()


def test_a_state_of_a_bundle_is_read_again_with_narrow_weights():
    state = bundle("tokens").read([3, 4, 5], 30)
    expected = bundle("tokens").sample(2, 30, SEED, prefix=[3, 4, 5], weights="int8")
    drawn = bundle("tokens").sample(2, 30, SEED, state=state, weights="int8")
    np.testing.assert_array_equal(drawn, expected)


def test_evaluate_says_the_cost_of_narrow_weights_in_a_bundle():
    data = model("tokens").sample(4, 40, SEED)
    found = onepass.evaluate(bundle("tokens"), data, weights="int8").cost
    expected = onepass.evaluate(model("tokens"), data, weights="int8").cost
    assert found.mean == pytest.approx(expected.mean, abs=1e-5) and found.mean != 0


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"weights": "int4"}, "`weights` must be one of float32, bfloat16, int8, got 'int4'"),
        ({"weights": "int8", "row": 3}, "`row` must not be given"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(options, rule):
    for draw in (bundle("tokens").sample, bundle("tokens").stream):
        with pytest.raises(InvalidInput, match=rule) as refused:
            draw(1, 9, SEED, **options)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["picture", "student"])
def test_a_bundle_of_what_draws_no_element_after_another_has_no_such_option(name):
    with pytest.raises((InvalidInput, UserError), match="`weights` must not be given"):
        bundle(name).sample(1, 4 if name == "picture" else 9, SEED, weights="int8")
