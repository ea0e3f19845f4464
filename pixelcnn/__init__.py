"""Image models: PixelCNN, the multiscale model of O(log N) passes, their training and sampling."""

from typing import TYPE_CHECKING

from replicator.runs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from pixelcnn.config import MultiscaleTrainConfig as MultiscaleTrainConfig
    from pixelcnn.config import PixelCNNTrainConfig as PixelCNNTrainConfig
    from pixelcnn.density import ImageDensity as ImageDensity
    from pixelcnn.evaluation import evaluate as evaluate
    from pixelcnn.model import ImageModel as ImageModel
    from pixelcnn.model import load as load

_PLACES = {
    "ImageDensity": "density",
    "ImageModel": "model",
    "MultiscaleTrainConfig": "config",
    "PixelCNNTrainConfig": "config",
    "evaluate": "evaluation",
    "load": "model",
}
__all__ = list(_PLACES)
__getattr__ = lazy_exports(__name__, _PLACES)
