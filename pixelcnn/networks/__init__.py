"""Networks of the image models: PixelCNN, the multiscale model and encoders of conditions."""

from typing import TYPE_CHECKING

from replicator.runs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from pixelcnn.networks.conditioning import Condition as Condition
    from pixelcnn.networks.conditioning import Conditioner as Conditioner
    from pixelcnn.networks.config import ConditioningConfig as ConditioningConfig
    from pixelcnn.networks.config import FactorConfig as FactorConfig
    from pixelcnn.networks.config import MultiscaleConfig as MultiscaleConfig
    from pixelcnn.networks.config import OutputConfig as OutputConfig
    from pixelcnn.networks.config import PixelCNNConfig as PixelCNNConfig
    from pixelcnn.networks.factor import Factor as Factor
    from pixelcnn.networks.multiscale import Multiscale as Multiscale
    from pixelcnn.networks.pixelcnn import PixelCNN as PixelCNN

_PLACES = {
    "Condition": "conditioning",
    "Conditioner": "conditioning",
    "ConditioningConfig": "config",
    "Factor": "factor",
    "FactorConfig": "config",
    "Multiscale": "multiscale",
    "MultiscaleConfig": "config",
    "OutputConfig": "config",
    "PixelCNN": "pixelcnn",
    "PixelCNNConfig": "config",
}
__all__ = list(_PLACES)
__getattr__ = lazy_exports(__name__, _PLACES)
