"""A user's model draws the same live, in a bundle, over HTTP and gRPC, and by the command."""

import functools

import numpy as np
import own_models
import pytest
from own_models import (
    ENTRIES,
    LONGEST,
    SHAPE,
    bundle,
    model,
    ran,
    rows_of,
    rows_of_condition,
    served,
)

from onepass.bundles.errors import InvalidInput

NUM = 3
SEED = 2**63 + 5  # beyond int64, as seeds may be
RANDOM = np.random.default_rng(4)
GIVEN = {
    "conditioned": RANDOM.normal(size=[NUM, LONGEST, 2]).astype(np.float32),
    "voices": {
        "voice": np.array([3, 0, 1], np.int32),
        "tone": RANDOM.normal(size=[NUM, 3]).astype(np.float32),
        "mel": RANDOM.normal(size=[NUM, LONGEST, 2]).astype(np.float32),
    },
    "reading": 2.0 * RANDOM.normal(size=[NUM, ENTRIES, 3]).astype(np.float32),
    "classes": np.array([1, 3, 0], np.int32),
}
# One row for all, where it does not change with time.
ONCE = {
    "voices": GIVEN["voices"] | {"voice": 2, "tone": np.ones(3)},
    "reading": GIVEN["reading"][1],
    "classes": [2],
}


def as_sound(rows):
    return [np.float32(5 * row / 63) * 2 - 1 for row in rows]  # which are levels of 64


# By model: what is asked of it beyond what `laws/table.py` asks of exported models.
ASKED = {
    "real": {"": {}, "prefix": {"prefix": as_sound(rows_of(5, 0, 20)), "temperature": 0.5}},
    "picture": {"": {}},
    "tiles": {
        "allowed": {"allowed": {1, 3}},
        "tokens": {"top_k": 2, "temperature": [0.5, 1.0, 3.0]},
    },
    "attention": {
        "repetition": {"repetition_penalty": 2.5, "prefix": [np.ones(2), np.ones(9), np.ones(0)]},
        "all": {"prefix": [np.array([-1.0, 1.0]), np.ones(9), np.ones(0)], "stop": 1.0},
    },
    "tokens": {
        "bias": {"logit_bias": {3: 2.0, 7: -1e9, 0: 1.5}, "top_k": 6},
        "allowed": {"allowed": [2, 4, 9], "min_p": 0.1, "temperature": [0.0, 1.0, 2.0]},
        "min length": {"stop": [11, 4], "min_length": 15, "prefix": rows_of(2, 25, 9)},
        "repetition": {"repetition_penalty": 1.7, "prefix": rows_of(0, 25, 9)},
        "presence": {"presence_penalty": 2.0, "top_p": 0.9, "temperature": [0.5, 1.0, 1.5]},
        "all": {"prefix": rows_of(3, 20, 33), "top_k": 5, "temperature": 1.3, "stop": 0},
    },
    "conditioned": {"prefix": {"prefix": as_sound(rows_of(2, 60, 31))}},
    "voices": {
        "": {},
        "prefix": {
            "prefix": [np.zeros(4), np.zeros(19), np.zeros(0)],
            "temperature": [0.5, 1.0, 1.5],
        },
    },
    "reading": {"prefix": {"prefix": [[3, 1], [2] * 20, [0]], "temperature": [0.5, 1.0, 1.5]}},
    "classes": {"": {}},
}
CASES = [(name, case) for name, cases in ASKED.items() for case in cases]


def drawn(made, name, case, **changed):
    """Returns what a model, or whatever stands for it, draws, and its log-probabilities."""
    given = {"num": NUM, "condition": GIVEN.get(name), **ASKED[name][case], **changed}
    num, condition = given.pop("num"), given.pop("condition")
    rest = () if condition is None else (condition,)
    return made.sample(num, own_models.length(name), SEED, *rest, return_log_prob=True, **given)


@functools.cache
def live(name, case):
    return drawn(model(name), name, case)


def row_of(name, case, row):
    """The options of one row, its condition among them."""
    options = own_models.row_of(ASKED[name][case], row)
    if name in GIVEN:
        options["condition"] = rows_of_condition(GIVEN[name], slice(row, row + 1))
    return options


