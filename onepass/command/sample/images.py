"""Draw, enlarge or continue images and videos, and write PNG files, sheets and animations."""

import contextlib
import dataclasses
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from onepass.command.sample.drawing import Drawing
from onepass.foundation.files import count_noun, read_npy
from onepass.foundation.rules import UserError, require
from onepass.interface import Draw
from pixelcnn.config import ImageRules
from pixelcnn.data.image_file import EIGHT, ImageError, read_image, rescale_levels
from pixelcnn.data.video import read_episodes
from pixelcnn.model import predict
from pixelcnn.sampling.grids import (
    SHEETS,
    grid,
    image_name,
    remove_older,
    write_gif,
    write_png,
    write_sheets,
)


def read_prefix_image(path: Path, rows: int | None, size: int, model: Any) -> np.ndarray:
    """Return the top `rows`, or the upper half, of an image to continue, in the model's levels."""
    image = _levels(path, ImageRules(size, model.front.channels, bits=model.front.bits))
    rows = size // 2 if rows is None else rows
    require(0 <= rows <= size, "--prime-rows", f"between 0 and {size}", rows)
    return image[:rows]


def at_own_size(path: Path, model: Any) -> np.ndarray:
    """Read an image at its original size, turned upright and converted to the model's levels."""
    with _readable(path), Image.open(path) as opened:
        size = max(opened.size)
    return _levels(path, ImageRules(size, model.front.channels, crop=1, bits=model.front.bits))


def labels_of(path: Path, model: Any) -> np.ndarray:
    """Read a label map, integers [side, side], from the grey levels of an image or an npy file."""
    if path.suffix == ".npy":
        labels = read_npy(path)
    else:
        with _readable(path), Image.open(path) as opened:
            if opened.has_transparency_data:
                raise UserError(f"{path} must not have transparency, a label for every pixel.")
            labels = np.asarray(opened.convert("L"), np.int32)
    if labels.dtype.kind not in "iu" or labels.min(initial=0) < 0:
        raise UserError(f"{path} must hold whole numbers of at least 0, got {labels.dtype}.")
    config = getattr(model, "config", None)
    if config is None:  # a served model: the server checks
        return labels
    size, classes = model.front.size, config.conditioning.classes
    if labels.shape != (size, size):
        got = "x".join(map(str, reversed(labels.shape)))
        raise UserError(f"{path}: the map must be {size}x{size} pixels, got {got}.")
    most = labels.max()
    if most >= classes:
        raise UserError(f"{path}: the map has the label {most}; there are 0 to {classes - 1}.")
    return labels


