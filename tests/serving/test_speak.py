"""Sound while it is made, recordings that are sent, images scale by scale; OpenAI's endpoints."""

import base64
import contextlib
import dataclasses
import io
import json
import shutil
import struct
import threading
import types
from typing import ClassVar

import httpx
import numpy as np
import pytest
import soundfile
from fake_bundle import CHANNELS, HOP, RATE, SOUND, FakeImages, FakeModelStore, FakeSound
from http_running import Running, ask, speak_text_with
from PIL import Image
from serve_load import until

import onepass
from onepass import speech
from onepass.bundles.errors import InvalidInput, TooLarge
from onepass.bundles.sampling import check_convention, front_of
from onepass.foundation import model_folders as shipped_student
from onepass.foundation.rules import UserError
from onepass.remote_model import RemoteModel
from onepass.speech.phonemes import MAX_CHARACTERS, SPELT_OUT, spoken_length, text_parts
from serving import Client
from serving.engine import drawing
from serving.engine.speech import (
    check_length,
    decode_recording,
    example_path,
    examples,
    wav_header,
)
from serving.grpc.server import _parse_request
from serving.grpc.tensors import encode, message
from serving.settings import Settings
from wavenet.config import MelConvention
from wavenet.data import audio
from wavenet.data.audio import at_recorded_level, recorded_frames

SPEAK = "/v1/models/voice:speak"
DRAW = "/v1/models/shapes:draw"


def frames(length=20, seed=1):
    return np.random.default_rng(seed).normal(size=[length, CHANNELS]).round(3).astype(np.float32)


def bundle(models, name="voice"):
    return models.load(models.root / name / "1")


def recording(container="WAV", subtype="PCM_16", rate=RATE, channels=1, seconds=0.1, value=None):
    count = int(seconds * rate)
    sound = np.random.default_rng(2).uniform(-0.5, 0.5, [count, channels])
    memory = io.BytesIO()
    sound = sound if value is None else sound * value
    soundfile.write(memory, sound, rate, subtype, format=container)
    return memory.getvalue()


def b64(data):
    return base64.b64encode(data).decode()


def test_the_head_of_a_wav_says_that_its_length_is_unknown():
    head = wav_header(22_050)
    assert len(head) == 44
    assert head[:4] + head[8:16] + head[36:40] == b"RIFFWAVEfmt data"
    assert struct.unpack("<I", head[4:8]) == struct.unpack("<I", head[40:44]) == (2**32 - 1,)
    assert struct.unpack("<HHIIHH", head[20:36]) == (1, 1, 22_050, 44_100, 2, 16)


def test_a_stream_is_the_whole_sound_in_both_formats(models):
    given = frames()
    body = {"frames": given.tolist(), "seed": 5, "temperature": 0.5}
    whole = bundle(models).sample(condition=given, seed=5, temperature=0.5)[0]
    wav = ask(models, "POST", SPEAK, json=body)
    l16 = ask(models, "POST", SPEAK, json={**body, "format": "l16"})
    assert wav.headers["content-type"] == "audio/wav"
    assert l16.headers["content-type"] == f"audio/L16;rate={RATE};channels=1"
    assert wav.headers["x-num-samples"] == str(len(whole))
    levels = audio.to_int16(whole).astype("<i2").tobytes()
    assert wav.content == wav_header(RATE, len(whole)) + levels
    np.testing.assert_array_equal(np.frombuffer(l16.content, ">i2"), audio.to_int16(whole))
    decoded, rate = soundfile.read(io.BytesIO(wav.content))
    assert (len(decoded), rate) == (len(whole), RATE)


def test_a_stream_that_breaks_midway_is_cut_off_and_not_ended(models):
    control = models.controls["voice", 1]
    given = {"frames": frames(400).tolist(), "seed": 13}
    control.chunk_seconds = 0.01
    with Running(models) as running, running.client.stream("POST", SPEAK, json=given) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        control.fails_on = 13
        with pytest.raises(httpx.RemoteProtocolError):
            list(pieces)


def sent(way, data, container="WAV", **fields):
    """A recording as a body or in a field, with more fields."""
    if way == "field":
        return {"json": {"recording": b64(data), **fields}}
    headers = {"content-type": f"audio/{container.lower()}"}
    return {"content": data, "headers": headers, "params": fields}


