"""Image models: the front that reads requests, the sampler that draws them, and loading.

`ImageFront` makes conditions of classes, captions, maps and images. Each size has one compiled
program. It samples one image at a time, except for batches of fixed-point passes, since a different
batch size could change the order of sums, and thereby their last bits and occasionally a pixel.
Image n of a seed does not depend on what else is sampled.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import tensorflow as tf

from onepass.foundation import model_folders
from onepass.foundation.files import Arrays
from onepass.foundation.model_folders import assign_weights, read_stored_model
from onepass.foundation.rules import (
    UserError,
    check_config,
    check_seed,
    check_unmasked,
    require,
    whole_number,
)
from onepass.foundation.runtime import Compiled, check_compiler, check_eager
from onepass.interface import Draw, collect_images, stream_images
from onepass.likelihoods.noise import ZeroInitial, as_key
from onepass.samplers import SAMPLERS
from onepass.samplers.fixed_point import FixedPoint, by_windows
from onepass.trained import Trained
from pixelcnn.autoregression import (
    ACTIVE_ROWS,
    Forecast,
    PixelDistribution,
    PixelSymbols,
    autoregressive,
    linear_forecast,
)
from pixelcnn.config import KINDS, AnyTrainConfig, check_size, config_from, dtype_of, part_names
from pixelcnn.data.captions import encode_caption
from pixelcnn.data.video import Statistics
from pixelcnn.density import (
    ImageDensity,
    Multiscale,
    Prefix,
    SamplingInputs,
    drop_guidance_pair,
    image_words,
    pair_for_guidance,
    pixel_words,
    sample,
    sample_base,
    sample_scales,
    temperatures_of,
)
from pixelcnn.networks.layers import Condition, Conditioner, check_label
from pixelcnn.networks.pixelcnn import PixelCNN
from pixelcnn.sampling.enlargement import Enlarger

if TYPE_CHECKING:
    from onepass.model import Autoregressive
    from pixelcnn.compression import Images


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


# XLA's convolutions are faster on small images, TensorFlow's on large ones.
LARGEST_COMPILED = 64


def sampler_of(
    method: str, *, forecast: Forecast | None = linear_forecast, **options: Any
) -> Callable[..., Any]:
    """Return a sampler of a PixelCNN: a function with the arguments of `sample`.

    "fixed-point" returns a `FixedPoint`, others images; only "cached" takes a `prediction`.
    """
    if method == "cached":
        return partial(sample, **options)
    run: Any = SAMPLERS[method]
    if method == "fixed-point":
        run, options = by_windows, {"active_rows": ACTIVE_ROWS, **options}

    def draw(
        network: PixelCNN,
        words: tf.Tensor,
        condition: Condition,
        given: Prefix | None = None,
        temperature: float | tf.Tensor = 1.0,
        guidance: float | tf.Tensor | None = None,
    ) -> Any:
        distribution = PixelDistribution(network.output, network.output_config, guidance)
        placed = network.add_coordinates(condition, words)
        symbols = PixelSymbols(network, None, forecast)
        return run(symbols, distribution, words, placed, temperature, given, **options)

    return draw


class ImageSampler:
    """A density of images and its samplers, under its current weights.

    Conditions are dicts of the conditioner's inputs, with one row for all images or one per image.

    Attributes:
      density: the networks with their weights.
      passes: number of fixed-point passes for the latest image (or its base, if multiscale); None
        for other samplers.
      batch_passes: number of fixed-point passes for the latest image's batch, or None.
    """

    options = frozenset({"method", "temperature", "prefix", "guidance", "batch", "scales"})

    def __init__(self, density: ImageDensity) -> None:
        self.density = self.network = density
        self.config: AnyTrainConfig = density.config
        self.passes: int | None = None
        self.batch_passes: int | None = None
        self._programs = Compiled()

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the samplers of a PixelCNN, or of a multiscale model's base.

        "cached", also as "auto", computes one pixel per step; "fixed-point" draws the same images
        in fewer, more expensive passes; "naive" runs the whole network for every pixel (PixelCNN);
        others are registered in `onepass.samplers`.
        """
        return ("auto", *sorted(SAMPLERS))

    def check_draw(self, draw: Draw) -> Draw:
        """Return a request with its defaults; raise an error if the density cannot fulfil it."""
        return check_request(self.density, draw)

    def sample(self, draw: Draw) -> Any:
        """Return the requested images, [num, side, side, channels], or all their scales."""
        return collect_images(self.images(draw), draw.scales)

    def stream(self, draw: Draw, chunk: int | None) -> Iterator[Any]:
        """Return an iterator over the images, or their scales, one after another."""
        if chunk is not None:
            raise UserError("`chunk` must be None: images come one after another.")
        return stream_images(self.images(draw), draw.scales)

    def images(self, draw: Draw) -> Iterator[list[np.ndarray]]:
        """Yield the scales of each image, [side, side, channels], smallest first.

        A PixelCNN has one scale. A multiscale model draws its smaller sizes, too. If its factors
        have no coordinates, the prefix may have any shape, `length` is the longer side of the
        result, and the image is enlarged in tiles of bounded memory. Levels are uint8, or uint16
        for more than 8 bits. With `batch`, all images come together at the end.
        """
        number = draw.num if draw.method == "fixed-point" and draw.batch > 1 else 1
        for first in range(0, draw.num, number):
            yield from self._sample(draw, range(first, first + number))

    def _sample(self, draw: Draw, which: range) -> Iterator[list[np.ndarray]]:
        rows = [draw.row + number for number in which]
        batch = {name: _of(value, which) for name, value in draw.condition.items()}
        key, numbers = as_key(draw.seed), tf.constant(rows)
        model = self.density.multiscale
        if model is not None and model.any_shape and draw.prefix is not None:
            for row in rows:
                yield list(self.enlarge_start(draw, row))
            return
        method = "cached" if draw.method == "auto" else draw.method
        program = self._program(method, draw.length, min(draw.batch, len(rows)))
        guidance = tf.constant(draw.guidance, tf.float32) if draw.guidance else None
        heat = 1.0 if draw.temperature is None else draw.temperature
        if model is None:
            given = _prefix_of(draw, len(rows), self.density.config.data.channels)
            temperature = temperatures_of(heat, 1)[0]
            drawn = count_passes(program(batch, key, numbers, given, temperature, guidance))
            scales = [drawn.levels]
        else:
            temperatures = temperatures_of(heat, len(model.sizes))
            start = None if draw.prefix is None else _repeat_image(draw.prefix, len(rows))
            scales, drawn = program(batch, key, numbers, start, temperatures, guidance)
        counts = method == "fixed-point"
        kind = dtype_of(self.density.config.data.bits)
        for i in range(len(rows)):
            self.passes = int(drawn.passes[i]) if counts else None
            self.batch_passes = int(drawn.batch_passes) if counts else None
            yield [levels[i].numpy().astype(kind) for levels in scales]

    def log_prob(self, elements: np.ndarray, condition: Any, speaker: None = None) -> np.ndarray:
        """Return the log-probability of whole images, float32 [num], in nats.

        If the base is a flow, it is a lower bound, or NaN where the flow cannot be inverted in
        float32 (`ImageFlow.log_density`).

        Args:
          elements: integers [num, size, size, channels], with the size in training.
          condition: the conditioner's inputs, by name.
          speaker: None; images have no speaker.
        """
        parts = self._nats(self._batch(elements, condition))
        return np.sum([part.numpy() for part in parts.values()], axis=0)

    def log_density(self, draw: Draw) -> np.ndarray:
        """Return the log-density of the images that a request draws, float32 [num], nats.

        It is their exact log-probability, unless the base is a flow: the base then contributes the
        log-density of its values before rounding, plus the log of a level's width for each of them.
        """
        batch = self._batch(self.sample(draw), draw.condition)
        rows = draw.row + tf.range(draw.num)
        parts = self._drawn_nats(batch, as_key(draw.seed), rows)
        return np.sum([part.numpy() for part in parts.values()], axis=0)

    def _batch(self, images: np.ndarray, condition: Any) -> dict[str, np.ndarray]:
        if not self.density.whole:
            raise UserError("The run has not trained all parts; it gives no probability.")
        size, channels = self.config.data.size, self.config.data.channels
        check_images("images", images, (None, size, size, channels), self.config.output.levels)
        return {"levels": np.asarray(images, np.int32), **condition}

    def files_of(self, front: Any) -> "Images":
        """Return the format of compressed files; raise a UserError if the model cannot compress."""
        from pixelcnn.compression import Images

        return Images(self.density, front)

    @cached_property
    def autoregressive(self) -> "Autoregressive":
        """The PixelCNN as an `Autoregressive`; raises a UserError for a multiscale model."""
        return autoregressive(self.density)

    @cached_property
    def _nats(self) -> Any:
        return tf.function(self.density.nats, autograph=False, reduce_retracing=True)

    @cached_property
    def _drawn_nats(self) -> Any:
        return tf.function(self.density.drawn_nats, autograph=False, reduce_retracing=True)

    @cached_property
    def enlarger(self) -> Enlarger:
        """The `Enlarger` of a multiscale model whose factors have no coordinates."""
        model: Any = self.density.multiscale
        return Enlarger(model)

    def enlarge_start(
        self, draw: Draw, row: int, advance: Callable[[], None] = lambda: None
    ) -> Iterator[np.ndarray]:
        """Yield the prefix and its enlargements, smallest first, with the noise of `row`."""
        heat = 1.0 if draw.temperature is None else draw.temperature
        heat = temperatures_of(heat, len(self.enlarger.model.sizes)).numpy()
        key = as_key(draw.seed)
        drawn = self.enlarger.scales(draw.prefix, draw.length, key, row, heat, advance)
        return (levels.astype(dtype_of(self.density.config.data.bits)) for levels in drawn)

    def _program(self, sampler: str, size: int, slots: int) -> Callable[..., Any]:
        conditioner, model = self.density.conditioner, self.density.multiscale
        options: dict[str, Any] = {"slots": slots} if sampler == "fixed-point" else {}
        draw = sampler_of(sampler, **options)

        def make() -> Callable[..., Any]:
            if model is not None:
                return multiscale_program(conditioner, model, size, None, draw)
            network: Any = self.density.pixelcnn
            return pixelcnn_program(conditioner, network, size, draw)

        return self._programs.once((sampler, size, slots), make)


