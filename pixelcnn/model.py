"""A trained image model that samples, evaluates and compresses images."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tensorflow as tf

from onepass.draw import Draw
from onepass.foundation.atomic_files import Arrays
from onepass.foundation.errors import UserError
from onepass.foundation.model_folder import assign_weights, stored_model
from onepass.foundation.stored_config import checked_config
from onepass.interface import Model, collect_images, stream_images
from onepass.likelihoods.initial import ZeroInitial
from onepass.likelihoods.noise import as_key
from onepass.samplers import SAMPLERS
from pixelcnn import shipped
from pixelcnn.condition_values import (
    ConditionValue,
    as_condition,
    as_list,
    label_of,
    stack_conditions,
)
from pixelcnn.config import KINDS, AnyTrainConfig
from pixelcnn.data.video import Statistics
from pixelcnn.density import ImageDensity
from pixelcnn.networks.multiscale import Multiscale
from pixelcnn.request_checks import check_images, check_request, checked_draw, with_prefix
from pixelcnn.sampling.generation import ImageSampler, Request
from pixelcnn.training import config_from

if TYPE_CHECKING:
    from onepass.model import Autoregressive
    from pixelcnn.compression import Images


@dataclasses.dataclass(frozen=True)
class ImageModel(Model):
    """A trained image model with everything needed to sample.

    Attributes:
      density: the networks with their weights.
      config: the training configuration.
      classes: class names, in the order of their labels.
      statistics: normalisation of actions and states for a video model, or None.
      spec: the content of model.json.
      sampler: the sampler of the density.
    """

    density: ImageDensity
    config: AnyTrainConfig
    classes: tuple[str, ...]
    statistics: Statistics | None
    spec: dict[str, Any]
    sampler: ImageSampler

    options = frozenset({"method", "temperature", "prefix", "guidance", "batch", "scales"})
    makes, compresses = "images", True  # `compress` and `decompress` exist
    drafts = False

    @property
    def kind(self) -> str:
        """The kind of model in model.json: "pixelcnn" or "multiscale"."""
        return self.config.kind

    @property
    def network(self) -> ImageDensity:
        """The module whose variables are the weights."""
        return self.density

    @property
    def size(self) -> int:
        """Side of the images in pixels."""
        return self.config.data.size

    @property
    def channels(self) -> Literal[1, 3]:
        """Number of channels: 1 for grey, 3 for red, green and blue."""
        return self.config.data.channels

    @property
    def bits(self) -> int:
        """Number of bits per level, 8 to 16."""
        return self.config.data.bits

    @property
    def levels(self) -> int:
        """Number of levels per channel."""
        return self.config.output.levels

    @property
    def whole(self) -> bool:
        """Return whether all parts of the model exist, which sampling from scratch needs."""
        return self.density.whole

    @property
    def multiscale(self) -> Multiscale | None:
        """The multiscale network; None for a PixelCNN."""
        return self.density.multiscale

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the samplers of a PixelCNN, or of a multiscale model's base.

        "cached", also as "auto", computes one pixel per step; "fixed-point" draws the same images
        in fewer, more expensive passes; "naive" runs the whole network for every pixel (PixelCNN);
        others are registered in `onepass.samplers`.
        """
        return ("auto", *SAMPLERS)

    def _sample(self, draw: Draw) -> Any:
        return collect_images(self._scales(draw), draw.scales)

    def _stream(self, draw: Draw, chunk: int | None) -> Iterator[Any]:
        if chunk is not None:
            raise UserError("`chunk` must be None: images come one after another.")
        return stream_images(self._scales(draw), draw.scales)

    def _scales(self, draw: Draw) -> Iterator[list[np.ndarray]]:
        """Return an iterator over the scales of each image, which are drawn when it advances.

        A multiscale model draws its smaller sizes, too. If its factors have no coordinates, the
        prefix may have any shape, `length` is the longer side of the result, and the image is
        enlarged in tiles of bounded memory. With `batch`, all images come together at the end.

        Raises:
          UserError: If an argument does not fit the model.
          ValueError: If the shape or the levels of the prefix do not fit the model.
        """
        side = self.size if draw.length is None else draw.length
        if isinstance(side, tuple | list):
            if len(side) != 3 or side[0] != side[1] or side[2] != self.channels:
                shape = f"(side, side, {self.channels})"
                raise UserError(f"`length` must be a side or {shape}, got {side!r}.")
            side = side[0]
        seed, num, size, batch = checked_draw(draw.seed, draw.num, side, draw.batch)
        conditions = as_list(draw.condition, num)
        heat = 1.0 if draw.temperature is None else draw.temperature
        request = Request(
            rows=tuple(range(num)),
            seed=seed,
            size=size,
            condition={},
            temperature=heat if isinstance(heat, int | float) else tuple(heat),
            sampler="cached" if draw.method == "auto" else draw.method,
            guidance=draw.guidance,
            batch=batch,
        )
        request = with_prefix(self.density, request, draw.prefix)
        check_request(self.density, request)
        each = [self.condition(value) for value in conditions]
        if batch > 1:
            return self.sampler.images(request._replace(condition=stack_conditions(each)))
        requests = [request._replace(rows=(n,), condition=one) for n, one in enumerate(each)]
        return itertools.chain.from_iterable(map(self.sampler.images, requests))

    def log_density(
        self, num: int, length: Any, seed: int, condition: Any = None, *, method: str = "auto"
    ) -> np.ndarray:
        """Return the log-density of the images that `sample` draws, float32 [num], nats.

        The images are drawn at temperature 1, without guidance. The result is their exact
        log-probability, unless the base is a flow: the base then contributes the log-density of its
        values before rounding, plus the log of a level's width for each of them.

        Args:
          num: number of images.
          length: the `length` of `sample`, which must be the size in training.
          seed: random seed, an integer in [0, 2^64).
          condition: the `condition` of `sample`.
          method: the `method` of `sample`.

        Raises:
          ValueError: If the model lacks parts, or an argument or the size does not fit the model.
        """
        images = self.sample(num, length, seed, condition, method=method)
        batch = self._batch(images, condition)
        parts = self._drawn_nats(batch, as_key(seed), tf.range(len(images)))
        return np.sum([part.numpy() for part in parts.values()], axis=0)

    def as_draft(self, model: Any) -> Any:
        """Raise a UserError: only sequences in time order are drawn with a draft."""
        raise UserError("`draft` must be a model of sequences in time order, got one of images.")

    def log_prob(
        self,
        elements: np.ndarray,
        condition: ConditionValue | Sequence[ConditionValue] = None,
        *,
        lengths: Any = None,
        speaker: str | None = None,
    ) -> np.ndarray:
        """See `Model.log_prob`; the result is that of whole images, float32 [num].

        If the base is a flow, it is a lower bound, or NaN where the flow cannot be inverted in
        float32 (`ImageFlow.log_density`).

        Args:
          elements: integers [num, size, size, channels], with the size in training.
          condition: the `condition` of `sample`.
          lengths: None; images are scored whole.
          speaker: None.
        """
        self.check_options(lengths=lengths, speaker=speaker)
        parts = self._nats(self._batch(elements, condition))
        return np.sum([part.numpy() for part in parts.values()], axis=0)

    def _batch(self, images: np.ndarray, condition: Any) -> dict[str, np.ndarray]:
        """Return the density's inputs for images and conditions; errors are those of `log_prob`."""
        if not self.whole:
            raise UserError("The run has not trained all parts; it gives no probability.")
        shape = (None, self.size, self.size, self.channels)
        check_images("images", images, shape, self.levels)
        each = [self.condition(value) for value in as_list(condition, len(images))]
        return {"levels": np.asarray(images, np.int32), **stack_conditions(each)}

    @functools.cached_property
    def compressed(self) -> "Images":
        """The format of compressed files; raises a UserError if the model cannot compress."""
        from pixelcnn.compression import Images

        return Images(self)

    @functools.cached_property
    def autoregressive(self) -> "Autoregressive":
        """The PixelCNN as an `Autoregressive`; raises a UserError for a multiscale model."""
        from pixelcnn.autoregression import autoregressive

        return autoregressive(self.density)

    @functools.cached_property
    def _nats(self) -> Any:
        return tf.function(self.density.nats, autograph=False, reduce_retracing=True)

    @functools.cached_property
    def _drawn_nats(self) -> Any:
        return tf.function(self.density.drawn_nats, autograph=False, reduce_retracing=True)

    def compress(
        self,
        images: np.ndarray,
        condition: ConditionValue | Sequence[ConditionValue] = None,
        *,
        batch: int = 256,
        tolerance: float = 1e-5,
        verify: bool = True,
    ) -> bytes:
        """Compress images losslessly and return the content of the file.

        With many images, the file is less than 0.5 % larger than their `-log_prob` in bits.

        Args:
          images: uint8 [num, size, size, channels], with the size in training.
          condition: the `condition` of `sample`; it is stored in the file.
          batch: number of images that are decoded together.
          tolerance: maximum relative difference of the network's outputs on the machine that
            decodes. Up to this difference, decoding is exact; beyond it, the file is rejected.
          verify: whether to decode the file once with outputs perturbed by half the tolerance, and
            raise an error unless the images are restored.

        Raises:
          UserError: If the model has no exact conditional distributions, the images do not fit the
            model, or the verification fails.
        """
        from onepass.compression.files import compress

        options: Any = {"tolerance": tolerance, "verify": verify, "batch": batch}
        return compress(self.compressed, images, condition, **options)

    def decompress(self, data: bytes, *, max_elements: int | None = None) -> np.ndarray:
        """Return the images in a file from `compress`, uint8 [num, size, size, channels].

        Raises:
          UserError: If the file is damaged, truncated, from a different model, or holds more than
            `max_elements` (None: 1,024 for each byte of the file).
        """
        from onepass.compression.files import decompress

        return decompress(self.compressed, data, max_elements=max_elements)

    def condition(self, value: ConditionValue) -> dict[str, np.ndarray]:
        """Return the conditioner's inputs for a class, a caption or a map, as a batch of one.

        Raises:
          UserError: the value is not a condition of this model.
        """
        captions = self.spec.get("captions") or ()
        return as_condition(value, self.config.conditioning, self.classes, captions)

    def label(self, value: ConditionValue) -> int:
        """Return the label of a class, given its name or label.

        Raises:
          UserError: If the class is unknown.
        """
        return label_of(value, self.classes, self.config.conditioning.classes)