def same(found, expected, name):
    """Compare what is drawn and its log-probabilities: the same levels, real ones to rounding."""
    assert found[0].dtype == expected[0].dtype and found[0].shape == expected[0].shape
    atol = 1e-4 if name == "real" else 1e-6
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=atol)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-4, atol=1e-4)


KINDS = dict.fromkeys(("picture", "classes"), "picture")  # all others are arrays


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_bundle_draws_what_the_model_draws_and_gives_its_log_probabilities(name, case):
    made, rest = bundle(name), (GIVEN[name],) if name in GIVEN else ()
    assert made.kind == KINDS.get(name, "array")
    expected = live(name, case)
    same(drawn(made, name, case), expected, name)
    nats = model(name).log_prob(expected[0], *rest)
    np.testing.assert_allclose(made.log_prob(expected[0], *rest), nats, rtol=1e-4, atol=1e-4)
    if name in ("voices", "reading"):  # which read what does not change with their first state
        given = {"num": NUM, "length": LONGEST, "seed": SEED, "condition": GIVEN[name]}
        parts = np.concatenate(list(made.stream(chunk=1, **given, **ASKED[name][case])), 1)
        whole = expected[0][:, : parts.shape[1]]
        np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-6)
    alone = drawn(made, name, case, num=1, **row_of(name, case, 0))
    same(alone, (expected[0][:1], expected[1][:1]), name)


@pytest.mark.parametrize("name", ONCE)
def test_a_row_depends_on_its_own_condition_alone_and_one_may_stand_for_all(name):
    case = [*ASKED[name]][-1]
    made, whole = bundle(name), live(name, case)[0]
    turned = drawn(made, name, case, condition=rows_of_condition(GIVEN[name], [0, 0, 2]))[0]
    np.testing.assert_allclose(turned[[0, 2]], whole[[0, 2]], rtol=0, atol=1e-6)
    assert (turned[1] != whole[1]).any()
    once = drawn(model(name), name, case, condition=ONCE[name])
    same(drawn(made, name, case, condition=ONCE[name]), once, name)


SERVED = ["picture", "tokens", "voices", "reading", "classes"]


@pytest.mark.integration
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_served_model_draws_and_streams_what_the_model_draws(protocol):
    with served(protocol, *SERVED) as (_, remotes):
        for name, remote in zip(SERVED, remotes, strict=True):
            for case in ASKED[name]:
                expected = live(name, case)
                same(drawn(remote, name, case), expected, name)
            rest = (GIVEN[name],) if name in GIVEN else ()
            nats = model(name).log_prob(expected[0], *rest)
            np.testing.assert_allclose(remote.log_prob(expected[0], *rest), nats, atol=1e-3)
            if name in ONCE:
                once = drawn(model(name), name, case, condition=ONCE[name])
                same(drawn(remote, name, case, condition=ONCE[name]), once, name)
            if name == "picture":
                images = remote.sample(seed=SEED, num=NUM)
                np.testing.assert_array_equal(images, expected[0])
            if own_models.length(name) != LONGEST:
                continue  # images are not streamed
            options = row_of(name, case, 0)
            condition = options.pop("condition", None)
            one = None if condition is None else rows_of_condition(condition, 0)
            parts = list(remote.stream(1, LONGEST, SEED, one, chunk=7, **options))
            found = np.concatenate(parts, 1)[0]
            np.testing.assert_allclose(found, expected[0][0, : len(found)], rtol=0, atol=1e-6)


def words_of(name, case, folder):
    """The words that ask for a case, its arrays in files."""
    options = dict(ASKED[name][case])
    words = ["--length", *np.atleast_1d(own_models.length(name)), "--num", NUM]
    words += ["--seed", SEED, "--log-prob"]
    prefix = options.pop("prefix", ())
    prefix = prefix if isinstance(prefix, list) else [prefix] * NUM if len(prefix) else []
    for number, row in enumerate(prefix):
        np.save(folder / f"{number}.npy", row)
    words += ["--prefix", *(folder / f"{number}.npy" for number in range(NUM))] if prefix else []
    for option, value in options.items():
        words += [f"--{option.replace('_', '-')}"]
        is_dict = isinstance(value, dict)
        words += [f"{k}={v}" for k, v in value.items()] if is_dict else [*np.atleast_1d(value)]
    given = GIVEN.get(name, {})
    for place, array in (given if isinstance(given, dict) else {"": given}).items():
        file = folder / f"{name}{place}.npy"
        np.save(file, array)
        words += ["--condition", f"{place}={file}" if place else file]
    return words


