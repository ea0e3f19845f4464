"""A trained image model: likelihoods, samples and their evaluation."""

import dataclasses
import json
import math
import re

import image_runs
import numpy as np
import pytest
import tensorflow as tf
from image_runs import CLASSES, DEV, TRAIN, config_of, dev_of, figures, images, model, opened, toys
from marks import some_slow
from scipy import special

import onepass
from onepass.foundation.errors import UserError
from onepass.foundation.files import read_npz, write_npz
from onepass.foundation.model_folder import SHARED, save
from onepass.foundation.run_directory import RunDirectory
from pixelcnn import measures, shipped
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.data.sources import DataError
from pixelcnn.data.video import read_episodes
from pixelcnn.front import ImageFront
from pixelcnn.measures import codec_bits_per_dim
from pixelcnn.networks.conditioning import Condition

NUMBERS = 64  # in a toy


def whole_dev(kind, shuffled=0):
    return {k: v.numpy() for k, v in next(iter(dev_of(kind).dev(1000, shuffled))).items()}


def dataset_of(tmp_path, config, **arrays):
    """Return what `dev_dev.npz` with these arrays is to a model with the classes of the toys."""
    np.savez(tmp_path / "x_dev.npz", **arrays)
    return ImageDataset.for_evaluation(tmp_path / "x_dev.npz", config, CLASSES)


def refused(call, *arguments, **options):
    """The one line that a call is refused with."""
    with pytest.raises((UserError, ValueError)) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Bits per dimension


@pytest.mark.parametrize("kind", ["pixelcnn", "multiscale"])
def test_bits_per_dim_is_the_log_probability_in_bits_over_the_numbers_of_an_image(kind):
    data = toys(DEV, 2)
    levels = tf.constant(data["images"][..., None].astype(np.int32))
    condition = Condition(tf.constant(np.eye(3, dtype=np.float32)[data["labels"]]), None)
    density = model(kind).network
    if kind == "pixelcnn":
        nats = density.pixelcnn.conditionals(levels, condition).nats().numpy()
    else:
        nats = sum(density.multiscale.nats(levels, condition).values()).numpy()
    bits = -nats.astype(np.float64) / math.log(2) / NUMBERS
    found = figures(kind)
    assert found["bits_per_dim"] == pytest.approx(bits.mean(), abs=1e-5)
    measure = found["measures"]["bits_per_dim"]
    assert measure["mean"] == found["bits_per_dim"]
    assert bits.min() <= measure["low"] < measure["mean"] < measure["high"] <= bits.max()
    assert found["dev"] == {"pictures": DEV, "of": TRAIN + DEV}


def test_each_scale_is_evaluated_by_the_numbers_that_it_adds():
    measures = {name: m["mean"] for name, m in figures("multiscale")["measures"].items()}
    of_scales = {name for name in measures if name.endswith(("4x4", "8x8"))}
    assert of_scales == {"bits_per_dim_4x4", "bits_per_dim_8x8"}
    total = 16 * measures["bits_per_dim_4x4"] + 48 * measures["bits_per_dim_8x8"]
    assert total / 64 == pytest.approx(measures["bits_per_dim"], rel=1e-6)
    assert not any("x" in name.split("_")[-1] for name in figures("pixelcnn")["measures"])


