"""`onepass sample`, `evaluate` and `export` of a model that `onepass.save` wrote."""

import json

import numpy as np
import own_models
import pytest
import soundfile
from own_models import LONGEST, RATE_HZ, SHAPE, loaded, model, saved_folder
from PIL import Image
from scipy import stats

import onepass
from onepass.command.verbs import main
from onepass.foundation.rules import UserError

BITS = 1 / np.log(2.0)
pytestmark = pytest.mark.usefixtures("loaded_once")


def said(capsys, *words):
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


def refusal(capsys, *words):
    assert main([str(word) for word in words]) == 2
    return capsys.readouterr().err


def test_sound_is_written_as_wav(tmp_path, capsys):
    words = ("--out", tmp_path, "--length", LONGEST, "--num", 2)
    said(capsys, "sample", saved_folder("sound"), *words)
    sound, rate_hz = soundfile.read(tmp_path / "sample_0_1.wav")
    assert rate_hz == RATE_HZ
    expected = loaded(saved_folder("sound")).sample(2, LONGEST, 0)[1]
    np.testing.assert_allclose(sound, expected, atol=2.0 / 32768)


@pytest.mark.parametrize(("name", "mode"), [("picture", "L"), ("deep", "I;16")])
def test_grey_images_are_written_with_their_levels(name, mode, tmp_path, capsys):
    said(capsys, "sample", saved_folder(name), "--out", tmp_path, "--length", *SHAPE, "--seed", 3)
    with Image.open(tmp_path / "sample_3_0.png") as image:
        assert image.mode == mode
        levels = np.asarray(image)
    np.testing.assert_array_equal(levels, loaded(saved_folder(name)).sample(1, SHAPE, 3)[0, ..., 0])


def test_files_that_are_there_are_not_written_over(tmp_path, capsys):
    words = ("sample", saved_folder("own"), "--out", tmp_path, "--length", LONGEST, "--num", 2)
    said(capsys, *words)
    drawn = np.load(tmp_path / "sample_0.npy")
    np.testing.assert_allclose(drawn, model("own").sample(2, LONGEST, 0), atol=1e-6)
    assert "already exists" in refusal(capsys, *words)


def test_bits_per_element_are_those_of_the_model_and_of_its_bundle(tmp_path, capsys):
    rows = own_models.drawn("own")
    np.save(tmp_path / "rows.npy", rows)
    expected = -np.asarray(model("own").log_prob(rows)).mean(1) * BITS
    for place in (saved_folder("own"), own_models.bundle_folder("own")):
        figures = json.loads(
            said(capsys, "evaluate", place, "--data", tmp_path / "rows.npy", "--json")
        )
        measured = figures["bits_per_element"]
        assert measured["mean"] == pytest.approx(expected.mean(), rel=1e-4)
        assert measured["low"] < measured["mean"] < measured["high"] and measured["n"] == 2
        assert figures["elements"] == rows.size


def test_figures_have_the_interval_of_students_t_over_examples():
    made, rows = model("own"), model("own").sample(4, 30, 7)
    each = -np.asarray(made.log_prob(rows)).mean(1)
    figures = onepass.evaluate(made, rows, batch_size=3)
    low, high = stats.t.interval(0.95, 3, each.mean(), stats.sem(each))
    found = figures.nats
    assert (found.mean, found.low, found.high) == pytest.approx((each.mean(), low, high), rel=1e-4)
    assert (found.n, figures.elements) == (4, 120)
    assert figures.bits.high == pytest.approx(high * BITS, rel=1e-4)


def test_examples_of_different_lengths_count_the_same():
    made = model("own")
    rows = [made.sample(1, length, 7)[0] for length in (20, 20, 5)]
    each = [-np.asarray(made.log_prob(row[None])).mean() for row in rows]
    figures = onepass.evaluate(made, rows)
    assert figures.nats.mean == pytest.approx(np.mean(each), rel=1e-4)
    assert (figures.nats.n, figures.elements) == (3, 45)


def test_what_cannot_be_evaluated_is_named():
    given = own_models.condition("conditioned")[0]
    with pytest.raises(UserError, match="must have log-probabilities to be evaluated, got FlowS"):
        onepass.evaluate(model("student"), np.zeros([1, 4]))
    with pytest.raises(UserError, match="`data` must contain an example"):
        onepass.evaluate(model("own"), [])
    with pytest.raises(UserError, match="`condition` must have 1 rows, got 2"):
        onepass.evaluate(model("conditioned"), np.zeros([1, LONGEST], np.float32), given)


def test_a_folder_of_images_is_evaluated(tmp_path, capsys):
    images = own_models.drawn("deep").astype(np.uint16)
    for number, image in enumerate(images):
        Image.fromarray(image[..., 0]).save(tmp_path / f"{number}.png")
    for hidden in ("._0.png", ".x/1.png", "__MACOSX/2.png"):
        (tmp_path / hidden).parent.mkdir(exist_ok=True)
        (tmp_path / hidden).write_text("no image")
    out = said(capsys, "evaluate", saved_folder("deep"), "--data", tmp_path)
    bits = -np.asarray(model("deep").log_prob(images.astype(np.int32))).mean() * BITS
    assert out.startswith(f"{bits:.3f} (95%: ")
    assert "of 32 elements" in out


def test_what_is_asked_wrongly_is_named(tmp_path, capsys):
    np.save(tmp_path / "loud.npy", np.full([1, 4], 3.0))
    loud = ("evaluate", saved_folder("own"), "--data", tmp_path / "loud.npy")
    assert "`elements` must be in [-1, 1]" in refusal(capsys, *loud)
    student = ("evaluate", saved_folder("student"), "--data", tmp_path / "loud.npy")
    assert "is a student, which has no log-probabilities" in refusal(capsys, *student)
    nothing = ("evaluate", saved_folder("deep"), "--data", tmp_path)
    assert "contains no .png" in refusal(capsys, *nothing)
    length = ("sample", saved_folder("own"), "--out", tmp_path, "--length", 3, 4)
    assert "`length` must be a number" in refusal(capsys, *length)


def test_a_saved_model_is_exported_by_the_command(tmp_path, capsys):
    out = tmp_path / "models" / "mine" / "1"
    said(capsys, "export", saved_folder("picture"), "--out", out, "--length", *SHAPE)
    drawn = onepass.load(out).sample(1, SHAPE, own_models.SEED)
    np.testing.assert_array_equal(drawn, own_models.drawn("picture")[:1])
    again = ("export", saved_folder("picture"), "--out", out, "--bfloat16")
    assert "`--bfloat16` is not for" in refusal(capsys, *again)
