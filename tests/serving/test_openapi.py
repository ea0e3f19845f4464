"""The OpenAPI document is what is served: its paths, methods, parameters and fields."""

import math
import tracemalloc

import pytest
from http_running import Running, ask, settings_of, store
from starlette.routing import Mount

from onepass.bundles.errors import InvalidInput
from serving.engine.fields import as_model
from serving.engine.registry import ModelRegistry
from serving.http.app import make_app
from serving.http.generation import DrawRequest, ImagesRequest, SpeakRequest, SpeechRequest
from serving.http.tensors import InferParameters, InferRequest, PredictRequest, TensorParameters
from serving.observability import Metrics

ROW = {"name": "seed", "shape": [1], "datatype": "INT64", "data": [1]}
COMPLETE = {"/v2/models/{name}/infer": {"inputs": [ROW]}}
WRONG = ({"no": "field"}, "such", 0.5, -1)  # of which every field with a rule refuses one


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with Running(store(tmp_path_factory.mktemp("models"))) as running:
        yield running


@pytest.fixture(scope="module")
def document(running):
    return running.client.get("/openapi.json").json()


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


def test_every_documented_path_exists(running, document):
    for path, verbs in document["paths"].items():
        for verb in verbs:
            answer = running.client.request(verb, address(path), content=b"[")
            assert answer.status_code in ((200,) if verb == "get" else (200, 400)), (verb, path)


def test_every_reference_of_the_document_leads_to_a_schema(document):
    names, found = document["components"]["schemas"], []

    def look(value):
        if isinstance(value, dict):
            found.extend([value["$ref"]] if "$ref" in value else [])
            value = list(value.values())
        for each in value if isinstance(value, list) else []:
            look(each)

    look(document)
    assert {reference.rpartition("/")[2] for reference in found} == set(names)
    assert all(reference.startswith("#/components/schemas/") for reference in found)


def bodies(document):
    """The JSON bodies of the document: path and schema."""
    for path, verbs in document["paths"].items():
        for operation in verbs.values():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content and "versions" not in path:
                yield path, resolve(document, content["application/json"]["schema"])


def test_every_field_of_the_document_is_read_and_its_rule_is_kept(running, document):
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
                answer = running.client.post(address(path), json={**given, name: value})
                said.append(answer.json()["error"] if answer.status_code == 400 else "")
            texts = [e["message"] if isinstance(e, dict) else e for e in said]
            assert any(f"`{name}` must" in text or name in text for text in texts), (path, name)


def test_an_unknown_field_is_ignored_as_clients_of_these_protocols_expect(models):
    body = {"prompt": "1", "quality": "hd", "n": 1}
    assert ask(models, "POST", "/v1/images/generations", json=body).status_code == 200


def test_the_query_of_a_recording_is_in_the_document_with_its_rules(document):
    parameters = document["paths"]["/v1/models/{name}:speak"]["post"]["parameters"]
    places = {each["name"]: (each["in"], each["required"]) for each in parameters}
    options = ("seed", "row", "temperature", "speaker", "seconds", "refine", "format")
    assert places == {"name": ("path", True), **dict.fromkeys(options, ("query", False))}
    (row,) = (each["schema"] for each in parameters if each["name"] == "row")
    assert row["anyOf"][0] == {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}


@pytest.mark.parametrize(
    ("path", "body", "line"),
    [
        (
            "/v2/models/shapes/infer",
            {"inputs": [{"name": "label", "shape": [0], "datatype": "INT32"}]},
            "`inputs[0].shape[0]` must be at least 1, got 0.",
        ),
        (
            "/v2/models/shapes/infer",
            {"inputs": [{"name": "label", "datatype": "INT32"}]},
            "`inputs[0].shape` must be given.",
        ),
        (
            "/v1/models/shapes:draw",
            {"class": []},
            "`class` must be a text or an integer, got an empty list.",
        ),
        ("/v1/models/shapes:draw", {"num": -3}, "`num` must be at least 1, got -3."),
        ("/v1/models/shapes:draw", {"guidance": "1"}, '`guidance` must be a number, got "1".'),
        ("/v1/models/voice:speak", {"format": 7}, "`format` must be one of wav, l16, got 7."),
        (
            "/v1/models/voice:speak",
            {"text": "x", "pronunciations": {"no": 3}},
            "`pronunciations.no` must be a text, got 3.",
        ),
        ("/v1/models/voice:speak", {"seconds": 0}, "`seconds` must be above 0, got 0."),
        ("/v1/models/voice:speak", {"force": 1}, "`force` must be true or false, got 1."),
    ],
)
def test_a_field_that_breaks_a_rule_is_named_with_the_rule_and_its_value(models, path, body, line):
    assert ask(models, "POST", path, json=body).json() == {"error": line}


