"""`onepass.load` gives any model, and what it gives does what it says."""

import json
import math
import subprocess
import sys

import numpy as np
import own_models
import pytest
from PIL import Image
from processes import ROOT

import onepass
from onepass.bundles.bundle import Bundle
from onepass.foundation.model_folders import SHIPPED
from onepass.foundation.rules import UserError
from onepass.models import family_of
from onepass.remote_model import RemoteModel
from pixelcnn.shipped import dev_images
from wavenet import shipped
from wavenet.data import audio


def test_every_shipped_model_is_listed_with_its_card():
    listed = {model.name: model for model in onepass.list_models()}
    assert [*listed] == [*SHIPPED]
    assert {model.makes for model in listed.values()} == {"sound", "images"}
    assert all("\n- Data: " in model.card.read_text() for model in listed.values())
    assert listed["shipped"].kind == "parallel-wavenet"


def test_what_is_nowhere_is_refused_with_what_there_is(tmp_path):
    with pytest.raises(UserError, match=r"^There is no model \S+gone; shipped are shipped, "):
        onepass.load(tmp_path / "gone")


def test_a_folder_of_that_name_comes_before_the_shipped_model(tmp_path, monkeypatch):
    (tmp_path / "shipped").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"no config\.json"):
        onepass.load("shipped")


def test_an_address_is_not_asked_before_it_is_whole():
    with pytest.raises(UserError, match="must be http://HOST:PORT/NAME, got http://localhost:1"):
        onepass.load("http://localhost:1")


@pytest.mark.parametrize("kind", [Bundle, RemoteModel])
def test_a_program_that_is_no_users_has_no_log_prob(kind, monkeypatch):
    program = kind.__new__(kind)
    program.name, program.spec = "voice", {"kind": "sound"}
    monkeypatch.setattr(kind, "_inputs_of", lambda self, signature: {})
    with pytest.raises(UserError, match="`voice` has no log-probabilities"):
        program.log_prob([[0.0]])


@pytest.fixture(scope="module")
def digits():
    return onepass.load("shipped-digits")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["shipped-digits", "shipped-digits-64", "shipped-digits-64-teacher", "shipped-digits-flow"],
)
def test_the_probability_of_the_dev_images_is_that_of_the_card(name):
    model = onepass.load(name)
    with np.load(dev_images(name)) as stored:
        images, labels = stored["images"], stored["labels"].tolist()
    bits_per_dim = -model.log_prob(images, labels) / (math.log(2) * images[0].size)
    assert bits_per_dim.mean() == pytest.approx(model.spec["quality"]["bits_per_dim"], abs=1e-3)


@pytest.mark.slow
def test_a_photograph_is_enlarged_around_its_own_pixels_and_likelier_than_one_of_noise():
    model = onepass.load("shipped-upsample")
    file = sorted((dev_images("shipped-upsample") / "dev").iterdir())[0]
    photograph = np.asarray(Image.open(file).convert("RGB"))
    small = photograph[::8, ::8]
    enlarged = model.sample(prefix=small, length=512, seed=1)[0]
    assert enlarged.shape == photograph.shape
    np.testing.assert_array_equal(enlarged[::8, ::8], small)
    noise = np.random.default_rng(0).integers(0, 256, photograph.shape, np.uint8)
    noise[::8, ::8] = small
    each = [{"levels": image[None].astype(np.int32)} for image in (photograph, enlarged, noise)]
    real, drawn, random = (sum(model.network.nats(batch).values())[0] for batch in each)
    assert min(real, drawn) > random


@pytest.mark.slow
def test_a_drawing_is_likelier_under_its_own_caption_than_under_anothers():
    model = onepass.load("shipped-emoji")
    with np.load(dev_images("shipped-emoji")) as stored:
        images, captions = stored["images"][::40], stored["captions"][::40].tolist()
    own, other = (model.log_prob(images, c) for c in (captions, captions[1:] + captions[:1]))
    assert np.mean(own > other) > 0.8


def test_the_wrong_number_of_conditions_is_refused(digits):
    with pytest.raises(ValueError, match="`condition` must be one or 1, got 2"):
        digits.log_prob(np.zeros([1, 32, 32, 3], np.uint8), [3, 7])