def _levels(path: Path, rules: ImageRules) -> np.ndarray:
    try:
        image = read_image(path, rules)
    except ImageError as error:
        raise UserError(f"{path}: {error}.") from error
    for remark in image.remarks:
        print(f"{path}: {remark}", file=sys.stderr)
    return image.levels


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file.") from error
    except (OSError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is not an image that can be read.") from error


DEFAULT_NUM = 16  # default number of images and videos
UNUSED = ("method", "guidance", "batch", "prime", "prime_rows")


class Enlargement(Drawing):
    """Enlargements of a photograph to every larger scale, up to the requested size."""

    title, unit = "enlarging", "tile"

    def __init__(self, given: Any, model: Any, arguments: dict[str, Any]):
        super().__init__(given, model, arguments)
        for field in dataclasses.fields(given):
            if field.name in UNUSED and getattr(given, field.name) != field.default:
                flag = field.name.replace("_", "-")
                raise UserError(f"`--{flag}` is not for a photograph to enlarge.")
        photograph = at_own_size(given.start, model)
        size, heat = given.size or model.front.size, arguments.get("temperature", 1.0)
        asked = Draw(given.num or 1, size, given.seed, {}, temperature=heat, prefix=photograph)
        self._asked, enlarger = model.model.check_draw(asked), model.model.enlarger
        rows = range(self._asked.num)
        first = max(photograph.shape[:2])
        sides = [side for side in enlarger.model.sizes if first < side <= size]
        # The file of the largest scale is named like any image, without its side.
        scales = [(row, None if side == size else str(side)) for row in rows for side in sides]
        self.files = [given.out / image_name(given.seed, row, side) for row, side in scales]
        self._work = enlarger.work(photograph.shape, size)
        self.total = len(rows) * self._work.tiles
        self._begun, self._shape = time.perf_counter(), (0, 0)

    def start(self) -> Iterator[np.ndarray]:
        """Yield the scales larger than the photograph, row by row; count tiles as they finish."""
        for row in range(self._asked.num):
            scales = self.model.model.enlarge_start(self._asked, row, lambda: self.advance(1))
            yield from itertools.islice(scales, 1, None)

    def write(self, part: np.ndarray) -> int:
        """Write one scale to its PNG file."""
        write_png(self.files[self.written], part)
        self._shape = part.shape[:2]
        return 0

    def describe_progress(self) -> str:
        """Return a phrase with the number of scales that have been written."""
        return f"{self.written} of {len(self.files)} scales"

    def finish(self) -> None:
        """Unless interrupted, print two lines: what was written, and how much work it took."""
        if self.written < len(self.files):
            return
        (height, width), work = self._shape, self._work
        seconds, count = time.perf_counter() - self._begun, self._asked.num
        steps = f", each with {work.steps} steps within patches" if work.steps else ""
        print(
            f"{self.given.out}: {count_noun(count, 'image')} of {width}x{height} pixels in "
            f"{seconds:.1f} s, compilation included\n"
            f"passes: {work.passes} per image{steps}, in {count_noun(work.tiles, 'tile')}"
        )


class VideoDrawing(Drawing):
    """Predictions of the dev clips in a folder of episodes, an animation and a strip for each."""

    unit = "video"

    def __init__(self, given: Any, model: Any, arguments: dict[str, Any]):
        super().__init__(given, model, arguments)
        if given.video is None:
            raise UserError("A video model needs `--video`, a folder of episodes to continue.")
        self._video = read_episodes(given.video, model.config.data, model.front.statistics)
        self._clips = self._video.splits["dev"]
        self.total = min(given.num or DEFAULT_NUM, len(self._clips.frames))
        self._context = model.config.conditioning.context_frames
        rows, endings = range(self.total), ("gif", "png")
        self.files = [given.out / f"video_{given.seed}_{r}.{e}" for r in rows for e in endings]

    def start(self) -> Iterator[Any]:
        """Return an iterator over videos, each the predicted frames after a clip's context."""
        clips, statistics = self._clips, self._video.statistics
        videos = [  # what cannot be drawn is refused before files are created
            predict(
                self.model,
                clips.frames[row, : self._context],
                clips.actions[row, :-1] * statistics.action_std + statistics.action_mean,
                clips.states[row, :-1] * statistics.state_std + statistics.state_mean,
                seed=self.given.seed,
                row=row,
                temperature=self.arguments.get("temperature", 1.0),
            )
            for row in range(self.total)
        ]
        return iter(videos)

    def write(self, part: Any) -> int:
        """Write the animation and the strip of a video."""
        real = self._clips.frames[self.written]
        both = [real, np.stack([*real[: self._context], *part])]
        animation, strip = self.files[2 * self.written : 2 * self.written + 2]
        write_gif(animation, [grid(pair, 2) for pair in zip(*both, strict=True)])
        write_png(strip, grid([*both[0], *both[1]], len(real)))
        return 1

    def finish(self) -> None:
        """Print a summary of the videos in one line."""
        count = count_noun(self.written, "video")
        print(f"{self.given.out}: {count}; real frames left or above, drawn ones right or below")


FLAGS = {"class": "label", "text": "caption", "map": "map", "video": "video"}
NAMES_OF_KINDS = {"label": "class", "caption": "text", None: "none"}  # by name in the config
NOT_OF_VIDEOS = {"method": "auto", "size": None, "start": None, "prime": None, "prime_rows": None}


def image_drawing(given: Any, model: Any, arguments: dict[str, Any]) -> Drawing:
    """Return the `Drawing` for an image model: images, an enlarged photograph, or videos."""
    kind = kind_of_condition(model)
    _check_flags(given, kind)
    if kind == "video":
        return VideoDrawing(given, model, arguments)
    multiscale = getattr(getattr(model, "network", None), "multiscale", None)
    if getattr(given, "start", None) is not None and multiscale and multiscale.any_shape:
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
        self.total = given.num or DEFAULT_NUM
        self._conditions = _conditions(given, model, self.total)
        classes = [_class_name(model, condition) for condition in self._conditions]
        names = [image_name(given.seed, row, name) for row, name in enumerate(classes)]
        self.files = [given.out / name for name in (*names, *SHEETS)]
        self._images: list[list[np.ndarray]] = []
        self._passes: list[int] = []
        self._begun = time.perf_counter()

    def start(self) -> Iterator[list[np.ndarray]]:
        """Return an iterator over the images, each a list of its scales, smallest first."""
        arguments = {**self.arguments, **_images_given(self.given, self.model), "scales": True}
        seed, condition = self.given.seed, self._conditions
        images = self.model.stream(self.total, seed=seed, condition=condition, **arguments)
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
        shown = [[rescale_levels(scale, bits, EIGHT) for scale in each] for each in self._images]
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
    for flag, default in NOT_OF_VIDEOS.items() if kind == "video" else ():
        if getattr(given, flag, default) != default:
            raise UserError(f"`--{flag.replace('_', '-')}` is not for a video model.")


def _conditions(given: Any, model: Any, num: int) -> list[Any]:
    kind = kind_of_condition(model)
    if kind == "class" and given.label is None:
        config, named = getattr(model, "config", None), len(model.spec.get("classes") or ())
        classes = config.conditioning.classes if config else max(1, named)
        return [row % classes for row in range(num)]
    if kind == "map" and given.map is not None:
        return [labels_of(given.map, model)] * num
    if kind == "text" and given.caption:
        return list(itertools.islice(itertools.cycle(given.caption), num))
    return [given.label] * num


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