@pytest.mark.parametrize("container", ["WAV", "FLAC"])
@pytest.mark.parametrize("way", ["body", "field"])
def test_a_recording_is_spoken_again(models, container, way):
    data = recording(container)
    fields = {"seed": 3, "temperature": 0.5, "speaker": "ben", "format": "l16"}
    response = ask(models, "POST", SPEAK, **sent(way, data, container, **fields))
    waveform = decode_recording(data, RATE, 10)
    model = bundle(models)
    whole = model.sample(condition=model.frames(waveform), seed=3, temperature=0.5)[0]
    np.testing.assert_array_equal(np.frombuffer(response.content, ">i2"), audio.to_int16(whole))


def test_a_recording_is_read_as_files_are(tmp_path):
    for container, subtype, rate, channels in (
        *(("WAV", "PCM_16", 16_000, 1), ("FLAC", "PCM_24", 44_100, 2)),
        *(("WAV", "FLOAT", 8_000, 1), ("FLAC", "PCM_16", 16_000, 8)),
    ):
        data = recording(container, subtype, rate, channels)
        path = tmp_path / f"x.{container.lower()}"
        path.write_bytes(data)
        np.testing.assert_allclose(
            decode_recording(data, RATE, 10), audio.read(path, RATE), atol=1e-7
        )


def wav(frames_said=10**9, rate=RATE, channels=1, bits=16, code=1, data=b"\0" * 64):
    """A WAV file that says what it likes."""
    size = min(frames_said * channels * bits // 8, 2**32 - 1)
    step = channels * bits // 8
    layout = (16, code, channels, rate, min(rate * step, 2**32 - 1), step, bits)
    head = b"fmt " + struct.pack("<IHHIIHH", *layout) + b"data" + struct.pack("<I", size)
    return b"RIFF" + struct.pack("<I", min(36 + size, 2**32 - 1)) + b"WAVE" + head + data


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"RIFF", b"RIFF\0\0\0\0WAVE", b"fLaC", b"fLaC" + b"\xff" * 100),
        *(b"\x93NUMPY" + b"\0" * 100, b"\x80\x04\x95" + b"\0" * 100, b"OggS" + b"\0" * 100),
        *(b"ID3" + b"\0" * 100, wav(data=b""), wav(rate=1), wav(rate=2**31)),
        *(wav(32, rate=3_999), wav(32, rate=192_001), wav(channels=200)),
        *(wav(4, channels=9, data=bytes(72)), wav(bits=16, code=2), wav(bits=16, code=0x55)),
        *(recording("WAV", "IMA_ADPCM"), recording("WAV", "FLOAT", value=np.nan)),
        *(recording("WAV", "FLOAT", value=np.inf), recording("WAV", seconds=0)),
        *(recording("FLAC")[:60], 2 * recording("FLAC"), wav(1000, data=bytes(5000))),
        *(recording(each, seconds=2)[:20_000] for each in ("WAV", "FLAC")),
    ],
)
def test_what_is_no_recording_is_refused(data):
    with pytest.raises((InvalidInput, TooLarge), match="`recording` must") as caught:
        decode_recording(data, RATE, 10)
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize("rate", [4000, 8000, RATE, 22_050, 44_100, 192_000])
@pytest.mark.parametrize("container", ["WAV", "FLAC"])
def test_a_recording_is_spoken_or_its_least_length_is_said(container, rate):
    """One sample or a few are no error of the server's, at any rate and for any model."""
    spec = json.loads((shipped_student.folder("shipped") / "model.json").read_text())
    to_hz, spoken = spec["sample_rate_hz"], []
    for count in range(1, 24):
        data = recording(container, rate=rate, seconds=(count + 0.5) / rate)
        try:
            waveform = decode_recording(data, to_hz, 10)
        except InvalidInput as refused:
            words = f"must last at least 2 samples at {to_hz:,} per second, got {count} at {rate:,}"
            assert words in str(refused) and not spoken
        else:
            spoken.append(count)
            assert np.isfinite(front_of(spec).frames(waveform)).all()
    assert spoken[0] * to_hz < 3 * rate or spoken[0] == 1  # no more is refused than must be


@pytest.mark.parametrize("way", ["body", "field"])
def test_a_recording_of_no_frames_is_400(models, monkeypatch, way):
    def without(bundle, waveform):
        raise UserError("`waveform` needs 2 samples to reflect, got 1.")

    monkeypatch.setattr(FakeSound, "frames", without)
    answer = ask(models, "POST", SPEAK, **sent(way, recording()))
    assert answer.status_code == 400 and "2 samples" in answer.json()["error"]


