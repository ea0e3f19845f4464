"""A trained image model: likelihoods, samples and their evaluation."""

import dataclasses
import json
import math
import re

import image_runs
import numpy as np
import pytest
from hostile_files import refused
from image_runs import CLASSES, DEV, TRAIN, config_of, dev_of, figures, images, model, opened, toys
from marks import some_slow
from scipy import special

import onepass
from onepass.foundation.files import read_npz, write_npz
from onepass.foundation.model_folders import SHARED, save
from onepass.foundation.rules import UserError
from onepass.foundation.run_directory import RunDirectory
from pixelcnn import measures, shipped
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.data.video import read_episodes
from pixelcnn.measures import codec_bits_per_dim
from pixelcnn.model import ImageFront

NUMBERS = 64  # in a toy


def whole_dev(kind, shuffled=0):
    return {k: v.numpy() for k, v in next(iter(dev_of(kind).dev(1000, shuffled))).items()}


def nats_of(kind, batches):
    """Return the log-probabilities of the images of every batch, float64 [batches, images]."""
    return np.float64([sum(model(kind).network.nats(batch).values()) for batch in batches])


def means_of(kind):
    return {name: measure["mean"] for name, measure in figures(kind)["measures"].items()}


def ways_of(kind):
    """The dev images with their own conditions, and with those of others in all ways."""
    dataset = dev_of(kind)
    return [next(iter(dataset.dev(1000, way))) for way in range(1 + dataset.shuffles)]


def dataset_of(tmp_path, kind, **arrays):
    """Return what `dev_dev.npz` with these arrays is to a model with the classes of the toys."""
    np.savez(tmp_path / "x_dev.npz", **arrays)
    return ImageDataset.for_evaluation(tmp_path / "x_dev.npz", model(kind).config, CLASSES)


# Bits per dimension


@pytest.mark.parametrize("kind", ["pixelcnn", "multiscale"])
def test_bits_per_dim_is_the_log_probability_in_bits_over_the_numbers_of_an_image(kind):
    bits = -nats_of(kind, [whole_dev(kind)])[0] / math.log(2) / NUMBERS
    found = figures(kind)
    assert found["bits_per_dim"] == pytest.approx(bits.mean(), abs=1e-5)
    measure = found["measures"]["bits_per_dim"]
    assert measure["mean"] == found["bits_per_dim"]
    assert bits.min() <= measure["low"] < measure["mean"] < measure["high"] <= bits.max()
    assert found["dev"] == {"pictures": DEV, "of": TRAIN + DEV}
    scales = {name: bits for name, bits in means_of(kind).items() if name.endswith(("x4", "x8"))}
    assert scales.keys() == ({"bits_per_dim_4x4", "bits_per_dim_8x8"} if "m" in kind else set())
    if scales:  # by the numbers that they add
        total = 16 * scales["bits_per_dim_4x4"] + 48 * scales["bits_per_dim_8x8"]
        assert total / NUMBERS == pytest.approx(found["bits_per_dim"], rel=1e-6)


@pytest.mark.parametrize("kind", some_slow(["pixelcnn", "text", "video"], ("text", "video")))
def test_what_a_condition_gains_is_what_those_of_others_cost_in_the_mean(kind):
    measures, nats = means_of(kind), nats_of(kind, ways_of(kind))
    own, *others = -nats.mean(1) / math.log(2) / model(kind).network.num_dims
    with_others = measures["bits_per_dim_with_another_condition"]
    assert with_others == pytest.approx(np.mean(others), abs=2e-5)
    gained = measures["bits_per_dim_gained_by_the_condition"]
    assert gained == pytest.approx(np.mean(others) - own, abs=2e-5)
    found = {name: share for name, share in measures.items() if "caption" in name}
    if kind == "text":
        share = (nats[0] > nats[1:].max(0)).mean()
        assert found == {f"caption_found_among_{len(nats)}": pytest.approx(share)}
    else:
        assert not found
    assert gained > 0.02 or kind != "pixelcnn"  # whose classes look nothing alike


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pixelcnn", "multiscale"])
def test_what_a_known_class_gains_is_over_the_mean_of_the_densities_under_all_classes(kind):
    batch, classes = whole_dev(kind), range(len(CLASSES))
    under = [batch | {"label": np.full_like(batch["label"], c)} for c in classes]
    nats = nats_of(kind, [batch, *under])
    mixture = special.logsumexp(nats[1:], 0) - math.log(len(CLASSES))
    name = "bits_per_image_gained_over_the_mean_of_all_classes"
    found = figures(kind)["measures"][name]
    assert found["mean"] == pytest.approx(np.mean(nats[0] - mixture) / math.log(2), abs=1e-3)
    assert found["high"] <= math.log2(len(CLASSES)) + 1e-6
    assert name not in figures("text")["measures"]


