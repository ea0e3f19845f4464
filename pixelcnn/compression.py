"""Lossless compression of images with the conditional distributions of an image model.

A PixelCNN decodes pixel by pixel, by the scan that samples: a function gets every pixel's hidden
state and returns the pixel, from the stream. In a multiscale model only the base is
decoded so, and each doubling then takes three network passes, O(log N) per image. All images of a
batch are decoded together. The network computes hidden units in float32, so that their last digits
differ between machines. The last layer, the linear prediction and what follows are float64.
"""

import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.compression import container
from onepass.compression.arrays import digest_of_network
from onepass.compression.conditionals import Coding, Known, Moved, table_of
from onepass.compression.container import Container, Kind
from onepass.compression.odds import Categorical, Mixture, tolerances
from onepass.compression.stream import Decoder, Layout, depth_of
from onepass.foundation.rules import UserError, require, whole_number
from onepass.foundation.runtime import Compiled
from onepass.likelihoods.mixture import PAIRS
from pixelcnn.config import GROUPS, SOFTMAX
from pixelcnn.density import ImageDensity, Multiscale, condition_at
from pixelcnn.networks.layers import (
    Condition,
    Hidden,
    MixtureOutput,
    Mode,
    SoftmaxOutput,
    merge,
    paste,
)
from pixelcnn.networks.pixelcnn import PixelCNN, Scan, first_rows, scan_row, with_coordinates

AT_ONCE = 4096  # pixels whose tables are computed together
LINEAR_SHARE = 0.1  # tolerance of a linear function, as a share of a deep network's tolerance


def tanh_off(raw: np.ndarray, off: np.ndarray) -> np.ndarray:
    """Return an upper bound on the change in tanh(raw) if raw changes by up to `off`."""
    nearest = np.clip(np.abs(raw) - off, 0.0, 300.0)
    return off / np.cosh(nearest) ** 2


class MixturePixels:
    """The mixture distributions of several pixels; channels must be requested in order."""

    def __init__(
        self,
        output: MixtureOutput,
        hidden: Hidden,
        tolerance: float | None,
        mapped: bool = False,
        moved: Moved | None = None,
    ) -> None:
        self.likelihood = output.likelihood
        self.prediction = np.asarray(hidden.prediction, np.float64)
        outputs = self.outputs(output, np.asarray(hidden.units, np.float64))
        outputs = outputs if moved is None else moved(outputs)
        shape = [len(outputs), -1, self.likelihood.components]
        self.parameters = (outputs + output.bias.numpy().astype(np.float64)).reshape(shape)
        self.bounded, self.tolerance = tolerance is not None, tolerance or 0.0
        self.off = tolerances(outputs, self.tolerance).reshape(shape)
        # Sums of a few float32 terms have smaller errors than deep networks.
        self.prediction_off = LINEAR_SHARE * self.tolerance * mapped * np.abs(self.prediction)
        self._before: list[np.ndarray] = []
        self._mixture: Mixture | None = None

    @staticmethod
    def outputs(output: MixtureOutput, units: np.ndarray) -> np.ndarray:
        """Return the last layer's outputs without the bias, float64 [pixels, parameters]."""
        return units @ output.kernel.numpy().astype(np.float64)

    def next_channel(self, before: np.ndarray | None) -> Any:
        """Return the next channel's distribution, given the previous channel's levels [pixels]."""
        likelihood, half = self.likelihood, 0.5 * (self.likelihood.levels - 1)
        channel, count = len(self._before), likelihood.channels
        weights, weight_off = self.parameters[:, 0], self.off[:, 0]
        if self._mixture is not None and before is not None:
            channel += 1
            self._before.append(before / half - 1.0)
            weights, weight_off = self._mixture.condition_on_levels(before)
        means, off = self.parameters[:, 1 + channel], self.off[:, 1 + channel]
        off = off + self.prediction_off[:, channel, None]
        means = means + self.prediction[:, channel, None]
        for i, (moved, by) in enumerate(PAIRS[count]):
            if moved == channel:
                raw, value = self.parameters[:, 1 + 2 * count + i], self._before[by][:, None]
                means = means + np.tanh(raw) * value
                off = off + tanh_off(raw, self.off[:, 1 + 2 * count + i]) * np.abs(value)
        scales = self.parameters[:, 1 + count + channel]
        clipped = np.maximum(scales, likelihood.min_log_scale) + math.log(half)
        scale_off = self.off[:, 1 + count + channel]
        offs = (_whole(weight_off), _whole(half * off), _whole(scale_off)) if self.bounded else None
        means = _whole(half * (means + 1.0))
        self._mixture = Mixture(likelihood.levels, _whole(weights), means, _whole(clipped), offs)
        return self._mixture


