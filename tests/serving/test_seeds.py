"""A seed is an integer in [0, 2^64) at every door: live, JSON, tensors, queries and clients."""

import functools
import io
import json

import numpy as np
import pytest
import soundfile
from grpc_running import Both
from http_running import store

import onepass
import serving
from onepass.bundles.errors import InvalidInput
from onepass.bundles.signature import checked_seeds
from onepass.foundation.rules import UserError, check_seed

SEEDS = (0, 7, 2**53 + 1, 2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1)
SAME = (np.int8(7), np.int64(7), np.uint64(7), np.array(7))
NO_SEEDS = (-1, 2**64, 5.0, True, "7", None, [7], np.array([7]), np.float32(7), np.int64(-1))
RULE = "`seed` must be an integer in [0, 2^64), got "
FRAMES = np.ones([3, 3], np.float32)
PREDICT = "/v1/models/shapes:predict"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A server of both protocols, whose `ask` has a client of each and `loaded` their models."""
    with Both(store(tmp_path_factory.mktemp("models"))) as running:
        urls = {"http": running.url, "grpc": f"grpc://{running.address}"}
        running.ask = {kind: serving.Client(url, retries=0) for kind, url in urls.items()}
        running.loaded = functools.cache(lambda kind, name: onepass.load(f"{urls[kind]}/{name}"))
        names = [(kind, name) for kind in urls for name in ("voice", "shapes")]
        models = [running.loaded(*each) for each in names]
        yield running
        for each in (*running.ask.values(), *models):
            each.close()


def arrived(running, act):
    """The seeds with which the models were run by what `act` asked for, each once."""
    controls = running.store.controls.values()
    for control in controls:
        control.seeds.clear()
    act()
    return {seed for control in controls for seed in control.seeds}


def v2(seed, datatype):
    seeds = {"name": "seed", "shape": [1], "datatype": datatype, "data": [seed]}
    return {"inputs": [seeds, {"name": "label", "shape": [1], "datatype": "INT32", "data": [3]}]}


# The doors of plain HTTP: for each a path and a body.
BODIES = {
    "speak": ("/v1/models/voice:speak", lambda n: {"frames": FRAMES.tolist(), "seed": n}),
    "draw": ("/v1/models/shapes:draw", lambda n: {"class": 3, "seed": n}),
    "images": ("/v1/images/generations", lambda n: {"prompt": "3", "seed": n}),
    "rows": (PREDICT, lambda n: {"instances": [{"label": 3, "seed": n}]}),
    "columns": (PREDICT, lambda n: {"inputs": {"label": [3], "seed": [n]}}),
    "v2, int64": ("/v2/models/shapes/infer", lambda n: v2(n, "INT64")),
    "v2, uint64": ("/v2/models/shapes/infer", lambda n: v2(n, "UINT64")),
}


@pytest.mark.parametrize("door", BODIES)
def test_every_seed_arrives_through_every_door_of_http_and_what_is_none_is_refused(running, door):
    path, body = BODIES[door]

    def act(seed):
        return running.client.post(path, content=json.dumps(body(seed)))

    for seed in SEEDS:
        assert arrived(running, lambda seed=seed: act(seed).raise_for_status()) == {seed}
    for seed in (-1, 2**64, 5.0, True, "7", [7], {"b64": "Nw=="}):
        error = act(seed).json()["error"]
        words = error["message"] if isinstance(error, dict) else error
        assert "seed" in words if isinstance(seed, list | dict) else words.startswith(RULE), words


def test_a_query_gives_every_seed(running):
    recording = io.BytesIO()
    soundfile.write(recording, np.zeros(400, np.float32), 4000, format="WAV")
    sent = {"content": recording.getvalue(), "headers": {"content-type": "audio/wav"}}

    def act(word):
        return running.client.post(f"/v1/models/voice:speak?seed={word}", **sent)

    for seed in SEEDS:
        assert arrived(running, lambda seed=seed: act(seed).raise_for_status()) == {seed}
    for word in ("-1", "5.5", str(2**64), "true", "9" * 5000):
        answer = act(word)
        assert answer.status_code == 400 and answer.json()["error"].startswith(RULE)


def of_client(method, name, **given):
    return lambda running, kind, n: [*getattr(running.ask[kind], method)(name, **given, seed=n)]


def of_model(name, **given):
    return lambda running, kind, n: running.loaded(kind, name).sample(**given, seed=n)


def predict(running, kind, seed):
    running.ask[kind].predict("shapes", {"label": [3], "seed": [seed]})


ASKED = {
    "speak": of_client("speak", "voice", frames=FRAMES),
    "draw": of_client("draw", "shapes", label=3),
    "predict": predict,
    "load, sound": of_model("voice", condition=FRAMES),
    "load, images": of_model("shapes", condition=np.int64(3), num=np.int32(1)),
}


@pytest.mark.parametrize("door", ASKED)
@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_clients_send_every_seed_and_refuse_what_is_none(running, kind, door):
    for seed in (*SEEDS, *SAME):
        act = functools.partial(ASKED[door], running, kind, seed)
        assert arrived(running, act) == {int(seed)}
    for seed in NO_SEEDS:
        if door == "predict" and np.ndim(seed):
            continue  # an array of another shape
        with pytest.raises(UserError) as refused:
            ASKED[door](running, kind, seed)
        assert str(refused.value).startswith(RULE), (seed, refused.value)


@pytest.mark.parametrize("seed", [*SEEDS, *SAME])
def test_the_rule_of_a_served_seed_is_that_of_a_live_one(seed):
    assert check_seed(seed) == int(seed)
    assert checked_seeds([seed]).tolist() == [int(seed)]
    assert checked_seeds([seed, 1, 2**64 - 1]).tolist() == [int(seed), 1, 2**64 - 1]


@pytest.mark.parametrize("seed", NO_SEEDS)
def test_what_is_no_seed_alone_is_none_among_others(seed):
    with pytest.raises(ValueError, match=r"`seed` must be an integer in \[0, 2\^64\), got "):
        check_seed(seed)
    if np.ndim(seed) == 0:
        for seeds in ([seed], [2**63, seed], [seed, 0]):
            with pytest.raises(InvalidInput, match=r"`seed` must be an integer in \[0, 2\^64\)"):
                checked_seeds(seeds)


@pytest.mark.parametrize("seed", [np.uint64(2**64 - 1), np.int64(2**63 - 1), np.int8(7)])
def test_arrays_of_seeds_are_read_bit_for_bit(running, seed):
    inputs = {"label": np.array([3], np.int32), "seed": seed[np.newaxis]}
    act = functools.partial(running.ask["grpc"].predict, "shapes", inputs)
    assert arrived(running, act) == {int(seed)}