def test_a_teacher_prefers_the_recording_to_noise():
    teacher = onepass.load("shipped-teacher")
    recording = sorted(shipped.recordings_folder().glob("dev/*.flac"))[0]
    speech = audio.read(recording, teacher.front.sample_rate_hz)[:4000]
    frames = teacher.front.frames(speech)
    nats = teacher.log_prob(speech, frames)
    assert nats.shape == (4000,) and nats.dtype == np.float32
    noise = np.random.default_rng(0).normal(0, speech.std(), 4000).astype(np.float32)
    assert nats.mean() > teacher.log_prob(noise, frames).mean() + 1


def speech_figures(measures):
    """Return figures as the quickstart measures them, with one value of every measure a system."""
    names = ("the recording", "student", "teacher", "untrained")
    return {
        name: {
            "real_time_factor": factor,
            "measures": {each: {"mean": 4.0 - factor} for each in measures},
        }
        for factor, name in zip((0.0, 0.25, 0.5, 0.75), names, strict=True)
    }


@pytest.mark.parametrize(
    ("measures", "columns", "missing"),
    [
        ((), ["distance of spectrograms"], ["listening", "quality"]),
        (("dnsmos_p808",), ["opinion, 1 to 5", "distance of spectrograms"], ["quality"]),
        (("pesq",), ["likeness, 1 to 4.6", "distance of spectrograms"], ["listening"]),
        (("dnsmos_p808", "pesq"), ["opinion, 1 to 5", "likeness, 1 to 4.6"], []),
    ],
)
def test_the_report_explains_what_it_shows_and_says_what_would_add_the_rest(
    measures, columns, missing
):
    from onepass.command import quickstart

    plain = ("log_mel_distance_db", "multi_resolution_stft_distance", "stoi")
    report = quickstart._report_speech(speech_figures((*plain, *measures)), "out")
    rows = [line for line in report.splitlines() if line.startswith("|")]
    assert rows[0] == "| " + " | ".join(["", "seconds of computing", *columns]) + " |"
    assert len(rows) == 2 + 4 and all(row.count("|") == 3 + len(columns) <= 5 for row in rows)
    assert rows[3] == f"| student, in one pass | 0.250 |{' 3.75 |' * len(columns)}"
    assert "log mel" not in report and "stoi" not in report
    assert [e for e in ("listening", "quality") if f"onepass[{e}]" in report] == missing
    sentences = [line for line in report.splitlines() if line.startswith("- ")]
    assert len(sentences) == 1 + len(columns) + len(missing)
    assert "2.0 times as fast" in report


@pytest.mark.slow
def test_the_digits_by_flows_have_the_other_scales_of_their_teacher():
    flow, teacher = onepass.load("shipped-digits-flow"), onepass.load("shipped-digits")
    for part, factor in teacher.network.multiscale.factors.items():
        own = flow.network.multiscale.factors[part].trainable_variables
        for weight, theirs in zip(own, factor.trainable_variables, strict=True):
            np.testing.assert_allclose(weight, theirs, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "makes"),
    [("multiscale", "images"), ("wavenet", "sound"), ("flow-student", "arrays"), ("new", "sound")],
)
def test_a_folder_of_versions_makes_what_its_bundles_make(kind, makes, tmp_path):
    assert family_of(tmp_path) is None
    for version in ("1", "2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "model.json").write_text(json.dumps({"kind": kind}))
    assert family_of(tmp_path).makes == makes
    assert family_of(tmp_path / "2").makes == makes


# What a fresh process runs, and the packages of which it may import no module.
CLOSURES = {
    "import distill.any_teacher": ("wavenet", "pixelcnn", "serving"),
    "onepass.load({saved!r})": ("wavenet", "pixelcnn", "serving"),
    "onepass.load('shipped-digits')": ("wavenet", "distill", "serving"),
    "onepass.load('shipped-kathleen')": ("pixelcnn", "serving"),
    "onepass.load('shipped-teacher')": ("pixelcnn", "distill", "serving"),
}


@pytest.mark.integration
@pytest.mark.parametrize("statement", CLOSURES)
def test_a_model_imports_nothing_of_other_kinds_of_models_or_of_serving(statement):
    saved = str(own_models.saved_folder("tokens")) if "{saved" in statement else ""
    program = f"import sys, onepass\n{statement.format(saved=saved)}\nprint(*sys.modules)"
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    packages = {name.split(".")[0] for name in done.stdout.split()}
    assert "tensorflow" in packages and packages.isdisjoint(CLOSURES[statement])
