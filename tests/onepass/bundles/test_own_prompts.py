"""Prompts in streams, and what may not be asked of a bundle, a server and the command."""

import re
import urllib.request

import grpc_running
import http_running
import numpy as np
import own_models
import pytest
from attention_networks import TOKENS
from marks import some_slow
from own_models import LONGEST, bundle, model, ran, row_of, rows_of, tokens

import onepass
import serving
from onepass.bundles.errors import InvalidInput
from onepass.foundation.rules import UserError

LENGTH, SEED, NUM = 40, 5, 3


STREAMED = {
    "prefix over two parts": {"prefix": rows_of(300, 1, 256)},
    "stop": {"stop": [4, 12], "prefix": rows_of(2, 25, 270), "top_k": 5},
    "min length": {"stop": [4, 12], "min_length": 300, "prefix": rows_of(2, 25, 270)},
    "repetition": {"repetition_penalty": 1.3, "prefix": rows_of(2, 257, 270)},
    "temperatures": {"temperature": [0.0, 0.7, 2.0]},
}


@pytest.mark.parametrize("case", some_slow(STREAMED, ("temperatures",)))
def test_a_bundle_streams_what_it_draws_and_ends_early(case):
    options, made = STREAMED[case], bundle("long")
    whole = model("long").sample(NUM, 530, SEED, **options)
    given = {"seed": SEED, "num": NUM, "length": 530, "chunk": 1}
    parts = list(made.stream(**given, **options))
    assert [part.shape[1] for part in parts] == (
        [256, 256] if "stop" in options else [256, 256, 18]
    )
    found = np.concatenate(parts, 1)
    np.testing.assert_array_equal(found, whole[:, : found.shape[1]])
    alone = made.stream(**given | {"num": 1}, **row_of(options, 0))
    first = np.concatenate(list(alone), 1)
    np.testing.assert_array_equal(first[0], whole[0, : first.shape[1]])


# What nobody may ask for, by what is said of it; `length` is LENGTH.
WRONG = {
    "`prefix` must be at most as long as `length`, 40": {"prefix": tokens(NUM, LENGTH + 1)},
    "`prefix` must be between 0 and 12, got 13": {"prefix": np.full([NUM, 2], TOKENS)},
    "`prefix` must be between 0 and 12, got -1": {"prefix": np.full([NUM, 2], -1)},
    "`prefix` must be int32, got float64": {"prefix": np.full([NUM, 2], 0.5)},
    "`prefix` must be int32, got 0 to 4294967296": {"prefix": [[0, 2**32]] * NUM},
    "`prefix` must have 3 rows, one per sequence, got 2": {"prefix": tokens(2, 4)},
    r"`prefix` must be \[num, n\] or \[n\], got \[1, 2, 3\]": {"prefix": tokens(1, 2, 3)},
    "`prefix` must be an array of numbers": {"prefix": [[[1], [1, 2]]]},
    r"`top_p` must be a number in \(0, 1\], got 0": {"top_p": 0},
    r"`top_p` must be a number in \(0, 1\], got nan": {"top_p": float("nan")},
    r"`top_p` must be a number in \(0, 1\], got 1.01": {"top_p": 1.01},
    "`top_k` must be an integer of at least 0, got -1": {"top_k": -1},
    "`top_k` must be an integer of at least 0, got 1.5": {"top_k": 1.5},
    "`temperature` must be a finite number of at least 0, got nan": {"temperature": float("nan")},
    "`temperature` must be a number or one for each of 3 rows": {"temperature": [1.0, 2.0]},
    "`stop` must be between 0 and 12, got -1": {"stop": -1},
    "`stop` must be a number or a list of numbers": {"stop": [[1, 2]]},
    "`stop` must be a number or a list of numbers, got 'x'": {"stop": "x"},
}


@pytest.mark.parametrize("text", WRONG)
def test_a_bundle_refuses_what_has_no_meaning_in_one_line(text):
    for call in (bundle("tokens").sample, stream_of(bundle("tokens"), WRONG[text])):
        with pytest.raises(InvalidInput, match=text) as refused:
            call(NUM, LENGTH, SEED, **WRONG[text])
        assert "\n" not in str(refused.value)


