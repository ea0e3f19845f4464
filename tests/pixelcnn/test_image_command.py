"""Image models on the command line: what each verb leaves, and every mistake in one line."""

import copy
import dataclasses
import itertools
import json
import re
import shutil
import types

import image_runs
import made_once
import numpy as np
import pytest
from image_files import levels_of
from image_runs import CLASSES, DEV, SIDES, TRAIN, best_step, images, model, run
from marks import some_slow
from PIL import Image

import onepass
from onepass.command.sample import images as image_samples
from onepass.foundation.rules import UserError, to_json
from onepass.foundation.run_directory import RunDirectory
from pixelcnn import model as models
from pixelcnn import training
from pixelcnn.config import PRESETS, MultiscaleTrainConfig, config_from, part_names, sizes_between
from pixelcnn.evaluation import evaluate
from pixelcnn.model import ImageFront
from pixelcnn.sampling.grids import grid, label_image


@pytest.fixture(autouse=True)
def shared(monkeypatch):
    """Runs of `image_runs` are loaded once, so that their programs are compiled once."""

    known = {made_once.own_folder() / f"run_{kind}": kind for kind in SIDES}
    load_anew = models.load

    def load(path):
        return model(known[path]) if path in known else load_anew(path)

    monkeypatch.setattr("pixelcnn.model.load", load)


def sampled(kind, out, words=""):
    """The exit status of `onepass sample`, and the files that are there."""
    status = onepass.main(["sample", str(run(kind)), "--out", str(out), *words.split()])
    return status, sorted(path.name for path in out.iterdir())


# Samples


def test_sample_writes_what_the_model_draws_for_all_classes_in_turn(tmp_path, capsys):
    status, names = sampled("pixelcnn", tmp_path / "out", "--num 4 --seed 7")
    assert status == 0
    assert names == ["grid.png", *(f"sample_7_{row}_{CLASSES[row % 3]}.png" for row in range(4))]
    expected = model("pixelcnn").sample(condition=[0, 1, 2, 0], seed=7, num=4)
    for row, image in enumerate(expected):
        found = levels_of(tmp_path / "out" / f"sample_7_{row}_{CLASSES[row % 3]}.png")
        np.testing.assert_array_equal(found, image)
    np.testing.assert_array_equal(levels_of(tmp_path / "out" / "grid.png"), grid(list(expected)))
    said = capsys.readouterr().out
    assert said.startswith(f"{tmp_path / 'out'}: 4 images of 8x8 pixels in ")
    assert "passes" not in said


def test_a_smaller_grid_leaves_nothing_of_a_larger_one_of_its_seed(tmp_path, capsys):
    assert sampled("pixelcnn", tmp_path, "--num 4")[0] == 0
    for name in ("sample_1_3_cat.png", "sample_0_3.txt", "mine_0_3.png"):
        (tmp_path / name).write_bytes(b"")
    capsys.readouterr()
    status, names = sampled("pixelcnn", tmp_path, "--num 2 --overwrite")
    assert status == 0
    drawn = [f"sample_0_{row}_{CLASSES[row]}.png" for row in range(2)]
    others = ["sample_1_3_cat.png", "sample_0_3.txt", "mine_0_3.png"]
    assert names == sorted(["grid.png", *drawn, *others])
    said = capsys.readouterr().out
    assert "; removed 2 images of an earlier, larger grid\n" in said


@pytest.mark.parametrize("name", ["sample_0_1_dog.png", "grid.png", "progression.gif"])
def test_an_image_is_not_written_over_unasked(tmp_path, mistake, monkeypatch, name):
    monkeypatch.setattr(models.Trained, "stream", None)
    (tmp_path / name).write_bytes(b"mine")
    (tmp_path / "sample_0_3_cat.png").write_bytes(b"mine too")
    words = ("sample", run("pixelcnn"), "--num", 2, "--out")
    assert (
        mistake(*words, tmp_path) == f"{tmp_path / name} already exists; --overwrite replaces it."
    )
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert kept == {name: b"mine", "sample_0_3_cat.png": b"mine too"}


