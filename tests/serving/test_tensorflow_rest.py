"""TensorFlow Serving's REST protocol, as its documentation has it."""

import json
import subprocess
import threading

import numpy as np
import pytest
from fake_bundle import CHANNELS, HOP
from http_running import Running, ask
from serve_load import until

from onepass.bundles.signature import TENSORFLOW_NAMES

PREDICT = "/v1/models/shapes:predict"
SPEAK = "/v1/models/voice:predict"


def frames(rows, length):
    return np.random.default_rng(rows).normal(size=[rows, length, CHANNELS]).round(3).tolist()


def test_rows_and_columns_give_the_same_images(models):
    rows = ask(models, "POST", PREDICT, json={"instances": [{"label": n} for n in range(3)]})
    columns = ask(models, "POST", PREDICT, json={"inputs": {"label": [0, 1, 2]}})
    assert rows.status_code == columns.status_code == 200
    for n, row in enumerate(rows.json()["predictions"]):
        assert row.keys() == {"picture_8", "picture_16", "picture"}
        for name, value in row.items():
            assert value == columns.json()["outputs"][name][n]
    assert np.unique(rows.json()["predictions"][2]["picture"]) == [40]


def test_a_sound_is_the_bundles_own(models):
    given = frames(1, 5)
    body = {"inputs": {"frames": given, "num_frames": [5], "seed": [3], "row": [1]}}
    answer = ask(models, "POST", SPEAK, json=body).json()["outputs"]
    bundle = models.load(models.root / "voice" / "1")
    sound = bundle.sample(condition=np.array(given[0], np.float32), seed=3, row=1)
    assert answer["num_samples"] == [5 * HOP]
    np.testing.assert_allclose(answer["sound"], sound, rtol=1e-6)


def test_one_output_has_no_name(models, monkeypatch):
    monkeypatch.setattr(
        "fake_bundle.FakeImages.call", lambda self, name, inputs: {"picture": inputs["label"]}
    )
    rows = ask(models, "POST", PREDICT, json={"instances": [{"label": 3}, {"label": 4}]})
    columns = ask(models, "POST", PREDICT, json={"inputs": {"label": [3, 4]}})
    assert rows.json() == {"predictions": [3, 4]}
    assert columns.json() == {"outputs": [3, 4]}


@pytest.mark.parametrize("place", ["voice", "voice/versions/1"])
def test_the_status_is_in_both_protocols_words(models, place):
    answer = ask(models, "GET", f"/v1/models/{place}").json()
    assert answer["model_version_status"] == [
        {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    ]
    assert (answer["id"], answer["object"]) == ("voice", "model")


def test_metadata_are_those_of_the_signatures(models):
    answer = ask(models, "GET", "/v1/models/voice/versions/1/metadata").json()
    assert answer["model_spec"] == {"name": "voice", "signature_name": "", "version": "1"}
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    assert signatures.keys() == {"serving_default", "compiled"}
    assert signatures["compiled"]["method_name"] == "tensorflow/serving/predict"
    tensor = signatures["compiled"]["inputs"]["frames"]
    assert tensor["dtype"] == "DT_FLOAT"
    assert [d["size"] for d in tensor["tensor_shape"]["dim"]] == ["-1", "-1", str(CHANNELS)]


def test_types_have_the_names_of_tensorflows_enumeration():
    whole = {f"DT_{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}
    assert set(TENSORFLOW_NAMES.values()) == whole | {"DT_BOOL", "DT_HALF", "DT_FLOAT", "DT_DOUBLE"}
    assert TENSORFLOW_NAMES[np.dtype("uint8")] == "DT_UINT8"


@pytest.mark.parametrize("path", ["/v1/models/voice/versions/1:predict", SPEAK])
def test_the_signature_is_the_one_named(models, path):
    for name in ("serving_default", "compiled"):
        body = {"signature_name": name, "instances": [{"frames": frames(1, 2)[0], "num_frames": 2}]}
        assert ask(models, "POST", path, json=body).status_code == 200
    assert [call[0] for call in models.controls["voice", 1].calls] == [
        "serving_default",
        "compiled",
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"instances": [{"label": 1}], "signature_name": "other"}, "no signature `other`"),
        ({"instances": [{"label": 1}], "signature_name": 3}, "`signature_name` must be"),
        ({}, "either `instances` or `inputs`"),
        ({"instances": []}, "`instances` must be of length at least 1, got an empty list."),
        ({"instances": {}}, "`instances` must be a list, got an empty object."),
        ({"instances": {"label": 1}}, "`instances` must be a list, got an object."),
        ({"instances": [{"label": 1}], "inputs": {"label": [1]}}, "either"),
        ({"instances": [{"label": 10}]}, "`label` must be"),
        ({"instances": [{"label": -1}]}, "`label` must be"),
        ({"instances": [{"label": 1.5}]}, "`label` must hold integers"),
        ({"instances": [{"label": "1"}]}, "`label` must hold integers"),
        ({"instances": [{"label": [1]}]}, "`label` must hold integers"),
        ({"instances": [{"nothing": 1}]}, "`nothing` is not an input"),
        ({"inputs": {"label": [1, 2], "seed": [1]}}, "rows"),
        ({"inputs": {"temperature": [[1e39, 1]]}}, "`temperature` must be finite"),
        ({"inputs": {"temperature": [[1, 1, 1]]}}, "`temperature` must have the shape"),
        ({"instances": [{"temperature": [1]}]}, "`temperature` must have the shape"),
    ],
)
def test_what_breaks_a_rule_is_400_with_field_and_rule(models, body, words):
    response = ask(models, "POST", PREDICT, json=body)
    assert (response.status_code, response.headers["content-type"]) == (400, "application/json")
    assert words in response.json()["error"]
    assert models.controls["shapes", 1].calls == []


