"""Every objective of version 0.2 on one fixed batch: its terms, their sum and its gradient."""

import numpy as np
import pytest
import tensorflow as tf
from golden_objectives import CASES

GOLDEN = {
    "speakers, logistic": {
        "loss": 100.68,
        "gradient_norm": 6050.12,
        "kl": 3.37231,
        "cross_entropy": 3.08093,
        "entropy": -0.291375,
        "contrastive": 3.3686,
        "squared": 188.896,
        "magnitude": 1.51332,
        "multi": 1.91879,
        "feature": 0.0197835,
        "style": 0.0269883,
        "level_db": -1.53578,
    },
    "plain, gaussian": {
        "loss": 9.46865,
        "gradient_norm": 248.454,
        "kl": 1.55444,
        "cross_entropy": 0.757723,
        "entropy": -0.796716,
        "regularisation": 0.630453,
        "contrastive": 1.55364,
        "squared": 4.06822,
        "magnitude": 0.595563,
        "multi": 1.70405,
        "feature": 0.0210675,
        "style": 0.0371603,
        "level_db": -6.8244,
    },
    "opposed": {
        "loss": 102.428,
        "gradient_norm": 6050.25,
        "kl": 3.37231,
        "cross_entropy": 3.08093,
        "entropy": -0.291375,
        "contrastive": 3.3686,
        "squared": 188.896,
        "magnitude": 1.51332,
        "multi": 1.91879,
        "feature": 0.0197835,
        "style": 0.0269883,
        "adversarial": 0.90099,
        "matching": 0.100672,
        "discriminator": 0.915719,
        "level_db": -1.53578,
    },
    "any teacher, gaussian": {
        "loss": 120.489,
        "gradient_norm": 813.125,
        "kl": 119.34,
        "apart": 1.14907,
    },
    "any teacher, logistic": {
        "loss": 2447.02,
        "gradient_norm": 35295.7,
        "kl": 2443.19,
        "apart": 3.82907,
    },
    "flow of images": {
        "loss": 13.2099,
        "gradient_norm": 57.132,
        "kl": 4.09074,
        "cross_entropy": 4.40268,
        "entropy": 0.311944,
        "spectrum": 1.88351,
        "features": 0.0708262,
        "likelihood": 10.0058,
        "forward": 6.9636,
    },
    "guided images": {
        "loss": 3.80924,
        "gradient_norm": 1.63239,
        "kl_bits_per_dim": 0.0384685,
        "bits_per_dim": 10.8757,
    },
}


@pytest.mark.parametrize("name", CASES)
def test_terms_and_gradient_are_those_of_version_0_2(name):
    loss, batch, variables = CASES[name]()
    with tf.GradientTape() as tape:
        tape.watch(variables)
        total, values = loss(batch)
    gradients = tape.gradient(total, variables)
    found = {"loss": total, "gradient_norm": tf.linalg.global_norm(gradients), **values}
    found = {term: float(value) for term, value in found.items()}
    assert list(found) == list(GOLDEN[name])
    np.testing.assert_allclose(list(found.values()), list(GOLDEN[name].values()), rtol=2e-4)
