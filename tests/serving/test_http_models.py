"""What HTTP says of models, versions and signatures, and what stock clients of v2 and REST get."""

import shutil

import numpy as np
import pytest
from fake_bundle import CHANNELS, HOP
from http_running import Running, ask, settings_of, store
from starlette.routing import Mount
from starlette.testclient import TestClient

import onepass
from onepass.bundles.errors import NotFound
from serving.engine.registry import ModelRegistry
from serving.http.app import make_app
from serving.observability import Metrics

PREDICT = "/v1/models/shapes:predict"


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A server for tests that leave it as it is."""
    with Running(store(tmp_path_factory.mktemp("models"))) as running:
        yield running


# TensorFlow Serving's REST


def test_one_output_has_no_name(models, monkeypatch):
    monkeypatch.setattr(
        "fake_bundle.FakeImages.call", lambda self, name, inputs: {"picture": inputs["label"]}
    )
    rows = ask(models, "POST", PREDICT, json={"instances": [{"label": 3}, {"label": 4}]})
    columns = ask(models, "POST", PREDICT, json={"inputs": {"label": [3, 4]}})
    assert (rows.json(), columns.json()) == ({"predictions": [3, 4]}, {"outputs": [3, 4]})


@pytest.mark.parametrize("place", ["voice", "voice/versions/1"])
def test_the_status_is_in_both_protocols_words(kept, place):
    answer = kept.client.get(f"/v1/models/{place}").json()
    assert answer["model_version_status"] == [
        {"version": "1", "state": "AVAILABLE", "status": {"error_code": "OK", "error_message": ""}}
    ]
    assert (answer["id"], answer["object"]) == ("voice", "model")


# v2, asked by NVIDIA's own client


@pytest.fixture(scope="module")
def triton(kept):
    http = pytest.importorskip("tritonclient.http")
    client = http.InferenceServerClient(f"127.0.0.1:{kept.port}")
    yield http, client
    client.close()


def test_triton_finds_what_is_ready_and_its_metadata(triton):
    _, client = triton
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("voice") and client.is_model_ready("voice", "1")
    assert not client.is_model_ready("voice", "2") and not client.is_model_ready("other")
    server, metadata = client.get_server_metadata(), client.get_model_metadata("voice")
    assert "binary_tensor_data" in server["extensions"]
    assert server["version"] == onepass.__version__ and metadata["versions"] == ["1"]
    frames = {"name": "frames", "datatype": "FP32", "shape": [-1, -1, CHANNELS]}
    assert metadata["inputs"][0] == frames
    assert {"name": "sound", "datatype": "FP32", "shape": [-1, -1]} in metadata["outputs"]
    found = [(row["name"], row["state"]) for row in client.get_model_repository_index()]
    assert found == [("shapes", "READY"), ("voice", "READY")]


@pytest.mark.parametrize("binary", [True, False])
def test_triton_gets_the_outputs_that_it_asks_for_and_never_compressed(kept, triton, binary):
    http, client = triton
    frames = np.random.default_rng(1).normal(size=[1, 6, CHANNELS]).astype(np.float32)
    inputs = []
    for name, kind, array in (
        *(("frames", "FP32", frames), ("num_frames", "INT32", np.int32([6]))),
        ("seed", "INT64", np.int64([4])),
    ):
        inputs.append(http.InferInput(name, list(array.shape), kind))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    wanted = [http.InferRequestedOutput("sound", binary_data=binary)]
    compression = {"response_compression_algorithm": "gzip"}
    result = client.infer("voice", inputs, outputs=wanted, **compression)
    bundle = kept.store.load(kept.store.root / "voice" / "1")
    expected = bundle.sample(condition=frames[0], seed=4)
    np.testing.assert_array_equal(result.as_numpy("sound"), expected)
    assert expected.shape == (1, 6 * HOP) and len(result.get_response()["outputs"]) == 1


# The list of models


def listed(answer):
    assert answer.status_code == 200, answer.text
    return {model["id"]: model for model in answer.json()["data"]}


@pytest.mark.parametrize(
    "broken",
    [{"quality": {"steps": 2**70}}, {"size": 2**64}, {"serving": {}}, {"quality": float("nan")}],
)
def test_one_broken_model_does_not_hide_the_others(running, broken):
    running.registry.get("shapes").spec.update(broken)
    running.registry.get("voice").spec.update(broken)
    running.registry.get("shapes").spec.update(serving={"allowed_batches": [1]})
    found = listed(running.client.get("/v1/models"))
    assert running.client.get("/v1/models/voice").json()["id"] == "voice"
    assert found.keys() == {"voice", "shapes"}
    assert found["voice"]["versions"] == [{"version": 1, "state": "AVAILABLE"}]


def test_a_model_that_goes_away_meanwhile_is_left_out(running, monkeypatch):
    known = running.registry._version_set

    def sets(name):
        if name == "gone":
            raise NotFound("It was taken away.")
        return known(name)

    monkeypatch.setattr(running.registry, "names", lambda: ["gone", "shapes", "voice"])
    monkeypatch.setattr(running.registry, "_version_set", sets)
    assert listed(running.client.get("/v1/models")).keys() == {"shapes", "voice"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("GET", f"/v1/models{end}") for end in ("", "/voice", "/voice/metadata")),
        *(("GET", "/v2/models/voice"), ("POST", "/v2/repository/index")),
        *(("POST", "/v1/models/voice:predict"), ("POST", "/v1/images/generations")),
    ],
)
def test_before_the_first_look_the_answer_is_to_come_again(models, method, path):
    settings, metrics = settings_of(), Metrics()
    registry = ModelRegistry(models.root, settings, models.load, metrics)
    client = TestClient(make_app(registry, settings, metrics), base_url="http://localhost")
    content = b'{"prompt": "1"}' if method == "POST" else None
    answer = client.request(method, path, content=content)
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1


def test_created_is_when_the_model_was_written_also_once_its_folder_is_gone(models):
    written = int((models.root / "voice" / "1" / "manifest.json").stat().st_mtime)
    with Running(models, poll_seconds=1000.0) as running:
        before = running.client.get("/v1/models/voice").json()["created"]
        shutil.rmtree(models.root / "voice")
        after = running.client.get("/v1/models/voice").json()["created"]
    assert before == after >= written


# The OpenAPI document is what is served

ROW = {"name": "seed", "shape": [1], "datatype": "INT64", "data": [1]}
COMPLETE = {"/v2/models/{name}/infer": {"inputs": [ROW]}}
WRONG = ({"no": "field"}, "such", 0.5, -1)  # of which every field with a rule refuses one


@pytest.fixture(scope="module")
def document(kept):
    return kept.client.get("/openapi.json").json()


def resolve(document, schema):
    """Return a schema without references at its top."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def address(path):
    name = "shapes" if path.endswith(":draw") else "voice"
    return path.replace("{name}", name).replace("{version}", "1")


