"""Requests that nobody thought of get an answer, or an error in words."""

import contextlib
import json

import grpc
import http_running
import hypothesis
import numpy as np
import pytest
from fake_bundle import CHANNELS
from grpc_running import Running, is_discreet
from http_running import speak_text_with, store
from hypothesis import example, given
from hypothesis import settings as examples
from hypothesis import strategies as some
from serve_load import GRPC_INFER as INFER
from serve_load import GRPC_PREDICT as PREDICT
from serve_load import GRPC_SPEAK as SPEAK
from serve_load import infer_request, predict_request, speak_request

from serving.grpc.tensors import message, pool

SERVICES = (
    *("tensorflow.serving.PredictionService", "tensorflow.serving.ModelService"),
    *("inference.GRPCInferenceService", "onepass.Models"),
)
REQUESTS = {
    f"/{service}/{method.name}": method.input_type
    for service in SERVICES
    for method in pool().FindServiceByName(service).methods
}
HEALTH = "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
METHODS = (*REQUESTS, HEALTH, REFLECTION)
SERVERS_FAULT = {"INTERNAL", "UNKNOWN", "UNAVAILABLE", "DATA_LOSS", "ABORTED"}
WORDS = ("voice", "shapes", "", "../x", "\0", "\u0661", "1", "-1", "9" * 30, "anna", "compiled")
WORDS += ("frames", "num_frames", "seed", "row", "label", "temperature", "sound", "picture")
WORDS += ("FP32", "INT32", "BYTES", "BOOL", "FP16", "signature_def")


