"""Samples of models of classes are evaluated by a classifier that only real images have trained."""

import json
import shutil

import image_runs
import numpy as np
import pytest
import scipy.linalg
from image_runs import CLASSES, DEV, dev_of, images, model, run, toys

import onepass
from onepass.foundation.progress import Progress
from onepass.foundation.rules import UserError
from pixelcnn import measures, shipped
from pixelcnn.config import ImageRules
from pixelcnn.data.corpus import ImageSet, read_corpus, read_dev
from pixelcnn.evaluation import classifier_for, evaluate_samples
from pixelcnn.measures import (
    Seen,
    cache_folder,
    classifier_of,
    digest,
    frechet_distance,
    load_classifier,
    precision_recall,
    sample_quality,
)

RULES = ImageRules(8, 1)


@pytest.fixture(scope="module", autouse=True)
def quick(tmp_path_factory):
    """A smaller classifier, in a cache of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "WIDTHS", (8,))
        patch.setattr(measures, "STEPS", 100)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def trained():
    return classifier_of(read_corpus(images(), RULES).splits["train"], len(CLASSES))


def test_a_classifier_knows_images_that_it_has_not_seen(trained):
    dev = toys(60, 9)
    seen = trained(dev["images"][..., None])
    assert np.mean(seen.labels == dev["labels"]) > 0.95
    assert seen.features.shape == (60, trained.reference.shape[1])
    assert len(trained.reference) == image_runs.TRAIN


def test_a_classifier_is_trained_once_for_each_set_of_images(trained, monkeypatch):
    monkeypatch.setattr(measures, "train_classifier", None)
    train = read_corpus(images(), RULES).splits["train"]
    again = classifier_of(train, len(CLASSES))
    probe = toys(6, 5)["images"][..., None]
    np.testing.assert_array_equal(again(probe).features, trained(probe).features)
    np.testing.assert_array_equal(again.reference, trained.reference)
    file = cache_folder() / f"{digest(train)}.npz"
    train.labels[0] = 2
    assert digest(train) != file.stem and load_classifier(file, digest(train)) is None


def test_samples_and_dev_images_are_measured_alike(trained):
    known, dataset = model("pixelcnn"), dev_of("pixelcnn")
    found = evaluate_samples(known, dataset, trained, 9, 4, 1.0, (0.5,))
    labels = [i % 3 for i in range(9)]
    drawn = known.sample(condition=labels, seed=4, num=9, guidance=1.0, temperature=0.5)
    expected = np.mean(trained(drawn).labels == labels)
    assert found["class_accuracy"]["mean"] == pytest.approx(expected)
    assert (found["num"], found["guidance"], found["temperature"]) == (9, 1.0, [0.5])
    dev = found["dev"]
    assert dev["pictures"] == 9 and dev["class_accuracy"]["mean"] == 1.0
    real = dataset.source.splits["dev"]
    rows = np.linspace(0, DEV - 1, 9).astype(int)
    for shown, asked, figures in (
        (drawn, np.array(labels), found),
        (real.images[rows], real.labels[rows], dev),
    ):
        alone = sample_quality(trained, shown, asked)
        assert {name: figures[name] for name in alone} == alone
    assert dev["frechet_distance"] != found["frechet_distance"]


@pytest.mark.slow
def test_the_command_says_what_samples_show(trained, capsys):
    words = ["evaluate", str(run("pixelcnn")), "--samples", "6", "--guidance", "0.5"]
    assert onepass.main(words) == 0
    samples, dev = capsys.readouterr().out.splitlines()[-2:]
    assert samples.startswith("  6 samples, guidance 0.5, temperature 1: class seen in ")
    assert dev.startswith("  6 dev images: class seen in 100.0% (95%: 61.0 to 100.0, n 6, few), ")
    assert "of too few images" in dev


@pytest.mark.slow
def test_without_training_images_there_is_a_line_in_place_of_figures(tmp_path, capsys):
    copy = shutil.copytree(run("multiscale"), tmp_path / "copy")
    stored = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**stored, "data_folder": "/gone"}))
    file = images() / "toy_dev.npz"
    assert onepass.main(["evaluate", str(copy), "--data", str(file), "--json"]) == 0
    printed = capsys.readouterr()
    assert "samples" not in json.loads(printed.out)
    line = "samples are not evaluated: --data has no training images"
    assert printed.err.splitlines()[-1] == line


def test_classes_in_another_order_are_not_taken_for_the_models(tmp_path):
    for split in ("train", "dev"):
        order = np.array(CLASSES[::-1])
        np.savez(tmp_path / f"x_{split}.npz", **(toys(6, 1) | {"classes": order}))
    known = model("pixelcnn")
    assert classifier_for(known, "x", [str(tmp_path)]) is None
    sources = [str(images() / "toy_dev.npz"), str(tmp_path), str(images())]
    assert classifier_for(known, "x", sources) is not None


@pytest.mark.parametrize("name", ["shipped-digits", "shipped-digits-64"])
def test_the_shipped_classifier_knows_the_digits_of_dev(name):
    file = shipped.classifier(f"{name}-teacher")
    assert file == shipped.classifier(name) in shipped.classifiers()
    assert shipped.classifier("shipped-objects") is shipped.classifier("digits") is None
    data, side = shipped.dev_images(name), 64 if name.endswith("64") else 32
    dev = read_dev(data, ImageRules(side, 3), tuple("0123456789")).splits["dev"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "WIDTHS", (24, 32, 48, 64))
        seen = load_classifier(file)(dev.images)
    assert len(dev.labels) > 10 * DEV and np.mean(seen.labels == dev.labels) > 0.985


def normal(count, mean, deviation, seed=0):
    return np.random.default_rng(seed).normal(mean, deviation, [count, 4])


def test_the_frechet_distance_is_that_of_the_moments():
    real, made = normal(50, 0, 1), normal(60, 1, 3, 1) @ np.triu(np.ones([4, 4]))
    moments = [(x.mean(0), np.cov(x, rowvar=False)) for x in (real, made)]
    (m_1, c_1), (m_2, c_2) = moments
    root = scipy.linalg.sqrtm(c_1 @ c_2).real
    expected = np.sum((m_1 - m_2) ** 2) + np.trace(c_1 + c_2 - 2 * root)
    assert frechet_distance(real, made) == pytest.approx(expected, rel=1e-6)
    assert frechet_distance(real, real + 2.0) == pytest.approx(16.0, rel=1e-6)
    assert frechet_distance(real, real) == pytest.approx(0.0, abs=1e-6)


def test_precision_is_of_what_was_made_and_recall_of_what_is_real():
    here, there = normal(40, 0, 1), normal(40, 100, 1, 1)
    both = np.concatenate([here, there])
    assert precision_recall(both, both) == (1.0, 1.0)
    assert precision_recall(both, here) == (1.0, 0.5)
    assert precision_recall(here, both) == (0.5, 1.0)
    assert precision_recall(here, there) == (0.0, 0.0)


def test_the_radius_is_the_distance_of_the_third_neighbour():
    real = np.array([[0.0], [1.0], [2.0], [3.0], [50.0]])
    near, far = np.array([[5.4]]), np.array([[6.1]])  # 3 is 3 from its third neighbour
    assert precision_recall(real, np.repeat(near, 5, 0))[0] == 1.0
    assert precision_recall(real[:4], np.repeat(far, 5, 0))[0] == 0.0


class Classifier:
    """Sees class 0 or 1 in turn, and features of noise."""

    reference = normal(30, 0, 1)

    def __call__(self, images):
        return Seen(np.arange(len(images)) % 2, normal(len(images), 0, 1, 1))


def test_class_accuracy_is_the_share_that_shows_what_was_asked_for():
    found = sample_quality(Classifier(), [None] * 4, np.array([0, 1, 0, 0]))
    shares = {"class_accuracy", "precision", "recall"}
    assert found.keys() == shares | {"frechet_distance", "too_few_images"}
    accuracy = found["class_accuracy"]
    assert (accuracy["mean"], accuracy["low"] < 0.75 < accuracy["high"]) == (0.75, True)
    enough = sample_quality(Classifier(), [None] * 5, np.zeros(5))  # more than the features
    assert (found["too_few_images"], enough["too_few_images"]) == (True, False)


def test_a_frechet_distance_of_one_image_is_refused_in_one_line():
    for count in (0, 1):
        with pytest.raises(UserError, match=f"needs at least 2 images, got {count}"):
            frechet_distance(normal(10, 0, 1), normal(10, 0, 1)[:count])


@pytest.mark.slow
def test_a_classifier_of_few_images_is_trained_for_fewer_steps(monkeypatch, tmp_path):
    assert [measures.num_steps(images) for images in (9, 60, 480, 10**6)] == [
        *(measures.LEAST_STEPS, measures.MOST_EPOCHS * 60 // measures.BATCH_SIZE),
        *(measures.STEPS, measures.STEPS),
    ]
    monkeypatch.setattr(measures, "LEAST_STEPS", 2)
    monkeypatch.setattr(measures, "MOST_EPOCHS", 1)
    made = []
    monkeypatch.setattr(Progress, "advance", lambda *_, **__: made.append(1))
    images = np.random.default_rng(0).integers(0, 255, (8, 16, 16, 1)).astype(np.uint8)
    labels = np.arange(8, dtype=np.int32) % 2
    train = ImageSet(images, labels, None, None, tuple("abcdefgh"))
    measures.train_classifier(train, 2, tmp_path / "classifier.npz")
    assert len(made) == 2  # of which every one is counted