def test_what_a_condition_gains_is_what_the_wrong_one_costs():
    batch = whole_dev("pixelcnn")
    wrong = whole_dev("pixelcnn", shuffled=1)
    bits = []
    for each in (batch, wrong):
        (nats,) = model("pixelcnn").network.nats(each).values()
        bits.append(-np.mean(nats) / math.log(2) / NUMBERS)
    measures = {name: m["mean"] for name, m in figures("pixelcnn")["measures"].items()}
    assert measures["bits_per_dim_with_another_condition"] == pytest.approx(bits[1], abs=1e-5)
    gained = measures["bits_per_dim_gained_by_the_condition"]
    assert gained == pytest.approx(bits[1] - bits[0], abs=1e-5)
    assert gained > 0.02  # the classes of the toys look nothing alike


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pixelcnn", "multiscale"])
def test_what_a_known_class_gains_is_over_the_mean_of_the_densities_under_all_classes(kind):
    batch = whole_dev(kind)
    under = [batch | {"label": np.full_like(batch["label"], c)} for c in range(len(CLASSES))]
    nats = [sum(model(kind).network.nats(each).values()).numpy() for each in (batch, *under)]
    mixture = special.logsumexp(np.float64(nats[1:]), 0) - math.log(len(CLASSES))
    name = "bits_per_image_gained_over_the_mean_of_all_classes"
    found = figures(kind)["measures"][name]
    assert found["mean"] == pytest.approx(np.mean(nats[0] - mixture) / math.log(2), abs=1e-3)
    assert found["high"] <= math.log2(len(CLASSES)) + 1e-6
    assert name not in figures("text")["measures"]


@pytest.mark.slow
def test_a_caption_is_found_where_its_image_is_likelier_than_under_all_others():
    dataset, density = dev_of("text"), model("text").network
    ways = [next(iter(dataset.dev(1000, i))) for i in range(1 + dataset.shuffles)]
    assert len({way["caption"].numpy().tobytes() for way in ways}) == len(ways)
    nats = np.array([sum(density.nats(way).values()) for way in ways])
    measures = figures("text")["measures"]
    found = (nats[0] > nats[1:].max(0)).mean()
    assert measures[f"caption_found_among_{len(ways)}"]["mean"] == pytest.approx(found)
    assert not any("caption" in name for name in figures("pixelcnn")["measures"])


@pytest.mark.slow
def test_what_actions_gain_is_a_mean_over_several_exchanges():
    dataset, density = dev_of("video"), model("video").network
    ways = [next(iter(dataset.dev(1000, i))) for i in range(1 + dataset.shuffles)]
    assert len({way["action"].numpy().tobytes() for way in ways}) > 3
    bits = [-np.mean(sum(density.nats(way).values())) / math.log(2) for way in ways]
    gained = figures("video")["measures"]["bits_per_dim_gained_by_the_condition"]["mean"]
    expected = (np.mean(bits[1:]) - bits[0]) / density.num_dims
    assert gained == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("kind", ["pixelcnn", "text"])
def test_another_condition_is_never_the_own_one_and_the_images_stay(kind):
    key = {"pixelcnn": "label", "text": "caption"}[kind]
    own, others = whole_dev(kind), whole_dev(kind, shuffled=1)
    np.testing.assert_array_equal(own["levels"], others["levels"])
    same = (own[key] == others[key]).reshape(len(own[key]), -1).all(1)
    assert not same.any()
    assert set(map(bytes, own[key])) == set(map(bytes, others[key]))
    if kind == "pixelcnn":
        np.testing.assert_array_equal(np.sort(own[key]), np.sort(others[key]))


@pytest.mark.parametrize("labels", [[0, 1, 0, 1], [2, 0, 0, 1, 2], [0, 0, 0, 1, 2, 1], [1, 0, 2]])
def test_no_image_keeps_its_class_where_none_has_more_than_half(tmp_path, labels):
    images = np.arange(len(labels) * 64).reshape(-1, 8, 8).astype(np.uint8)
    arrays = dict(images=images, labels=np.array(labels), classes=np.array(CLASSES))
    dataset = dataset_of(tmp_path, model("pixelcnn").config, **arrays)
    given = next(iter(dataset.dev(100, shuffled=1)))["label"].numpy()
    assert not np.any(given == labels) and sorted(given) == sorted(labels)


