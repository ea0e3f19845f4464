"""A trained image model with all it needs to be used: weights, classes, configuration."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tensorflow as tf

from autoregressive.samplers import SAMPLERS
from foundation.atomic_files import Arrays
from foundation.errors import UserError
from foundation.model_folder import assign_weights, stored_model
from foundation.stored_config import checked_config
from likelihoods.initial import ZeroInitial
from pixelcnn import shipped
from pixelcnn.config import KINDS, AnyTrainConfig
from pixelcnn.data.captions import encode_caption
from pixelcnn.data.video import Statistics
from pixelcnn.density import ImageDensity
from pixelcnn.networks.conditioning import check_label
from pixelcnn.networks.multiscale import Multiscale
from pixelcnn.request_checks import check_images, check_request
from pixelcnn.sampling.generation import ImageSampler, Request
from pixelcnn.training import config_from

if TYPE_CHECKING:
    from autoregressive.model import Autoregressive
    from pixelcnn.compression import Images

ConditionValue = int | str | np.ndarray | None


@dataclasses.dataclass(frozen=True)
class ImageModel:
    """A trained image model, ready to sample.

    Attributes:
      config: its training configuration.
      classes: the names of its classes, in the order of their numbers.
      statistics: normalisation of a video's actions and states.
      spec: the content of model.json.
    """

    density: ImageDensity
    config: AnyTrainConfig
    classes: tuple[str, ...]
    statistics: Statistics | None
    spec: dict[str, Any]
    sampler: ImageSampler

    makes, compresses = "images", True  # it has `compress` and `decompress`

    @property
    def kind(self) -> str:
        """Its kind in model.json: "pixelcnn" or "multiscale"."""
        return self.config.kind

    @property
    def network(self) -> ImageDensity:
        """The module whose variables are the weights."""
        return self.density

    @property
    def size(self) -> int:
        """Side of its images, in pixels."""
        return self.config.data.size

    @property
    def channels(self) -> Literal[1, 3]:
        """Number of channels: 1 for grey, 3 for red, green and blue."""
        return self.config.data.channels

    @property
    def bits(self) -> int:
        """Bits per level: 8, or up to 16."""
        return self.config.data.bits

    @property
    def levels(self) -> int:
        """Levels per channel."""
        return self.config.output.levels

    def _shape(self, size: int | None) -> tuple[int | None, ...]:
        return (size, size, self.channels)

    @property
    def whole(self) -> bool:
        """True if the model can sample; a multiscale model needs all its parts for that."""
        return self.density.whole

    @property
    def multiscale(self) -> Multiscale | None:
        """The multiscale model, None for a PixelCNN."""
        return self.density.multiscale

    def generate(
        self, condition: ConditionValue | Sequence[ConditionValue] = None, **options: Any
    ) -> np.ndarray:
        """Return images, uint8 [num, size, size, channels]; uint16 beyond 8 bits.

        Args:
          condition: as for `progressions`.
          **options: the keyword arguments of `progressions`.
        """
        return np.stack([scales[-1] for scales in self.progressions(condition, **options)])

    def sample(
        self,
        num: int,
        length: int | tuple[int, int, int] | None,
        seed: int,
        condition: ConditionValue | Sequence[ConditionValue] = None,
        *,
        method: str = "auto",
        **options: Any,
    ) -> np.ndarray:
        """Return the images of `generate`, by the same seed.

        Args:
          num: number of images.
          length: side of the images, or (height, width, channels); None: as trained.
          seed: the noise's seed, an integer in [0, 2^64).
          condition: as for `progressions`.
          method: "auto", which is "cached", or a `sampler` of `progressions`.
          **options: further arguments of `progressions`.
        """
        size = length[0] if isinstance(length, tuple) else length
        options["sampler"] = "cached" if method == "auto" else method
        return self.generate(condition, seed=seed, num=num, size=size, **options)

    def progressions(
        self,
        condition: ConditionValue | Sequence[ConditionValue] = None,
        *,
        seed: int = 0,
        num: int = 1,
        size: int | None = None,
        temperature: float | Sequence[float] = 1.0,
        given: tuple[np.ndarray, int] | None = None,
        start: np.ndarray | None = None,
        sampler: str = "cached",
        guidance: float = 0.0,
        batch: int = 1,
    ) -> Iterator[list[np.ndarray]]:
        """Yield all scales of each image as it is sampled, smallest first.

        An impossible request is refused at the call, before the first image is requested.

        Args:
          condition: a class (number or name), a caption or a map int [size, size], whichever the
            model was trained on; a list has one per image; None for a model without a condition.
          seed: image n of a seed does not depend on `num`.
          num: number of images.
          size: side; None: as trained. A multiscale model draws all sizes from its base up.
          temperature: 1: the model's own distribution; a multiscale model also takes one value per
            scale, base first.
          given: an image [size, size, channels] and how many of its pixels, in raster order, to
            keep (PixelCNN).
          start: a small image [side, side, channels] to enlarge (multiscale). A model of factors
            without coordinates enlarges one of any shape, and `size` is then the longer side of the
            result; it works in tiles of bounded memory.
          sampler: "cached"; "fixed-point", the same images in fewer, more expensive passes;
            "naive", a whole pass per pixel (PixelCNN); or another of `autoregressive.samplers`.
          guidance: how far every pixel's distribution is moved away from the unconditional one
            (`outputs.sample_guided`); above 0 it is no longer the model's own.
          batch: images per fixed-point pass; the next image replaces a finished one. Above 1 all
            images are returned together, at the end.
        """
        conditions: list[Any] = [condition] * num
        if isinstance(condition, list | tuple):
            conditions = list(condition)
        if len(conditions) != num:
            raise UserError(f"`condition` must be one or {num}, got {len(conditions)}.")
        size = self.size if size is None else size
        check_request(self.density, size, temperature, given, start)
        if given is not None:
            check_images("given", given[0], self._shape(size), self.levels)
        if start is not None:
            check_images("start", start, self._shape(None), self.levels)
        if sampler not in SAMPLERS:
            raise UserError(f"`sampler` must be one of {', '.join(SAMPLERS)}, got {sampler}.")
        if sampler == "naive" and self.multiscale is not None:
            raise UserError("Only a PixelCNN has a naive sampler.")
        if batch < 1:
            raise UserError(f"`batch` must be at least 1, got {batch}.")
        if batch > 1 and sampler != "fixed-point":
            raise UserError('`batch` > 1 requires `sampler="fixed-point"`.')
        self._check_guidance(guidance)
        kept = temperature if isinstance(temperature, int | float) else tuple(temperature)
        same = (kept, given, start, sampler, guidance, batch)
        each = [self.condition(value) for value in conditions]
        if batch > 1:
            stacked = {name: np.concatenate([one[name] for one in each]) for name in each[0]}
            return self.sampler.images(Request(tuple(range(num)), seed, size, stacked, *same))
        requests = [Request((row,), seed, size, one, *same) for row, one in enumerate(each)]
        return itertools.chain.from_iterable(map(self.sampler.images, requests))

    def log_prob(
        self, images: np.ndarray, condition: ConditionValue | Sequence[ConditionValue] = None
    ) -> np.ndarray:
        """Return the exact log-probability of images, float32 [num], nats.

        It is a lower bound if the base is a flow, and NaN if that flow has no inverse in float32
        (`ImageFlow.log_density`).

        Args:
          images: whole numbers [num, size, size, channels], of the size, channels and levels that
            the model was trained on.
          condition: as for `generate`.

        Raises:
          UserError: a multiscale model lacks parts, or the conditions do not fit the model or the
            number of images.
          ValueError: the shape of the images is not the model's, or a level is out of range.
        """
        if not self.whole:
            raise UserError("The run has not trained all parts; it gives no probability.")
        check_images("images", images, (None, *self._shape(self.size)), self.levels)
        values: list[Any] = list(condition) if isinstance(condition, list | tuple) else [condition]
        values = values * len(images) if len(values) == 1 else values
        if len(values) != len(images):
            raise UserError(f"`condition` must be one or {len(images)}, got {len(values)}.")
        rows = [self.condition(value) for value in values]
        batch = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        parts = self._nats({"levels": np.asarray(images, np.int32), **batch})
        return np.sum([part.numpy() for part in parts.values()], axis=0)

    @functools.cached_property
    def compressed(self) -> "Images":
        """The codec of this model's images; raises UserError without exact conditionals."""
        from pixelcnn.compression import Images

        return Images(self)

    @functools.cached_property
    def autoregressive(self) -> "Autoregressive":
        """The PixelCNN as an `Autoregressive` model; see `pixelcnn.autoregression`."""
        from pixelcnn.autoregression import autoregressive

        return autoregressive(self.density)

    @functools.cached_property
    def _nats(self) -> Any:
        return tf.function(self.density.nats, autograph=False, reduce_retracing=True)

    def compress(
        self,
        images: np.ndarray,
        condition: ConditionValue | Sequence[ConditionValue] = None,
        *,
        batch: int = 256,
        tolerance: float = 1e-5,
        verify: bool = True,
    ) -> bytes:
        """Return a file from which `decompress` restores exactly these images.

        It takes the bits of `log_prob`, and with the default tolerance less than half a per cent
        more if there are many images.

        Args:
          images: uint8 [num, size, size, channels], of the size that the model was trained on.
          condition: as for `log_prob`; it is stored in the file.
          batch: images that are decoded together.
          tolerance: relative difference that the network's outputs may have on the processor that
            decodes. Below it decoding is exact; above it the file is refused there.
          verify: decode the file again, with outputs off by half the tolerance, and refuse to
            return one that does not give these images back.

        Raises:
          UserError: the model has no exact conditionals, the images do not fit it, or the file
            failed `verify`.
        """
        from compression.files import compress

        options: dict[str, Any] = {"tolerance": tolerance, "verify": verify, "batch": batch}
        return compress(self.compressed, images, condition, **options)

    def decompress(self, data: bytes) -> np.ndarray:
        """Return the images uint8 [num, size, size, channels] in a file from `compress`.

        Raises:
          UserError: the file is damaged, truncated, or was made by a different model.
        """
        from compression.files import decompress

        return decompress(self.compressed, data)

    def condition(self, value: ConditionValue) -> dict[str, np.ndarray]:
        """Return a batch of one with a class, a caption or a map, as the conditioner reads it.

        Raises:
          UserError: the class is unknown, the caption is too long, a model without a condition gets
            a value, or a model with a condition gets no value or the wrong kind.
        """
        kind = self.config.conditioning.kind
        if kind == "none" or value is None:
            if kind == "none" and value is not None:
                raise UserError("The model draws without a condition.")
            if kind != "none":
                example = f", such as {known[0]!r}" if (known := self.spec.get("captions")) else ""
                raise UserError(f"The model needs a condition: {NEEDS[kind]}{example}.")
            return {}
        if kind == "class":
            return {"label": np.array([self.label(value)], np.int32)}
        if kind == "text":
            return {"caption": encode_caption(str(value))[None]}
        if kind == "map" and isinstance(value, np.ndarray):
            return {"map": value[None].astype(np.int32)}
        raise UserError(f"The model needs {NEEDS[kind]}.")

    def label(self, value: ConditionValue) -> int:
        """Return the number of a class given by name or number.

        Raises:
          UserError: the class is unknown.
        """
        if str(value) in self.classes:
            return self.classes.index(str(value))
        try:
            number = int(str(value))
        except ValueError as error:
            raise UserError(
                f"There is no class `{value}`; there are {', '.join(self.classes)}."
            ) from error
        check_label(number, self.config.conditioning.classes)
        return number

    def _check_guidance(self, guidance: float) -> None:
        if not 0 <= guidance < float("inf"):
            raise UserError(f"The guidance must be 0 or more and finite, got {guidance:g}.")
        if guidance and not self.config.conditioning.has_null:
            raise UserError("The model has no null condition to be guided by.")


