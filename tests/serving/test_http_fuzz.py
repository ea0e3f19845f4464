"""Requests that nobody thought of: schemathesis reads the OpenAPI document and attacks it all."""

import contextlib
import json

import hypothesis
import numpy as np
import pytest
from fake_bundle import CHANNELS
from http_running import Running, speak_text_with, store

CHECKS = [
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_schema_conformance", "response_headers_conformance", "negative_data_rejection"),
]
LEAKS = ("Traceback", "site-packages", ".py", "RuntimeError", "ValueError")


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    def text_frames(bundle, words, **_):
        return np.zeros([max(1, len(words or "")), CHANNELS], np.float32)

    with pytest.MonkeyPatch.context() as patch:
        speak_text_with(patch, text_frames)
        with Running(store(tmp_path_factory.mktemp("models")), max_body_mib=0.25) as running:
            yield running


def named(context, path_parameters):
    """Mostly the models that there are; the page of a name that is not there is soon seen."""
    if path_parameters and "name" in path_parameters and len(path_parameters["name"]) % 4:
        name = "voice" if len(path_parameters["name"]) % 2 else "shapes"
        version = {"version": 1} if "version" in path_parameters else {}
        return {**path_parameters, "name": name, **version}
    return path_parameters


def attack(running, examples):
    """Every operation of the document, so many times; no answer may be a failure or lie."""
    schemathesis = pytest.importorskip("schemathesis")  # loads slowly
    document = running.client.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(document)
    schema.hook("map_path_parameters")(named)
    schemathesis.checks.load_all_checks()
    used = schemathesis.checks.CHECKS.get_by_names(CHECKS)
    answered = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        statuses = answered.setdefault(f"{operation.method} {operation.path}", [])
        for mode in schemathesis.GenerationMode:
            _attack_one(running, operation, mode, examples, used, statuses)
    return answered


def _attack_one(running, operation, mode, examples, used, statuses):
    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    def attacked(case):
        response = case.call(base_url=running.url, timeout=20)
        statuses.append(response.status_code)
        text = response.content[:2000].decode("latin-1")
        if response.status_code >= 400:
            assert not [word for word in LEAKS if word in text]
            assert json.loads(response.content)["error"]
        case.validate_response(response, checks=used)

    with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # nothing can be sent wrongly
        attacked()


@pytest.mark.slow
def test_no_request_gives_a_failure(running):
    answered = attack(running, 1)
    assert len(answered) > 20
    assert answered["get /healthz"] == [200]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_request_gives_a_failure_in_minutes(running):
    answered = attack(running, 60)
    assert {200, 404} <= set(answered["get /v1/models/{name}"])
    assert {400, 404} <= set(answered["post /v1/models/{name}:predict"])
    assert {200, 400} <= set(answered["post /v1/audio/speech"])
