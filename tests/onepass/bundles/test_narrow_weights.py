"""A bundle with narrow weights draws what the live model draws with them."""

import numpy as np
import pytest
import sound_bundles
from own_models import (
    LONGEST,
    NUM,
    SEED,
    bundle,
    bundle_folder,
    condition,
    model,
    ran,
    rows_of,
)

import onepass
from onepass.bundles.errors import InvalidInput
from onepass.foundation.errors import UserError
from onepass.machine import weights


@pytest.fixture(autouse=True)
def all_weights(monkeypatch):
    """Let the smallest matrix be worth fewer bytes."""
    monkeypatch.setattr(weights, "WORTH_NARROWING", 1)


ASKED = {
    "tokens": {},
    "tokens, options": {"prefix": rows_of(3, 20), "top_k": 4, "stop": [3], "min_length": 30},
    "tokens, temperatures": {
        "temperature": [0.5, 1.2],
        "return_log_prob": True,
        "weights": "bfloat16",
    },
    "framed": {},
    "real": {"prefix": [0.5, 1.5]},
    "sound": {},
}


@pytest.mark.parametrize("case", ASKED)
def test_a_bundle_draws_what_the_live_model_draws(case):
    name, options = case.split(",")[0], {"weights": "int8", **ASKED[case]}
    given = (NUM, LONGEST, SEED, *condition(name))
    expected = model(name).sample(*given, **options)
    found = bundle(name).sample(*given, **options)
    for one, other in zip(as_list(found), as_list(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    elements = as_list(found)[0]
    if "return_log_prob" not in options:
        parts = np.concatenate(list(bundle(name).stream(*given, chunk=7, **options)), 1)
        np.testing.assert_array_equal(parts, elements[:, : parts.shape[1]])
    nats = bundle(name).log_prob(elements, *condition(name), weights="int8")
    live = model(name).log_prob(elements, *condition(name), weights="int8")
    np.testing.assert_allclose(nats, live, rtol=1e-5, atol=1e-5)  # its graph rounds otherwise
    assert (nats != bundle(name).log_prob(elements, *condition(name))).any()


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


def test_the_command_takes_a_bundle_with_narrow_weights(tmp_path):
    folder = bundle_folder("tokens")
    words = ("sample", folder, "--num", 2, "--length", 30, "--seed", 5, "--weights", "int8")
    assert ran(*words, "--out", tmp_path / "drawn") == 0
    (file,) = (tmp_path / "drawn").glob("*.npy")
    expected = model("tokens").sample(2, 30, 5, weights="int8")
    np.testing.assert_array_equal(np.load(file), expected)
