"""Training an image model: it learns, it can be stopped at any step, and its parts stand alone."""

import contextlib
import dataclasses
import json
import shutil

import image_runs
import numpy as np
import pytest
from hostile_files import refused
from image_runs import CLASSES, LOOK, STEPS, TRAIN, config_of, images, opened, replaced, trained
from marks import some_slow
from PIL import Image
from runs import assert_same, eagerly, newest

from onepass.foundation.metrics import read_metrics
from onepass.foundation.model_folders import averages
from onepass.foundation.rules import UserError
from onepass.foundation.run_directory import RunDirectory
from onepass.replicator.training.loop import DONE, FINISHED_BEFORE
from onepass.replicator.training.state import TrainState
from onepass.replicator.training.training_run import train
from pixelcnn import card, training
from pixelcnn.config import config_from
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.density import ImageDensity, ImageLoss
from pixelcnn.sampling.grids import grid


def figures_of(run, name):
    return {line["step"]: line[name] for line in read_metrics(run) if name in line}


def dev_bits(model, kind):
    """Bits per dimension on all of dev, from the log-probabilities of one large batch."""
    batch = next(iter(image_runs.dev_of(kind).dev(1000)))
    nats = np.sum([n.numpy() for n in model.network.nats(batch).values()], axis=0)
    return -np.mean(nats) / np.log(2) / np.prod(batch["levels"].shape[1:])


@pytest.mark.parametrize("kind", ["pixelcnn", "multiscale"])
def test_dev_is_judged_by_the_average_weights_part_by_part(kind):
    run, step = image_runs.run(kind), image_runs.best_step(kind)
    bits, loss = figures_of(run, "bits_per_dim"), figures_of(run, "loss")
    nats = [each * np.log(2) for each in bits.values()]
    np.testing.assert_allclose(nats, list(loss.values()), rtol=1e-6)
    dev = figures_of(run, "dev_bits_per_dim")
    assert dev[step] == pytest.approx(dev_bits(image_runs.model(kind), kind), abs=1e-5)
    line = next(line for line in read_metrics(run) if "dev_bits_per_dim" in line)
    parts = {name: bits for name, bits in line.items() if name.startswith("dev_bits_per_dim/")}
    if kind == "pixelcnn":
        assert parts == {}
    else:
        assert parts.keys() == {f"dev_bits_per_dim/{part}" for part in ("4", "8.2", "8.3", "8.4")}
        assert sum(parts.values()) == pytest.approx(dev[step], rel=1e-6)


