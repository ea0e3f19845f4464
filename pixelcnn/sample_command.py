"""The verb `sample` for images: PNG files, contact sheets, and the growth over the scales."""

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from pixelcnn.data.depth import EIGHT, rescaled
from pixelcnn.data.image_file import ImageError, ImageRules, read_image
from pixelcnn.data.video import Video, read_episodes
from pixelcnn.enlarge_command import INTERRUPTED, enlarge
from pixelcnn.model import ImageModel, load
from pixelcnn.sample_arguments import SampleArguments
from pixelcnn.sampling.grids import (
    check_new_images,
    grid,
    image_name,
    remove_older,
    write_gif,
    write_png,
    write_sheets,
)
from pixelcnn.video_prediction import predict
from replicator.runs.errors import UserError
from replicator.runs.folders import check_new, counted, make_folder
from replicator.runs.progress import Progress

FLAGS = {"class": "label", "text": "caption", "map": "map", "video": "video"}


def sample(given: SampleArguments) -> int:
    """Write the images of `onepass sample ...` and return the exit status.

    Ctrl-C keeps the images that are finished.
    """
    if given.count < 1:
        raise UserError(f"`--num` must be at least 1, got {given.count}.")
    model = load(given.model)
    _check_flags(given, model.config.conditioning.kind)
    if model.config.conditioning.kind == "video":
        return _videos(given, model)
    if given.start is not None and model.multiscale is not None and model.multiscale.any_shape:
        return enlarge(given, model)
    conditions = _conditions(given, model)
    names = _names(given, model, conditions)
    check_new_images(given.out, names, given.overwrite)
    options = _options(given, model)
    drawn = model.progressions(conditions, seed=given.seed, num=given.count, **options)
    make_folder(given.out)
    images: list[list[np.ndarray]] = []
    passes: list[int] = []
    start = time.perf_counter()
    with Progress(given.count, "drawing", "image") as progress:
        try:
            for name, scales in zip(names, drawn, strict=True):
                images.append(scales)
                passes += [] if model.sampler.passes is None else [model.sampler.passes]
                write_png(given.out / name, scales[-1])
                progress.advance()
        except KeyboardInterrupt:
            progress.say(f"interrupted: keeping {len(images)} of {given.count} images")
    if images:
        _show(given, images, model.bits, time.perf_counter() - start)
    if passes:
        print(_passes(passes, model, given.size, given.batch))
    return 0 if len(images) == given.count else INTERRUPTED


def _check_flags(given: SampleArguments, kind: str) -> None:
    """Raise UserError for a flag that has no meaning for a model of this kind of condition."""
    for of, flag in FLAGS.items():
        if getattr(given, flag) is not None and of != kind:
            raise UserError(f"`--{flag}` is for a model of another kind; this one has {kind}.")
    if kind == "video" and given.sampler != "cached":
        raise UserError("`--sampler` is not for a video model.")
    for flag in ("size", "start", "prime", "prime_rows"):
        if kind == "video" and getattr(given, flag) is not None:
            raise UserError(f"`--{flag.replace('_', '-')}` is not for a video model.")


def _passes(passes: list[int], model: ImageModel, size: int | None, batch: int) -> str:
    """Return a line on the network passes that images took by fixed point."""
    side = model.multiscale.config.base_size if model.multiscale else size or model.size
    what = "the base" if model.multiscale else "an image"
    whole = f", {model.sampler.batch_passes} for all of them" if batch > 1 else ""
    return (
        f"passes for {what} by fixed point: {np.mean(passes):.1f} "
        f"({min(passes)} to {max(passes)}) in place of {side**2:,}{whole}"
    )


def _conditions(given: SampleArguments, model: ImageModel) -> list[Any]:
    """Return the condition of each image."""
    kind = model.config.conditioning.kind
    if kind == "class" and given.label is None:
        return [i % model.config.conditioning.classes for i in range(given.count)]
    if kind == "map" and given.map is not None:
        return [_labels(given.map, model)] * given.count
    if kind == "text" and given.caption:
        return list(itertools.islice(itertools.cycle(given.caption), given.count))
    return [given.label] * given.count


def _names(given: SampleArguments, model: ImageModel, conditions: list[Any]) -> list[str]:
    """Return the name of each image's file."""
    labels = [_class_name(model, condition) for condition in conditions]
    return [image_name(given.seed, row, label) for row, label in enumerate(labels)]


def _class_name(model: ImageModel, condition: Any) -> str | None:
    """Return the name of an image's class, None for an image without one."""
    if model.config.conditioning.kind != "class" or condition is None:
        return None
    number = model.label(condition)
    return model.classes[number] if number < len(model.classes) else str(number)


def _temperature(given: SampleArguments) -> float | tuple[float, ...]:
    for temperature in given.temperature:
        if not 0 <= temperature < float("inf"):
            raise UserError(f"`--temperature` must be 0 or more and finite, got {temperature:g}.")
    return given.temperature[0] if len(given.temperature) == 1 else given.temperature