class TabledPixels(MixturePixels):
    """The distributions of pixels for mixtures without a closed form, as tables of all levels."""

    def next_channel(self, before: np.ndarray | None) -> Any:
        """Return the next channel's distribution, given the previous channel's levels [pixels]."""
        if before is not None:
            self._before.append(before)
        means = slice(1, 1 + self.likelihood.channels)
        rows, off = self.parameters.copy(), self.off.copy()
        rows[:, means] += self.prediction[..., None]
        off[:, means] += self.prediction_off[..., None]
        known = [tf.constant(levels, tf.int32) for levels in self._before]

        def values(moved: np.ndarray) -> np.ndarray:
            table = np.empty([len(moved), self.likelihood.levels])
            for start in range(0, len(moved), AT_ONCE):
                part = slice(start, start + AT_ONCE)
                before = [levels[part] for levels in known]
                parameters = tf.constant(moved[part], tf.float32)
                table[part] = self.likelihood.level_log_probs(parameters, before)
            return table

        flat = [array.reshape(len(array), -1) for array in (rows, off)]
        return table_of(values, flat[0], flat[1] if self.bounded else None, self.tolerance)


class SoftmaxPixels:
    """The softmax distributions of several pixels, with the interface of `MixturePixels`."""

    def __init__(
        self,
        output: SoftmaxOutput,
        hidden: Hidden,
        tolerance: float | None,
        mapped: bool = False,
        moved: Moved | None = None,
    ) -> None:
        self.output, self.tolerance, self._moved = output, tolerance or 0.0, moved
        parts = [np.asarray(part, np.float64) for part in hidden]
        self.inputs, self._before = np.concatenate(parts, -1), list[np.ndarray]()

    @staticmethod
    def outputs(output: SoftmaxOutput, channel: int, inside: np.ndarray) -> np.ndarray:
        """Return the last layer's outputs for a channel without bias, float64 [pixels, levels]."""
        return np.maximum(inside, 0.0) @ output.kernels[channel].numpy().astype(np.float64)

    def next_channel(self, before: np.ndarray | None) -> Categorical:
        """Return the next channel's distribution, given the previous channel's levels, if any."""
        if before is not None:
            self._before.append(before)
        output, channel = self.output, len(self._before)
        inside = self.inputs @ output.hidden_kernels[channel].numpy().astype(np.float64)
        inside += output.hidden_biases[channel].numpy()
        for levels, embedding in zip(self._before, output.embeddings[channel], strict=True):
            inside += embedding.numpy()[0][levels]
        outputs = self.outputs(output, channel, inside)
        outputs = outputs if self._moved is None else self._moved(outputs)
        logits = outputs + output.biases[channel].numpy()
        return Categorical(logits, tolerances(outputs, self.tolerance))


Pixels = MixturePixels | SoftmaxPixels
# By the name of the likelihood; all others use `TabledPixels`.
PIXELS: dict[str, type[Pixels]] = {"logistic": MixturePixels, SOFTMAX: SoftmaxPixels}


def _whole(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array, np.float64)


