"""An exported image model: its card says where it is from, its weights are the run's or rounded."""

import dataclasses
import json
import shutil
from pathlib import Path

import image_runs
import made_once
import numpy as np
import pytest
import tensorflow as tf
from image_runs import DEV, best_step, config_of, images, opened, run, trained
from runs import eagerly

import onepass
from onepass.foundation.card import ExportArguments, origin, write_folder
from onepass.foundation.metrics import training_seconds
from onepass.foundation.rules import UserError
from pixelcnn import card
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.evaluation import evaluate


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "model"
    words = ["--data-licence", "CC0 of a zoo.", "--note", "On a cold day."]
    words = ["export", str(run("pixelcnn")), *words, "--out", str(folder)]
    with eagerly(), pytest.MonkeyPatch.context() as patch:
        # The time that an image takes is of no matter here.
        patch.setattr("pixelcnn.evaluation._seconds", lambda *_: 0.125)
        patch.setattr(card, "load", image_runs.opened)
        assert onepass.main([*words, "--machine", "an abacus", "--bare"]) == 0
    return folder


def spec_of(folder):
    return json.loads((folder / "model.json").read_text())


def test_the_card_says_where_the_model_is_from_and_holds_the_measured_figures(exported):
    quality, text = spec_of(exported)["quality"], (exported / "card.md").read_text()
    bits, codec = quality["measures"]["bits_per_dim"], quality["codec"]
    for words in (
        "A PixelCNN of 8x8 images with 1 channels,",
        "conditioned on class",
        "- Data: toys. CC0 of a zoo.",
        "- Classes: cat, dog, eel",
        f"{best_step('pixelcnn')} steps in ",
        "on an abacus.",
        "`onepass train tiny --data toys --workdir run` On a cold day.",
        "in single precision (float32): images are those of the run.",
        f"Measured on {DEV} dev images",
        "| seconds an image, batch 1 | 0.125 | |",
        f"| bits per dim | {bits['mean']:.3f} | {bits['low']:.3f} to {bits['high']:.3f}, n {DEV} |",
        f"| lossless WebP, bits per dimension | {codec['webp']:.3f} | |",
        f"| lossless JPEG XL, bits per dimension | {codec['jpeg_xl']:.3f} | |",
    ):
        assert words in text
    assert quality["bits_per_dim"] == bits["mean"]
    assert str(made_once.shared_folder()) not in text + (exported / "model.json").read_text()


def test_weights_and_configuration_are_those_of_the_run(exported):
    model, of_run = opened(exported), image_runs.model("pixelcnn")
    assert spec_of(exported)["stored_dtype"] == "float32"
    with np.load(exported / "weights.npz") as stored:
        assert {array.dtype for array in stored.values()} == {np.dtype(np.float32)}
        assert sum(array.size for array in stored.values()) == spec_of(exported)["weights"]
    pairs = zip(model.network.trainable_variables, of_run.network.trainable_variables, strict=True)
    for found, expected in pairs:
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    assert (model.config, model.front.classes) == (of_run.config, of_run.front.classes)


@pytest.mark.usefixtures("eager")
def test_weights_are_rounded_where_it_is_asked_for_and_that_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("pixelcnn.evaluation._seconds", lambda *_: 0.125)
    folder, of_run = tmp_path / "half", opened(run("pixelcnn")).network.trainable_variables
    given = ExportArguments(run("pixelcnn"), folder, machine="an abacus", float16=True)
    said = write_folder(given, card.measure, card.card)
    assert said.endswith("rounded to float16: images differ from the run's")
    assert "in half precision (float16), rounded" in (folder / "card.md").read_text()
    with np.load(folder / "weights.npz") as stored:
        assert {array.dtype for array in stored.values()} == {np.dtype(np.float16)}
    for found, own in zip(opened(folder).network.trainable_variables, of_run, strict=True):
        np.testing.assert_array_equal(found, own.numpy().astype(np.float16).astype(np.float32))


def test_a_card_of_before_says_that_its_weights_are_rounded_and_no_time_that_is_unknown(exported):
    spec = spec_of(exported) | {"training_seconds": 0}
    del spec["stored_dtype"]
    assert "in half precision" in card.card(spec)
    assert f"- Training: {spec['step']} steps on an abacus.\n" in card.card(spec)


