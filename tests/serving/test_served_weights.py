"""A server that keeps weights as int8 or bfloat16 draws what the live model draws with them."""

import contextlib
import functools
import shutil
import signal

import grpc_running
import http_running
import keras
import numpy as np
import own_models
import pytest
import sound_bundles
from own_models import LONGEST, SEED, bundle_folder, model, row_of, rows_of, tokens
from processes import ROOT, Process
from serve_command import ready

import onepass
from onepass.bundles import bundle as bundles
from onepass.bundles.errors import InvalidInput
from onepass.foundation.rules import UserError
from onepass.interface import Draw
from onepass.machine import weights
from onepass.remote_model import RemoteModel
from serving.engine.served_model import ServedModel
from serving.observability import Metrics
from serving.settings import Settings

NUM = 3


@pytest.fixture(autouse=True)
def all_weights(monkeypatch):
    """Let the smallest matrix be worth fewer bytes."""
    monkeypatch.setattr(weights, "WORTH_NARROWING", 1)


@functools.cache
def narrow(name, kind="int8"):
    return bundles.load(bundle_folder(name), weights=kind)


class Store(own_models.Store):
    """A folder of models, all with weights of a kind."""

    def __init__(self, kind, *names):
        super().__init__(*names)
        self.kind = kind

    def load(self, path, *rest, **named):
        return narrow(path.parent.name, self.kind)


@contextlib.contextmanager
def served(protocol, kind, name):
    """The server of a model, and the model as a client has it."""
    running = (http_running if protocol == "http" else grpc_running).Running
    with running(Store(kind, name), timeout_seconds=120.0) as server:
        url = server.url if protocol == "http" else f"grpc://{server.address}"
        with contextlib.closing(RemoteModel(f"{url}/{name}", timeout_seconds=120.0)) as remote:
            yield server, remote


ASKED = {
    "plain": {},
    "a long prefix": {"prefix": tokens(30)},
    "prefixes of rows, one of which ends": {"prefix": rows_of(3, 20, 69), "stop": [3, 4]},
    "options of tokens": {
        "prefix": rows_of(3, 20, 30),
        "top_k": 4,
        "top_p": 0.9,
        "logit_bias": {5: 1.5, 2: -1.0},
        "repetition_penalty": 1.3,
        "stop": [3],
        "min_length": 40,
    },
    "temperatures": {"temperature": [0.5, 1.0, 1.3], "allowed": [1, 2, 5, 7, 11]},
    "presence": {"presence_penalty": 0.7, "temperature": [0.0, 1.0, 1.3]},
}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_draws_streams_and_scores_what_the_live_model_does(protocol):
    with served(protocol, "int8", "tokens") as (server, remote):
        assert remote.spec["weights"] == "int8"
        for options in ASKED.values():
            expected = model("tokens").sample(NUM, LONGEST, SEED, weights="int8", **options)
            for asked in ({}, {"weights": "int8"}):
                drawn = remote.sample(NUM, LONGEST, SEED, **asked, **options)
                np.testing.assert_array_equal(drawn, expected)
            parts = np.concatenate(
                list(remote.stream(NUM, LONGEST, SEED, chunk=1, weights="int8", **options)), 1
            )
            np.testing.assert_array_equal(parts, expected[:, : parts.shape[1]])
            last = remote.sample(1, LONGEST, SEED, row=2, **row_of(options, 2))
            np.testing.assert_array_equal(last, expected[2:])
        nats = remote.log_prob(expected, weights="int8")
        live = model("tokens").log_prob(expected, weights="int8")
        np.testing.assert_allclose(nats, live, rtol=1e-5, atol=1e-5)
        assert (nats != model("tokens").log_prob(expected).numpy()).any()
        value = server.metrics.registry.get_sample_value
        hits = {"model": "tokens", "outcome": "hit"}
        assert value("onepass_prefixes_total", hits) > 0  # so that continued rows were compared


def test_rows_of_a_call_are_drawn_as_if_alone_whatever_the_others_ask():
    made, rows = narrow("tokens", "bfloat16"), []
    for index, options in enumerate(ASKED.values()):
        one = {"num": 1, "length": 20 + 10 * index, "seed": index, **row_of(options, 0)}
        if "prefix" in one:
            one["prefix"] = np.concatenate([*map(np.atleast_1d, one["prefix"])])[:15]
        rows.append(one)
    known = made.signatures["prompted"].inputs
    requests = [
        made.check(
            "prompted", made._request(Draw(**each)).inputs(known, np.arange(1), 0, each["length"])
        )
        for each in rows
    ]
    together = made.call("prompted", stack(requests))
    for each, elements in zip(rows, together["elements"], strict=True):
        expected = model("tokens").sample(**each, weights="bfloat16")[0]
        np.testing.assert_array_equal(elements[: each["length"]], expected)
        assert not elements[each["length"] :].any()