@pytest.fixture(scope="module")
def channel(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    with Running(store(root), timeout_seconds=20.0) as running, running.channel() as channel:
        yield channel


def numbers(bits, signed):
    low = -(2 ** (bits - 1)) if signed else 0
    return some.integers(max(low, -1), 4) | some.integers(low, low + 2**bits - 1)


def values(field):
    """Values of a field of any type."""
    if field.message_type is not None:
        return messages(field.message_type)
    return {
        field.CPPTYPE_INT32: numbers(32, True),
        field.CPPTYPE_INT64: numbers(64, True),
        field.CPPTYPE_UINT32: numbers(32, False),
        field.CPPTYPE_UINT64: numbers(64, False),
        field.CPPTYPE_DOUBLE: some.floats(),
        field.CPPTYPE_FLOAT: some.floats(width=32),
        field.CPPTYPE_BOOL: some.booleans(),
        field.CPPTYPE_ENUM: some.sampled_from([1, 3, 9, 10]) | some.integers(-2, 110),
        field.CPPTYPE_STRING: some.binary(max_size=16)
        if field.type == field.TYPE_BYTES
        else some.sampled_from(WORDS),
    }[field.cpp_type]


def fields(field):
    """Return a strategy for a field of a message: a value, a list or a map."""
    if not field.is_repeated:
        return values(field)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        return some.dictionaries(values(entry["key"]), values(entry["value"]), max_size=3)
    return some.lists(values(field), max_size=4)


def messages(descriptor):
    """Messages of a type, with any of its fields."""
    optional = {field.name: some.deferred(lambda f=field: fields(f)) for field in descriptor.fields}
    made = some.fixed_dictionaries({}, optional=optional)
    return made.map(lambda given: message(descriptor.full_name)(**given))


# The bytes of requests that are answered; those of others are added to them.
VALID = {
    path: request.SerializeToString()
    for path, request in (
        *((PREDICT, predict_request()), (SPEAK, speak_request(5)), (INFER, infer_request())),
    )
}


def requests(path):
    """A method and any message of its type, which is part of a valid one or stands alone."""
    before = some.sampled_from([b"", VALID.get(path, b"")])
    made = some.builds(lambda b, m: b + m.SerializeToString(), before, messages(REQUESTS[path]))
    return some.tuples(some.just(path), made)


WHOLE = some.one_of(*map(requests, (*REQUESTS, PREDICT, INFER, SPEAK)))


@some.composite
def spoilt(draw):
    """A method, and a message with a few bytes changed, taken out or put in, or any bytes."""
    method, sent = draw(WHOLE | some.tuples(some.sampled_from(METHODS), some.binary(max_size=64)))
    made = bytearray(sent)
    for _ in range(draw(some.integers(0, 3))):
        place = draw(some.integers(0, len(made)))
        made[place : place + draw(some.integers(0, 2))] = draw(some.binary(max_size=3))
    return draw(some.sampled_from([method, method, *METHODS])), bytes(made)


def is_answered_well(channel, method, sent):
    """True if it was answered; a refusal must not blame the server nor tell of its insides."""
    try:
        if method in (SPEAK, REFLECTION):
            list(channel.stream_stream(method)(iter([sent]), timeout=20))
        else:
            channel.unary_unary(method)(sent, timeout=20)
    except grpc.RpcError as error:
        assert error.code().name not in {*SERVERS_FAULT, "DEADLINE_EXCEEDED"}, error
        assert error.details() and is_discreet(error.details()), error.details()
        return False
    return True


def fuzz(count):
    return examples(max_examples=count, deadline=None, derandomize=True, database=None)


@given(made=spoilt())
@fuzz(300)
def test_any_bytes_are_answered_or_refused_in_words(channel, made):
    is_answered_well(channel, *made)


def test_any_request_is_answered_or_refused_in_words(channel):
    outcomes = set()

    # Others are drawn when constants of the code change: these are always among them.
    @example(made=(PREDICT, VALID[PREDICT]))
    @example(made=(SPEAK, VALID[SPEAK]))
    @example(made=(INFER, VALID[INFER]))
    @given(made=WHOLE)
    @fuzz(400)
    def ask(made):
        outcomes.add((made[0], is_answered_well(channel, *made)))

    ask()
    assert {(path, way) for path in VALID for way in (True, False)} <= outcomes


@pytest.mark.slow
@pytest.mark.timeout(900)
@given(made=spoilt() | WHOLE)
@examples(max_examples=20_000, deadline=None, database=None)
def test_bytes_for_minutes_are_answered_or_refused_in_words(channel, made):
    is_answered_well(channel, *made)


# Over HTTP schemathesis reads the OpenAPI document and attacks it all.
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
        models = store(tmp_path_factory.mktemp("models"))
        with http_running.Running(models, max_body_mib=0.25) as running:
            yield running


def named(context, path_parameters):
    """Mostly the models that there are; the page of a name that is not there is soon seen."""
    if path_parameters and "name" in path_parameters and len(path_parameters["name"]) % 4:
        name = "voice" if len(path_parameters["name"]) % 2 else "shapes"
        version = {"version": 1} if "version" in path_parameters else {}
        return {**path_parameters, "name": name, **version}
    return path_parameters


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_request_gives_a_failure_in_minutes(running):
    """Every operation of the document, many times; no answer may be a failure or lie."""
    schemathesis = pytest.importorskip("schemathesis")  # loads slowly
    schema = schemathesis.openapi.from_dict(running.client.get("/openapi.json").json())
    schema.hook("map_path_parameters")(named)
    schemathesis.checks.load_all_checks()
    used, answered = schemathesis.checks.CHECKS.get_by_names(CHECKS), {}

    def attack(operation, mode, statuses):
        @hypothesis.settings(
            max_examples=60,
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

    for result in schema.get_all_operations():
        operation = result.ok()
        statuses = answered.setdefault(f"{operation.method} {operation.path}", [])
        for mode in schemathesis.GenerationMode:
            attack(operation, mode, statuses)
    assert len(answered) > 20 and set(answered["get /healthz"]) == {200}
    assert {200, 404} <= set(answered["get /v1/models/{name}"])
    assert {400, 404} <= set(answered["post /v1/models/{name}:predict"])
    assert {200, 400} <= set(answered["post /v1/audio/speech"])
