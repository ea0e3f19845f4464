"""The OpenAPI document is what is served: its paths, methods, parameters and fields."""

import pytest
from http_running import Running, settings_of, store
from starlette.routing import Mount

from serving.engine.registry import ModelRegistry
from serving.http.app import make_app
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
    assert document["servers"] == [{"url": "."}]  # relative to itself


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


def test_the_query_of_a_recording_is_in_the_document_with_its_rules(document):
    parameters = document["paths"]["/v1/models/{name}:speak"]["post"]["parameters"]
    places = {each["name"]: (each["in"], each["required"]) for each in parameters}
    options = ("seed", "row", "temperature", "speaker", "seconds", "refine", "format")
    assert places == {"name": ("path", True), **dict.fromkeys(options, ("query", False))}
    (row,) = (each["schema"] for each in parameters if each["name"] == "row")
    assert row["anyOf"][0] == {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