NEEDS = {
    "class": "a class",
    "text": "a caption",
    "map": "a map of labels",
    "video": "the frames before, an action and a state",
}


def load(path: Path | str) -> ImageModel:
    """Load the model of a run directory (average weights of its best checkpoint) or a model folder.

    The name of a shipped model (`shipped.FOLDERS`) loads that model unless a folder has this name.
    """
    path = folder_of(path)
    return model_of(*stored_model(path, spec_of), path)


def folder_of(path: Path | str) -> Path:
    """Return the folder of a model, which may be given by a shipped name; see `load`."""
    path = Path(path)
    if str(path) in shipped.FOLDERS and not path.exists():
        return shipped.folder(str(path))
    return path


def spec_of(stored: dict, path: Path) -> dict[str, Any]:
    """Return the entries of model.json that describe the model, not its provenance."""
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
    """Return the model with a config.json, weights by name and the content of model.json."""
    config = _config(stored, path)
    density = ImageDensity(config, ZeroInitial())
    assign_weights(density, weights, path)
    statistics = stored["statistics"] and Statistics.from_dict(stored["statistics"])
    classes = tuple(stored["class_names"])
    return ImageModel(density, config, classes, statistics, spec, ImageSampler(density))


def _config(stored: Any, path: Path) -> AnyTrainConfig:
    needed = {"preset", "class_names", "statistics"}
    return checked_config(stored, path, tuple(KINDS), needed, config_from)