def test_batches_of_another_size_give_the_same_bits():
    whole = model("multiscale").network.nats(whole_dev("multiscale"))
    parts = [model("multiscale").network.nats(batch) for batch in dev_of("multiscale").dev(5)]
    assert [len(part["4"]) for part in parts] == [5, 5, 2]
    for name, nats in whole.items():
        np.testing.assert_allclose(np.concatenate([p[name] for p in parts]), nats, rtol=1e-5)


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
    images = toys(3, 0)["images"]
    config = model("pixelcnn").config
    names = np.array(["eel", "cat"])
    dataset = dataset_of(tmp_path, config, images=images, labels=np.array([0, 1, 0]), classes=names)
    assert next(iter(dataset.dev()))["label"].numpy().tolist() == [2, 0, 2]
    names = np.array(["eel", "fox"])
    with pytest.raises(DataError, match=r"x_dev\.npz: the model knows no class fox\.$"):
        dataset_of(tmp_path, config, images=images, labels=np.array([0, 1, 0]), classes=names)


def test_a_model_without_classes_is_evaluated_on_images_of_any(tmp_path):
    config = model("text").config
    arrays = {**toys(4, 0), "classes": np.array(["x", "y", "z"])}
    assert "caption" in next(iter(dataset_of(tmp_path, config, **arrays).dev()))


def test_actions_are_normalised_as_those_that_the_model_was_trained_on(tmp_path):
    known = model("video")
    arrays = image_runs.episodes(2, 2)
    arrays["actions"] = 7 * arrays["actions"] + 1
    for split in ("train", "dev"):
        np.savez(tmp_path / f"other_{split}.npz", **arrays)
    dataset = ImageDataset.for_evaluation(tmp_path, known.config, (), known.front.statistics)
    found = next(iter(dataset.dev(1)))["action"].numpy()[0]
    train = read_episodes(image_runs.videos()).statistics
    expected = (arrays["actions"][0, :2] - train.action_mean) / train.action_std
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    for split in ("train", "dev"):
        np.savez(tmp_path / f"other_{split}.npz", **image_runs.episodes(2, 2, actions=3))
    line = refused(ImageDataset.for_evaluation, tmp_path, known.config, (), known.front.statistics)
    assert line.endswith("`actions` have 3 numbers, the model knows 2.")


def test_the_codecs_are_evaluated_on_the_dev_images():
    expected = codec_bits_per_dim(toys(DEV, 2)["images"][..., None])
    assert figures("pixelcnn")["codec"] == pytest.approx(expected)
    assert expected.keys() == {"webp", "jpeg_xl"}
    noise = np.random.default_rng(0).integers(0, 256, [64, 64, 3], np.uint8)
    of_noise = codec_bits_per_dim([noise, noise[..., :1]])  # as many as its entropy
    assert all(7.9 < bits < 9.1 for bits in of_noise.values())


def test_a_codec_whose_package_is_missing_is_left_out(monkeypatch):
    monkeypatch.setattr(measures, "JPEG_XL", "no_such_package")
    assert codec_bits_per_dim(toys(1, 0)["images"][..., None]).keys() == {"webp"}


# A folder that holds a model


@pytest.mark.parametrize("kind", ["pixelcnn", "multiscale", "text", "video"])
def test_a_saved_model_says_the_same_bits(tmp_path, kind):
    known = model(kind)
    stored = RunDirectory.open(image_runs.run(kind)).config()
    save(known.network, known.spec, stored, tmp_path)
    again = opened(tmp_path)
    assert (again.front.classes, again.config, again.front.size) == (
        known.front.classes,
        known.config,
        known.front.size,
    )
    batch = whole_dev(kind)
    for part, nats in known.network.nats(batch).items():
        np.testing.assert_array_equal(again.network.nats(batch)[part], nats)
    if kind == "video":
        np.testing.assert_array_equal(
            again.front.statistics.state_std, known.front.statistics.state_std
        )


