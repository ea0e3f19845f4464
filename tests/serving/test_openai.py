"""OpenAI's endpoints, asked by the openai package."""

import base64
import io
import json

import numpy as np
import pytest
import soundfile
from fake_bundle import CHANNELS, HOP, RATE
from http_running import ask, speak_text_with
from PIL import Image

from onepass import speech

openai = pytest.importorskip("openai")

IMAGES = "/v1/images/generations"
SPEECH = "/v1/audio/speech"


def frames_of(words):
    """Two frames a character: the fake front end."""
    codes = np.frombuffer(words.encode(), np.uint8).repeat(2).astype(np.float32)
    return np.stack([codes / 100] * CHANNELS, 1)


@pytest.fixture
def front_end(monkeypatch):
    spoken = []

    def text_frames(bundle, words, *, speed=1.0, **_):
        spoken.append((bundle.name, words, speed))
        return frames_of(words)

    speak_text_with(monkeypatch, text_frames)
    return spoken


@pytest.fixture
def client(running):
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def spoken(models, words, seed=0):
    return models.load(models.root / "voice" / "1").sample(condition=frames_of(words), seed=seed)[0]


def test_the_models_are_listed_with_their_facts(client):
    models = {model.id: model for model in client.models.list()}
    assert models.keys() == {"shapes", "voice"}
    assert (models["voice"].kind, models["voice"].sample_rate_hz) == ("sound", RATE)
    assert models["voice"].speakers == ["anna", "ben"]
    assert (models["shapes"].sizes, models["shapes"].condition) == ([8, 16], "class")
    assert models["shapes"].classes[3] == "class 3"
    assert client.models.retrieve("voice").object == "model"


@pytest.mark.parametrize("prompt", ["class 3", "CLASS 3", " 3 "])
def test_a_prompt_is_a_class_by_name_or_number(client, prompt):
    drawn = client.images.generate(
        model="shapes", prompt=prompt, n=3, quality="hd", style="vivid", extra_body={"seed": 0}
    )
    images = [Image.open(io.BytesIO(base64.b64decode(p.b64_json))) for p in drawn.data]
    assert [np.unique(image).tolist() for image in images] == [[60], [61], [62]]
    assert {(image.format, image.size) for image in images} == {("PNG", (16, 16))}


@pytest.mark.parametrize(("size", "side"), [("8x8", 8), ("16x16", 16), ("auto", 16)])
def test_the_size_is_one_of_the_models_scales(client, size, side):
    drawn = client.images.generate(model="shapes", prompt="1", size=size, output_format="webp")
    image = Image.open(io.BytesIO(base64.b64decode(drawn.data[0].b64_json)))
    assert (image.format, image.size) == ("WEBP", (side, side))


def test_wav_is_streamed_and_is_the_models_sound(models, running, client, front_end):
    asked = client.audio.speech.with_streaming_response.create(
        model="voice", input="hello", voice="anna", response_format="wav", speed=1.5
    )
    with asked as response:
        data = b"".join(response.iter_bytes())
    assert front_end == [("voice", "hello", 1.5)]
    samples = np.frombuffer(data[44:], "<i2") / 32767.5
    np.testing.assert_allclose(samples, spoken(models, "hello"), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "container"),
    [("flac", "FLAC"), ("mp3", "MP3"), ("opus", "OGG"), ("ogg", "OGG"), (None, "MP3")],
)
def test_other_formats_are_whole_files(models, client, front_end, name, container):
    words = "hello there " * 30
    chosen = {"response_format": name} if name else {}
    answer = client.audio.speech.create(model="voice", input=words, voice="default", **chosen)
    info = soundfile.info(io.BytesIO(answer.content))
    assert (info.format, info.samplerate, info.channels) == (container, RATE, 1)
    assert info.frames == pytest.approx(len(words) * 2 * HOP, abs=2500)
    if container == "FLAC":
        samples, _ = soundfile.read(io.BytesIO(answer.content))
        np.testing.assert_allclose(samples, spoken(models, words), atol=1e-4)