@pytest.mark.parametrize(("batch", "end"), [(2, ", [0-9]+ for all of them"), (1, "")])
def test_sampling_by_fixed_point_gives_the_same_files_and_says_its_passes(
    tmp_path, capsys, batch, end
):
    words = f"--num 2 --seed 7 --method fixed-point --batch {batch}"
    assert sampled("pixelcnn", tmp_path, words)[0] == 0
    for row, expected in enumerate(model("pixelcnn").sample(condition=[0, 1], seed=7, num=2)):
        found = levels_of(tmp_path / f"sample_7_{row}_{CLASSES[row]}.png")
        np.testing.assert_array_equal(found, expected)
    line = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(f"passes for an image by fixed point: .*place of 64{end}", line)


def test_a_multiscale_model_shows_how_its_images_grew(tmp_path):
    words = "--num 2 --seed 3 --label dog --temperature 1 0.5"
    status, names = sampled("multiscale", tmp_path, words)
    expected = ["grid.png", "progression.gif", "progression.png"]
    assert (status, names) == (0, [*expected, "sample_3_0_dog.png", "sample_3_1_dog.png"])
    options = {"seed": 3, "num": 2, "temperature": (1, 0.5)}
    drawn = list(
        zip(*model("multiscale").sample(condition="dog", scales=True, **options), strict=True)
    )
    strips = levels_of(tmp_path / "progression.png")
    assert strips.shape == (2 * 100, 2 * 98 + 2, 3)
    for row, scales in enumerate(drawn):
        found = levels_of(tmp_path / f"sample_3_{row}_dog.png")
        np.testing.assert_array_equal(found, scales[-1])
        for column, (scale, pixel) in enumerate(zip(scales, (24, 12), strict=True)):
            top, left = 100 * row + 2, 98 * column + 2
            shown = strips[top : top + 96 : pixel, left : left + 96 : pixel]
            np.testing.assert_array_equal(shown, np.repeat(scale, 3, -1))
    with Image.open(tmp_path / "progression.gif") as opened:
        assert opened.n_frames == 2
        first = np.asarray(opened.convert("L"))[2:98:24, 2:98:24]
    np.testing.assert_array_equal(first, drawn[0][0][..., 0])


@pytest.mark.slow
def test_captions_are_drawn_in_turn_and_named_in_the_sheet(tmp_path):
    captions = ["stripes", "a slope"]
    words = ["--num", "3", "--seed", "1", "--caption", *captions]
    assert onepass.main(["sample", str(run("text")), "--out", str(tmp_path / "out"), *words]) == 0
    drawn = model("text").sample(condition=[*captions, "stripes"], seed=1, num=3)
    for row, image in enumerate(drawn):
        found = levels_of(tmp_path / "out" / f"sample_1_{row}.png")
        np.testing.assert_array_equal(found, image)
    named = [label_image(*pair) for pair in zip(drawn, [*captions, "stripes"], strict=True)]
    np.testing.assert_array_equal(levels_of(tmp_path / "out" / "grid.png"), grid(named))


def test_a_start_is_enlarged_and_a_prime_is_gone_on_from(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, [8, 8], np.uint8)
    for name, side in {"small": 4, "large": 8}.items():
        Image.fromarray(noise[:side, :side]).save(tmp_path / f"{name}.png")
    words = f"--num 1 --label cat --start {tmp_path / 'small.png'}"
    assert sampled("multiscale", tmp_path / "a", words)[0] == 0
    drawn = levels_of(tmp_path / "a" / "sample_0_0_cat.png")[..., 0]
    np.testing.assert_array_equal(drawn[::2, ::2], noise[:4, :4])
    for extra, rows in {"": 4, "--prime-rows 6": 6}.items():
        words = f"--num 1 --label cat --prime {tmp_path / 'large.png'} {extra}"
        assert sampled("pixelcnn", tmp_path / f"b{rows}", words)[0] == 0
        drawn = levels_of(tmp_path / f"b{rows}" / "sample_0_0_cat.png")[..., 0]
        np.testing.assert_array_equal(drawn[:rows], noise[:rows])
        assert not np.array_equal(drawn[rows], noise[rows])


def test_a_transparent_map_is_refused_and_a_transparent_prime_is_on_white_and_said(
    tmp_path, capsys
):
    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) % 2)
    for name, image, options in (
        ("key.png", grey, {"transparency": 0}),
        ("channel.png", grey.convert("LA"), {}),
        ("palette.gif", grey.convert("P"), {"transparency": 1}),
    ):
        image.save(tmp_path / name, **options)
        with pytest.raises(UserError, match=r"\.(png|gif) must not have transparency"):
            image_samples.labels_of(tmp_path / name, None)
    shape = types.SimpleNamespace(front=types.SimpleNamespace(channels=1, bits=8))
    levels = image_samples.read_prefix_image(tmp_path / "key.png", None, 8, shape)
    np.testing.assert_array_equal(levels[..., 0], np.where(np.asarray(grey)[:4] == 0, 255, 1))
    assert capsys.readouterr().err == f"{tmp_path / 'key.png'}: transparent, laid on white\n"


