"""Draws images, whole or scale by scale, by a bundle's signatures."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onepass.bundles.condition_inputs import has_named
from onepass.bundles.errors import InvalidInput, shorten_text
from onepass.bundles.sampling import Sampling, noise_inputs, seed_number
from onepass.bundles.signature import COMPILED, IMAGE, Arrays, Signature, TensorInfo, scale_name
from onepass.draw import Draw
from onepass.foundation.arguments import check_seed, whole_number
from onepass.foundation.errors import UserError

CONDITIONS = {"label": "class", "caption": "caption", "map": "map"}  # name in requests per input
NUMBER = re.compile(r"[0-9]{1,9}")
Problem = Callable[[str], Exception]


def image_inputs(
    known: Mapping[str, TensorInfo],
    seed: int,
    rows: Sequence[int] | np.ndarray,
    temperature: float | Sequence[float] = 1.0,
    guidance: float = 0.0,
    condition: Mapping[str, np.ndarray] | None = None,
    problem: Problem = InvalidInput,
) -> Arrays:
    """Return the inputs of a batch of images."""
    try:
        seed = seed_number(seed)
    except ValueError as error:
        raise problem(str(error)) from error
    count, scales = len(rows), known["temperature"].shape[1] or 1
    each = np.atleast_1d(temperature)
    if len(each) not in (1, scales):
        raise problem(f"`temperature` must be one number or {scales}, got {len(each)}.")
    inputs = noise_inputs(known, seed, rows, each)
    if "guidance" in known:
        inputs["guidance"] = np.full([count], guidance, np.float32)
    elif guidance:
        raise problem("`guidance` must be 0: the model has no null condition.")
    for name, value in (condition or {}).items():
        inputs[name] = np.repeat(value, count // len(value), 0)
    return inputs


def condition_rows(
    name: str,
    values: Sequence[Any],
    classes: Sequence[str] = (),
    info: TensorInfo | None = None,
    field: str = "label",
    problem: Problem = InvalidInput,
) -> Arrays:
    """Return the conditions of images as an input by its name, with one row per image.

    Args:
      name: the input: "label", "caption" or "map".
      values: for each image a class (name or index), a caption, or a map int [side, side].
      info: the input in the signature, which limits the index of a class; None: no limit is known.
    """
    if name == "label":
        labels = [label_index(field, each, classes, info, problem) for each in values]
        return {name: np.array(labels, np.int32)}
    if name == "caption":
        return {name: np.stack([caption_codes(str(each)) for each in values])}
    return {name: np.stack(values)}


def scales_of(outputs: Mapping[str, np.ndarray], row: int) -> list[np.ndarray]:
    """Return the scales of image `row` of a batch, smallest first; the last is the whole image."""
    whole = outputs[IMAGE][row]
    scales = [value[row] for name, value in outputs.items() if name.startswith(f"{IMAGE}_")]
    smaller = [pixels for pixels in scales if len(pixels) < len(whole)]
    return [*sorted(smaller, key=len), whole]


def label_index(
    field: str,
    value: Any,
    classes: Sequence[str],
    info: TensorInfo | None = None,
    problem: Problem = InvalidInput,
) -> int:
    """Return the index of a class, given by name (in upper or lower case) or by index."""
    value = int(value) if isinstance(value, np.integer) else value
    word = str(value).strip()
    if word in classes:
        return classes.index(word)
    names = {name.casefold(): index for index, name in reversed(list(enumerate(classes)))}
    if word.casefold() in names:
        return names[word.casefold()]
    high = len(classes) - 1 if classes or info is None else int(info.high or 0)
    if type(value) in (int, str) and NUMBER.fullmatch(word) and (int(word) <= high or high < 0):
        return int(word)
    raise problem(f"`{field}` must be a class, got `{shorten_text(word)}`; {classes_of(classes)}.")


def classes_of(classes: Sequence[str]) -> str:
    """Return a clause for messages that lists the known classes."""
    return f"there are {', '.join(classes)}" if classes else "the classes have numbers"


def caption_codes(text: str) -> np.ndarray:
    """Return the codes of a caption, int32 [characters]; raise InvalidInput if it is too long."""
    from pixelcnn.data.captions import encode_caption

    try:
        return encode_caption(text)
    except UserError as error:
        raise InvalidInput(str(error)) from error


Condition = int | str | np.ndarray | dict[str, np.ndarray] | None
# For each kind of condition: its description, its input, and its types.
NEEDS: dict[str, tuple[str, str, Any]] = {
    "class": ("a class", "label", int | np.integer | str),
    "text": ("a caption", "caption", str),
    "map": ("a map of labels", "map", np.ndarray),
    "video": ("a dict of its `past`, `action` and `state`", "past", dict),
}

IMAGE_OPTIONS = frozenset({"temperature", "prefix", "guidance", "row", "scales"})


class ImageSampling(Sampling):
    """Methods of a bundle whose signatures have the output `picture`."""

    signatures: dict[str, Signature]

    @property
    def size(self) -> int:
        """Height and width of the images, in pixels."""
        return self.spec["size"]

    @property
    def channels(self) -> int:
        """Number of channels: 1 for grey, 3 for RGB."""
        return self.spec["channels"]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes by index; empty if they have no names."""
        return tuple(self.spec["classes"])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Height and width of each scale, smallest first; a PixelCNN has one scale."""
        outputs = self.signatures[COMPILED].outputs.values()
        return tuple(sorted({info.shape[1] or self.size for info in outputs}))

    def _images(self, draw: Draw) -> Iterator[list[np.ndarray]]:
        if IMAGE not in self.signatures[COMPILED].outputs:
            raise InvalidInput(f"The model `{self.name}` draws no images.")
        if draw.length not in (None, self.size, (self.size, self.size, self.channels)):
            raise InvalidInput(f"`length` must be {self.size}, as exported, got {draw.length}.")
        with self._own_errors():
            num, seed = whole_number(draw.num, "num"), check_seed(draw.seed)
            first = whole_number(draw.row, "row", 0)
        conditions: list[Any] = [draw.condition] * num
        if isinstance(draw.condition, list | tuple):
            conditions = list(draw.condition)
        if len(conditions) != num:
            raise InvalidInput(f"`condition` must be one or {num}, got {len(conditions)}.")
        heat = 1.0 if draw.temperature is None else draw.temperature
        start = None
        if draw.prefix is not None and self.sizes[:-1]:
            start = np.asarray(draw.prefix)
        calls = [
            self.inputs(value, seed, row, heat, draw.prefix, draw.guidance)
            for row, value in enumerate(conditions, first)
        ]
        return (self._scales(*call, start) for call in calls)

    def inputs(
        self,
        condition: Condition = None,
        seed: int = 0,
        row: int = 0,
        temperature: float | Sequence[float] = 1.0,
        prefix: np.ndarray | None = None,
        guidance: float = 0.0,
    ) -> tuple[str, Arrays]:
        """Return the name of the signature that draws an image, and its checked inputs for one row.

        A prefix is a small image [side, side, channels] to enlarge (multiscale), or pixels [n,
        channels] or rows [rows, size, channels] to begin with (PixelCNN), uint8.
        """
        known = self.signatures[COMPILED].inputs
        conditions = self.condition(condition)
        inputs: dict[str, Any] = image_inputs(known, seed, [row], temperature, guidance, conditions)
        signature = COMPILED
        if prefix is not None:
            signature, begun = self._continue_prefix(np.asarray(prefix))
            inputs |= begun
        return signature, self.check(signature, inputs)

    def _continue_prefix(self, prefix: np.ndarray) -> tuple[str, dict[str, Any]]:
        channels, size = self.channels, self.size
        if self.sizes[:-1]:
            self._check_start(prefix)
            return scale_name(2 * prefix.shape[0]), {"start": prefix[None]}
        if "complete" not in self.signatures:
            raise InvalidInput("Only a PixelCNN can complete an image from its first pixels.")
        if prefix.ndim == 3 and prefix.shape[1] != size:
            raise InvalidInput("A PixelCNN cannot enlarge an image; a multiscale model can.")
        if prefix.ndim not in (2, 3) or prefix.shape[-1] != channels:
            rule = f"[n, {channels}], or [rows, {size}, {channels}]"
            raise InvalidInput(f"`prefix` must be pixels {rule}, got {list(prefix.shape)}.")
        pixels = prefix.reshape(-1, channels)
        if len(pixels) > size**2:
            raise InvalidInput(f"`prefix` must have at most {size**2} pixels, got {len(pixels)}.")
        image = np.zeros([size**2, channels], prefix.dtype)
        image[: len(pixels)] = pixels
        whole = image.reshape(1, size, size, channels)
        return "complete", {"given": whole, "given_count": [len(pixels)]}

    def condition(self, value: Condition) -> dict[str, np.ndarray]:
        """Return the inputs for the condition of one image, with a batch axis."""
        if has_named(self.spec):
            raise InvalidInput(f"`{self.name}` has conditions by name: call `sample`.")
        kind = self.spec["condition"]
        if kind == "none":
            if value is not None:
                raise InvalidInput("The model draws without a condition.")
            return {}
        words, name, types = NEEDS[kind]
        if not isinstance(value, types):
            raise InvalidInput(f"The model needs {words}.")
        if isinstance(value, dict):
            return {each: np.asarray(array)[None] for each, array in value.items()}
        info = self.signatures[COMPILED].inputs[name]
        return condition_rows(name, [value], self.classes, info, "condition")

    def _check_start(self, start: np.ndarray) -> None:
        sides = self.sizes[:-1]
        if start.ndim != 3 or start.shape[0] != start.shape[1] or start.shape[0] not in sides:
            raise InvalidInput(
                f"The image to start from must be square with a side of "
                f"{' or '.join(map(str, sides))} pixels, got {list(start.shape)}."
            )

    def _scales(self, signature: str, inputs: Arrays, start: np.ndarray | None) -> list[np.ndarray]:
        if start is not None:
            return self._enlarge_image(inputs, start)
        return scales_of(self._outputs(signature, inputs), 0)

    def _enlarge_image(self, inputs: Arrays, start: np.ndarray) -> list[np.ndarray]:
        scales = [start]
        while len(scales[-1]) < self.size:
            signature = scale_name(2 * len(scales[-1]))
            outputs = self._outputs(signature, inputs | {"start": scales[-1][None]})
            scales.append(outputs[IMAGE][0])
        return scales