@pytest.mark.parametrize("name", ["wav", "flac"])
def test_a_long_text_is_spoken_part_by_part_from_the_first_to_the_last(models, front_end, name):
    words = "Every sentence has its turn. " * 130
    given = {"model": "voice", "input": words, "response_format": name, "seed": 5}
    answer = ask(models, "POST", SPEECH, json=given, settings={"timeout_seconds": 60.0})
    parts = [said for _, said, _ in front_end]
    assert "".join(parts) == words and len(parts) == 4
    if name == "wav":
        samples = np.frombuffer(answer.content[44:], "<i2") / 32767.5
    else:
        samples, _ = soundfile.read(io.BytesIO(answer.content))
    bundle = models.load(models.root / "voice" / "1")
    made = [bundle.sample(condition=frames_of(p), seed=5, row=n)[0] for n, p in enumerate(parts)]
    np.testing.assert_allclose(samples, np.concatenate(made), atol=1e-4)


def test_pcm_has_openais_rate(models, client, front_end):
    words = "hello there " * 30
    answer = client.audio.speech.create(
        model="voice", input=words, voice="ben", response_format="pcm"
    )
    samples = np.frombuffer(answer.content, "<i2")
    assert len(samples) == pytest.approx(len(words) * 2 * HOP * 24_000 / RATE, abs=2)
    whole = spoken(models, words)
    mean = whole[: len(whole) // 100 * 100].reshape(-1, 100).mean(1)
    found = samples[: len(mean) * 150].reshape(-1, 150).mean(1) / 32767.5
    np.testing.assert_allclose(found, mean, atol=0.02)


def test_events_carry_the_same_sound(models, front_end):
    given = {"input": "hello", "response_format": "wav"}
    whole = ask(models, "POST", SPEECH, json=given).content
    response = ask(models, "POST", SPEECH, json={**given, "stream_format": "sse"})
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n")[:-1]]
    audio = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert audio == whole
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    assert events[-1]["type"] == "speech.audio.done"


def test_ssml_is_spoken_as_a_whole_or_refused_where_it_is_too_long(models, monkeypatch):
    read = []

    def text_frames(bundle, words, **_):
        read.append(words)
        return np.zeros([20, CHANNELS], np.float32)

    speak_text_with(monkeypatch, text_frames)
    sentence = "The boat rounds the point. "
    for count, status in ((30, 200), (60, 400)):
        text = f'<speak>{sentence * count}<break time="1s"/></speak>'
        body = {"model": "voice", "input": text, "response_format": "wav"}
        answer = ask(models, "POST", "/v1/audio/speech", json=body)
        assert answer.status_code == status
    assert read == [f'<speak>{sentence * 30}<break time="1s"/></speak>']
    assert "at most 1,000 characters" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (speech.EspeakError("Text needs espeak-ng, which is not there."), 503, "espeak-ng"),
        (speech.TextError("There is nothing that can be spoken."), 400, "nothing"),
        (speech.TooLongError("at most 12000 frames"), 413, "at most 12000 frames"),
    ],
)
def test_what_a_front_end_says_of_a_text_is_answered(models, monkeypatch, error, status, words):
    def refusing(bundle, text, **_):
        raise error

    speak_text_with(monkeypatch, refusing)
    answer = ask(models, "POST", SPEECH, json={"input": "hello"})
    assert answer.status_code == status and words in answer.json()["error"]["message"]
    plain = ask(models, "POST", "/v1/models/voice:speak", json={"text": "hello"})
    assert plain.status_code == status and words in plain.json()["error"]


def test_a_voice_that_is_not_installed_does_not_say_where(models, monkeypatch):
    def missing(*_):
        raise speech.TextError("/secret/place holds no voice.")

    monkeypatch.setattr(speech, "shipped_voice", missing)
    response = ask(models, "POST", SPEECH, json={"input": "hello"})
    assert response.status_code == 503 and "/secret" not in response.text