def test_every_look_leaves_a_sheet_of_what_the_model_draws_for_the_first_of_dev():
    sheets = sorted((image_runs.run("pixelcnn") / "samples").iterdir())
    steps = range(LOOK, STEPS + 1, LOOK)
    assert [sheet.name for sheet in sheets] == [f"step_{step:08d}.png" for step in steps]
    model = image_runs.model("pixelcnn")
    best = image_runs.best_step("pixelcnn")
    assert model.spec["step"] == best
    labels = [i % len(CLASSES) for i in range(image_runs.DEV)]
    with Image.open(sheets[best // LOOK - 1]) as opened:
        expected = grid(list(model.sample(condition=labels, num=len(labels))))
        np.testing.assert_array_equal(np.asarray(opened), expected)


def test_the_configuration_says_what_the_data_decide_and_where_the_images_are():
    stored = json.loads((image_runs.run("multiscale") / "config.json").read_text())
    assert (stored["kind"], stored["class_names"]) == ("multiscale", list(CLASSES))
    assert stored["data_folder"] == str(images()) and stored["statistics"] is None
    expected = replaced(config_of("multiscale"), conditioning={"classes": 3})
    assert config_from(stored) == expected
    assert image_runs.model("map").config.conditioning.classes == 2
    video = image_runs.model("video").config.conditioning
    assert (video.action_channels, video.state_channels, video.picture_channels) == (2, 1, 3)


@pytest.mark.parametrize("traced", some_slow([False, True], (True,)))
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path, monkeypatch, traced):
    whole, run, said = tmp_path / "whole", tmp_path / "run", []
    monkeypatch.setattr(training.EvaluationCallback, "__call__", lambda *_: 1.0)
    with contextlib.nullcontext() if traced else image_runs.quickly():
        for place, steps in ((whole, 4), (run, 2), (run, 4)):
            config = config_of("pixelcnn", num_steps=steps)
            outcome = train(training.ImageRecipe("tiny", config, images()), place, said.append)
    assert (outcome.step, outcome.reason) == (4, DONE)
    assert said[0].startswith(f"{TRAIN} images for train, {image_runs.DEV} for dev, 8x8")
    assert "resuming from step 2" in said[-1]
    assert_same(newest(run), newest(whole))
    assert trained(config, images(), run).reason == FINISHED_BEFORE


def test_the_best_checkpoint_on_dev_is_the_model(tmp_path, monkeypatch):
    scores = iter([3.0, 1.0, 2.0, 2.5])
    monkeypatch.setattr(training.EvaluationCallback, "__call__", lambda *_: next(scores))
    config = config_of("map", num_steps=4, evaluate_every_steps=1, keep_checkpoints=1)
    assert trained(config, images(), tmp_path / "run").best_score == 1.0
    model, last = opened(tmp_path / "run"), averages(newest(tmp_path / "run"))
    assert model.spec["step"] == 2
    with np.load(tmp_path / "run" / "checkpoints" / "step_00000002.npz") as best:
        expected = averages(dict(best))
    found = sorted(w.numpy().tobytes() for w in model.network.trainable_variables)
    assert found == sorted(w.tobytes() for w in expected.values())
    assert any(not np.array_equal(w, last[n]) for n, w in expected.items())


@pytest.mark.parametrize(
    ("kind", "lacking"),
    [("pixelcnn", "no classes (a "), ("text", "no captions (a "), ("map", "no maps (")],
)
def test_images_without_what_the_condition_needs_are_refused(tmp_path, kind, lacking):
    bare = tmp_path / "bare.npz"
    np.savez(bare, images=image_runs.toys(20, 0)["images"])
    line = refused(trained, config_of(kind), bare, tmp_path / "run")
    assert line.startswith(f"{bare}: has {lacking}")
    condition = image_runs.CONDITIONS.get(kind, kind)
    assert line.endswith(f"which `conditioning.kind` {condition} needs.")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """Runs that trained the base and the factors of one model, and a base of another width.

    The factors with dropout, the bases' own factors without.
    """
    folder, config = tmp_path_factory.mktemp("halves"), config_of("multiscale")
    dropping = dataclasses.replace(config.network.factor, dropout=0.1)
    wide = dataclasses.replace(config.network.base, units=2 * config.network.base.units)
    for name, parts, network in (
        ("base", ("4",), {}),
        ("factors", ("8.2", "8.3", "8.4"), {"factor": dropping}),
        ("wide_base", ("4",), {"base": wide}),
    ):
        trained(replaced(config, parts=parts, network=network), images(), folder / name)
    return folder


def test_a_part_is_trained_alone(halves):
    base, factors = newest(halves / "base"), newest(halves / "factors")
    of_base = {name.split("/")[2] for name in base if name.startswith("weights/")}
    assert of_base == {"base"}
    of_factors = {tuple(name.split("/")[2:4]) for name in factors if name.startswith("weights/")}
    assert of_factors == {("factors", f"8.{group}") for group in (2, 3, 4)}
    assert list(figures_of(halves / "base", "dev_bits_per_dim/4")) == []
    assert list((halves / "factors" / "samples").iterdir()) == []


def configuration(path):
    return RunDirectory.open(path).config()


@pytest.mark.parametrize("base", some_slow(["base", "wide_base"], ("base",)))
def test_joined_parts_are_one_model_whose_bits_are_the_sum_of_theirs_and_which_draws(halves, base):
    others = (halves / base, halves / "base")  # the base that comes first is taken
    stored, model = card.join_runs(halves / "factors", others)
    assert stored["parts"] == ["4", "8.2", "8.3", "8.4"] and model.network.whole
    for setting, of in {"base": base, "factor": "factors"}.items():
        assert stored["network"][setting] == configuration(halves / of)["network"][setting]
    again, _ = card.join_runs(halves / base, [halves / "factors"])
    assert again["network"] == stored["network"]
    batch = next(iter(image_runs.dev_of("multiscale").dev(1000)))
    parts = {}
    for name in (base, "factors"):
        parts |= opened(halves / name).network.nats(batch)
    together = model.network.nats(batch)
    assert together.keys() == parts.keys()
    for part, nats in parts.items():
        np.testing.assert_array_equal(together[part], nats)
    with eagerly():
        drawn = model.sample(condition="cat", num=2)
    assert drawn.shape == (2, 8, 8, 1) and not np.array_equal(*drawn)


def test_a_run_from_before_a_setting_is_joined_as_with_its_default(halves, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(halves / "base", old)
    stored = configuration(old)
    del stored["network"]["base_flows"]
    (old / "config.json").write_text(json.dumps(stored))
    for runs in ((old, halves / "factors"), (halves / "factors", old)):
        together, model = card.join_runs(runs[0], runs[1:])
        assert together["network"]["base_flows"] == [] and model.network.whole


def runs_of_captions(folder, **conditioning):
    """Runs that trained the base and the factors of a model of captions, each its own encoder."""
    for seed, (name, parts) in enumerate({"base": ("4",), "factors": ("8",)}.items()):
        own = replaced(config_of("text"), conditioning=conditioning, parts=parts, seed=seed)
        trained(own, images(), folder / name)
    return [folder / "base", folder / "factors"]


@pytest.mark.slow
@pytest.mark.parametrize("map_channels", [2, 0])
def test_parts_that_read_words_keep_their_encoders_side_by_side(tmp_path, map_channels):
    base, factors = runs_of_captions(tmp_path, text_map_channels=map_channels)
    stored, model = card.join_runs(base, [factors])
    assert stored["conditioning"]["text_channels"] == 8 and model.network.whole
    batch = next(iter(image_runs.dev_of("text").dev(1000)))
    together = model.network.nats(batch)
    for run, parts in ((base, 1), (factors, 3)):
        alone = opened(run).network.nats(batch)
        assert len(alone) == parts
        for part, nats in alone.items():
            np.testing.assert_allclose(together[part], nats, rtol=1e-5)


@pytest.mark.slow
def test_parts_that_read_characters_are_not_joined(tmp_path):
    base, factors = runs_of_captions(tmp_path, text_unit="character")
    with pytest.raises(UserError, match="base trained its own encoder"):
        card.join_runs(base, [factors])


def test_a_part_alone_draws_nothing_and_says_what_is_missing(halves):
    model = opened(halves / "base")
    assert not model.network.whole
    line = "The run has not trained 8.2, 8.3, 8.4; it cannot draw."
    assert refused(model.sample, condition=0) == line


def test_runs_of_different_models_are_not_joined(halves, tmp_path):
    base, pixelcnn, text = halves / "base", image_runs.run("pixelcnn"), image_runs.run("text")
    no_parts = f"{pixelcnn} holds a PixelCNN, which has no parts."
    assert refused(card.join_runs, base, [pixelcnn]) == no_parts
    assert refused(card.join_runs, pixelcnn, [base]) == no_parts
    line = f"{text} and {base} differ in network, conditioning."
    assert refused(card.join_runs, base, [text]) == line
    other = shutil.copytree(halves / "factors", tmp_path / "other")
    stored = configuration(other)
    for change, named in (
        ({"class_names": ["a", "b", "c"]}, "class_names"),
        ({"data": {**stored["data"], "reduce": "subsample"}}, "data.reduce"),
    ):
        (other / "config.json").write_text(json.dumps(stored | change))
        assert refused(card.join_runs, base, [other]) == f"{other} and {base} differ in {named}."


def test_a_step_moves_a_part_alone_as_it_moves_it_in_the_whole():
    config = ImageDataset.read(images(), config_of("multiscale")).resolved_config
    config = replaced(config, optimizer={"clip_norm": 0.0})
    batch = next(iter(ImageDataset.read(images(), config).training(0)))
    with image_runs.quickly():
        whole, alone = (ImageDensity(replaced(config, parts=p)) for p in ((), ("8.3",)))
    start = {name: v.numpy() for name, v in named_weights(whole).items()}
    moved = []
    for density in (whole, alone):
        weights = named_weights(density)
        for name, variable in weights.items():
            variable.assign(start[name])
        state = TrainState(density, config.optimizer, 10)
        state.assign(state.update(ImageLoss(density), batch)[0])
        moved.append({name: variable.numpy() for name, variable in weights.items()})
    assert len(moved[1]) == len([name for name in start if "/8.3/" in name]) > 5
    for name, value in moved[1].items():
        assert not np.array_equal(value, start[name])
        np.testing.assert_allclose(value, moved[0][name], atol=1e-6, err_msg=name)


def named_weights(density):
    state = TrainState(density, image_runs.ADAM, 10)
    return dict(zip(state.names, state.weights, strict=True))