def sample_pixelcnn(
    conditioner: Conditioner,
    network: PixelCNN,
    size: int,
    sampler: Callable[..., Any],
    batch: dict,
    seed: int | tf.Tensor,
    rows: tf.Tensor,
    given: Prefix | None,
    temperature: float | tf.Tensor,
    guidance: float | tf.Tensor | None = None,
) -> Any:
    """Return the output of a sampler for a batch of conditions."""
    words = image_words(network, seed, rows, size, size)
    condition, words, given = pair_for_guidance(conditioner, batch, guidance, words, given)
    drawn = sampler(network, words, condition, given, temperature, guidance=guidance)
    return drop_guidance_pair(guidance, drawn)


def pixelcnn_program(
    conditioner: Conditioner, network: PixelCNN, size: int, sampler: Callable[..., Any] = sample
) -> Callable[..., Any]:
    """Return `sample_pixelcnn`, compiled, as a function of the arguments starting at `batch`."""
    draw = partial(sample_pixelcnn, conditioner, network, size, sampler)
    return tf.function(draw, jit_compile=True, autograph=False)


def sample_multiscale(
    conditioner: Conditioner,
    model: Multiscale,
    size: int,
    base_sampler: Callable[..., Any],
    batch: dict,
    words: tf.Tensor,
    start: tf.Tensor | None,
    temperatures: tf.Tensor,
    guidance: float | tf.Tensor | None = None,
) -> tuple[list[tf.Tensor], FixedPoint]:
    """Return all scales of images, drawn or enlarged from `start`, and the base as `FixedPoint`."""
    condition, words, start = pair_for_guidance(conditioner, batch, guidance, words, start)
    inputs = SamplingInputs(words, condition, temperatures, guidance)
    base = count_passes(sample_base(model, inputs, base_sampler) if start is None else start)
    return drop_guidance_pair(guidance, (sample_scales(model, inputs, size, base.levels), base))