def test_a_map_is_read_from_an_image(tmp_path, mistake):
    labels = np.tile(np.array([0, 0, 0, 0, 1, 1, 1, 1], np.uint8), [8, 1])
    Image.fromarray(labels).save(tmp_path / "map.png")
    words = f"--num 1 --map {tmp_path / 'map.png'}"
    assert sampled("map", tmp_path / "out", words)[0] == 0
    expected = model("map").sample(condition=labels.astype(int))[0]
    np.testing.assert_array_equal(levels_of(tmp_path / "out" / "sample_0_0.png"), expected)
    np.save(tmp_path / "map.npy", labels)
    words = f"--num 1 --map {tmp_path / 'map.npy'}"
    assert sampled("map", tmp_path / "again", words)[0] == 0
    np.testing.assert_array_equal(levels_of(tmp_path / "again" / "sample_0_0.png"), expected)
    for wrong, line in (
        (labels + 1, "the map has the label 2; there are 0 to 1."),
        (labels[:, :4], "the map must be 8x8 pixels, got 4x8."),
    ):
        Image.fromarray(wrong).save(tmp_path / "map.png")
        words = ["sample", run("map"), "--map", tmp_path / "map.png", "--out", tmp_path / "no"]
        assert mistake(*words) == f"{tmp_path / 'map.png'}: {line}"
    for wrong in (labels - 0.5, labels.astype(int) - 1):
        np.save(tmp_path / "map.npy", wrong)
        words = ["sample", run("map"), "--map", tmp_path / "map.npy", "--out", tmp_path / "no"]
        assert "map.npy must hold whole numbers of at least 0" in mistake(*words)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("before", [2, 0])
def test_ctrl_c_keeps_what_has_been_drawn(tmp_path, monkeypatch, capsys, before):
    drawn = model("multiscale").stream

    def interrupted(self, *arguments, **options):
        yield from itertools.islice(drawn(*arguments, **options), before)
        raise KeyboardInterrupt

    monkeypatch.setattr(models.Trained, "stream", interrupted)
    status, names = sampled("multiscale", tmp_path, "--num 5 --label cat")
    assert status == 130
    kept = ["grid.png", "progression.gif", "progression.png"]
    kept += ["sample_0_0_cat.png", "sample_0_1_cat.png"]
    assert names == (kept if before else [])
    assert f"interrupted: keeping {before} of 5 images" in capsys.readouterr().err


OTHER_KIND = " is for a model of another kind; this one has class."


@pytest.mark.parametrize(
    ("kind", "words", "line"),
    [
        ("pixelcnn", "--num 0", "`--num` must be at least 1, got 0."),
        ("pixelcnn", "--guidance -1", "The guidance must be at least 0 and finite, got -1."),
        ("map", "--map MAP --guidance 1", "The model has no null condition to be guided by."),
        ("pixelcnn", "--temperature inf", "`--temperature` must be at least 0 and finite, got "),
        ("pixelcnn", "--prime NO", "NO: broken: not a file."),
        ("pixelcnn", "--prime TEXT", "TEXT: broken: not an image that pillow knows."),
        ("pixelcnn", "--prime SMALL", "SMALL: too small: 4x4, wanted 8x8."),
        ("pixelcnn", "--prime MAP --prime-rows 9", "`--prime-rows` must be between 0 and 8, got 9"),
        ("pixelcnn", "--prime-rows 2", "`--prime-rows` needs `--prime`, the image they are of."),
        ("pixelcnn", "--caption cat", "`--caption`" + OTHER_KIND),
        ("pixelcnn", "--video NO", "`--video`" + OTHER_KIND),
        ("multiscale", "--start NO", "NO: no such file."),
        ("multiscale", "--start TEXT", "TEXT is not an image that can be read."),
        ("map", "--map NO", "NO: no such file."),
        ("pixelcnn", "--out MAP/x", "Cannot create the folder MAP/x: Not a directory."),
    ],
)
def test_what_cannot_be_drawn_is_one_line_and_no_folder(mistake, tmp_path, kind, words, line):
    for name, side in {"SMALL": 4, "MAP": 8}.items():
        Image.fromarray(np.zeros([side, side], np.uint8)).save(tmp_path / name, "PNG")
    (tmp_path / "TEXT").write_text("words")
    words = re.sub(r"\b(SMALL|MAP|TEXT|NO)\b", rf"{tmp_path}/\1", words).split()
    found = mistake("sample", run(kind), "--out", tmp_path / "out", *words)
    assert found.replace(f"{tmp_path}/", "").startswith(line)
    assert not (tmp_path / "out").exists()