def load(path: Path | str) -> ImageModel:
    """Load a model from a run directory or a model folder.

    Args:
      path: a model folder; a run directory, whose best checkpoint provides averaged weights; or the
        name of a shipped model (`shipped.FOLDERS`), unless a folder has that name.

    Raises:
      UserError: If there is no image model, or it cannot be read.
    """
    path = folder_of(path)
    return model_of(*stored_model(path, spec_of), path)


def folder_of(path: Path | str) -> Path:
    """Return a shipped model's folder if `path` is its name and does not exist, else `path`."""
    path = Path(path)
    if str(path) in shipped.FOLDERS and not path.exists():
        return shipped.folder(str(path))
    return path


def spec_of(stored: dict, path: Path) -> dict[str, Any]:
    """Return the entries of model.json that describe the model; `stored` is a config.json."""
    config = _config(stored, path)
    return {
        "kind": config.kind,
        "preset": stored["preset"],
        "size": config.data.size,
        "channels": config.data.channels,
        "levels": config.output.levels,
        "condition": config.conditioning.kind,
        "classes": stored["class_names"],
        "statistics": stored["statistics"],
    }


def model_of(stored: dict, weights: Arrays, spec: dict, path: Path) -> ImageModel:
    """Return the model for a config.json (`stored`), weights by name, and a model.json (`spec`)."""
    config = _config(stored, path)
    density = ImageDensity(config, ZeroInitial())
    assign_weights(density, weights, path)
    statistics = stored["statistics"] and Statistics.from_dict(stored["statistics"])
    classes = tuple(stored["class_names"])
    return ImageModel(density, config, classes, statistics, spec, ImageSampler(density))


def _config(stored: Any, path: Path) -> AnyTrainConfig:
    needed = {"preset", "class_names", "statistics"}
    return checked_config(stored, path, tuple(KINDS), needed, config_from)