def count_passes(drawn: tf.Tensor | FixedPoint) -> FixedPoint:
    """Return the output of a sampler as a `FixedPoint`, with 0 passes if it does not count them."""
    if isinstance(drawn, FixedPoint):
        return drawn
    return FixedPoint(drawn, tf.zeros([tf.shape(drawn)[0]], tf.int32), tf.constant(0))


def multiscale_program(
    conditioner: Conditioner,
    model: Multiscale,
    size: int,
    whole_size: int | None = None,
    base_sampler: Callable[..., Any] = sample,
) -> Callable[..., Any]:
    """Return `sample_multiscale`, compiled, as a function of the arguments starting at `batch`.

    In place of `words`, it takes the seed and the rows. Results match those in a larger image of
    `whole_size` exactly, as one of its scales, because the same kernels are chosen for both.
    """
    check_size(size, model.config.base_size)
    small = (whole_size or size) <= LARGEST_COMPILED
    compiled = partial(tf.function, jit_compile=True, autograph=False)
    sampler = base_sampler if small else compiled(base_sampler)
    words_of = compiled(lambda seed, rows: pixel_words(model, seed, rows, size**2))
    draw = partial(sample_multiscale, conditioner, model, size, sampler)

    @tf.function(jit_compile=small, autograph=False)
    def program(
        batch: dict[str, tf.Tensor], seed: int | tf.Tensor, rows: tf.Tensor, *arguments: Any
    ) -> tuple[list[tf.Tensor], FixedPoint]:
        return draw(batch, words_of(seed, rows), *arguments)

    return program


