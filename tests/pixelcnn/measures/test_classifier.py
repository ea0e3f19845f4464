"""The classifier that says what samples show is trained for as long as its images are worth."""

import numpy as np
import pytest

from pixelcnn.data.corpus import ImageSet
from pixelcnn.measures import classifier


@pytest.mark.slow
def test_a_classifier_of_few_images_is_trained_for_fewer_steps(monkeypatch, tmp_path):
    assert [classifier.num_steps(images) for images in (9, 60, 480, 10**6)] == [
        *(classifier.LEAST_STEPS, classifier.MOST_EPOCHS * 60 // classifier.BATCH_SIZE),
        *(classifier.STEPS, classifier.STEPS),
    ]
    monkeypatch.setattr(classifier, "LEAST_STEPS", 2)
    monkeypatch.setattr(classifier, "MOST_EPOCHS", 1)
    made = []
    monkeypatch.setattr(classifier.Progress, "advance", lambda *_: made.append(1))
    images = np.random.default_rng(0).integers(0, 255, (8, 16, 16, 1)).astype(np.uint8)
    labels = np.arange(8, dtype=np.int32) % 2
    train = ImageSet(images, labels, None, None, tuple("abcdefgh"))
    classifier.train_classifier(train, 2, tmp_path / "classifier.npz")
    assert len(made) == 2  # of which every one is counted