@pytest.mark.integration
@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize(
    ("name", "case"),
    [
        *(("tokens", "all"), ("tokens", "bias"), ("tokens", "min length"), ("tokens", "presence")),
        *(("voices", ""), ("reading", "prefix"), ("classes", "")),
    ],
)
def test_the_command_draws_what_the_model_draws_here_saved_and_served(tmp_path, name, case):
    words, expected = words_of(name, case, tmp_path), live(name, case)
    with served("http", name) as (url, _):
        for number, place in enumerate(own_models.places(name, url)):
            out = tmp_path / f"out{number}"
            assert ran("sample", place, "--out", out, *words, *["--npy"][: number < 2]) == 0
            found = [np.load(out / f"sample_{SEED}{part}.npy") for part in ("", "_log_prob")]
            same(found, expected, name)
        if name == "classes":
            words = ["--condition", "2", "--length", *SHAPE, "--seed", SEED]
            assert ran("sample", f"{url}/classes", "--out", tmp_path / "one", *words) == 0
            found = np.load(tmp_path / "one" / f"sample_{SEED}.npy")
            np.testing.assert_array_equal(found, model(name).sample(1, SHAPE, SEED, 2))


# What is no condition of a model, by what is said of it.
def voices_but(**changed):
    return GIVEN["voices"] | changed


WRONG = {
    "voices": {
        r"must be a dict with voice: int32 \[num\], .*, mel: float32 \[num, time, 2\]\.": None,
        r"`condition` must be a dict with voice: .*, mel: float32": GIVEN["voices"]["mel"],
        r"`condition` must be a dict with voice: .*, got voice": {"voice": 1},
        r'`condition\["voice"\]` must be 0 to 3, .* got 4': voices_but(voice=[0, 4, 1]),
        r'`condition\["voice"\]` must be whole numbers, int32': voices_but(voice=0.5),
        r'`condition\["voice"\]` must be int32, got str96': voices_but(voice="Ann"),
        r'`condition\["voice"\]` must be 0 to 3, .* got 1099511627776': voices_but(voice=2**40),
        r'`condition\["voice"\]` must be given, \(3,\), got \(2,\)': voices_but(voice=[0, 1]),
        r'`condition\["tone"\]` .*\(3, 3\), got \(3, 4\)': voices_but(tone=np.ones([3, 4])),
        r'`condition\["mel"\]` .* got \(3, 69, 2\)': voices_but(mel=np.ones([NUM, 69, 2])),
    },
    "reading": {
        r"`condition` must be given, .*, got None": None,
        r"`condition` must be given, .*, got \(3, 4, 2\)": np.ones([NUM, 4, 2]),
        "`condition` must be a dict with condition: .*, got memory": {"memory": GIVEN["reading"]},
        r"`condition` must be given, .*, got \(2, 5, 3\)": GIVEN["reading"][:2],
    },
}


@pytest.mark.parametrize("name", WRONG)
def test_a_bundle_refuses_conditions_in_the_words_of_the_model(name):
    made = bundle(name)
    for text, condition in WRONG[name].items():
        with pytest.raises(InvalidInput, match=text):
            list(made.stream(condition=condition, seed=SEED, num=NUM, length=LONGEST))
        with pytest.raises(InvalidInput, match=text) as refused:
            made.sample(NUM, LONGEST, SEED, condition)
        assert "\n" not in str(refused.value)
        with pytest.raises(ValueError, match=text) as live:
            model(name).sample(NUM, LONGEST, SEED, condition)
        if name == "voices":  # a memory has any number of entries until it is exported
            assert str(live.value) == str(refused.value)
    with pytest.raises(InvalidInput, match="`condition_tone` must be finite, got inf"):
        bundle("voices").sample(NUM, LONGEST, SEED, voices_but(tone=np.full([3], np.inf)))
    with pytest.raises(InvalidInput, match="`condition` must be None: the model reads none"):
        bundle("pairs").sample(1, 5, SEED, np.ones([1, 5, 2]))
    with pytest.raises(InvalidInput, match="`condition` must be given"):
        bundle("classes").sample(seed=SEED)
