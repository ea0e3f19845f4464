"""The network that a training configuration describes."""

from onepass.foundation.errors import UserError
from wavenet.adaptive_network import AdaptiveWaveNet
from wavenet.config import TrainConfig
from wavenet.network import Network, WaveNet
from wavenet.vocoder import VocoderWaveNet


def make_network(config: TrainConfig) -> Network:
    """Return the untrained network of a configuration.

    It is an `AdaptiveWaveNet` with `prediction_windows`, a `VocoderWaveNet` with
    `conditioner_units`, else a `WaveNet`.

    Args:
      config: the configuration after `TrainConfig.resolve_settings`.

    Raises:
      UserError: If a vocoder is configured without mel frames.
    """
    if config.network.prediction_windows:
        return AdaptiveWaveNet(config.network, config.seed)
    if not config.network.conditioner_units:
        return WaveNet(config.network, config.seed)
    mel = config.data.mel(config.network.hop_samples)
    if mel is None:
        raise UserError("`features` must hold mel for `conditioner_units`.")
    return VocoderWaveNet(config.network, mel, config.seed)