def test_numbers_that_are_not_finite_are_no_json(models):
    for word in (b"NaN", b"Infinity", b"-Infinity"):
        body = b'{"inputs": {"temperature": [[1, ' + word + b"]]}}"
        assert ask(models, "POST", PREDICT, content=body).status_code == 400


def test_a_shape_that_is_huge_only_in_words_is_never_made(models):
    body = {"inputs": {"frames": [[[0.0] * CHANNELS]], "num_frames": [2**31 - 1]}}
    assert ask(models, "POST", SPEAK, json=body).status_code == 400


def test_too_many_rows_are_refused(models):
    body = {"instances": [{"label": 1}] * 5}
    assert ask(models, "POST", PREDICT, json=body, settings={"max_rows": 4}).status_code == 413


@pytest.mark.parametrize(
    "path", ["/v1/models/other:predict", "/v1/models/voice/versions/7:predict", "/v1/models/other"]
)
def test_what_is_not_there_is_404(models, path):
    response = ask(models, "GET" if path.endswith("other") else "POST", path, json={})
    assert response.status_code == 404
    assert isinstance(response.json()["error"], str)


def test_a_full_queue_is_503_with_when_to_come_again(models):
    control = models.controls["shapes", 1]
    statuses = []
    with Running(models, queue_rows=1, timeout_seconds=1.0) as running:

        def post():
            response = running.client.post(PREDICT, json={"instances": [{"label": 1}]})
            statuses.append((response.status_code, response.headers.get("retry-after")))

        control.open.clear()
        threads = [threading.Thread(target=post) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        control.open.set()
    assert len(statuses) == 6
    assert (503, "1") in statuses
    assert {status for status, _ in statuses} == {503, 504}


def test_a_client_that_leaves_takes_its_rows_with_it(models, running):
    control = models.controls["shapes", 1]
    control.open.clear()
    first = threading.Thread(
        target=lambda: running.client.post(PREDICT, json={"instances": [{"seed": 1}]})
    )
    first.start()
    assert control.entered.wait(5)
    with running.connection() as connection:
        body = b'{"instances": [{"seed": 2}]}'
        start = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        connection.sendall(f"{start}\r\n\r\n".encode() + body)
        until(lambda: b'onepass_queue_rows{model="shapes"} 1.0' in running.metrics.render()[0])
    until(lambda: b'status="cancelled"} 1.0' in running.metrics.render()[0])
    control.open.set()
    first.join(10)
    running.client.post(PREDICT, json={"instances": [{"seed": 3}]})
    assert [call[3] for call in control.calls] == [[1], [3]]


@pytest.mark.integration
def test_curl_as_in_the_documentation(running):
    body = json.dumps({"instances": [{"label": 2}]})
    command = ["curl", "-s", "-m", "10", "-d", body, "-X", "POST", running.url + PREDICT]
    done = subprocess.run(command, capture_output=True, timeout=20, check=True)
    assert np.unique(json.loads(done.stdout)["predictions"][0]["picture"]) == [40]
