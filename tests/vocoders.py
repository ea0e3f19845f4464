"""Small vocoder networks of every kind, with weights far enough from zero to matter."""

import networks
import tensorflow as tf
from marks import some_slow
from networks import levels_of as levels_of
from networks import moved

from onepass.likelihoods import noise
from wavenet.config import MelConvention, WaveNetConfig
from wavenet.vocoder import VocoderWaveNet

MEL = MelConvention(16_000, 40, 256, 256, 20)
SMALL = dict(
    layers=2, stacks=1, filter_width=2, residual_channels=12, gate_channels=10, skip_channels=14,
    components=3, front_width=16, condition_channels=6, feature_channels=20, upsample_factors=(40,),
    conditioner_units=9, head_channels=8, head_width=6,
)  # fmt: skip
KINDS = {
    "dense conditioner": {},
    "prediction": dict(prediction_order=8),
    "prediction, pitch": dict(prediction_order=8, pitch_taps=5),
    "prediction, given pitch": dict(prediction_order=8, pitch_taps=5, feature_channels=22),
    "prediction, pitch, bunches of 2": dict(prediction_order=8, pitch_taps=5, bunch_samples=2),
    "prediction, pitch, bunches of 4": dict(
        prediction_order=8, pitch_taps=5, pitch_bins=30, bunch_samples=4, subframes=2
    ),
    "bunches of 4": dict(bunch_samples=4, subframes=2),
}
QUICK = ("dense conditioner", "prediction, pitch, bunches of 4")
SOME_SLOW = some_slow(KINDS, [kind for kind in KINDS if kind not in QUICK])


def vocoder_of(kind: str, seed: int = 0, **changes) -> VocoderWaveNet:
    """A network of a kind, every variable of it moved off its initial value."""
    return vocoder_with(WaveNetConfig(**(SMALL | KINDS[kind] | changes)), MEL, seed)


def network_for(kind: str, **changes):
    """A network of a kind of this module or of `networks`."""
    return (vocoder_of if kind in KINDS else networks.network_of)(kind, **changes)


def condition_for(network, batch: int, samples: int):
    """A condition of any of these networks for so many samples, or None."""
    if network.config.conditioner_units:
        return network.condition(frames_of(network, batch, samples), None, samples)
    return networks.condition_of(network, batch, samples)


def vocoder_with(config: WaveNetConfig, mel: MelConvention, seed: int = 0) -> VocoderWaveNet:
    """A network of this configuration, every variable of it moved off its initial value."""
    return moved(VocoderWaveNet(config, mel, seed))


def frames_of(network: VocoderWaveNet, batch: int, samples: int, seed: int = 2):
    """Frames for so many samples, the mel between silence and loud speech."""
    count = -(-samples // network.config.hop_samples)
    channels = network.config.feature_channels
    draws = noise.normal(seed, list(range(batch)), 0, count * channels)[..., 0]
    return 0.5 + 0.1 * tf.reshape(draws, [batch, count, channels])
