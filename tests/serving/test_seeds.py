"""A seed is an integer in [0, 2^64) at every door: live, JSON, tensors, queries and clients."""

import contextlib
import io
import json

import grpc_running
import http_running
import numpy as np
import pytest
import soundfile

import onepass
import serving
from onepass.bundles.errors import InvalidInput
from onepass.bundles.sampling import seed_number
from onepass.bundles.signature import checked_seeds
from onepass.foundation.arguments import check_seed
from onepass.foundation.errors import UserError

SEEDS = (0, 7, 2**53 + 1, 2**63 - 1, 2**63, 2**63 + 5, 2**64 - 1)
SAME = (np.int8(7), np.int64(7), np.uint64(7), np.array(7))
NO_SEEDS = (-1, 2**64, 5.0, True, "7", None, [7], np.array([7]), np.float32(7), np.int64(-1))
RULE = "`seed` must be an integer in [0, 2^64), got "
FRAMES = np.ones([3, 3], np.float32)


@pytest.fixture(scope="module")
def over_http(tmp_path_factory):
    with http_running.Running(http_running.store(tmp_path_factory.mktemp("http"))) as running:
        yield running


@pytest.fixture(scope="module")
def over_grpc(tmp_path_factory):
    with grpc_running.Running(grpc_running.store(tmp_path_factory.mktemp("grpc"))) as running:
        yield running


def arrived(running, name, act):
    """The seeds with which the model was run by what `act` asked for, each once."""
    seeds = running.store.controls[name, 1].seeds
    seeds.clear()
    act()
    return set(seeds)


def v2(seed, datatype):
    seeds = {"name": "seed", "shape": [1], "datatype": datatype, "data": [seed]}
    label = {"name": "label", "shape": [1], "datatype": "INT32", "data": [3]}
    return {"inputs": [seeds, label]}


def bodies(seed):
    """The doors of plain HTTP: for each a path, a body and the model that it asks."""
    frames = FRAMES.tolist()
    row = {"label": 3, "seed": seed}
    return {
        "speak": ("/v1/models/voice:speak", {"frames": frames, "seed": seed}, "voice"),
        "draw": ("/v1/models/shapes:draw", {"class": 3, "seed": seed}, "shapes"),
        "images": (
            "/v1/images/generations",
            {"model": "shapes", "prompt": "3", "seed": seed},
            "shapes",
        ),
        "predict": ("/v1/models/shapes:predict", {"instances": [row]}, "shapes"),
        "columns": (
            "/v1/models/shapes:predict",
            {"inputs": {"label": [3], "seed": [seed]}},
            "shapes",
        ),
        "v2, int64": ("/v2/models/shapes/infer", v2(seed, "INT64"), "shapes"),
        "v2, uint64": ("/v2/models/shapes/infer", v2(seed, "UINT64"), "shapes"),
    }


DOORS = list(bodies(0))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_seed_arrives_through_every_door_of_http(over_http, door, seed):
    path, body, name = bodies(seed)[door]

    def act():
        answer = over_http.client.post(path, json=body)
        assert answer.status_code == 200, answer.text

    assert arrived(over_http, name, act) == {seed}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("seed", [-1, 2**64, 5.0, True, "7", [7], {"b64": "Nw=="}])
def test_what_is_no_seed_is_refused_by_the_one_rule_at_every_door(over_http, door, seed):
    path, body, _ = bodies(seed)[door]
    answer = over_http.client.post(path, content=json.dumps(body))
    error = answer.json()["error"]
    words = error["message"] if isinstance(error, dict) else error
    assert answer.status_code == 400 and "seed" in words
    if not isinstance(seed, list | dict):
        assert words.startswith(RULE), words


@pytest.mark.parametrize("seed", SEEDS)
def test_a_query_gives_every_seed(over_http, seed):
    recording = io.BytesIO()
    soundfile.write(recording, np.zeros(400, np.float32), 4000, format="WAV")

    def act(word):
        return over_http.client.post(
            f"/v1/models/voice:speak?seed={word}",
            content=recording.getvalue(),
            headers={"content-type": "audio/wav"},
        )

    assert arrived(over_http, "voice", lambda: act(seed).raise_for_status()) == {seed}
    for word in ("-1", "5.5", str(2**64), "true", "9" * 5000):
        answer = act(word)
        assert answer.status_code == 400 and answer.json()["error"].startswith(RULE)


