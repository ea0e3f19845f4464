"""Small networks of every kind, with weights far enough from zero to matter."""

import numpy as np
import tensorflow as tf
from marks import some_slow

from onepass.likelihoods import noise
from wavenet.config import TrainConfig, WaveNetConfig
from wavenet.model import make_network
from wavenet.network import WaveNet

SMALL = dict(layers=4, stacks=2, residual_channels=12, gate_channels=10, skip_channels=14)
KINDS = {
    "mixture": dict(filter_width=3, components=4),
    "mixture, predicting, amplified": dict(
        filter_width=2, components=3, front_width=5, linear_prediction=True, input_gain=4.0
    ),
    "gaussian, frames": dict(
        likelihood="gaussian",
        filter_width=3,
        feature_channels=7,
        condition_channels=6,
        upsample_factors=(4, 4),
    ),
    "softmax, speakers": dict(likelihood="categorical", levels=256, filter_width=2, speakers=3),
    "mixture, one-hot speakers, frames": dict(
        filter_width=2,
        components=2,
        speakers=2,
        speaker_channels=0,
        feature_channels=3,
        condition_channels=4,
        upsample_factors=(8,),
    ),
    "mixture, context": dict(
        filter_width=2, components=2, context_layers=3, context_block_samples=16, context_channels=5
    ),
}

WINDOWS = "mixture, windows"
ADAPTIVE = dict(
    filter_width=2, components=3, front_width=4, prediction_order=5, prediction_windows=(24, 12),
    prediction_block=8,
)  # fmt: skip
SOME_SLOW = some_slow(KINDS, ("mixture", "mixture, context", "mixture, one-hot speakers, frames"))


def network_of(kind: str, seed: int = 0, compute_dtype: str = "float32") -> WaveNet:
    """A network of a kind, every variable of it moved off its initial value."""
    fields = SMALL | (ADAPTIVE if kind == WINDOWS else KINDS[kind])
    config = WaveNetConfig(**fields, compute_dtype=compute_dtype)
    return moved(make_network(TrainConfig(config, seed=seed)))


def moved(network, by: float = 0.1, seed: int = 99):
    """The network, every variable of it moved off its initial value."""
    for i, variable in enumerate(network.trainable_variables):
        size = int(np.prod(variable.shape))
        draws = noise.normal(noise.fold_in(seed, i), [0], 0, size)[0, :, 0]
        variable.assign_add(by * tf.reshape(draws, variable.shape))
    return network


def levels_of(network: WaveNet, batch: int, samples: int, seed: int = 1) -> np.ndarray:
    """Levels of a wandering waveform, int32 [batch, samples]."""
    steps = noise.normal(seed, list(range(batch)), 0, samples)[..., 0].numpy()
    return network.codec.encode(tf.constant(0.3 * np.sin(np.cumsum(0.2 * steps, 1)))).numpy()


def condition_of(network: WaveNet, batch: int, samples: int, seed: int = 2):
    """A condition for so many samples, or None."""
    config = network.config
    if not (config.feature_channels or config.speakers):
        return None
    frames = None
    if config.feature_channels:
        count = -(-samples // config.hop_samples)
        size = count * config.feature_channels
        frames = noise.normal(seed, list(range(batch)), 0, size)[..., 0]
        frames = tf.reshape(frames, [batch, count, config.feature_channels])
    speaker = tf.range(batch) % config.speakers if config.speakers else None
    return network.condition(frames, speaker, samples)