def test_what_a_header_promises_is_said_unless_its_writer_could_not_tell():
    words = "must be whole: its header promises 2,000 samples, it has 32"
    with pytest.raises(InvalidInput, match=words):
        decode_recording(wav(2000, data=bytes(64)), RATE, 10)
    assert len(decode_recording(wav(2**32 - 1, data=bytes(64)), RATE, 10)) == 32


def test_a_long_recording_is_refused_before_it_is_decoded(monkeypatch):
    data = recording("FLAC", seconds=3, value=0)

    def decoded(file):
        raise AssertionError("it was decoded")

    monkeypatch.setattr("serving.engine.speech._decode_samples", decoded)
    with pytest.raises(TooLarge, match="at most 2 seconds"):
        decode_recording(data, RATE, 2)


class Refining(FakeSound):
    """A student that makes two passes of refinement by default, and notes those asked of it."""

    asked: ClassVar[list] = []

    def __init__(self, *arguments, **rest):
        super().__init__(*arguments, **rest)
        self.spec |= {"refine": 2}

    def stream(self, *, refine=None, **rest):
        self.asked.append(refine)
        return super().stream(**rest)


def test_recordings_are_refined_by_default_and_other_frames_are_not(models):
    models.add("refining", kind=Refining)
    Refining.asked.clear()
    sources = ({"recording": b64(recording())}, {"frames": frames().tolist()})
    for given in (*sources, *({**source, "refine": 1} for source in sources)):
        assert ask(models, "POST", "/v1/models/refining:speak", json=given).status_code == 200
    assert Refining.asked == [2, None, 1, 1]


@pytest.mark.parametrize(("made", "asked"), [(frames(), None), (recorded_frames(frames(), 0), 2)])
def test_drawn_frames_of_a_text_are_refined_as_a_recordings_are(models, monkeypatch, made, asked):
    models.add("refining", kind=Refining)
    Refining.asked.clear()
    speak_text_with(monkeypatch, lambda bundle, words, **_: made)
    body = {"model": "refining", "input": "Yes."}
    routes = {"/v1/models/refining:speak": {"text": "Yes."}, "/v1/audio/speech": body}
    for route, given in routes.items():
        assert ask(models, "POST", route, json=given).status_code == 200
    assert Refining.asked == [asked] * 2