MODE = Mode(linear=tf.float64)
MOST_TABLED = 256  # levels of a likelihood without a closed form
MOST_BATCH = 1 << 12  # maximum number of images that are decoded together
# {kind of the model's condition: type of a condition in a file}
STORED: dict[str, type] = {"none": type(None), "class": int, "text": str, "map": list}
# Decodes the next pixels of a part, int32 [pixels, channels], given their hidden states.
Read = Callable[[str, Hidden], np.ndarray]


class ImageConditionals:
    """Distributions of a density's pixels; conditions are dicts of what the conditioner reads."""

    def __init__(self, density: ImageDensity) -> None:
        self.density = density
        self.levels: int = density.config.output.levels
        self.ways: Sequence[str] = ("closed",)
        self.passes = self.steps = 0
        self._mapped = density.conditioner.map_channels > 0
        self._conditionals = tf.function(
            self._hidden_by_part, autograph=False, reduce_retracing=True
        )
        self._condition = tf.function(density.conditioner, autograph=False, reduce_retracing=True)
        self._programs = Compiled()
        self._error: Exception | None = None
        self._lock = threading.Lock()  # for `_read` and `_error`, which programs refer to

    def layout(self, shape: tuple[int, ...], condition: Any) -> Layout:
        """Return the layout of a stream of images; the pixels of each scale form a class."""
        scales = 1 if self.density.multiscale is None else len(self.density.multiscale.sizes)
        return Layout(
            depth_of(self.levels), shape[-1], scales, int(np.prod(shape[:3])), self.levels
        )

    def is_cheap(self, shape: tuple[int, ...]) -> bool:
        """Return True, since all images of a batch are decoded together."""
        return True

    def iterate_elements(
        self, levels: np.ndarray, condition: dict, coding: Coding
    ) -> Iterator[Known]:
        """Yield the pixels of images [batch, size, size, channels] to encode, part by part."""
        parts = self._conditionals({"levels": tf.constant(levels), **condition})
        for name, (hidden, own) in parts.items():
            direct = self._network(name).draws_at_once
            order = (0, 1, 2, 3) if direct else (1, 2, 0, 3)
            units, prediction, flat = (
                np.asarray(array).transpose(order).reshape(-1, array.shape[-1])
                for array in (*hidden, own)
            )
            calls = 1 if direct else own.shape[1] * own.shape[2]
            pixels = self.pixels(name, Hidden(units, prediction), coding)
            sizes = [len(flat) // calls] * calls
            yield Known(flat.astype(np.int64), pixels.next_channel, self._class(name), sizes)

    def read(
        self, shape: tuple[int, ...], condition: dict, coding: Coding, decoder: Decoder
    ) -> np.ndarray:
        """Decode images int32 [batch, size, size, channels], part by part."""

        def read(name: str, hidden: Hidden) -> np.ndarray:
            hidden = tf.nest.map_structure(np.asarray, hidden)
            channels = self.pixels(name, hidden, coding).next_channel
            found = decoder.pixels(channels, len(hidden.units), self._class(name))
            return found.astype(np.int32)

        self.passes = self.steps = 0
        given = self._condition(condition)
        if self.density.multiscale is not None:
            return self._scales(read, self.density.multiscale, given, shape[0])
        name, size = str(shape[1]), shape[1]
        return self._scan(read, name, self._network(name), given, shape[0], size)

    def pixels(self, name: str, hidden: Hidden, coding: Coding) -> Pixels:
        """Return the distributions of a part's pixels from hidden states [pixels, ...]."""
        network = self._network(name)
        output = network.output or network.shallow.output
        made = PIXELS.get(output.kind, TabledPixels)
        return made(output, hidden, coding.tolerance, self._mapped, coding.moved)

    def _hidden_by_part(self, batch: dict) -> dict:
        condition = self.density.conditioner(batch)
        parts = self.density.conditionals(batch["levels"], condition, MODE)
        return {name: (part.hidden, part.levels) for name, part in parts.items()}

    def _scales(
        self, read: Read, model: Multiscale, condition: Condition, batch: int
    ) -> np.ndarray:
        base = model.sizes[0]
        at_base = condition_at(condition, base)
        image = self._scan(read, str(base), model.base, at_base, batch, base)
        for side in model.sizes[1:]:
            groups = [image]
            placed = with_coordinates(condition_at(condition, side), side, side)
            for group in GROUPS:
                groups.append(self._group(read, f"{side}.{group}", groups, placed))
            image = merge([tf.constant(each) for each in groups]).numpy()
        return image

    def _group(self, read: Read, name: str, groups: list, placed: Condition) -> np.ndarray:
        factor, shape = self._network(name), groups[0].shape
        program = self._programs.function(name, factor, reduce_retracing=True)
        hidden = program([tf.constant(each) for each in groups], placed, MODE)
        self.passes += 1
        if factor.output is not None:
            flat = tf.nest.map_structure(lambda x: np.asarray(x).reshape(-1, x.shape[-1]), hidden)
            return read(name, flat).reshape(shape)
        known, patch = factor.patch_hidden(hidden), factor.config.patch
        rows = known.units.shape[0]
        inner, more = Condition(None, known.units), known.prediction
        patches = self._scan(read, name, factor.shallow, inner, rows, patch, more)
        return paste(tf.constant(patches), tf.constant(shape)).numpy()

    def _scan(
        self,
        read: Read,
        name: str,
        network: PixelCNN,
        condition: Condition,
        batch: int,
        size: int,
        more: tf.Tensor | None = None,
    ) -> np.ndarray:
        """Decode images row by row, so that Ctrl-C ends a scan; `more` is added to predictions."""
        program = self._programs.function(
            (name, size), functools.partial(self._row, name, network, size), reduce_retracing=True
        )
        inputs, above = first_rows(network, size, batch)
        condition = network.add_coordinates(condition, tf.zeros([batch, size, size, 0]))
        rows = []
        with self._lock:
            self._read, self._error = read, None
            for y in range(size):
                prediction = None if more is None else more[:, y : y + 1]
                try:
                    row, inputs, above = program(condition.row(y), prediction, inputs, above)
                except tf.errors.OpError as error:
                    raise self._error or error from None
                rows.append(row.numpy())
        self.steps += size**2
        return np.stack(rows, 1)

    def _row(
        self,
        name: str,
        network: PixelCNN,
        width: int,
        condition: Condition,
        prediction: tf.Tensor | None,
        inputs: tf.Tensor,
        above: Sequence[tf.Tensor],
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        def read_pixel(units: np.ndarray, prediction: np.ndarray) -> np.ndarray:
            try:
                return self._read(name, Hidden(units, prediction))
            except Exception as error:
                self._error = error  # which TensorFlow would only quote
                raise

        def pixel(y: tf.Tensor, x: tf.Tensor, hidden: Hidden) -> tf.Tensor:
            levels = tf.numpy_function(read_pixel, [*hidden], tf.int32)
            return tf.ensure_shape(levels, [None, network.output_config.channels])

        scan = Scan(network, width, condition, pixel, prediction=prediction, mode=MODE)
        return scan_row(scan, 0, inputs, above)

    def _class(self, name: str) -> int:
        model = self.density.multiscale
        return 0 if model is None else model.sizes.index(int(name.split(".")[0]))

    def _network(self, name: str) -> Any:
        model = self.density.multiscale
        if model is None:
            return self.density.pixelcnn
        return model.factors.get(name, model.base)


class Images(Kind):
    """The format of compressed files of images and their conditions."""

    name, version, dtype = "images", 1, "u1"

    def __init__(self, density: ImageDensity, front: Any) -> None:
        multiscale, kind = density.multiscale, density.config.conditioning.kind
        if not density.whole:
            raise UserError("The run has not trained all parts; it gives no probability.")
        if multiscale is not None and multiscale.has_flow:
            raise UserError(
                "The model's base is a flow, which gives only a bound on the probability of an "
                "image and no conditionals to compress with."
            )
        if kind == "video":
            raise UserError(
                "A video model's images cannot be compressed: they need the frames before."
            )
        output = density.config.output
        if output.likelihood not in PIXELS and output.levels > MOST_TABLED:
            raise UserError(
                f"A model of {output.likelihood} must have at most {MOST_TABLED} levels to "
                f"compress, got {output.levels}."
            )
        self._density, self._front = density, front
        self.conditionals = ImageConditionals(density)
        self._shape = (front.size, front.size, front.channels)

    def digests(self) -> tuple[bytes, bytes | None]:
        """Return the density's digest; and None, since it is the same in format version 1."""
        return digest_of_network(self._density), None

    def pack(self, elements: Any, condition: Any, tolerance: float, **options: Any) -> Any:
        """Return the shape, description and levels to store, with `batch` images per stream."""
        batch = options.get("batch", 256)
        images = np.asarray(elements)
        if images.dtype != np.uint8 or images.shape[1:] != self._shape or not len(images):
            raise UserError(
                f"Images must be uint8 [num, {', '.join(map(str, self._shape))}], got "
                f"{images.dtype} {list(images.shape)}."
            )
        whole_number(batch, "batch", most=MOST_BATCH)
        values = self._front.list_conditions(condition, len(images))
        stored = [_store_condition(self._front, value) for value in values]
        stored = stored[:1] if all(each == stored[0] for each in stored) else stored
        described = {"batch": batch} | ({} if stored == [None] else {"condition": stored})
        parts = (images[first : first + batch] for first in range(0, len(images), batch))
        return images.shape, described, (part.astype(np.int32) for part in parts)

    def check(self, found: Container) -> None:
        """Raise a UserError unless all fields, except the content of conditions, are in range."""
        num, *shape = found.shape
        if not num or tuple(shape) != self._shape:
            size = self._front.size
            container.raise_damaged("shape", f"one or more images of {size}x{size} pixels")
        batch = container.whole("batch", found.description.get("batch"), 1, MOST_BATCH)
        if len(found.streams) != -(-num // batch):
            container.raise_damaged("streams", f"one for each {batch} images")
        stored = container.check_list(
            "condition", found.description.get("condition", [None]), (1, num)
        )
        wanted = STORED[self._front.config.conditioning.kind]
        if not all(type(value) is wanted for value in stored):
            container.raise_damaged("condition", f"a list of {wanted.__name__}")

    def blocks(self, found: Container, condition: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Yield the shape and the conditions of each batch in a file."""
        num, batch = found.shape[0], found.description["batch"]
        stored = found.description.get("condition", [None])
        for first in range(0, num, batch):
            count = min(batch, num - first)
            yield (count, *self._shape), self._rows(stored, first, count)

    def unpack(self, found: Container, parts: list[np.ndarray]) -> np.ndarray:
        """Return the images, uint8 [num, size, size, channels]."""
        return np.concatenate(parts)

    def _rows(self, stored: list, first: int, count: int) -> dict[str, np.ndarray]:
        values = stored * count if len(stored) == 1 else stored[first : first + count]
        read, size = self._front.condition, self._front.size
        try:
            rows = [read(np.array(v) if isinstance(v, list) else v) for v in values]
            found = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        except (TypeError, ValueError, OverflowError):  # raised for lists that are not maps
            container.raise_damaged("condition", "maps")
        if "map" in found and found["map"].shape != (count, size, size):
            container.raise_damaged("condition", f"maps of {size}x{size} labels")
        return found


def _store_condition(front: Any, value: Any) -> Any:
    front.condition(value)  # raises an error for an unknown condition
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        rule, fits = f"maps [{front.size}, {front.size}]", value.shape == (front.size, front.size)
        require(fits, "condition", rule, list(value.shape))
        return value.tolist()
    return front.label(value) if front.config.conditioning.kind == "class" else str(value)