def stream_of(made, with_options):
    """The stream as `sample`, with a prompt: `stream` without one draws as well."""
    prompt = {} if "prefix" in with_options else {"prefix": [1]}

    def stream(num, length, seed, **options):
        return list(made.stream(num=num, length=length, seed=seed, **prompt, **options))

    return stream


def test_a_served_model_refuses_what_has_no_meaning_in_one_line():
    with own_models.served("http", "tokens") as (_, (remote,)):
        for text, options in WRONG.items():
            with pytest.raises(UserError, match=text) as refused:
                remote.sample(NUM, LENGTH, SEED, **options)
            assert "\n" not in str(refused.value)
        for bad in ({"length": "x"}, {"length": 1.5}, {"chunk": 0}, {"top_k": -1}):
            with pytest.raises(UserError, match=f"`{next(iter(bad))}` must be"):
                remote.stream(**{"length": LENGTH, **bad})
        with pytest.raises(UserError, match="`num` must be an integer"):
            remote.sample(1.5, LENGTH, SEED, prefix=[1])
        with pytest.raises(UserError, match="`length` must be a number of elements"):
            remote.sample(1, "x", SEED, prefix=[1])


def test_nothing_is_streamed_beyond_what_was_exported():
    made = bundle("tokens")
    for options in ({}, {"prefix": [1]}, {"temperature": [1.0]}):
        with pytest.raises(InvalidInput, match=f"`length` must be at most {LONGEST}, as exported"):
            made.stream(length=LONGEST + 1, seed=SEED, **options)
    state = {n: i for n, i in made.signatures["prompted_chunk"].inputs.items() if "state_" in n}
    given = {name: np.zeros([1, *info.shape[1:]], info.dtype) for name, info in state.items()}
    given |= {"prefix": [[1]], "num_samples": [2], "start": [LONGEST - 1]}
    with pytest.raises(InvalidInput, match=f"`start` . `num_samples` must be at most {LONGEST}"):
        made.check("prompted_chunk", given)


# What the signatures refuse of a request that another client sends, by what is said of it.
RAW = {
    "`num_prefix` must be at most the 2 of `prefix`, got 3": {"num_prefix": [3]},
    "`num_prefix` must be between 0 and 70, got -1": {"num_prefix": [-1]},
    "`prefix` must be at most as long as `num_samples`, 1": {"num_samples": [1]},
    "`prefix` must be between 0 and 12, got 13": {"prefix": [[13]]},
    "`prefix` must be int32, got float": {"prefix": np.array([[0.5]])},
    "rows as `": {"prefix": [[1], [2]]},  # gRPC has no order of inputs
    "`top_p` must be between 1e-30 and 1, got 0": {"top_p": [0.0]},
    "`top_p` must be finite, got nan": {"top_p": np.array([np.nan])},
    "`top_k` must be at least 0, got -1": {"top_k": [-1]},
    "`temperature` must be finite, got nan": {"temperature": np.array([np.nan])},
    "`stop` must be between 0 and 12, got -1": {"stop": [[-1]]},
    "`num_stop` must be between 0 and 13, got -1": {"num_stop": [-1]},
    "`num_stop` must be at most the 1 of `stop`, got 2": {"stop": [[1]], "num_stop": [2]},
    "`num_samples` must be between 1 and 70, got 71": {"num_samples": [71]},
    "`return_log_prob` must be between 0 and 1, got -1": {"return_log_prob": [-1]},
}