def test_weights_that_do_not_fit_are_named(tmp_path):
    known = model("pixelcnn")
    stored = RunDirectory.open(image_runs.run("pixelcnn")).config()
    wider = {**stored, "network": {**stored["network"], "units": 9}}
    save(known.network, known.spec, wider, tmp_path)
    line = refused(opened, tmp_path)
    assert line.startswith(
        f"The weights in {tmp_path} do not fit the configuration of the network: `pixelcnn/"
    )
    assert set(read_npz(tmp_path / "weights.npz")) > {"pixelcnn/out_kernel"}


@pytest.fixture
def shared(tmp_path):
    """A folder without the factors of a multiscale model, which the folder `whole` has."""
    known = model("multiscale")
    stored = RunDirectory.open(image_runs.run("multiscale")).config()
    save(known.network, known.spec, stored, tmp_path / "whole")
    part = tmp_path / "part"
    entry = {"folder": "whole", "prefix": "multiscale/factors/"}
    save(known.network, {**known.spec, SHARED: entry}, stored, part)
    arrays = read_npz(part / "weights.npz")
    own = {name: a for name, a in arrays.items() if not name.startswith(entry["prefix"])}
    assert 0 < len(own) < len(arrays)
    write_npz(part / "weights.npz", own)
    # What is not of the prefix is not taken from there.
    write_npz(tmp_path / "whole/weights.npz", {**arrays, next(iter(own)): np.zeros(3)})
    return part


