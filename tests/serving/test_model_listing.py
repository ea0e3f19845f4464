"""The list of models, the lengths that are declared, and what is said before the first look."""

import shutil
import threading

import pytest
from http_running import AnyVoice, Running, ask, settings_of
from starlette.testclient import TestClient

from onepass import speech
from onepass.bundles.errors import InvalidInput
from onepass.speech.phonemes import MAX_CHARACTERS, SPELT_OUT, spoken_length, text_parts
from serving.engine.registry import ModelRegistry
from serving.engine.speech import check_length
from serving.http.app import make_app
from serving.http.routes import MAX_VALUES, json_model
from serving.observability import Metrics


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
    monkeypatch.setattr(running.registry, "names", lambda: ["gone", "shapes", "voice"])
    known = running.registry._version_sets
    monkeypatch.setattr(running.registry, "_version_set", versions_of(known))
    assert listed(running.client.get("/v1/models")).keys() == {"shapes", "voice"}


def versions_of(known):
    from onepass.bundles.errors import NotFound

    def sets(name):
        if name not in known:
            raise NotFound("It was taken away.")
        return known[name]

    return sets


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("GET", "/v1/models/voice"),
        ("GET", "/v1/models/voice/metadata"),
        ("POST", "/v1/models/voice:predict"),
        ("GET", "/v2/models/voice"),
        ("POST", "/v2/repository/index"),
        ("POST", "/v1/images/generations"),
    ],
)
def test_before_the_first_look_the_answer_is_to_come_again(models, method, path):
    settings, metrics = settings_of(), Metrics()
    registry = ModelRegistry(models.root, settings, models.load, metrics)
    client = TestClient(make_app(registry, settings, metrics), base_url="http://localhost")
    content = b'{"prompt": "1"}' if method == "POST" else None
    answer = client.request(method, path, content=content)
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1


def test_declared_lengths_of_texts_are_those_that_are_enforced(models):
    schemas = ask(models, "GET", "/openapi.json").json()["components"]["schemas"]
    page = ask(models, "GET", "/").text
    assert f'id="text" rows="3" maxlength="{MAX_CHARACTERS}"' in page
    speak = schemas["SpeakRequest"]["properties"]["text"]["anyOf"][0]["maxLength"]
    openai = schemas["SpeechRequest"]["properties"]["input"]["maxLength"]
    assert (speak, openai) == (MAX_CHARACTERS, 4096)


def test_a_text_costs_what_it_takes_to_say():
    check_length("a" * MAX_CHARACTERS)
    check_length("\u00e9" * MAX_CHARACTERS)
    check_length("7" * (MAX_CHARACTERS // SPELT_OUT))
    for text, shown in (("\u6f22" * 200, "\u6f22"), ("12345" * 40, "1"), ("a" * 1001, "1,001")):
        with pytest.raises(InvalidInput, match=f"at most 1,000 characters.*{shown}"):
            check_length(text)


LONG = "One sentence, of some words. " * 80
TEXTS = [
    LONG,
    LONG.replace(".", ","),
    LONG.replace(",", "").replace(".", ""),
    "7" * 500,
    "x" * 4096,
]


@pytest.mark.parametrize("text", [*TEXTS, "A word. " + "y" * 1500 + " And more."])
def test_a_long_text_is_split_into_parts_that_are_short_enough_and_nothing_is_lost(text):
    parts = text_parts(text)
    assert "".join(parts) == text and len(parts) > 1
    assert max(map(spoken_length, parts)) <= MAX_CHARACTERS


def test_a_text_is_split_between_sentences_where_there_are_any():
    assert all(part.rstrip().endswith(".") for part in text_parts(LONG))
    assert text_parts("Short. Enough.") == ["Short. Enough."]


def test_created_is_when_the_model_was_written_also_once_its_folder_is_gone(models):
    written = int((models.root / "voice" / "1" / "manifest.json").stat().st_mtime)
    with Running(models, poll_seconds=1000.0) as running:
        before = running.client.get("/v1/models/voice").json()["created"]
        shutil.rmtree(models.root / "voice")
        after = running.client.get("/v1/models/voice").json()["created"]
    assert before == after >= written


def test_a_text_that_takes_too_long_is_refused_before_it_is_read(models, monkeypatch):
    monkeypatch.setattr(speech, "shipped_voice", AnyVoice)
    monkeypatch.setattr(speech, "text_frames", lambda *given, **more: pytest.fail("it was read"))
    for path, field in (("/v1/models/voice:speak", "text"), ("/v1/audio/speech", "input")):
        body = {"model": "voice", field: "\u6f22" * 700}
        assert ask(models, "POST", path, json=body).status_code == 400


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/models/shapes:predict", "instances"),
        ("/v1/models/shapes:draw", "map"),
        ("/v1/models/voice:speak", "frames"),
        ("/v1/images/generations", "prompt"),
    ],
)
def test_json_is_measured_before_it_is_read(models, path, field, monkeypatch):
    body = b'{"%s": [%s0]}' % (field.encode(), b"0," * MAX_VALUES)
    answer = ask(models, "POST", path, content=body)
    assert answer.status_code == 400 and "binary tensors" in answer.text


@pytest.mark.parametrize(
    "path", ["/v1/models/shapes:draw", "/v1/images/generations", "/v1/audio/speech"]
)
def test_long_json_is_read_in_a_thread(running, path, monkeypatch):
    threads = []

    def read(body, model):
        threads.append(threading.current_thread())
        return json_model(body, model)

    monkeypatch.setattr("serving.http.routes.json_model", read)
    running.client.post(path, content=b"{}".ljust(100_000))
    assert threads and threads[0] is not running._thread