@pytest.mark.integration
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_request_of_another_client_is_answered_or_refused_as_invalid(protocol):
    running = (http_running if protocol == "http" else grpc_running).Running
    with running(own_models.Store("tokens")) as server:
        address = server.url if protocol == "http" else f"grpc://{server.address}"
        given = {"num_samples": [LENGTH], "prefix": [[4, 5]], "seed": [SEED]}
        with serving.Client(address) as client:
            # All of a prefix counts unless `num_prefix` says else; nothing but it need be given.
            live = model("tokens").sample(1, LENGTH, SEED, prefix=[4, 5])
            made = client.predict("tokens", given, "prompted")
            np.testing.assert_array_equal(made["elements"], live)
            assert not made["log_prob"].any()
            free = client.predict("tokens", given | {"num_prefix": [0]}, "prompted")
            without = {name: value for name, value in given.items() if name != "prefix"}
            same_ = client.predict("tokens", without, "prompted")
            np.testing.assert_array_equal(free["elements"], same_["elements"])
            np.testing.assert_array_equal(free["elements"], model("tokens").sample(1, LENGTH, SEED))
            for text, wrong in RAW.items():
                with pytest.raises(UserError, match=re.escape(text)) as refused:
                    client.predict("tokens", given | wrong, "prompted")
                assert refused.value.code == "invalid_input"
            # More rows than a call has, of different lengths.
            counts = np.array([10] * 8 + [30], np.int32)
            rows = {"num_samples": counts, "row": list(range(9)), "seed": [SEED] * 9}
            rows |= {"prefix": tokens(9, 4), "num_prefix": [0, 1, 2, 3, 4, 0, 1, 2, 3]}
            whole = client.predict("tokens", rows, "prompted")["elements"]
            prefix = [row[:n] for row, n in zip(tokens(9, 4), rows["num_prefix"], strict=True)]
            live = model("tokens").sample(9, 30, SEED, prefix=prefix)
            within = np.arange(30) < counts[:, np.newaxis]
            np.testing.assert_array_equal(whole, np.where(within, live, 0))
            with pytest.raises(UserError, match="`prefix` must be given if `num_prefix`"):
                client.predict("tokens", without | {"num_prefix": [1]}, "prompted")


def test_a_bundle_without_prompts_says_what_it_lacks_and_still_draws(tmp_path):
    def remove_prompts(spec):
        for name in ("prompted", "prompted_chunk"):
            del spec["serving"]["signatures"][name]

    old = serving.load(own_models.changed_bundle(tmp_path, "tokens", remove_prompts))
    heat = {"temperature": [0.5, 1.0, 1.5], "return_log_prob": True}
    live = model("tokens").sample(NUM, LENGTH, SEED, **heat)
    found = old.sample(NUM, LENGTH, SEED, **heat)
    np.testing.assert_array_equal(found[0], live[0])
    np.testing.assert_allclose(found[1], live[1], rtol=1e-4, atol=1e-4)
    lacks = "`tokens` takes no `top_k` and no `prefix`: its bundle has no signature `prompted"
    for call in (old.sample, stream_of(old, {"prefix": [1]})):
        with pytest.raises(InvalidInput, match=lacks) as refused:
            call(NUM, LENGTH, SEED, prefix=[1], top_k=2)
        assert "Export the model again" in str(refused.value)


WORDS = {  # which the command reads itself
    "`prefix` must be [num, n] or [n]": ("--prefix", "cube.npy"),
    "--prefix must be numbers or npy files, got x": ("--prefix", "x"),
    "--prefix must be numbers, or npy files, not both": ("--prefix", 1, "cube.npy"),
    "none.npy: no such file": ("--prefix", "none.npy"),
    "`temperature` must be a number or one for each of 1 rows": ("--temperature", 1, 2),
    "--stop must be numbers, got x": ("--stop", "x"),
    "--num must be a whole number, got '1.5'": ("--num", 1.5),
    "--length: Could not find valid parse for arguments: ['x']": ("--length", "x"),
}