def test_an_example_is_a_recording_of_the_package(models):
    listed = ask(models, "GET", "/v1/models/voice/examples").json()["examples"]
    assert [example["name"] for example in listed] == list(examples())
    assert ask(models, "GET", "/v1/models/shapes/examples").json() == {"examples": []}
    name = listed[0]["name"]
    body = {"example": name, "format": "l16", "seconds": 0.5}
    response = ask(models, "POST", SPEAK, json=body)
    model = bundle(models)
    whole = model.sample(condition=model.frames(audio.read(example_path(name), RATE)))[0]
    found = np.frombuffer(response.content, ">i2")
    assert len(found) == RATE // 2
    np.testing.assert_array_equal(found, audio.to_int16(whole[: RATE // 2]))


class Reader(FakeSound):
    """A bundle that reads the frames of the shipped voice."""

    def __init__(self, *arguments, **rest):
        frames = dataclasses.replace(SOUND.inputs["frames"], shape=(None, None, 80))
        own = dataclasses.replace(SOUND, inputs={**SOUND.inputs, "frames": frames})
        rest["signatures"] = {"serving_default": own, "compiled": own}
        super().__init__(*arguments, **rest)
        self.spec |= {"frame_channels": 80, "features": {"mel": speech.shipped_voice().spec["mel"]}}


NO_PHONEME = "The voice has no phoneme `x`, got it in `x`."


@pytest.mark.integration
def test_phonemes_and_pronunciations_are_spoken_over_http_and_by_clients(models, monkeypatch):
    models.add("reader", kind=Reader)
    model = bundle(models, "reader")
    whole = model.sample(condition=np.asarray(speech.text_frames(model, phonemes="n\u02c8o\u028a")))
    path, phonemes = "/v1/models/reader:speak", "n\u02c8o\u028a"
    with Running(models) as running:
        monkeypatch.setenv("PATH", "")
        answer = running.client.post(path, json={"phonemes": phonemes, "format": "l16"})
        timed = running.client.post(path, json={"phonemes": phonemes, "times": True})
        with Client(running.url) as client:
            spoken = np.concatenate(list(client.speak("reader", phonemes=phonemes)))
        without = running.client.post(path, json={"text": "No."})
        for fields in ({"phonemes": "x"}, {"text": "No.", "pronunciations": {"no": "x"}}):
            refused = running.client.post(path, json=fields)
            assert (refused.status_code, refused.json()["error"]) == (400, NO_PHONEME)
    np.testing.assert_array_equal(np.frombuffer(answer.content, ">i2"), audio.to_int16(whole[0]))
    np.testing.assert_allclose(spoken, whole[0], atol=1e-4)
    assert without.status_code == 503 and "espeak-ng" in without.json()["error"]
    (word,) = speech.text_times(model, phonemes=phonemes)
    assert json.loads(timed.headers["x-words"]) == [
        [phonemes, pytest.approx(word.start, abs=1e-3), pytest.approx(word.end, abs=1e-3)]
    ]
    assert "x-words" not in answer.headers


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_pronunciations_change_a_text_over_http_as_in_python(models):
    models.add("reader", kind=Reader)
    model = bundle(models, "reader")
    own = {"no": "n\u02c8i\u02d0n\u02c8i\u02d0"}
    frames = speech.text_frames(model, "No, thanks.", pronunciations=own)
    assert len(frames) > len(speech.text_frames(model, "No, thanks."))
    with Running(models) as running, Client(running.url) as client:
        chunks = client.speak("reader", text="No, thanks.", pronunciations=own)
        spoken = np.concatenate(list(chunks))
    np.testing.assert_allclose(spoken, model.sample(condition=np.asarray(frames))[0], atol=1e-4)


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_ssml_is_spoken_over_http_and_what_is_left_out_is_named_in_a_header(
    models, capsys, tmp_path
):
    models.add("reader", kind=Reader)
    model, path = bundle(models, "reader"), "/v1/models/reader:speak"
    text = '<speak>Yes<break time="700ms"/><audio src="a\u00e9"/><\u00e9>no.</\u00e9></speak>'
    frames = speech.text_frames(model, text, note=None)
    with Running(models) as running:
        answer = running.client.post(path, json={"text": text, "format": "l16"})
        obeyed = running.client.post(path, json={"text": "<speak>Yes.</speak>"})
        broken = running.client.post(path, json={"text": "<speak>Yes."})
        laughs = '<?xml version="1.0"?><!DOCTYPE speak [<!ENTITY a "b">]><speak>&a;</speak>'
        entity = running.client.post(path, json={"text": laughs})
        words = ["sample", f"{running.url}/reader", "--text", text, "--out", str(tmp_path / "out")]
        assert onepass.main(words) == 0
    whole = model.sample(condition=np.asarray(frames))[0]
    np.testing.assert_array_equal(np.frombuffer(answer.content, ">i2"), audio.to_int16(whole))
    assert answer.headers["x-note"] == "not obeyed and left out: <audio>, <\\xe9>"
    assert "x-note" not in obeyed.headers
    assert broken.status_code == 400 and "well-formed" in broken.json()["error"]
    assert entity.status_code == 400 and "no document type" in entity.json()["error"]
    assert "--text: not obeyed and left out: <audio>, <\u00e9>" in capsys.readouterr().err


def lines_of(response):
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def hold_images(monkeypatch, is_held):
    """Let calls for which `is_held(signature, rows)` wait until the event that is returned."""
    go, call = threading.Event(), FakeImages.call

    def held(self, signature, inputs):
        assert not is_held(signature, inputs["row"]) or go.wait(30)
        return call(self, signature, inputs)

    monkeypatch.setattr(FakeImages, "call", held)
    return go


def test_the_first_image_comes_before_the_last_is_drawn(models, monkeypatch):
    go, body = hold_images(monkeypatch, lambda _, rows: 23 in rows), {"class": 1, "num": 24}
    with Running(models) as running, running.client.stream("POST", DRAW, json=body) as response:
        lines = response.iter_lines()
        next(lines)
        go.set()
        assert sum(1 for _ in lines) == 2 * 24 - 1


def test_a_small_scale_comes_before_the_next_is_drawn(models, monkeypatch):
    go = hold_images(monkeypatch, lambda signature, _: signature != "scale_8")
    with Running(models) as running, running.client.stream("POST", DRAW, json={"class": 1}) as got:
        lines = got.iter_lines()
        assert json.loads(next(lines))["side"] == 8
        go.set()
        assert json.loads(next(lines))["side"] == 16
    calls = models.controls["shapes", 1].calls
    assert [call[0] for call in calls] == ["scale_8", "scale_16"]


def test_a_viewer_that_leaves_stops_the_drawing(models, monkeypatch):
    go = hold_images(monkeypatch, lambda _, rows: rows.max() >= 20)
    with Running(models, max_rows=64) as running:
        with running.client.stream("POST", DRAW, json={"class": 1, "num": 64}) as response:
            next(response.iter_lines())
        until(lambda: b'status="cancelled"} 1.0' in running.metrics.render()[0])
        go.set()
        until(lambda: not running.registry.is_busy)
        assert sum(models.controls["shapes", 1].rows) < 40


@pytest.mark.parametrize("place", ["call", "encode"])
def test_a_drawing_that_breaks_midway_says_so_in_its_last_line(models, monkeypatch, place):
    owner, name = {"call": (FakeImages, "call"), "encode": (drawing, "encode_image")}[place]
    works, done = getattr(owner, name), []

    def breaking(*given):
        done.append(given)
        if len(done) > 22 or (place == "call" and (given[2]["row"] > 10).any()):
            raise RuntimeError("secret detail")
        return works(*given)

    monkeypatch.setattr(owner, name, breaking)
    response = ask(models, "POST", DRAW, json={"class": 1, "num": 20})
    lines = lines_of(response)
    assert [line["picture"] for line in lines[:-1:2]] == list(range(11))
    assert lines[-1].keys() == {"error"} and "secret" not in response.text


# Texts


def test_declared_lengths_of_texts_are_those_that_are_enforced(models):
    schemas = ask(models, "GET", "/openapi.json").json()["components"]["schemas"]
    page = ask(models, "GET", "/").text
    assert f'id="text" rows="3" maxlength="{MAX_CHARACTERS}"' in page
    speak = schemas["SpeakRequest"]["properties"]["text"]["anyOf"][0]["maxLength"]
    openai = schemas["SpeechRequest"]["properties"]["input"]["maxLength"]
    assert (speak, openai) == (MAX_CHARACTERS, 4096)


def test_a_text_costs_what_it_takes_to_say():
    for text in (
        *("a" * MAX_CHARACTERS, "\u00e9" * MAX_CHARACTERS, "7" * (MAX_CHARACTERS // SPELT_OUT)),
    ):
        check_length(text)
    for text, shown in (("\u6f22" * 200, "\u6f22"), ("12345" * 40, "1"), ("a" * 1001, "1,001")):
        with pytest.raises(InvalidInput, match=f"at most 1,000 characters.*{shown}"):
            check_length(text)


LONG = "One sentence, of some words. " * 80
TEXTS = (LONG, LONG.replace(".", ","), LONG.replace(",", "").replace(".", ""), "7" * 500)


@pytest.mark.parametrize("text", [*TEXTS, "x" * 4096, "A word. " + "y" * 1500 + " And more."])
def test_a_long_text_is_split_into_parts_that_are_short_enough_and_nothing_is_lost(text):
    parts = text_parts(text)
    assert "".join(parts) == text and len(parts) > 1
    assert max(map(spoken_length, parts)) <= MAX_CHARACTERS


# The level of recordings, and the convention of frames

GAIN_DB = 6.0
MEL = MelConvention(RATE, HOP, 16, 16, bands=CHANNELS)
KNOWN = {"high": 1.1, "mean": 0.5, "deviation": 0.16}
LINEAR = np.full([40, CHANNELS], 1.01, np.float32)


class Levelled(FakeSound):
    """A fake whose model.json says at what level it hears, and what its frames are."""

    def __init__(self, *arguments, **rest):
        super().__init__(*arguments, **rest)
        features = {"mel": MEL.to_dict(), "f0": None}
        self.spec |= {"gain_db": GAIN_DB, "features": features, "frames": KNOWN}


@pytest.fixture
def levelled(tmp_path):
    made = FakeModelStore(tmp_path)
    made.add("voice", kind=Levelled)
    return made


NOISE = np.random.default_rng(3).uniform(-0.1, 0.1, RATE // 10)


def of_channels(*channels):
    memory = io.BytesIO()
    soundfile.write(memory, np.stack(channels, 1), RATE, format="WAV")
    return memory.getvalue()


@pytest.mark.parametrize("is_recorded", [True, False])
def test_the_sound_of_a_recording_is_the_models_less_the_gain_that_it_got(levelled, is_recorded):
    made, data = bundle(levelled), of_channels(NOISE)
    frames = np.full([40, CHANNELS], 0.5, np.float32)
    if is_recorded:
        given = sent("body", data, format="l16")
        frames = np.asarray(made.frames(decode_recording(data, RATE, 10)))
    else:
        given = {"json": {"frames": frames.tolist(), "format": "l16"}}
    answer = ask(levelled, "POST", SPEAK, **given)
    whole = made.sample(condition=frames)[0]
    expected = at_recorded_level(whole, GAIN_DB) if is_recorded else whole
    np.testing.assert_array_equal(np.frombuffer(answer.content, ">i2"), audio.to_int16(expected))


def test_a_remote_model_gives_frames_of_a_recording_their_level_back():
    sound = NOISE.astype(np.float32)
    remote = RemoteModel.__new__(RemoteModel)
    remote.name, remote.spec = "voice", {"kind": "sound"}
    parts = np.split(sound, 4)
    remote._client = types.SimpleNamespace(speak=lambda *_, **__: contextlib.nullcontext(parts))
    frames = np.zeros([40, CHANNELS], np.float32)
    np.testing.assert_array_equal(remote.sample(condition=frames)[0], sound)
    levelled = remote.sample(condition=recorded_frames(frames, GAIN_DB))[0]
    np.testing.assert_array_equal(levelled, at_recorded_level(sound, GAIN_DB))


def test_a_recording_whose_channels_cancel_is_refused():
    assert len(decode_recording(of_channels(NOISE, 0.5 * NOISE), RATE, 10))
    with pytest.raises(InvalidInput, match="channels that do not cancel each other"):
        decode_recording(of_channels(NOISE, -NOISE), RATE, 10)


def test_frames_of_another_convention_are_refused_over_http_unless_forced(levelled):
    body = {"frames": LINEAR.tolist()}
    refused = ask(levelled, "POST", SPEAK, json=body)
    assert refused.status_code == 400
    said = refused.json()["error"]
    assert said.startswith("`frames` are of another convention: mean ")
    assert "natural logarithms of magnitudes" in said and "`force`" in said
    assert ask(levelled, "POST", SPEAK, json={**body, "force": True}).status_code == 200
    path, inputs = "/v1/models/voice:predict", [{"frames": LINEAR.tolist(), "num_frames": 40}]
    assert ask(levelled, "POST", path, json={"instances": inputs}).status_code == 400
    inputs[0]["num_frames"] = 4  # too few to say
    assert ask(levelled, "POST", path, json={"instances": inputs}).status_code == 200


def test_frames_of_another_convention_are_refused_over_grpc_unless_forced(levelled):
    request = message("onepass.SpeakRequest")()
    encode(LINEAR, request.frames)
    served = bundle(levelled)
    limit = Settings().max_body_bytes
    with pytest.raises(InvalidInput, match="another convention"):
        _parse_request(served, request, limit)
    request.force = True
    assert len(_parse_request(served, request, limit)[1]) == 40


def test_a_bundle_that_says_nothing_of_its_frames_is_not_checked():
    for spec in ({}, {"frames": KNOWN}, {"frames": "x", "features": {"mel": MEL.to_dict()}}):
        check_convention(spec, LINEAR)


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
    openai = pytest.importorskip("openai")
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


@pytest.mark.parametrize(
    ("name", "container"),
    [("flac", "FLAC"), ("mp3", "MP3"), ("opus", "OGG"), ("ogg", "OGG"), (None, "MP3")],
)
def test_other_formats_are_whole_files(models, client, front_end, name, container):
    words = "hello there " * 30
    chosen = {"voice": "default", "speed": 1.5} | ({"response_format": name} if name else {})
    answer = client.audio.speech.create(model="voice", input=words, **chosen)
    assert front_end == [("voice", words, 1.5)]
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


def test_ssml_is_spoken_as_a_whole_or_refused_where_it_is_too_long(models, front_end):
    short, long = (
        f'<speak>{"The boat rounds the point. " * count}<break time="1s"/></speak>'
        for count in (30, 60)
    )
    for text, status in ((short, 200), (long, 400)):
        answer = ask(models, "POST", SPEECH, json={"input": text, "response_format": "wav"})
        assert answer.status_code == status
    assert front_end == [("voice", short, 1.0)]
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
