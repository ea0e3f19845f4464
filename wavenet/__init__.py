"""Sound: the WaveNet teacher, its samplers, and the recordings and features that it reads.

The names below are imported when they are first asked for: a configuration needs no TensorFlow.
"""

from typing import TYPE_CHECKING

from replicator.runs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from wavenet.config import WaveNetConfig as WaveNetConfig
    from wavenet.density import Density as Density
    from wavenet.evaluation import evaluate as evaluate
    from wavenet.model import SpeechModel as SpeechModel
    from wavenet.model import load as load
    from wavenet.network import WaveNet as WaveNet
    from wavenet.presets import PRESETS as PRESETS
    from wavenet.presets import DataConfig as DataConfig
    from wavenet.presets import TrainConfig as TrainConfig
    from wavenet.training import train as train
    from wavenet.vocoder import VocoderWaveNet as VocoderWaveNet

_PLACES = {
    "PRESETS": "presets",
    "DataConfig": "presets",
    "Density": "density",
    "SpeechModel": "model",
    "TrainConfig": "presets",
    "VocoderWaveNet": "vocoder",
    "WaveNet": "network",
    "WaveNetConfig": "config",
    "evaluate": "evaluation",
    "load": "model",
    "train": "training",
}
__all__ = list(_PLACES)
__getattr__ = lazy_exports(__name__, _PLACES)