@pytest.mark.integration
@pytest.mark.usefixtures("loaded_once")
def test_the_command_refuses_what_has_no_meaning_with_status_2(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("cube.npy", np.zeros([1, 1, 1], np.int32))
    with http_running.Running(own_models.Store("tokens")) as server:
        for place in own_models.places("tokens", server.url):
            for text, words in WORDS.items():
                length = () if "--length" in words else ("--length", 2)
                assert ran("sample", place, "--out", "out", *length, *words) == 2, (place, words)
                said = capsys.readouterr().err
                assert text in said and said.count("\n") == 1, (place, said)


BEGUN = {"tokens": (1, 20, 33, LONGEST), "real": (1, 33), "voices": (1, 33), "reading": (5,)}


def condition_of(name, num):
    random = np.random.default_rng(4)
    if name == "voices":
        mel = random.normal(size=[1, LONGEST, 2]).astype(np.float32)
        voices = {"voice": [2], "tone": np.ones([1, 3], np.float32), "mel": mel}
        return {key: np.repeat(value, num, 0) for key, value in voices.items()}
    if name == "reading":
        memory = random.normal(size=[1, own_models.ENTRIES, 3]).astype(np.float32)
        return np.repeat(memory, num, 0)
    return None


@pytest.mark.parametrize("name", some_slow(BEGUN, ("real",)))
def test_a_bundle_continues_from_a_state_what_it_draws_of_the_prefix(name, tmp_path):
    made = bundle(name)
    whole = made.sample(1, LONGEST, 9, condition_of(name, 1))[0]
    options = {"repetition_penalty": 1.7, "stop": [4, 9], "min_length": 60, "top_k": 5}
    options = options if name == "tokens" else {}
    for count in BEGUN[name]:
        state = made.read(whole[:count], LONGEST, condition_of(name, 1))
        state.save(tmp_path / "state")
        given = (NUM, LONGEST, SEED, condition_of(name, NUM))
        expected = made.sample(*given, prefix=whole[:count], **options)
        for each in (state, onepass.PrefixState.load(tmp_path / "state")):
            np.testing.assert_array_equal(made.sample(*given, state=each, **options), expected)
        expected = made.sample(*given, prefix=whole[:count])
        parts = list(made.stream(*given, state=state, chunk=LONGEST))
        np.testing.assert_array_equal(np.concatenate(parts, 1), expected)


def test_a_bundle_refuses_a_state_that_is_none_of_its_own_in_one_line():
    made, live = bundle("tokens"), model("tokens").read(tokens(12), LONGEST)
    for words, call in {
        "`state` must be of the model that draws": lambda: made.sample(1, LENGTH, state=live),
        "`prefix` must be None next to `state`": lambda: made.sample(
            1, LENGTH, prefix=[1], state=made.read([1])
        ),
        "`prefix` must have at least one element": lambda: made.read([]),
        "`prefix` must be between 0 and 12, got 13": lambda: made.read([TOKENS]),
        "`picture` reads no prefix ahead of a draw": lambda: bundle("picture").read([1]),
        "`state` must not be given: this": lambda: bundle("student").sample(1, LENGTH, state=live),
    }.items():
        with pytest.raises(InvalidInput, match=words) as refused:
            call()
        assert "\n" not in str(refused.value)
    voices = bundle("voices")
    state = voices.read([0.1] * 12, LENGTH, cut(condition_of("voices", 1)))
    other = cut(condition_of("voices", NUM))
    other["voice"] = [2, 2, 1]
    with pytest.raises(InvalidInput, match="`condition` must be, for the 12 elements of `state`"):
        voices.sample(NUM, LENGTH, SEED, other, state=state)


def cut(condition):
    return {**condition, "mel": condition["mel"][:, :LENGTH]}


@pytest.mark.integration
def test_a_served_model_reads_a_prompt_once_and_draws_what_the_bundle_draws():
    made, prefix = bundle("tokens"), tokens(40)
    with own_models.served("http", "tokens") as (url, (remote,)):
        for seed in range(3):
            expected = made.sample(NUM, LONGEST, seed, prefix=prefix)
            np.testing.assert_array_equal(
                remote.sample(NUM, LONGEST, seed, prefix=prefix), expected
            )
        with urllib.request.urlopen(f"{url}/monitoring/prometheus/metrics") as page:
            text = page.read().decode()
        with pytest.raises(UserError, match="`state` must not be given: this"):
            remote.sample(NUM, LONGEST, 1, state=made.read(prefix))
        with pytest.raises(UserError, match="reads no prefix ahead of a draw"):
            remote.read(prefix)
    assert 'onepass_prefixes_total{model="tokens",outcome="hit"} 2.0' in text
    assert 'onepass_prefixes_total{model="tokens",outcome="miss"} 1.0' in text