def _options(given: SampleArguments, model: ImageModel) -> dict[str, Any]:
    size = given.size or model.size
    options: dict[str, Any] = {
        "size": given.size,
        "temperature": _temperature(given),
        "sampler": given.sampler,
        "guidance": given.guidance,
        "batch": given.batch,
    }
    if given.prime_rows is not None and given.prime is None:
        raise UserError("`--prime-rows` needs `--prime`, the image they are of.")
    if given.start is not None:
        options["start"] = _started(given.start, model)
    if given.prime is not None:
        image = _primed(given.prime, ImageRules(size, model.channels, bits=model.bits))
        rows = size // 2 if given.prime_rows is None else given.prime_rows
        if not 0 <= rows <= size:
            raise UserError(f"`--prime-rows` must be between 0 and {size}, got {rows}.")
        options["given"] = (image, rows * size)
    return options


def _primed(path: Path, rules: ImageRules) -> np.ndarray:
    try:
        return read_image(path, rules).levels
    except ImageError as error:
        raise UserError(f"{path}: {error}.") from error


def _started(path: Path, model: ImageModel) -> np.ndarray:
    """Read a square image at its own size, with the levels of the model."""
    whole = _opened(path, model.channels)
    if whole.shape[0] != whole.shape[1]:
        return whole  # which the model refuses by its shape
    return _primed(path, ImageRules(whole.shape[0], model.channels, bits=model.bits))


def _opened(path: Path, channels: int) -> np.ndarray:
    """Read an image uint8 [height, width, channels] at its own size."""
    try:
        with Image.open(path) as opened:
            levels = np.asarray(opened.convert("L" if channels == 1 else "RGB"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file.") from error
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is no image that can be read.") from error
    return levels[..., None] if levels.ndim == 2 else levels


def _labels(path: Path, model: ImageModel) -> np.ndarray:
    labels = _opened(path, 1)[..., 0].astype(np.int32)
    if labels.shape != (model.size, model.size):
        raise UserError(
            f"{path}: the map must be {model.size}x{model.size} pixels, got "
            f"{labels.shape[1]}x{labels.shape[0]}."
        )
    classes = model.config.conditioning.classes
    if labels.max() >= classes:
        raise UserError(
            f"{path}: the map has the label {labels.max()}; there are 0 to {classes - 1}."
        )
    return labels


def _show(
    given: SampleArguments, images: list[list[np.ndarray]], bits: int, seconds: float
) -> None:
    """Write the sheets and print a summary."""
    shown = [[rescaled(scale, bits, EIGHT) for scale in scales] for scales in images]
    files, side = write_sheets(given.out, shown, given.caption), images[0][-1].shape[0]
    older = remove_older(given.out, given.seed, given.count) if given.overwrite else ""
    print(
        f"{given.out}: {counted(len(images), 'image')} of {side}x{side} pixels in {seconds:.1f} s, "
        f"compilation included; {files}{older}"
    )


def _videos(given: SampleArguments, model: ImageModel) -> int:
    """Write an animation and a strip of the predicted frames of each dev clip."""
    if given.video is None:
        raise UserError("A video model needs `--video`, a folder of episodes to continue.")
    video = read_episodes(given.video, model.config.data, model.statistics)
    num = min(given.count, len(video.splits["dev"].frames))
    stems = [f"video_{given.seed}_{row}" for row in range(num)]
    paths = [given.out / f"{stem}.{kind}" for stem in stems for kind in ("gif", "png")]
    check_new(paths, given.overwrite)
    drawn = [_drawn(given, model, video, row) for row in range(num)]
    make_folder(given.out)
    with Progress(num, "drawing", "video") as progress:
        for row, frames in enumerate(drawn):
            real = video.splits["dev"].frames[row]
            context = model.config.conditioning.context_frames
            both = [real, np.stack([*real[:context], *frames])]
            pairs = [grid(pair, 2) for pair in zip(*both, strict=True)]
            write_gif(given.out / f"{stems[row]}.gif", pairs)
            sheet = grid([*both[0], *both[1]], len(real))
            write_png(given.out / f"{stems[row]}.png", sheet)
            progress.advance()
    count = counted(num, "video")
    print(f"{given.out}: {count}; left or above the real frames, right or below the drawn")
    return 0


def _drawn(given: SampleArguments, model: ImageModel, video: Video, row: int):
    """Yield the predicted frames after the first ones of a clip of dev."""
    clips, statistics = video.splits["dev"], video.statistics
    return predict(
        model,
        clips.frames[row, : model.config.conditioning.context_frames],
        clips.actions[row, :-1] * statistics.action_std + statistics.action_mean,
        clips.states[row, :-1] * statistics.state_std + statistics.state_mean,
        seed=given.seed,
        row=row,
        temperature=_temperature(given),
    )