@pytest.mark.parametrize(("kind", "key"), [("pixelcnn", "label"), ("text", "caption")])
def test_another_condition_is_never_the_own_one_and_the_images_stay(kind, key):
    own, *others = ways_of(kind)
    assert len({way[key].numpy().tobytes() for way in (own, *others)}) == 1 + len(others)
    for other in others:
        np.testing.assert_array_equal(own["levels"], other["levels"])
        differ = np.reshape(own[key] != other[key], [DEV, -1])
        assert differ.any(1).all()
        assert set(map(bytes, own[key].numpy())) == set(map(bytes, other[key].numpy()))


@pytest.mark.parametrize("labels", [[0, 1, 0, 1], [2, 0, 0, 1, 2], [0, 0, 0, 1, 2, 1], [1, 0, 2]])
def test_no_image_keeps_its_class_where_none_has_more_than_half(tmp_path, labels):
    images = np.arange(len(labels) * 64).reshape(-1, 8, 8).astype(np.uint8)
    arrays = dict(images=images, labels=np.array(labels), classes=np.array(CLASSES))
    dataset = dataset_of(tmp_path, "pixelcnn", **arrays)
    given = next(iter(dataset.dev(100, shuffled=1)))["label"].numpy()
    assert not np.any(given == labels) and sorted(given) == sorted(labels)


def test_a_dev_file_alone_is_evaluated_whole(tmp_path):
    file = images() / "toy_dev.npz"
    config = model("pixelcnn").config
    alone = next(iter(ImageDataset.for_evaluation(file, config, CLASSES).dev(1000)))
    for name, values in whole_dev("pixelcnn").items():
        np.testing.assert_array_equal(alone[name], values)
    other = tmp_path / "toys.npz"  # of no split: some are dev's
    other.write_bytes(file.read_bytes())
    part = ImageDataset.for_evaluation(other, config, CLASSES)
    assert 1 <= len(next(iter(part.dev(1000)))["levels"]) < DEV == part.num_found
    everything = ImageDataset.for_evaluation(other, config, CLASSES, None, True)
    np.testing.assert_array_equal(next(iter(everything.dev(1000)))["levels"], alone["levels"])


def test_classes_are_the_models_whatever_their_order_in_the_file(tmp_path):
    given = {"images": toys(3, 0)["images"], "labels": np.array([0, 1, 0])}
    dataset = dataset_of(tmp_path, "pixelcnn", **given, classes=np.array(["eel", "cat"]))
    assert next(iter(dataset.dev()))["label"].numpy().tolist() == [2, 0, 2]
    line = refused(dataset_of, tmp_path, "pixelcnn", **given, classes=np.array(["eel", "fox"]))
    assert line.endswith("x_dev.npz: the model knows no class fox.")
    arrays = {**toys(4, 0), "classes": np.array(["x", "y", "z"])}  # to a model of captions
    assert "caption" in next(iter(dataset_of(tmp_path, "text", **arrays).dev()))