ASKED = {
    "speak": lambda client, url, name, seed: list(client.speak("voice", frames=FRAMES, seed=seed)),
    "draw": lambda client, url, name, seed: list(client.draw(name, label=3, seed=seed)),
    "predict": lambda client, url, name, seed: client.predict(name, {"label": [3], "seed": [seed]}),
    "load, sound": lambda client, url, name, seed: loaded(f"{url}/voice").sample(
        condition=FRAMES, seed=seed
    ),
    "load, images": lambda client, url, name, seed: loaded(f"{url}/{name}").sample(
        condition=np.int64(3), seed=seed, num=np.int32(1)
    ),
}


@pytest.fixture(scope="module")
def servers(over_http, over_grpc):
    """Yield the server, its address, the model of images and a client, by protocol."""
    addresses = {"http": over_http.url, "grpc": f"grpc://{over_grpc.address}"}
    with contextlib.ExitStack() as stack:
        clients = {
            kind: stack.enter_context(serving.Client(url, retries=0))
            for kind, url in addresses.items()
        }
        yield {
            "http": (over_http, addresses["http"], "shapes", clients["http"]),
            "grpc": (over_grpc, addresses["grpc"], "digits", clients["grpc"]),
        }
        for model in LOADED.values():
            model.close()
        LOADED.clear()


LOADED = {}


def loaded(url):
    if url not in LOADED:
        LOADED[url] = onepass.load(url)
    return LOADED[url]


@pytest.mark.parametrize("door", ASKED)
@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_clients_send_every_seed_and_refuse_what_is_none(servers, kind, door):
    running, url, images, client = servers[kind]
    name = "voice" if door in ("speak", "load, sound") else images
    for seed in (*SEEDS, *SAME):
        act = lambda seed=seed: ASKED[door](client, url, images, seed)  # noqa: E731
        assert arrived(running, name, act) == {int(seed)}
    for seed in NO_SEEDS:
        if door == "predict" and np.ndim(seed):
            continue  # an array of another shape
        with pytest.raises(UserError) as refused:
            ASKED[door](client, url, images, seed)
        assert str(refused.value).startswith(RULE), (seed, refused.value)


@pytest.mark.parametrize("seed", [*SEEDS, *SAME])
def test_the_rule_of_a_served_seed_is_that_of_a_live_one(seed):
    assert seed_number(check_seed(seed)) == int(seed)
    assert checked_seeds([seed]).tolist() == [int(seed)]
    assert checked_seeds([seed, 1, 2**64 - 1]).tolist() == [int(seed), 1, 2**64 - 1]


@pytest.mark.parametrize("seed", NO_SEEDS)
def test_what_is_no_seed_alone_is_none_among_others(seed):
    with pytest.raises(ValueError, match=r"`seed` must be an integer in \[0, 2\^64\), got "):
        seed_number(seed)
    if np.ndim(seed) == 0:
        for seeds in ([seed], [2**63, seed], [seed, 0]):
            with pytest.raises(InvalidInput, match=r"`seed` must be an integer in \[0, 2\^64\)"):
                checked_seeds(seeds)


def test_arrays_of_seeds_are_read_bit_for_bit(over_grpc):
    with serving.Client(f"grpc://{over_grpc.address}") as client:
        for dtype, seed in ((np.uint64, 2**64 - 1), (np.int64, 2**63 - 1), (np.int8, 7)):
            inputs = {"label": np.array([3], np.int32), "seed": np.array([seed], dtype)}
            act = lambda inputs=inputs: client.predict("digits", inputs)  # noqa: E731
            assert arrived(over_grpc, "digits", act) == {seed}
        with pytest.raises(UserError, match=r"`seed` must be an integer in \[0, 2\^64\), got -1"):
            client.predict("digits", {"label": [3], "seed": np.array([-1])})