@pytest.mark.parametrize(
    ("of_parts", "seconds"), [(("3.2", "4.4"), 8), (("3.2", "0"), 0), (("0.2",), 1), (("0",), 0)]
)
def test_a_time_is_unknown_where_that_of_one_part_is(of_parts, seconds, monkeypatch):
    monkeypatch.setattr("onepass.foundation.card._seconds", lambda run: float(str(run)))
    first, *others = map(Path, of_parts)
    given = ExportArguments(first, Path("out"), parts_from=tuple(others), machine="an abacus")
    assert origin(given, "toys", tf.Module(), "make")["training_seconds"] == seconds


@pytest.mark.usefixtures("eager")
def test_the_folder_says_what_the_model_is_and_its_figures_are_those_of_the_folder(
    exported, monkeypatch
):
    monkeypatch.setattr("pixelcnn.evaluation._seconds", lambda *_: 1.0)
    model, spec, file = opened(exported), spec_of(exported), images() / "toy_dev.npz"
    expected = dict(kind="pixelcnn", preset="tiny", size=8, channels=1, levels=256)
    expected |= dict(condition="class", classes=["cat", "dog", "eel"], step=best_step("pixelcnn"))
    assert {name: spec[name] for name in expected} == expected
    assert spec["config"]["data_folder"] == spec["data"] == "toys"
    dataset = ImageDataset.for_evaluation(file, model.config, model.front.classes)
    for name, measure in evaluate(model, dataset)["measures"].items():
        assert measure == pytest.approx(spec["quality"]["measures"][name], abs=1e-6)


@pytest.mark.slow
def test_a_folder_of_a_model_of_captions_names_some(tmp_path):
    given = ExportArguments(run("text"), tmp_path / "model", machine="an abacus")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(card, "evaluate", lambda *_: image_runs.figures("text"))
        write_folder(given, card.measure, card.card)
    named = spec_of(given.out)["captions"]
    assert named == sorted(set(image_runs.CAPTIONS))
    assert f"- Captions such as: {'; '.join(named)}\n" in (given.out / "card.md").read_text()
    with pytest.raises(UserError, match=f"a caption, such as '{named[0]}'"):
        opened(given.out).sample()


@pytest.mark.slow
def test_parts_of_several_runs_are_one_folder(tmp_path, monkeypatch):
    for name, parts in {"base": ("4",), "factors": ("8",)}.items():
        config = dataclasses.replace(config_of("multiscale"), parts=parts)
        trained(config, images(), tmp_path / name)
    figures = image_runs.figures("multiscale")
    monkeypatch.setattr(card, "evaluate", lambda *_: figures)
    monkeypatch.setattr(card, "load", opened)
    # Then the folder has the factors, and says how long both were trained.
    for parts, out in (("factors", "out"), ("out", "again")):
        words = ["--parts-from", str(tmp_path / parts), "--out", str(tmp_path / out), "--bare"]
        assert onepass.main(["export", str(tmp_path / "base"), *words]) == 0
    model, text = opened(tmp_path / "out"), (tmp_path / "out" / "card.md").read_text()
    assert model.network.whole and model.config.part_names == ("4", "8.2", "8.3", "8.4")
    assert "A multiscale PixelCNN of 8x8" in text and "several runs" in text
    batch = next(iter(image_runs.dev_of("multiscale").dev(4)))
    for name in ("base", "factors"):
        for part, nats in opened(tmp_path / name).network.nats(batch).items():
            np.testing.assert_allclose(model.network.nats(batch)[part], nats, rtol=1e-2)
    seconds = [spec_of(tmp_path / name)["training_seconds"] for name in ("out", "again")]
    assert seconds[1] == round(seconds[0] + training_seconds(tmp_path / "base"))


def test_what_cannot_be_exported_or_evaluated_is_one_line(mistake, tmp_path, exported):
    line = mistake("evaluate", exported)
    assert line == f"{exported} does not say where its images are; name them with --data."
    out = ["--out", tmp_path / "out", "--bare"]
    line = mistake("export", exported, *out, "--note", "x")
    assert line == f"`--note` is for runs; {exported} has its card."
    copy = shutil.copytree(run("pixelcnn"), tmp_path / "copy")
    shutil.rmtree(copy / "checkpoints")
    assert mistake("export", copy, *out) == f"{copy} has no checkpoint yet; training writes one."
    line = mistake("export", run("pixelcnn"), *out, "--parts-from", run("multiscale"))
    assert line == f"{run('pixelcnn')} holds a PixelCNN, which has no parts."
    assert not (tmp_path / "out").exists()