def test_actions_are_normalised_as_those_that_the_model_was_trained_on(tmp_path):
    known, arrays = model("video"), image_runs.episodes(2, 2)
    arrays["actions"] = 7 * arrays["actions"] + 1
    train = read_episodes(image_runs.videos()).statistics
    expected = (arrays["actions"][0, :2] - train.action_mean) / train.action_std
    given = (tmp_path, known.config, (), known.front.statistics)
    for split in ("train", "dev"):
        np.savez(tmp_path / f"other_{split}.npz", **arrays)
    found = next(iter(ImageDataset.for_evaluation(*given).dev(1)))["action"].numpy()[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for split in ("train", "dev"):
        np.savez(tmp_path / f"other_{split}.npz", **image_runs.episodes(2, 2, actions=3))
    line = refused(ImageDataset.for_evaluation, *given)
    assert line.endswith("`actions` have 3 numbers, the model knows 2.")


def test_the_codecs_are_evaluated_on_the_dev_images_but_for_missing_ones(monkeypatch):
    dev = toys(DEV, 2)["images"][..., None]
    expected = codec_bits_per_dim(dev)
    assert figures("pixelcnn")["codec"] == pytest.approx(expected)
    assert expected.keys() == {"webp", "jpeg_xl"}
    noise = np.random.default_rng(0).integers(0, 256, [64, 64, 3], np.uint8)
    of_noise = codec_bits_per_dim([noise, noise[..., :1]])  # as many as its entropy
    assert all(7.9 < bits < 9.1 for bits in of_noise.values())
    monkeypatch.setattr(measures, "JPEG_XL", "no_such_package")
    assert codec_bits_per_dim(dev[:1]).keys() == {"webp"}


# A folder that holds a model


@pytest.mark.parametrize("kind", ["pixelcnn", "multiscale", "text", "video"])
def test_a_saved_model_says_the_same_bits(tmp_path, kind):
    known, batch = model(kind), whole_dev(kind)
    save(known.network, known.spec, RunDirectory.open(image_runs.run(kind)).config(), tmp_path)
    again = opened(tmp_path)
    assert (again.front.classes, again.config, again.front.size) == (
        *(known.front.classes, known.config, known.front.size),
    )
    for part, nats in known.network.nats(batch).items():
        np.testing.assert_array_equal(again.network.nats(batch)[part], nats)
    if kind == "video":
        expected = known.front.statistics.state_std
        np.testing.assert_array_equal(again.front.statistics.state_std, expected)


def test_weights_that_do_not_fit_are_named(tmp_path):
    known = model("pixelcnn")
    stored = RunDirectory.open(image_runs.run("pixelcnn")).config()
    wider = {**stored, "network": {**stored["network"], "units": 9}}
    save(known.network, known.spec, wider, tmp_path)
    line = f"The weights in {tmp_path} do not fit the configuration of the network: `pixelcnn/"
    assert refused(opened, tmp_path).startswith(line)


def test_weights_that_another_folder_has_are_read_from_there(tmp_path):
    known, entry = model("multiscale"), {"folder": "whole", "prefix": "multiscale/factors/"}
    stored = RunDirectory.open(image_runs.run("multiscale")).config()
    part, whole = tmp_path / "part", tmp_path / "whole" / "weights.npz"
    save(known.network, known.spec, stored, whole.parent)
    save(known.network, {**known.spec, SHARED: entry}, stored, part)
    arrays = read_npz(part / "weights.npz")
    own = {name: a for name, a in arrays.items() if not name.startswith(entry["prefix"])}
    assert 0 < len(own) < len(arrays)
    write_npz(part / "weights.npz", own)
    # What is not of the prefix is not taken from there.
    write_npz(whole, {**arrays, next(iter(own)): np.zeros(3)})
    variables = opened(part).network.variables
    for one, other in zip(variables, known.network.variables, strict=True):
        np.testing.assert_array_equal(one, other)
    whole.unlink()
    line = refused(opened, part)
    assert line.startswith(f"{part} has only a part of its weights, and ")
    assert line.endswith(" --bare --out FOLDER` writes a folder with all of them.")
    file = part / "model.json"
    for wrong in (None, 3, {}, {"folder": "whole"}, {"folder": 1, "prefix": ""}):
        file.write_text(json.dumps({**json.loads(file.read_text()), SHARED: wrong}))
        assert refused(opened, part).endswith(f"{file} must name a `folder` and a `prefix`.")


# Shipped models


def test_models_that_a_wheel_leaves_out_say_where_they_are(mistake, tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "HERE", tmp_path)  # an installed package without them
    monkeypatch.setattr(onepass.foundation.model_folders, "ROOT", tmp_path)
    said = " comes with the source of onepass, in pixelcnn/shipped, and not in the installed "
    for words in (["sample"], ["evaluate"], ["export"]):
        out = [] if words == ["evaluate"] else ["--out", tmp_path / "name/1"]
        for name in ("shipped-objects", "shipped-objects-teacher"):
            assert mistake(*words, name, *out).startswith(name + said)
    with pytest.raises(UserError, match="clone the repository and run"):
        onepass.load("shipped-objects")
    with pytest.raises(UserError, match="comes with the source"):
        shipped.dev_images("shipped-objects")


# Drawing


@pytest.mark.parametrize(
    ("kind", "pixels"), some_slow([("pixelcnn", 64), ("multiscale", 16)], [("multiscale", 16)])
)
def test_a_fixed_point_says_its_passes_and_takes_several_images_at_once(kind, pixels):
    known, three = model(kind), dict(seed=5, num=3, temperature=0.9, condition=[1, 0, 1])
    cached = known.sample(**three)
    assert known.model.passes is None
    together = known.sample(**three, method="fixed-point", batch=2)
    assert pixels > known.model.passes > 1 and known.model.batch_passes > known.model.passes
    np.testing.assert_array_equal(together, cached)


def test_a_class_goes_by_its_name_or_its_number():
    front = model("pixelcnn").front
    assert [front.label(value) for value in ("eel", 2, "2", "cat")] == [2, 2, 2, 0]
    numbered = dataclasses.replace(front, classes=("2", "1", "0"))  # names are looked for first
    assert [numbered.label(value) for value in ("2", 1, "0")] == [0, 1, 2]
    known = model("pixelcnn")
    mixed = known.sample(condition=["cat", "eel"], seed=1, num=2)
    np.testing.assert_array_equal(mixed[:1], known.sample(condition="cat", seed=1))
    np.testing.assert_array_equal(mixed[1:], known.sample(condition=2, seed=1, num=2)[1:])


def test_what_is_asked_for_is_what_is_drawn():
    def left_over_right(name):
        drawn = model("pixelcnn").sample(condition=name, seed=1, num=8).astype(int)
        return drawn[:, :, :4].mean() - drawn[:, :, 4:].mean()

    # The toys' cats are 200 levels brighter on the left, eels 80 on the right. Eels of a short
    # training may not be; the same noise draws the same images if the class is not read.
    assert left_over_right("cat") > 40
    assert left_over_right("cat") > left_over_right("eel") + 20


def grey(*shape):
    return np.zeros([*shape, 1], np.uint8)


SMALLER = "The image to start from must be square with a side of 4 pixels, got "
HEAT = "`temperature` must be "
# Of models of classes, class 0 is asked for where nothing is said of the condition.
REFUSALS = [
    ("pixelcnn", dict(condition=3), "There is no class 3; there are 0 to 2."),
    ("pixelcnn", dict(condition=-1), "There is no class -1; there are 0 to 2."),
    ("pixelcnn", dict(condition="fox"), "There is no class `fox`; there are cat, dog, eel."),
    ("pixelcnn", dict(condition=None), "The model needs a condition: a class."),
    ("pixelcnn", dict(condition=[0, 1]), "`condition` must be one or 1, got 2."),
    ("pixelcnn", dict(length=0), "`length` must be an integer of at least 1, got 0."),
    ("pixelcnn", dict(prefix=grey(4, 4)), "A PixelCNN cannot enlarge an image"),
    ("pixelcnn", dict(temperature=[1.0, 0.5]), "A PixelCNN has one scale and takes one"),
    ("pixelcnn", dict(temperature=-1), HEAT + "at least 0 and finite, got -1.0."),
    ("multiscale", dict(length=6), "The model draws 4, 8 pixels a side, not 6."),
    ("multiscale", dict(length=16), "The model draws 4, 8 pixels a side, not 16."),
    ("multiscale", dict(prefix=np.zeros([4, 1], "u1")), "Only a PixelCNN can continue from the"),
    ("multiscale", dict(prefix=grey(5, 5)), SMALLER + "5x5."),
    ("multiscale", dict(prefix=grey(4, 8)), SMALLER + "8x4."),
    ("multiscale", dict(prefix=grey(8, 8)), SMALLER + "8x8."),
    ("multiscale", dict(temperature=(1.0,) * 3), HEAT + "one number or 2, got 3."),
    ("multiscale", dict(temperature=(1.0, math.nan)), HEAT + "at least 0 and finite, got "),
    ("pixelcnn", dict(method="fast"), "`method` must be one of auto, cached, fixed-point, naive, "),
    ("pixelcnn", dict(batch=2), '`batch` > 1 requires `method="fixed-point"`.'),
    ("pixelcnn", dict(batch=0), "`batch` must be an integer of at least 1, got 0."),
    ("multiscale", dict(method="naive"), "Only a PixelCNN has a naive sampler."),
    ("pixelcnn", dict(prefix=np.full((16, 1), 0.5)), "`prefix` must be whole numbers"),
    ("multiscale", dict(prefix=np.full((4, 4, 1), 0.5)), "`prefix` must be whole numbers"),
    ("text", dict(condition=None), "The model needs a condition: a caption."),
    ("text", dict(condition="x" * 10_000), "A caption may have 200 characters, got 10,000."),
    ("map", dict(condition="cat"), "The model needs a map of labels."),
    ("map", dict(condition=grey(8, 8)[..., 0], length=6), "The condition is a map of 8 pixels"),
    ("video", dict(condition=None), "The model needs a condition: the frames before, an action"),
]


@pytest.mark.parametrize(("kind", "value", "line"), REFUSALS)
def test_what_cannot_be_drawn_is_refused_before_anything_is(kind, value, line):
    # `stream` itself refuses: its caller has made no folder yet.
    assert refused(model(kind).stream, **{"condition": 0, **value}).startswith(line)


def test_a_condition_for_a_model_that_has_none_is_refused():
    free = dataclasses.replace(config_of("pixelcnn").conditioning, kind="none")
    config = dataclasses.replace(config_of("pixelcnn"), conditioning=free)
    known = dataclasses.replace(model("pixelcnn"), front=ImageFront(config))
    assert refused(known.sample, condition=1) == "The model draws without a condition."


# What is no image of the model


@pytest.mark.parametrize(
    ("images", "complaint"),
    [
        (np.full((1, 8, 8, 1), 0.5, np.float32), "must be whole numbers from 0 to 255 .*float32"),
        (np.ones((1, 8, 8, 1), bool), "got bool"),
        (np.full((1, 8, 8, 1), 256), r"`images` must be in 0 to 255, got 256 to 256\."),
        (np.full((1, 8, 8, 1), -1), "got -1 to -1"),
        (np.zeros((8, 8, 1), np.uint8), r"shape \[any, 8, 8, 1\], got \[8, 8, 1\]"),
        (np.zeros((1, 16, 16, 1), np.uint8), r"got \[1, 16, 16, 1\]"),
        (np.zeros((1, 8, 8, 3), np.uint8), r"got \[1, 8, 8, 3\]"),
        (np.zeros((0, 8, 8, 1), np.uint8), r"got \[0, 8, 8, 1\]"),
    ],
)
def test_log_prob_of_what_is_no_image_is_refused(images, complaint):
    for kind in ("pixelcnn", "multiscale"):
        assert re.search(complaint, refused(model(kind).log_prob, images, 0))


def test_log_prob_does_not_depend_on_the_type_of_whole_numbers():
    images, known = toys(2, 5)["images"][..., None], model("pixelcnn")
    for dtype in (np.int32, np.uint16, np.int64):
        found = known.log_prob(images.astype(dtype), 0)
        np.testing.assert_array_equal(found, known.log_prob(images, 0))
