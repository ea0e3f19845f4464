"""`ImageFront`: classes, captions, maps and images become conditions, and requests are checked."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from onepass.foundation.rules import UserError, check_seed, check_unmasked, require, whole_number
from onepass.foundation.runtime import check_compiler, check_eager
from onepass.interface import Draw
from onepass.samplers import SAMPLERS
from pixelcnn.config import AnyTrainConfig, part_names
from pixelcnn.data.captions import encode_caption
from pixelcnn.data.video import Statistics
from pixelcnn.density import ImageDensity, temperatures_of
from pixelcnn.networks.conditioning import check_label
from pixelcnn.networks.multiscale import Multiscale


def check_request(density: ImageDensity, draw: Draw) -> Draw:
    """Return a request with its defaults and Python integers; the condition is not checked.

    Its prefix is, for a multiscale model, a smaller image [side, side, channels], for a PixelCNN
    pixels [n, channels] or rows of pixels [rows, width, channels].
    """
    side = draw.length if draw.length is not None else density.config.data.size
    if isinstance(side, tuple | list):
        channels = density.config.data.channels
        if len(side) != 3 or side[0] != side[1] or side[2] != channels:
            shape = f"(side, side, {channels})"
            raise UserError(f"`length` must be a side or {shape}, got {side!r}.")
        side = side[0]
    check_compiler()
    heat = 1.0 if draw.temperature is None else draw.temperature
    found = dataclasses.replace(
        draw,
        num=whole_number(draw.num, "num"),
        length=whole_number(side, "length"),
        batch=whole_number(draw.batch, "batch"),
        seed=check_seed(draw.seed),
        temperature=heat if isinstance(heat, int | float) else tuple(heat),
        prefix=_check_prefix(density, draw.prefix, side),
    )
    _check(density, found)
    return found


def _check_prefix(density: ImageDensity, prefix: Any, size: int) -> np.ndarray | None:
    if prefix is None:
        return None
    check_unmasked(prefix, "prefix")
    prefix, channels = np.asarray(prefix), density.config.data.channels
    if prefix.ndim not in (2, 3) or prefix.shape[-1] != channels:
        rule = f"[n, {channels}], or [rows, width, {channels}]"
        raise ValueError(f"`prefix` must be pixels {rule}, got {list(prefix.shape)}.")
    if density.multiscale is not None:
        if prefix.ndim == 2:
            raise UserError("Only a PixelCNN can continue from the first pixels of an image.")
        return prefix
    if prefix.ndim == 3 and prefix.shape[1] != size:
        raise UserError("A PixelCNN cannot enlarge an image; a multiscale model can.")
    pixels = prefix.reshape(-1, channels)
    if len(pixels) > size**2:
        raise ValueError(f"`prefix` must have at most {size**2} pixels, got {len(pixels)}.")
    return pixels


def _check(density: ImageDensity, draw: Draw) -> None:
    prefix, config = draw.prefix, density.config
    if density.multiscale is None:
        if not isinstance(draw.temperature, int | float):
            raise UserError("A PixelCNN has one scale and takes one temperature.")
        temperatures_of(draw.temperature, 1)
        trained = config.data.size
        if density.conditioner.map_channels and draw.length != trained:
            raise UserError(
                f"The condition is a map of {trained} pixels a side, not {draw.length}."
            )
    else:
        temperatures_of(draw.temperature, len(density.multiscale.sizes))
        _check_sizes(density.multiscale, draw.length, None if prefix is None else prefix.shape)
    if prefix is not None and prefix.size:
        shape = (None, *prefix.shape[1:]) if prefix.ndim == 2 else (None, None, prefix.shape[2])
        check_images("prefix", prefix, shape, config.output.levels)
    known = ("auto", *sorted(SAMPLERS))
    require(draw.method in known, "method", f"one of {', '.join(known)}", draw.method)
    if draw.method == "naive" and density.multiscale is not None:
        raise UserError("Only a PixelCNN has a naive sampler.")
    if draw.batch > 1 and draw.method != "fixed-point":
        raise UserError('`batch` > 1 requires `method="fixed-point"`.')
    if not 0 <= draw.guidance < float("inf"):
        raise UserError(f"The guidance must be at least 0 and finite, got {draw.guidance:g}.")
    if draw.guidance and not config.conditioning.has_null:
        raise UserError("The model has no null condition to be guided by.")


def _check_sizes(model: Multiscale, size: int, shape: tuple[int, ...] | None) -> None:
    sizes = model.sizes
    if size not in sizes:
        raise UserError(f"The model draws {', '.join(map(str, sizes))} pixels a side, not {size}.")
    smaller = [s for s in sizes if s < size]
    first = 0 if shape is None else max(shape[:2])
    if shape is not None and (
        first not in smaller or (shape[0] != shape[1] and not model.any_shape)
    ):
        form = "have a longer side of" if model.any_shape else "be square with a side of"
        raise UserError(
            f"The image to start from must {form} {' or '.join(map(str, smaller))} pixels, "
            f"got {shape[1]}x{shape[0]}."
        )
    needed = [p for p in part_names(sizes) if first < int(p.split(".")[0]) <= size]
    missing = [part for part in needed if part not in model.parts]
    if missing == [str(sizes[0])] and model.any_shape:
        raise UserError("The model enlarges images: name one to start from (`--start`).")
    if missing:
        raise UserError(f"The run has not trained {', '.join(missing)}; it cannot draw.")


def check_images(name: str, images: np.ndarray, shape: tuple[int | None, ...], levels: int) -> None:
    """Raise a ValueError unless images have the expected shape and integers below `levels`.

    None in `shape` matches any size of at least 1. Floats are rejected even if they are whole
    numbers, since they could be images scaled to [0, 1].
    """
    check_eager()
    check_unmasked(images, name)
    images = np.asarray(images)
    fits = images.ndim == len(shape) and all(
        found == wanted or (wanted is None and found >= 1)
        for found, wanted in zip(images.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if side is None else str(side) for side in shape)
        raise ValueError(f"`{name}` must have the shape [{wanted}], got {list(images.shape)}.")
    if images.dtype.kind not in "iu":
        rule = f"whole numbers from 0 to {levels - 1:,} (uint8 or another integer type)"
        raise ValueError(f"`{name}` must be {rule}, got {images.dtype}.")
    low, high = int(images.min()), int(images.max())
    if low < 0 or high >= levels:
        raise ValueError(f"`{name}` must be in 0 to {levels - 1:,}, got {low:,} to {high:,}.")


ConditionValue = int | str | np.ndarray | None
NEEDS = {
    "class": "a class",
    "text": "a caption",
    "map": "a map of labels",
    "video": "the frames before, an action and a state",
}


@dataclasses.dataclass(frozen=True)
class ImageFront:
    """The front of images: a class, caption or map becomes a condition; says what the images are.

    Args:
      config: the training configuration.
      classes: class names, in the order of their labels.
      statistics: normalisation of actions and states for a video model, or None.
      captions: captions that the model knows, for messages.
    """

    config: AnyTrainConfig
    classes: tuple[str, ...] = ()
    statistics: Statistics | None = None
    captions: Sequence[str] = ()

    makes: ClassVar[str] = "images"

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

    def read(self, draw: Draw) -> Draw:
        """Return a request in which conditions are replaced by the conditioner's inputs."""
        return dataclasses.replace(draw, condition=self._conditions(draw.condition, draw.num))

    def read_elements(self, elements: Any, condition: Any, speaker: None) -> tuple[Any, Any, None]:
        """Return images, checked, the conditioner's inputs for them, and no speaker."""
        check_images("images", elements, (None, self.size, self.size, self.channels), self.levels)
        return elements, self._conditions(condition, len(elements)), speaker

    def finish(self, images: Any, draw: Draw) -> Any:
        """Return images as they were drawn."""
        del draw
        return images

    def condition(self, value: ConditionValue) -> dict[str, np.ndarray]:
        """Return the conditioner's inputs for a class, a caption or a map, as a batch of one.

        Args:
          value: the class, by name or number, the caption, or the map.

        Raises:
          UserError: the class is unknown, the caption is too long, a model without a condition gets
            a value, or a model with a condition gets no value or the wrong kind.
        """
        kind = self.config.conditioning.kind
        if kind == "none" or value is None:
            if kind == "none" and value is not None:
                raise UserError("The model draws without a condition.")
            if kind != "none":
                example = f", such as {self.captions[0]!r}" if self.captions else ""
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
        """Return the label of a class, given its name or label.

        Raises:
          UserError: the class is unknown.
        """
        if str(value) in self.classes:
            return self.classes.index(str(value))
        try:
            number = int(str(value))
        except ValueError as error:
            known = ", ".join(self.classes)
            raise UserError(f"There is no class `{value}`; there are {known}.") from error
        check_label(number, self.config.conditioning.classes)
        return number

    def list_conditions(self, condition: Any, num: int) -> list[Any]:
        """Return the condition of `num` images, or one for each, as a list of 1 or `num`."""
        axes = 2 if self.config.conditioning.kind == "map" else 0  # of one image's condition
        is_array = isinstance(condition, np.ndarray) and condition.ndim > axes
        values = list(condition) if is_array or isinstance(condition, list | tuple) else [condition]
        require(len(values) in (1, num), "condition", f"one or {num}", len(values))
        return values

    def _conditions(self, condition: Any, num: int) -> dict[str, np.ndarray]:
        values = self.list_conditions(condition, num)
        each = [self.condition(value) for value in (values * num if len(values) == 1 else values)]
        return {name: np.concatenate([one[name] for one in each]) for name in each[0]}