# Figures


@pytest.mark.slow
def test_figures_as_json_are_one_object_and_nothing_else(capsys):
    words = ["evaluate", str(run("multiscale")), "--json", "--samples", "0"]
    assert onepass.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("seconds_per_picture") > 0
    expected = evaluate(model("multiscale"), image_runs.dev_of("multiscale"))
    del expected["seconds_per_picture"]
    source = {"model": str(run("multiscale")), "step": 3, "data": str(images())}
    assert found == source | expected
    for measure in found["measures"].values():
        assert measure.keys() == {"mean", "low", "high", "n", "undefined"}
        assert measure["low"] <= measure["mean"] <= measure["high"]


def test_figures_in_words_name_model_data_and_the_codec(capsys, monkeypatch):
    known = copy.deepcopy(image_runs.figures("pixelcnn"))
    used = []

    def evaluated(model, dataset, seed):
        used.append(len(dataset.source.splits["dev"].images))
        return known

    monkeypatch.setattr("pixelcnn.evaluation.evaluate", evaluated)
    words = ["evaluate", str(run("pixelcnn")), "--data", str(images()), "--samples", "0"]
    assert onepass.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    begin = f"{run('pixelcnn')}, step {best_step('pixelcnn')}, on {DEV} dev images of {images()}"
    assert lines[0] == f"{begin} (its other {TRAIN} are for training; --all: use them too)"
    bits, webp = known["bits_per_dim"], known["codec"]["webp"]
    assert lines[1].startswith(f"  bits per dimension   {bits:.3f} (95%: ")
    assert lines[1].endswith(f", n {DEV})")
    assert lines[2].startswith(f"  lossless WebP        {webp:.3f} ")
    assert lines[2].endswith(f"({100 * (bits / webp - 1):+.1f}%)")
    jpeg_xl = known["codec"].pop("jpeg_xl")
    assert lines[3].startswith(f"  lossless JPEG XL     {jpeg_xl:.3f} ")
    assert onepass.main(words) == 0
    line = "  lossless JPEG XL     not measured: pip install 'onepass[jxl]'"
    assert capsys.readouterr().out.splitlines()[3] == line
    assert lines[-2].startswith("  bits per dim gained by the condition   ")
    assert lines[-1].startswith("  bits per image gained over the mean of all classes   ")
    known["dev"]["of"] = DEV
    assert onepass.main([*words, "--all"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == begin
    assert used == [DEV, DEV, TRAIN + DEV]


def test_what_cannot_be_evaluated_is_named(mistake, tmp_path):
    line = mistake("evaluate", "shipped-digits", "--samples", "-1")
    assert line == "`--samples` must be at least 0, got -1."
    line = mistake("evaluate", run("pixelcnn"), "--data", tmp_path / "no")
    assert line == f"{tmp_path / 'no'}: no such file or folder."
    copy = shutil.copytree(run("pixelcnn"), tmp_path / "copy")
    stored = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**stored, "data_folder": "/gone"}))
    line = mistake("evaluate", copy)
    assert line == f"{copy} was trained on /gone, which is gone; name it with --data."


# Which kind of model a verb is for