def stack(requests):
    """The inputs of requests of one row each as those of one request."""
    found = {}
    for name in requests[0]:
        arrays = [each[name] for each in requests]
        widest = np.max([array.shape for array in arrays], 0)
        found[name] = np.concatenate(
            [
                np.pad(x, [(0, n - m) for n, m in zip([1, *widest[1:]], x.shape, strict=True)])
                for x in arrays
            ]
        )
    return found


@pytest.mark.parametrize("name", ["own", "reading", "voices"])
def test_every_sequence_draws_and_streams_what_the_live_model_does(name):
    given = given_of(name)
    expected = model(name).sample(2, LONGEST, SEED, given, weights="int8")
    np.testing.assert_array_equal(narrow(name).sample(2, LONGEST, SEED, given), expected)
    parts = np.concatenate(list(narrow(name).stream(2, LONGEST, SEED, given, chunk=1)), 1)
    np.testing.assert_array_equal(parts, expected)
    nats, live = narrow(name).log_prob(expected, given), model(name).log_prob
    np.testing.assert_allclose(nats, live(expected, given, weights="int8"), rtol=1e-5, atol=1e-5)
    assert (nats != live(expected, given).numpy()).any()


def given_of(name):
    draw = np.random.default_rng(3)
    if name == "reading":
        return draw.normal(size=[2, own_models.ENTRIES, 3]).astype(np.float32)
    if name == "voices":
        tone, mel = draw.normal(size=[2, 3]), draw.normal(size=[2, LONGEST, 2])
        arrays = {"tone": tone.astype(np.float32), "mel": mel.astype(np.float32)}
        return {"voice": np.array([1, 3], np.int32), **arrays}
    return None


async def test_states_after_prefixes_are_those_of_the_weights():
    metrics = Metrics()
    prefix = tokens(1, 40)
    given = {"prefix": prefix, "num_samples": [60], "seed": [5]}
    models = {
        kind: ServedModel(narrow("tokens", kind), Settings(), metrics, kind)
        for kind in ("int8", "bfloat16")
    }
    for seed in (5, 6, 5):
        for kind, one in models.items():
            answer = await one.predict({**given, "seed": [seed]}, "prompted")
            expected = model("tokens").sample(1, 60, seed, prefix=prefix, weights=kind)
            np.testing.assert_array_equal(answer["elements"], expected)
    for kind in models:
        label = {"model": kind, "outcome": "hit"}
        assert metrics.registry.get_sample_value("onepass_prefixes_total", label) == 2


def test_a_state_that_a_client_invents_does_no_harm():
    made = narrow("tokens")
    states = [n for n in made.signatures["prompted_chunk"].inputs if n.startswith("state_")]
    first = made.sample(1, 40, 5)
    for worst in (-(2**31), -1, 2**31 - 1):
        given = {"seed": [5], "num_samples": [5], "start": [30]}
        for name in states:
            info = made.signatures["prompted_chunk"].inputs[name]
            given[name] = np.full([1, *info.shape[1:]], worst, info.dtype)
        drawn = made.call("prompted_chunk", made.check("prompted_chunk", given))["elements"]
        assert ((drawn >= 0) & (drawn < own_models.attention_networks.TOKENS)).all()
    np.testing.assert_array_equal(made.sample(1, 40, 5), first)


@pytest.mark.parametrize("name", ["prompted", "log_prob"])
def test_what_breaks_a_rule_is_the_clients_mistake(name):
    made = narrow("tokens")
    given = {"elements": np.zeros([1, LONGEST + 1], np.int32)}
    if name == "prompted":
        given = {"num_samples": [9], "prefix": np.zeros([1, 2], np.int32), "top_p": [0.0]}
    with pytest.raises(InvalidInput, match=r"`(elements|top_p)` must be") as refused:
        made.call(name, made.check(name, given))
    assert "\n" not in str(refused.value)