def test_weights_that_another_folder_has_are_read_from_there(shared):
    known = model("multiscale").network.variables
    for one, other in zip(opened(shared).network.variables, known, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("entry", [None, 3, {}, {"folder": "whole"}, {"folder": 1, "prefix": ""}])
def test_an_entry_of_shared_weights_that_is_none_is_named(shared, entry):
    file = shared / "model.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), SHARED: entry}))
    assert refused(opened, shared).endswith(f"{file} must name a `folder` and a `prefix`.")


def test_a_folder_without_the_one_that_it_shares_weights_with_says_so(shared):
    (shared.parent / "whole/weights.npz").unlink()
    line = refused(opened, shared)
    assert line.startswith(f"{shared} has only a part of its weights, and ")
    assert line.endswith(" --bare --out FOLDER` writes a folder with all of them.")


# Shipped models


def test_models_that_a_wheel_leaves_out_say_where_they_are(mistake, tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "HERE", tmp_path)  # an installed package without them
    monkeypatch.setattr(onepass.foundation.locations, "ROOT", tmp_path)
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


@pytest.mark.parametrize("kind", some_slow(["pixelcnn", "multiscale"], ("multiscale",)))
def test_a_fixed_point_says_its_passes_and_takes_several_images_at_once(kind):
    known, three = model(kind), dict(seed=5, num=3, temperature=0.9, condition=[1, 0, 1])
    cached = known.sample(**three)
    assert known.model.passes is None
    np.testing.assert_array_equal(known.sample(**three, method="fixed-point"), cached)
    multiscale = known.network.multiscale
    pixels = 8**2 if multiscale is None else multiscale.config.base_size**2
    assert 1 < known.model.passes < pixels
    together = known.sample(**three, method="fixed-point", batch=2)
    assert known.model.batch_passes > known.model.passes > 1
    np.testing.assert_array_equal(together, cached)
    for changed, line in (
        (
            dict(method="fast"),
            "`method` must be one of auto, cached, fixed-point, naive, got fast.",
        ),
        (dict(batch=2), '`batch` > 1 requires `method="fixed-point"`.'),
        (dict(batch=0), "`batch` must be an integer of at least 1, got 0."),
    ):
        assert refused(known.sample, **three, **changed) == line
    if kind == "pixelcnn":
        options = dict(seed=7, condition=2, prefix=cached[0].reshape(64, -1)[:20])
        kept = known.sample(method="fixed-point", **options)
        np.testing.assert_array_equal(kept, known.sample(**options))
    else:
        line = refused(known.sample, condition=1, method="naive")
        assert line == "Only a PixelCNN has a naive sampler."


def test_a_class_goes_by_its_name_or_its_number():
    known = model("pixelcnn")
    eel = known.sample(condition="eel", seed=1)
    np.testing.assert_array_equal(known.sample(condition=2, seed=1), eel)
    np.testing.assert_array_equal(known.sample(condition="2", seed=1), eel)
    assert not np.array_equal(known.sample(condition="cat", seed=1), eel)
    mixed = known.sample(condition=["cat", "eel"], seed=1, num=2)
    np.testing.assert_array_equal(mixed[:1], known.sample(condition="cat", seed=1))
    np.testing.assert_array_equal(mixed[1:], known.sample(condition="eel", seed=1, num=2)[1:])


def test_a_name_that_is_a_number_is_taken_as_a_name():
    known = dataclasses.replace(model("pixelcnn").front, classes=("2", "1", "0"))
    assert [known.label(value) for value in ("2", 1, "0")] == [0, 1, 2]


def test_what_is_asked_for_is_what_is_drawn():
    def left_over_right(name):
        drawn = model("pixelcnn").sample(condition=name, seed=1, num=8).astype(int)
        return drawn[:, :, :4].mean() - drawn[:, :, 4:].mean()

    # The toys' cats are 200 levels brighter on the left, eels 80 on the right. Eels of a short
    # training may not be; the same noise draws the same images if the class is not read.
    assert left_over_right("cat") > 40
    assert left_over_right("cat") > left_over_right("eel") + 20


@pytest.mark.slow
def test_a_caption_is_drawn_and_so_is_a_map():
    text = model("text").sample(condition="a slope", num=2, seed=1)
    assert text.shape == (2, 8, 8, 1) and not np.array_equal(*text)
    halves = np.repeat(np.array([[0, 1]]), 8, 0).repeat(4, 1)
    first, other = (model("map").sample(condition=m, seed=1) for m in (halves, 1 - halves))
    assert not np.array_equal(first, other)


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
        (np.ones((1, 8, 8, 1), np.float64), "got float64"),
        (np.ones((1, 8, 8, 1), bool), "got bool"),
        (np.full((1, 8, 8, 1), 256), r"`images` must be in 0 to 255, got 256 to 256\."),
        (np.full((1, 8, 8, 1), -1), "got -1 to -1"),
        (np.zeros((1, 8, 8), np.uint8), r"shape \[any, 8, 8, 1\], got \[1, 8, 8\]"),
        (np.zeros((8, 8, 1), np.uint8), r"shape \[any, 8, 8, 1\], got \[8, 8, 1\]"),
        (np.zeros((1, 16, 16, 1), np.uint8), r"got \[1, 16, 16, 1\]"),
        (np.zeros((1, 8, 8, 3), np.uint8), r"got \[1, 8, 8, 3\]"),
        (np.zeros((0, 8, 8, 1), np.uint8), r"got \[0, 8, 8, 1\]"),
    ],
)
@pytest.mark.parametrize("kind", ["pixelcnn", "multiscale"])
def test_log_prob_of_what_is_no_image_is_refused(kind, images, complaint):
    assert re.search(complaint, refused(model(kind).log_prob, images, 0))


def test_log_prob_does_not_depend_on_the_type_of_whole_numbers():
    images = toys(2, 5)["images"][..., None]
    known = model("pixelcnn").log_prob(images, 0)
    for dtype in (np.int32, np.uint16, np.int64):
        np.testing.assert_array_equal(model("pixelcnn").log_prob(images.astype(dtype), 0), known)


def test_images_to_go_on_from_are_checked_alike():
    floats = np.full((4, 4, 1), 0.5)
    for kind, prefix in (("pixelcnn", floats.reshape(16, 1)), ("multiscale", floats)):
        line = refused(model(kind).sample, condition=0, prefix=prefix)
        assert "`prefix` must be whole" in line
