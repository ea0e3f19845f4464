"""The page holds every sound, and nothing outside it is needed."""

import base64
import io
import re

import numpy as np
import pytest
import soundfile
from PIL import Image
from processes import ROOT

from wavenet.listening_page import (
    HEIGHT,
    RECORDINGS,
    WIDTH,
    ListeningPage,
    opus_file,
    order_systems,
)

RATE_HZ = 16_000
TONE = np.sin(np.arange(RATE_HZ) * 0.3).astype(np.float32) * 0.3


@pytest.fixture
def text(tmp_path):
    page = ListeningPage(tmp_path / "page.html", "A <title>", RATE_HZ)
    items = [{"name": f"name {n}", "text": "" if n else "Words & more."} for n in range(7)]
    measures = [{"pesq": 2.5 + n, "dnsmos_p808": 3.456, "stoi": 0.9} for n in range(7)]
    page("one system", [TONE] * 7, items, measures)
    page("another", [0.5 * TONE] * 7, items, [{"pesq": float("nan")}] * 7)
    page.write()
    return (tmp_path / "page.html").read_text()


def embedded(text, kind):
    found = re.findall(rf'src="data:{kind};base64,([^"]*)"', text)
    return [io.BytesIO(base64.b64decode(each)) for each in found]


def test_every_sound_of_the_first_recordings_is_there_and_plays(text):
    sounds = embedded(text, "audio/ogg")
    assert len(sounds) == 2 * RECORDINGS
    for place, file in enumerate(sounds):
        sound, rate_hz = soundfile.read(file)
        assert rate_hz == RATE_HZ and abs(len(sound) - len(TONE)) < 0.1 * RATE_HZ
        level = sound[2000:12_000].std() / TONE.std()
        assert abs(level - (1.0 if place % 2 == 0 else 0.5)) < 0.1


def test_a_spectrogram_shows_its_tone(text):
    image = np.asarray(Image.open(embedded(text, "image/jpeg")[0]).convert("L"), np.float64)
    assert image.shape == (HEIGHT, WIDTH)
    row = HEIGHT * (1 - 0.3 / np.pi)  # of 0.3 radians a sample; pi is at the top
    assert abs(image.mean(1).argmax() - row) <= 2


def test_its_figures_are_under_a_sound(text):
    figures = re.findall("<small>(.*?)</small>", text)
    assert figures[:4] == ["DNSMOS 3.46, PESQ 2.50", "", "DNSMOS 3.46, PESQ 3.50", ""]


@pytest.mark.parametrize(("rate_hz", "of_opus"), [(22_050, 24_000), (44_100, 48_000)])
def test_a_sound_of_a_rate_that_opus_lacks_keeps_its_pitch_and_length(rate_hz, of_opus):
    tone = 0.3 * np.sin(np.arange(rate_hz) * 2 * np.pi * 1000 / rate_hz).astype(np.float32)
    sound, found_hz = soundfile.read(io.BytesIO(opus_file(tone, rate_hz)))
    assert found_hz == of_opus and abs(len(sound) - of_opus) < 0.1 * of_opus
    spectrum = np.abs(np.fft.rfft(sound[: of_opus // 2]))
    assert abs(2 * spectrum.argmax() - 1000) <= 2  # bins of 2 Hz


def test_words_are_escaped_and_nothing_is_fetched(text):
    assert "A &lt;title&gt;" in text and "Words &amp; more." in text and "name 4" in text
    assert "http" not in text


def test_the_recording_comes_first_and_controls_last(tmp_path):
    systems = ["student", "teacher", "untrained", "griffin_lim", "recording", "student_at_0.8"]
    systems += ["teacher_at_0.9", "other", "more", "other_at_0.8", "world"]
    expected = ["recording", "teacher", "teacher_at_0.9", "student", "student_at_0.8"]
    expected += ["other", "other_at_0.8", "more", "world", "griffin_lim", "untrained"]
    assert order_systems(systems) == expected
    page = ListeningPage(tmp_path / "page.html", "A", RATE_HZ)
    for name in ("untrained", "recording", "student"):
        page(name, [TONE[:800]], [{"name": "a"}], [{}])
    page.write()
    captions = re.findall("<figcaption>(.*?)</figcaption>", (tmp_path / "page.html").read_text())
    assert captions == ["recording", "student", "untrained"]


@pytest.mark.parametrize("page", ["listening.html", "listening-voices.html"])
def test_a_page_of_the_documents_is_in_that_order(page):
    text = (ROOT / "docs" / page).read_text()
    sections = re.findall("<section>(.*?)</section>", text, re.S)
    assert len(sections) == RECORDINGS
    for section in sections:
        systems = re.findall("<figcaption>(.*?)</figcaption>", section)
        names = [system.replace(" ", "_") for system in systems]
        assert names == order_systems(names) and len(names) > 5
