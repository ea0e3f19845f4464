"""A served model gives a recording its level back, and refuses frames of another convention."""

import contextlib
import io
import types

import numpy as np
import pytest
import soundfile
from fake_bundle import CHANNELS, HOP, RATE, FakeModelStore, FakeSound
from http_running import ask

from onepass.bundles.errors import InvalidInput
from onepass.bundles.sampling import check_convention
from onepass.remote_model import RemoteModel
from serving.engine.speech import decode_recording
from serving.grpc.server import _parse_request
from serving.grpc.tensors import encode, message
from serving.settings import Settings
from wavenet.data import audio
from wavenet.data.audio import at_recorded_level, recorded_frames
from wavenet.features.conventions import MelConvention

SPEAK = "/v1/models/voice:speak"
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
def models(tmp_path):
    made = FakeModelStore(tmp_path)
    made.add("voice", kind=Levelled)
    return made


def wav(*channels):
    memory = io.BytesIO()
    soundfile.write(memory, np.stack(channels, 1), RATE, format="WAV")
    return memory.getvalue()


def noise(scale=0.1):
    return np.random.default_rng(3).uniform(-scale, scale, RATE // 10)


def test_the_sound_of_a_recording_is_the_models_less_the_gain_that_the_recording_got(models):
    data = wav(noise())
    headers = {"content-type": "audio/wav"}
    answer = ask(models, "POST", SPEAK + "?format=l16", content=data, headers=headers)
    waveform = decode_recording(data, RATE, 10)
    made = models.load(models.root / "voice" / "1")
    whole = made.sample(condition=np.asarray(made.frames(waveform)))[0]
    expected = audio.to_int16(at_recorded_level(whole, GAIN_DB))
    np.testing.assert_array_equal(np.frombuffer(answer.content, ">i2"), expected)


def test_the_sound_of_frames_is_the_models_own(models):
    frames = np.full([40, CHANNELS], 0.5, np.float32)
    answer = ask(models, "POST", SPEAK, json={"frames": frames.tolist(), "format": "l16"})
    whole = models.load(models.root / "voice" / "1").sample(condition=frames)[0]
    np.testing.assert_array_equal(np.frombuffer(answer.content, ">i2"), audio.to_int16(whole))


def test_a_remote_model_gives_frames_of_a_recording_their_level_back():
    sound = noise().astype(np.float32)
    remote = RemoteModel.__new__(RemoteModel)
    remote.name, remote.spec = "voice", {"kind": "sound"}
    parts = np.split(sound, 4)
    remote._client = types.SimpleNamespace(speak=lambda *_, **__: contextlib.nullcontext(parts))
    frames = np.zeros([40, CHANNELS], np.float32)
    np.testing.assert_array_equal(remote.sample(condition=frames)[0], sound)
    levelled = remote.sample(condition=recorded_frames(frames, GAIN_DB))[0]
    np.testing.assert_array_equal(levelled, at_recorded_level(sound, GAIN_DB))


def test_a_recording_whose_channels_cancel_is_refused():
    assert len(decode_recording(wav(noise(), 0.5 * noise()), RATE, 10))
    with pytest.raises(InvalidInput, match="channels that do not cancel each other"):
        decode_recording(wav(noise(), -noise()), RATE, 10)


def test_frames_of_another_convention_are_refused_over_http_unless_forced(models):
    body = {"frames": LINEAR.tolist()}
    refused = ask(models, "POST", SPEAK, json=body)
    assert refused.status_code == 400
    said = refused.json()["error"]
    assert said.startswith("`frames` are of another convention: mean ")
    assert "natural logarithms of magnitudes" in said and "`force`" in said
    assert ask(models, "POST", SPEAK, json={**body, "force": True}).status_code == 200
    path, inputs = "/v1/models/voice:predict", [{"frames": LINEAR.tolist(), "num_frames": 40}]
    assert ask(models, "POST", path, json={"instances": inputs}).status_code == 400
    inputs[0]["num_frames"] = 4  # too few to say
    assert ask(models, "POST", path, json={"instances": inputs}).status_code == 200


def test_and_over_grpc(models):
    request = message("onepass.SpeakRequest")()
    encode(LINEAR, request.frames)
    served = models.load(models.root / "voice" / "1")
    limit = Settings().max_body_bytes
    with pytest.raises(InvalidInput, match="another convention"):
        _parse_request(served, request, limit)
    request.force = True
    assert len(_parse_request(served, request, limit)[1]) == 40


def test_a_bundle_that_says_nothing_of_its_frames_is_not_checked():
    for spec in ({}, {"frames": KNOWN}, {"frames": "x", "features": {"mel": MEL.to_dict()}}):
        check_convention(spec, LINEAR)


def test_transposed_frames_get_a_hint(models):
    body = {"frames": np.zeros([CHANNELS, 40]).tolist()}
    answer = ask(models, "POST", SPEAK, json=body)
    assert answer.json()["error"].endswith("got [1, 3, 40]: it is transposed.")