@pytest.mark.parametrize(
    ("model", "fields", "least", "most"),
    [
        (SpeakRequest, lambda n: {"row": n}, 0, 2**31 - 1),
        (SpeakRequest, lambda n: {"temperature": n}, 0.0, 10.0),
        (SpeakRequest, lambda n: {"seconds": n}, math.ulp(0.0), 3600.0),
        (SpeakRequest, lambda n: {"refine": n}, 0, 8),
        (SpeakRequest, lambda n: {"speaker": "x" * n}, None, 200),
        (SpeakRequest, lambda n: {"example": "x" * n}, None, 200),
        (SpeakRequest, lambda n: {"text": "x" * n}, None, 1000),
        (SpeakRequest, lambda n: {"phonemes": "x" * n}, None, 1000),
        (SpeakRequest, lambda n: {"pronunciations": {"x" * n: "x"}}, 1, 100),
        (SpeakRequest, lambda n: {"pronunciations": {"x": "x" * n}}, 1, 200),
        (SpeakRequest, lambda n: {"pronunciations": {str(i): "x" for i in range(n)}}, None, 1000),
        (SpeechRequest, lambda n: {"input": "x" * n}, 1, 4096),
        (SpeechRequest, lambda n: {"input": "x", "model": "x" * n}, None, 200),
        (SpeechRequest, lambda n: {"input": "x", "speed": n}, 0.25, 4.0),
        (SpeechRequest, lambda n: {"input": "x", "temperature": n}, 0.0, 10.0),
        (ImagesRequest, lambda n: {"prompt": "x" * n}, 1, 4000),
        (ImagesRequest, lambda n: {"prompt": "x", "model": "x" * n}, None, 200),
        (ImagesRequest, lambda n: {"prompt": "x", "n": n}, 1, 10),
        (DrawRequest, lambda n: {"num": n}, 1, None),
        (DrawRequest, lambda n: {"guidance": n}, 0.0, None),
        (DrawRequest, lambda n: {"temperature": [1.0] * n}, 1, None),
        (DrawRequest, lambda n: {"caption": "x" * n}, None, 200),
        (PredictRequest, lambda n: {"instances": [1] * n}, 1, None),
        (PredictRequest, lambda n: {"signature_name": "x" * n}, None, 200),
        (InferRequest, lambda n: {"inputs": [ROW] * n}, 1, None),
        (InferRequest, lambda n: {"inputs": [{**ROW, "shape": [n]}]}, 1, 2**31 - 1),
        (InferRequest, lambda n: {"inputs": [ROW], "outputs": [{"name": "x"}] * n}, 1, None),
        (InferRequest, lambda n: {"inputs": [ROW], "id": "x" * n}, None, 200),
        (InferParameters, lambda n: {"timeout": n}, 0.0, None),
        (InferParameters, lambda n: {"signature_name": "x" * n}, None, 200),
        (TensorParameters, lambda n: {"binary_data_size": n}, 0, None),
        (TensorParameters, lambda n: {"classification": n}, None, 0),
    ],
)
def test_a_field_is_accepted_at_its_limits_and_refused_beyond(model, fields, least, most):
    for limit, way in ((least, -1), (most, 1)):
        if limit is not None:
            as_model(fields(limit), model)
            is_real = isinstance(limit, float)
            beyond = math.nextafter(limit, way * math.inf) if is_real else limit + way
            with pytest.raises(InvalidInput, match=" must be "):
                as_model(fields(beyond), model)


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (DrawRequest, {"temperature": ["x"] * 100_000}),
        (InferRequest, {"inputs": [{"name": "x", "datatype": "x", "shape": ["x"] * 100_000}]}),
        (InferRequest, {"inputs": [7] * 100_000}),
        (InferRequest, {"inputs": [ROW], "outputs": [{}] * 100_000}),
        (SpeakRequest, {"pronunciations": {str(n): 7 for n in range(100_000)}}),
    ],
)
def test_many_wrong_values_cost_no_more_than_the_first(model, fields):
    as_model({}, DrawRequest)  # which builds what checks
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match=" must "):
            as_model(fields, model)
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()