def _of(value: np.ndarray, which: range) -> tf.Tensor:
    return tf.constant(
        value[which.start : which.stop] if len(value) > 1 else np.repeat(value, len(which), 0)
    )


def _repeat_image(image: np.ndarray, number: int) -> tf.Tensor:
    return tf.constant(np.repeat(image[None].astype(np.int32), number, 0))


def _prefix_of(draw: Draw, number: int, channels: int) -> Prefix:
    pixels = np.zeros([0, channels]) if draw.prefix is None else draw.prefix.reshape(-1, channels)
    image = np.zeros([draw.length**2, channels], np.int32)
    image[: len(pixels)] = pixels
    image = image.reshape(draw.length, draw.length, channels)
    return Prefix(_repeat_image(image, number), tf.constant(len(pixels)))


def load(path: Path | str) -> Trained:
    """Load a model from a run directory or a model folder.

    Args:
      path: a model folder; a run directory, whose best checkpoint provides averaged weights; or the
        name of a shipped model (`model_folders.FOLDERS`), unless a folder has that name.

    Raises:
      UserError: If there is no image model, or it cannot be read.
    """
    path = model_folders.model_folder(path)
    stored, weights, spec = read_stored_model(path, spec_of)
    return model_of(stored, weights, spec, path)


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


def model_of(stored: dict, weights: Arrays, spec: dict, path: Path) -> Trained:
    """Return the model for a config.json (`stored`), weights by name, and a model.json (`spec`)."""
    config = _config(stored, path)
    density = ImageDensity(config, ZeroInitial())
    assign_weights(density, weights, path)
    statistics = stored["statistics"] and Statistics.from_dict(stored["statistics"])
    classes, captions = tuple(stored["class_names"]), spec.get("captions") or ()
    return Trained(ImageSampler(density), ImageFront(config, classes, statistics, captions), spec)


def _config(stored: Any, path: Path) -> AnyTrainConfig:
    needed = {"preset", "class_names", "statistics"}
    return check_config(stored, path, tuple(KINDS), needed, config_from)


FRAME_ROWS = 65536  # number of noise rows that are reserved for a video, one per frame


def predict(
    model: Trained,
    frames: np.ndarray,
    actions: np.ndarray,
    states: np.ndarray,
    *,
    seed: int = 0,
    row: int = 0,
    temperature: float | tuple[float, ...] = 1.0,
) -> Iterator[np.ndarray]:
    """Yield the frames that follow the given ones, uint8 [size, size, channels] each.

    Args:
      actions: unnormalised actions, float32 [steps, A], starting at the first frame; steps + 1 -
        len(frames) frames are predicted.
      states: unnormalised states at the same steps, float32 [steps, S].
    """
    conditioning, statistics = model.config.conditioning, model.front.statistics
    if conditioning.kind != "video" or statistics is None:
        raise UserError("The model draws images, not the next frame of a video.")
    widths = (conditioning.action_channels, conditioning.state_channels)
    if (actions.shape[-1], states.shape[-1]) != widths:
        raise UserError(
            f"An action has {widths[0]} numbers and a state {widths[1]}, "
            f"got {actions.shape[-1]} and {states.shape[-1]}."
        )
    context = conditioning.context_frames
    if len(frames) < context or len(actions) != len(states) or len(actions) < len(frames):
        raise UserError(
            f"There must be at least {context} frames, and an action and a state for each."
        )
    scales = 1 if model.network.multiscale is None else len(model.network.multiscale.sizes)
    temperatures_of(temperature, scales)
    moves, places = statistics.actions(actions), statistics.states(states)
    past = [np.asarray(frame) for frame in frames]

    def following() -> Iterator[np.ndarray]:
        for t in range(len(frames), len(moves) + 1):
            condition = {
                "past": np.stack(past[-context:])[None].astype(np.int32),
                "action": moves[None, t - context : t],
                "state": places[None, t - context : t],
            }
            # The frame's index is added to the row, so that no two frames share noise.
            own = FRAME_ROWS * row + t
            frame = Draw(1, model.front.size, seed, condition, row=own, temperature=temperature)
            past.append(next(model.model.images(frame))[-1])
            yield past[-1]

    return following()
