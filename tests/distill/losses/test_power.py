"""The power losses compare spectra, whatever the phase."""

import numpy as np
import pytest
import tensorflow as tf

from distill.losses.spectra import magnitude_loss, multi_loss, squared_loss
from wavenet import shipped
from wavenet.data import audio

RATE_HZ = 16_000


@pytest.fixture(scope="module")
def speech():
    path = sorted(shipped.recordings_folder().glob("dev/*.flac"))[0]
    return audio.amplify(audio.read(path, RATE_HZ)[: 2 * RATE_HZ], 4.64)


def noise_like(sound: np.ndarray) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 1, len(sound)).astype(np.float32)


@pytest.mark.parametrize("loss", [squared_loss, magnitude_loss, multi_loss])
def test_power_losses_are_zero_for_the_same_and_grow_with_noise(loss, speech):
    recorded = tf.constant(speech[None, :8000])
    noise = 0.05 * tf.constant(noise_like(speech)[None, :8000])
    values = [float(loss(recorded + scale * noise, recorded)) for scale in (0.0, 0.3, 1.0)]
    assert values[0] < 1e-6
    assert values[0] < values[1] < values[2]


@pytest.mark.parametrize("loss", [squared_loss, magnitude_loss, multi_loss])
def test_power_losses_do_not_hear_phase_or_depend_on_the_level(loss, speech):
    recorded = tf.constant(speech[None, :8000])
    turned = float(loss(-recorded, recorded))
    halved = float(loss(0.5 * recorded, recorded))
    assert turned < 1e-6 < halved
    quiet = [float(loss(0.5 * x, x)) for x in (recorded, 0.7 * recorded)]
    np.testing.assert_allclose(*quiet, rtol=0.1)


def test_squared_loss_leaves_time_out(speech):
    recorded = tf.constant(speech[None, :8192])
    late = tf.roll(recorded, 1024, 1)
    assert float(squared_loss(late, recorded)) < 0.2 * float(magnitude_loss(late, recorded))
