"""Reading, splitting and batching of images, captions and videos."""

from typing import TYPE_CHECKING

from replicator.runs.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from pixelcnn.data.captions import encode_caption as encode_caption
    from pixelcnn.data.corpus import Corpus as Corpus
    from pixelcnn.data.corpus import read_corpus as read_corpus
    from pixelcnn.data.dataset import ImageDataset as ImageDataset
    from pixelcnn.data.image_rules import ImageRules as ImageRules
    from pixelcnn.data.video import read_episodes as read_episodes

_PLACES = {
    "Corpus": "corpus",
    "ImageDataset": "dataset",
    "ImageRules": "image_rules",
    "encode_caption": "captions",
    "read_corpus": "corpus",
    "read_episodes": "video",
}
__all__ = list(_PLACES)
__getattr__ = lazy_exports(__name__, _PLACES)