def test_a_server_of_other_weights_says_what_it_draws_with():
    with own_models.served("http", "tokens") as (_, (plain,)):
        said = r"`weights` must be float32, as served \(`onepass serve --weights` chooses it\)"
        for call in (plain.sample, plain.stream):
            with pytest.raises(UserError, match=f"{said}, got int8"):
                call(1, 9, SEED, weights="int8")
        with pytest.raises(UserError, match=said):
            plain.log_prob(tokens(1, 9), weights="int8")
    said = r"must be int8, as served .* got bfloat16"
    with served("http", "int8", "tokens") as (_, remote), pytest.raises(UserError, match=said):
        remote.sample(1, 9, SEED, weights="bfloat16")


REFUSED = {
    "student": lambda: bundle_folder("student"),
    "picture": lambda: bundle_folder("picture"),
    "student of frames": lambda: sound_bundles.bundle_folder("residual"),
    "teacher": lambda: sound_bundles.bundle_folder("softmax, frames"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_is_refused_in_one_line_when_it_is_loaded(name):
    with pytest.raises(UserError, match=r"`weights` must be float32 for .*, got int8") as refused:
        bundles.load(REFUSED[name](), weights="int8")
    assert "\n" not in str(refused.value)


def test_a_state_that_was_read_belongs_to_the_weights():
    state = narrow("tokens").read(tokens(20), 40)
    expected = model("tokens").sample(1, 40, SEED, prefix=tokens(20), weights="int8")
    np.testing.assert_array_equal(narrow("tokens").sample(1, 40, SEED, state=state), expected)
    for other in (own_models.bundle("tokens"), narrow("tokens", "bfloat16")):
        with pytest.raises(InvalidInput, match="`state` must be of the model that draws"):
            other.sample(1, 40, SEED, state=state)


WIDE = 97  # levels, whose tables are large enough to be narrowed


@functools.cache
def wide():
    """A network of tokens whose weights are worth fewer bytes as they are."""
    keras.utils.set_random_seed(1)
    given = keras.Input([None], dtype="int32")
    normal = keras.initializers.RandomNormal(stddev=1.0)
    hidden = keras.layers.Embedding(WIDE, 64, embeddings_initializer=normal)(given)
    hidden = keras.layers.GRU(64, return_sequences=True)(hidden)
    network = keras.Model(given, keras.layers.Dense(WIDE, kernel_initializer=normal)(hidden))
    return onepass.Autoregressive(network, onepass.likelihoods.Categorical(WIDE))


@pytest.mark.integration
@pytest.mark.parametrize("words", [[], ["--no-sandbox"]], ids=["confined", "in the server"])
def test_the_command_serves_narrow_weights_and_names_what_it_cannot(words, tmp_path):
    root, live = tmp_path / "models", wide()
    onepass.export(live, root / "wide" / "1", length=LONGEST)
    shutil.copytree(bundle_folder("picture"), root / "picture" / "1")
    given = ["serve", root, "--port", 0, "--grpc-port", 0, "--weights", "int8", *words]
    server = Process(ROOT / "onepass" / "__main__.py", tmp_path / "log", *given)
    try:
        said = ready(server)
        url = f"http://127.0.0.1:{said[3]}/wide"
        assert said[1] == "wide"
        refused = "`weights` must be float32 for a model that does not draw"
        assert ["picture" in x for x in server.output().splitlines() if refused in x] == [True]
        with contextlib.closing(RemoteModel(url)) as remote:
            prefix = tokens(20, levels=WIDE)
            nats = remote.log_prob(prefix[np.newaxis])
            assert (nats != live.log_prob(prefix[np.newaxis]).numpy()).any()
            for options in ({}, {"prefix": prefix}, {"prefix": prefix, "top_k": 5}):
                expected = live.sample(2, LONGEST, 5, weights="int8", **options)
                np.testing.assert_array_equal(remote.sample(2, LONGEST, 5, **options), expected)
                parts = list(remote.stream(2, LONGEST, 5, chunk=1, **options))
                np.testing.assert_array_equal(np.concatenate(parts, 1), expected)
            words = ("sample", url, "--length", LONGEST)
            words += ("--seed", 5, "--weights", "int8", "--num", 2, "--out", tmp_path / "drawn")
            assert own_models.ran(*words) == 0
        (file,) = (tmp_path / "drawn").glob("*.npy")
        expected = live.sample(2, LONGEST, 5, weights="int8")
        np.testing.assert_array_equal(np.load(file), expected)
        server.signal(signal.SIGTERM)
        assert server.ended(60) == 0
    finally:
        server.kill()
