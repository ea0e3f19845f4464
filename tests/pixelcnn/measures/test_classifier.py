"""The classifier that says what samples show is trained for as long as its images are worth."""

import numpy as np
import pytest

from onepass.foundation.progress import Progress
from pixelcnn import measures
from pixelcnn.data.corpus import ImageSet


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