def test_every_route_that_is_served_is_in_the_document_and_no_other(models, document):
    settings, metrics = settings_of(), Metrics()
    app = make_app(ModelRegistry(models.root, settings, models.load, metrics), settings, metrics)
    routes = [route for route in app._app.routes if not isinstance(route, Mount)]
    served = {(r.path_format, verb.lower()) for r in routes for verb in r.methods - {"HEAD"}}
    documented = {(path, verb) for path, verbs in document["paths"].items() for verb in verbs}
    assert documented == served and len(served) > 25
    assert document["servers"] == [{"url": "."}]  # relative to itself


def test_every_documented_path_exists(kept, document):
    for path, verbs in document["paths"].items():
        for verb in verbs:
            answer = kept.client.request(verb, address(path), content=b"[")
            assert answer.status_code in ((200,) if verb == "get" else (200, 400)), (verb, path)


def bodies(document):
    """The JSON bodies of the document: path and schema."""
    for path, verbs in document["paths"].items():
        for operation in verbs.values():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content and "versions" not in path:
                yield path, resolve(document, content["application/json"]["schema"])


def test_every_field_of_the_document_is_read_and_its_rule_is_kept(kept, document):
    described = dict(bodies(document))
    assert {path.rpartition(":")[2].rpartition("/")[2] for path in described} == {
        *("predict", "infer", "speak", "draw", "speech", "generations")
    }
    for path, schema in described.items():
        given = {**dict.fromkeys(schema.get("required", ()), "x"), **COMPLETE.get(path, {})}
        for name, rules in schema["properties"].items():
            if not rules.keys() - {"title", "default"}:
                continue  # of any type, such as the tensors of a model
            said = []
            for value in WRONG:
                answer = kept.client.post(address(path), json={**given, name: value})
                said.append(answer.json()["error"] if answer.status_code == 400 else "")
            texts = [e["message"] if isinstance(e, dict) else e for e in said]
            assert any(f"`{name}` must" in text or name in text for text in texts), (path, name)


def test_the_query_of_a_recording_is_in_the_document_with_its_rules(document):
    parameters = document["paths"]["/v1/models/{name}:speak"]["post"]["parameters"]
    places = {each["name"]: (each["in"], each["required"]) for each in parameters}
    options = ("seed", "row", "temperature", "speaker", "seconds", "refine", "format")
    assert places == {"name": ("path", True), **dict.fromkeys(options, ("query", False))}
    (row,) = (each["schema"] for each in parameters if each["name"] == "row")
    assert row["anyOf"][0] == {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
