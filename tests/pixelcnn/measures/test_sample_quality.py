"""Distances and shares of features, and the classifier that makes the features."""

import numpy as np
import pytest
import scipy.linalg

from onepass.foundation.errors import UserError
from onepass.foundation.progress import Progress
from pixelcnn import measures
from pixelcnn.data.corpus import ImageSet
from pixelcnn.measures import Seen, frechet_distance, precision_recall, sample_quality


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
    measures = {"class_accuracy", "frechet_distance", "precision", "recall"}
    assert found.keys() == measures | {"too_few_images"}
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
