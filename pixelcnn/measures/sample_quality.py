"""Measures of the quality of samples, based on an independent classifier's features."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from onepass.foundation.errors import UserError
from onepass.foundation.intervals import share_of
from pixelcnn.measures.classifier import Classifier

NEIGHBOURS = 3  # k of the k-nearest neighbours, as in Kynkaanniemi et al.


def sample_quality(
    classifier: Classifier, images: Sequence[np.ndarray], labels: np.ndarray
) -> dict[str, Any]:
    """Return measures of samples uint8 [side, side, channels] with the requested classes `labels`.

    Returns:
      A dict with class_accuracy, the share of samples classified as requested, a `Measure`;
      frechet_distance, precision and recall relative to real training images; and too_few_images,
      whether the features' covariance is singular because there are not more samples than features,
      in which case the distance depends mostly on the number of samples.
    """
    seen = classifier(images)
    precision, recall = precision_recall(classifier.reference, seen.features)
    return {
        "class_accuracy": dataclasses.asdict(share_of(seen.labels == labels)),
        "frechet_distance": frechet_distance(classifier.reference, seen.features),
        "precision": precision,
        "recall": recall,
        "too_few_images": len(images) <= seen.features.shape[1],
    }


def frechet_distance(real: np.ndarray, made: np.ndarray) -> float:
    """Return the Frechet distance between normal distributions fitted to features [n, channels].

        |m_1 - m_2|^2 + tr(C_1 + C_2 - 2 (C_1 C_2)^(1/2))

    The distance is biased upwards for few images, so compare equal numbers of images. Source:
    Heusel et al. 2017, arXiv:1706.08500, equation 6.
    """
    if (fewest := min(len(real), len(made))) < 2:
        raise UserError(f"A Frechet distance needs at least 2 images, got {fewest}.")
    difference = real.mean(0) - made.mean(0)
    covariances = [np.cov(features, rowvar=False) for features in (real, made)]
    # C_1 C_2 has the eigenvalues of a positive semi-definite matrix, up to rounding.
    roots = np.sqrt(np.maximum(np.linalg.eigvals(covariances[0] @ covariances[1]).real, 0.0))
    traces = sum(float(np.trace(covariance)) for covariance in covariances)
    return float(difference @ difference) + traces - 2.0 * float(roots.sum())


def precision_recall(real: np.ndarray, made: np.ndarray) -> tuple[float, float]:
    """Return precision and recall of generated features, [n, channels], in [0, 1].

    Precision is the share of generated features that are at most as far from some real feature as
    that feature's third nearest real neighbour; recall is the same with the roles exchanged.
    Source: Kynkaanniemi et al. 2019, arXiv:1904.06991, section 2.
    """
    between = _distances(real, made)
    precision = (between <= _radii(real)[:, np.newaxis]).any(0).mean()
    recall = (between <= _radii(made)).any(1).mean()
    return float(precision), float(recall)


def _radii(features: np.ndarray) -> np.ndarray:
    among = np.sort(_distances(features, features), 1)
    return among[:, min(NEIGHBOURS, len(features) - 1)]


def _distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    squares = (first**2).sum(1)[:, np.newaxis] + (second**2).sum(1) - 2.0 * first @ second.T
    return np.sqrt(np.maximum(squares, 0.0))
