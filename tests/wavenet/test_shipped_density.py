"""The shipped density of speech: lossless, and smaller than FLAC for a voice it never heard."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

import onepass
from onepass.compression.container import read
from onepass.foundation import model_folders as shipped_models
from wavenet import compression
from wavenet.data import audio

NAME = "shipped-speech-16k"
CLIP = Path(__file__).with_name("kerstin.flac")
VOICED = slice(6000, 6300)


@pytest.fixture(scope="module")
def model():
    return onepass.load(NAME)


@pytest.fixture(scope="module")
def clip():
    samples, rate_hz = soundfile.read(CLIP, dtype="int16")
    assert rate_hz == 16_000
    return samples


def test_a_voice_that_it_never_heard_takes_less_than_flac(model, clip):
    assert model.front.sample_rate_hz == 16_000
    bits = 8 * len(model.compress([clip], verify=False)) / len(clip)
    assert bits < 0.9 * audio.flac_bits_per_sample(clip, 16_000)


def test_a_clip_comes_back_exactly(model, clip):
    silence, top = np.zeros(30, np.int16), np.full(20, 32767, np.int16)
    recordings = [clip[VOICED], silence, top, clip[:1]]
    data = model.compress(recordings, verify=False)
    assert len(read(data).description["segments"]) == len(recordings)
    for found, expected in zip(model.decompress(data), recordings, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_segments_take_less_than_half_a_per_cent_more(model, clip, monkeypatch):
    parts = len(model.compress([clip], verify=False))
    monkeypatch.setattr(compression, "SEGMENT", len(clip))
    whole = model.compress([clip], verify=False)
    assert len(read(whole).description["segments"]) == 1
    assert len(whole) < parts < 1.005 * len(whole)


def test_its_folder_is_small_and_its_card_has_the_sources():
    folder = shipped_models.folder(NAME)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000
    card = (folder / "card.md").read_text(encoding="utf-8")
    for fact in ("CC BY 4.0", "CC0 1.0", "LibriSpeech", "onepass train wavenet-lossless-16k"):
        assert fact in card
