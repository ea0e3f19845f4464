"""Draw images with a local or served model, and write PNG files, contact sheets and scales."""

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from onepass.command.sample.drawing import Drawing
from onepass.command.sample.image_inputs import at_own_size, labels_of, read_prefix_image
from onepass.foundation.errors import UserError
from onepass.foundation.folders import count_noun
from pixelcnn.data.depth import EIGHT, rescale_levels
from pixelcnn.sampling.grids import SHEETS, image_name, remove_older, write_png, write_sheets

MANY = 16  # default number of images
FLAGS = {"class": "label", "text": "caption", "map": "map", "video": "video"}
NAMES_OF_KINDS = {"label": "class", "caption": "text", None: "none"}  # by name in the config
NOT_OF_VIDEOS = ("size", "start", "prime", "prime_rows")


def image_drawing(given: Any, model: Any, arguments: dict[str, Any]) -> Drawing:
    """Return the `Drawing` for an image model: images, an enlarged photograph, or videos."""
    kind = kind_of_condition(model)
    _check_flags(given, kind)
    if kind == "video":
        from onepass.command.sample.videos import VideoDrawing

        return VideoDrawing(given, model, arguments)
    multiscale = getattr(getattr(model, "network", None), "multiscale", None)
    if getattr(given, "start", None) is not None and multiscale and multiscale.any_shape:
        from onepass.command.sample.enlargement import Enlargement

        return Enlargement(given, model, arguments)
    return ImageDrawing(given, model, arguments)


def kind_of_condition(model: Any) -> str:
    """Return the kind of a model's condition: "class", "text", "map", "video" or "none"."""
    kind = model.spec.get("condition")
    return NAMES_OF_KINDS.get(kind, str(kind))


class ImageDrawing(Drawing):
    """Images, written one after another, followed by contact sheets of all of them."""

    unit = "image"

    def __init__(self, given: Any, model: Any, arguments: dict[str, Any]):
        super().__init__(given, model, arguments)
        self.total = MANY if given.num is None else given.num
        self._conditions = _conditions(given, model, self.total)
        classes = [_class_name(model, condition) for condition in self._conditions]
        names = [image_name(given.seed, row, name) for row, name in enumerate(classes)]
        self.files = [given.out / name for name in (*names, *SHEETS)]
        self._images: list[list[np.ndarray]] = []
        self._passes: list[int] = []
        self._begun = time.perf_counter()

    def start(self) -> Iterator[list[np.ndarray]]:
        """Return an iterator over the images, each a list of its scales, smallest first."""
        arguments = {**self.arguments, **_images_given(self.given, self.model)}
        images = self.model.stream(
            self.total,
            seed=self.given.seed,
            condition=self._conditions,
            scales=True,
            **arguments,
        )
        return ([scale[0] for scale in scales] for scales in images)

    def write(self, part: list[np.ndarray]) -> int:
        """Write the largest scale of an image to its PNG file."""
        write_png(self.files[self.written], part[-1])
        self._images.append(part)
        passes = getattr(getattr(self.model, "model", None), "passes", None)
        self._passes += [] if passes is None else [passes]
        return 1

    def finish(self) -> None:
        """Write the contact sheets and print a summary, if any image was drawn."""
        if not self._images:
            return
        given, bits = self.given, getattr(getattr(self.model, "front", None), "bits", 8)
        seconds, side = time.perf_counter() - self._begun, self._images[0][-1].shape[0]
        shown = [
            [rescale_levels(scale, bits, EIGHT) for scale in scales] for scales in self._images
        ]
        files = write_sheets(given.out, shown, given.caption)
        older = remove_older(given.out, given.seed, self.total) if given.overwrite else ""
        print(
            f"{given.out}: {count_noun(len(shown), 'image')} of {side}x{side} pixels in "
            f"{seconds:.1f} s, compilation included; {files}{older}"
        )
        if self._passes:
            print(_passes(self._passes, self.model, given.size, given.batch))


def _check_flags(given: Any, kind: str) -> None:
    for of, flag in FLAGS.items():
        if getattr(given, flag, None) is not None and of != kind:
            raise UserError(f"`--{flag}` is for a model of another kind; this one has {kind}.")
    if kind != "video":
        return
    if getattr(given, "method", "auto") != "auto":
        raise UserError("`--method` is not for a video model.")
    for flag in NOT_OF_VIDEOS:
        if getattr(given, flag, None) is not None:
            raise UserError(f"`--{flag.replace('_', '-')}` is not for a video model.")


def _conditions(given: Any, model: Any, num: int) -> list[Any]:
    kind = kind_of_condition(model)
    if kind == "class" and given.label is None:
        return [row % _classes(model) for row in range(num)]
    if kind == "map" and given.map is not None:
        return [labels_of(given.map, model)] * num
    if kind == "text" and given.caption:
        return list(itertools.islice(itertools.cycle(given.caption), num))
    return [given.label] * num


def _classes(model: Any) -> int:
    """Return the number of classes; not all of them need to have names."""
    config = getattr(model, "config", None)
    return config.conditioning.classes if config else max(1, len(model.spec.get("classes") or ()))


def _class_name(model: Any, condition: Any) -> str | None:
    if kind_of_condition(model) != "class" or condition is None:
        return None
    names, word = [str(name) for name in model.spec.get("classes") or ()], str(condition)
    is_number = word.isdecimal() and word not in names and int(word) < len(names)
    return names[int(word)] if is_number else word


def _images_given(given: Any, model: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if getattr(given, "start", None) is not None:
        found["prefix"] = at_own_size(given.start, model)
    prime, prime_rows = (getattr(given, name, None) for name in ("prime", "prime_rows"))
    if prime is not None:
        size = given.size or model.front.size
        found["prefix"] = read_prefix_image(prime, prime_rows, size, model)
    elif prime_rows is not None:
        raise UserError("`--prime-rows` needs `--prime`, the image they are of.")
    return found


def _passes(passes: list[int], model: Any, size: int | None, batch: int) -> str:
    multiscale = model.network.multiscale
    side = multiscale.config.base_size if multiscale else size or model.front.size
    what = "the base" if multiscale else "an image"
    whole = f", {model.model.batch_passes} for all of them" if batch > 1 else ""
    return (
        f"passes for {what} by fixed point: {np.mean(passes):.1f} "
        f"({min(passes)} to {max(passes)}) in place of {side**2:,}{whole}"
    )