@pytest.mark.parametrize("verb", ["evaluate", "sample"])
def test_a_verb_goes_where_its_model_belongs_whatever_the_order(verb, monkeypatch, tmp_path):
    went = []
    monkeypatch.setattr(
        "onepass.command.sample.command.run_sample",
        lambda makes, words, *_: went.append((makes, words)) or 0,
    )
    monkeypatch.setattr(
        "onepass.families.run_evaluate",
        lambda family_of, likely, words, parse: went.append((likely.makes, words)) or 0,
    )
    sound, folder = tmp_path / "sound", tmp_path / "folder"
    for path, file, kind in ((sound, "config", "wavenet"), (folder, "model", "multiscale")):
        path.mkdir()
        (path / f"{file}.json").write_text(json.dumps({"kind": kind}))
    places = dict.fromkeys([run("pixelcnn"), folder, "shipped-digits"], "images")
    for place, kind in (
        places | dict.fromkeys([sound, "shipped", tmp_path / "no"], "sound")
    ).items():
        # Results may go where another model is.
        outs = ["x"] if place == tmp_path / "no" else ["x", str(sound), str(folder)]
        orders = [order for out in outs for order in ([place, "--out", out], ["--out", out, place])]
        for words in [*orders, ["--out=x", place], ["--naive", place]]:
            went.clear()
            words = [str(word) for word in words]
            assert onepass.main([verb, *words]) == 0
            assert went == [(kind, words)]


# Presets


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_comes_back_from_json_and_goes_through_the_command_line(
    name, monkeypatch, mistake
):
    config, seen = PRESETS[name].config, []
    stored = json.loads(json.dumps({"kind": config.kind, **to_json(config)}))
    assert config_from(stored) == config
    assert name.startswith((stored["kind"], "upsample"))  # factors alone
    if isinstance(config, MultiscaleTrainConfig):
        sizes = sizes_between(config.network.base_size, config.data.size)
        drawn = part_names(sizes)[bool(config.parts) :]  # without the base
        assert config.part_names == drawn and sizes[-1] == config.data.size
        if name == "multiscale-photos-512":
            passes = sizes[0] ** 2 + 3 * (len(sizes) - 1)  # of the base too
            assert f" in {passes} passes (64 of the" in PRESETS[name].about

    def train(recipe, workdir, replicator):
        seen.append((recipe.preset, recipe.config, recipe.data))
        raise UserError("enough")

    monkeypatch.setattr("onepass.replicator.training.training_run.train", train)
    words = ["train", name, "--data", "tfds:cats", "--workdir", "b"]
    assert mistake(*words) == "enough"
    assert seen == [(name, config, "tfds:cats")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """PNG files of more than the wanted size, a sub-folder for each class."""
    folder = tmp_path_factory.mktemp("data") / "images"
    data = image_runs.toys(24, 0, size=20)
    for i, (image, label) in enumerate(zip(data["images"], data["labels"], strict=True)):
        place = folder / CLASSES[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{i}.png")
    return folder


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "name", some_slow(["pixelcnn-smoke", "multiscale-smoke"], ("pixelcnn-smoke",))
)
def test_a_smoke_preset_trains_on_a_folder_of_images_and_is_evaluated_and_drawn(
    name, folder, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(training.EvaluationCallback, "_can_sample", lambda self: False)
    place = tmp_path / "my run"
    words = ["--data", str(folder), "--workdir", str(place), "--conditioning.kind", "class"]
    words += ["--loop.num-steps", "1"]
    assert onepass.main(["train", name, *words, "--data.dev-share", "0.25"]) == 0
    out = capsys.readouterr().out
    assert "for train, " in out and "8x8, 1 channel, area-averaged from 20x20" in out
    assert "Stopped at step 1 (done)" in out and "best dev " in out
    assert f"Next: onepass sample '{place}' --out images" in out
    assert RunDirectory.open(place).config()["class_names"] == list(CLASSES)
    assert onepass.main(["train", name, *words, "--data.dev-share", "0.25"]) == 0
    assert f"{place} has completed all its steps (1, best dev " in capsys.readouterr().out
    if name == "pixelcnn-smoke":
        assert onepass.main(["sample", str(place), "--out", str(tmp_path), "--num", "1"]) == 0
        assert levels_of(tmp_path / f"sample_0_0_{CLASSES[0]}.png").shape == (8, 8, 1)


@pytest.mark.usefixtures("eager")
def test_an_evaluation_of_one_image_says_nothing_of_other_conditions(tmp_path, monkeypatch):
    monkeypatch.setattr("pixelcnn.evaluation._seconds", lambda *_: 0.125)
    np.savez(tmp_path / "x_dev.npz", **image_runs.toys(1, 0))
    known = dataclasses.replace(model("map"), front=ImageFront(model("map").config, CLASSES))
    dataset = image_runs.ImageDataset.for_evaluation(tmp_path / "x_dev.npz", known.config, CLASSES)
    assert evaluate(known, dataset)["measures"].keys() == {"bits_per_dim"}
