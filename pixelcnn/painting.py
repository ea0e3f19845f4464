"""The verb `sample` for pictures: PNG files, sheets of them, and how they grow over the scales."""

import dataclasses
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from PIL import Image, UnidentifiedImageError

from pixelcnn.model import PictureModel, load
from pixelcnn.pictures import PictureRules, read_picture
from pixelcnn.prediction import predict
from pixelcnn.sheets import enlarged, grid, strip, write_gif, write_png
from pixelcnn.video_data import read_episodes
from replicator.errors import UserError
from replicator.progress import Progress

STRIPS = 8  # pictures whose growth is shown
INTERRUPTED = 130


@dataclasses.dataclass(frozen=True)
class SampleArguments:
    """Draw pictures: PNG files, a sheet of them all and, from a multiscale model, how they grow."""

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """Run directory, model folder, or shipped-digits, shipped-digits-teacher, shipped-objects,
    shipped-objects-teacher."""
    out: Path
    """Folder for the files; made if missing."""
    num: int = 16
    """Pictures, from the rows 0, 1, ... of the seed; videos for a video model."""
    seed: int = 0
    """Names the noise: the same seed gives the same pictures."""
    size: int | None = None
    """Side in pixels; None: as trained. A multiscale model draws every size from its base up."""
    temperature: tuple[float, ...] = (1.0,)
    """1 samples the model, less comes closer to its mode; one number, or one a scale, base
    first."""
    label: str | None = None
    """Class, by name or number; None: all classes in turn."""
    caption: str | None = None
    """Text to draw, up to 200 characters, for a model of captions."""
    map: Path | None = None
    """Picture whose grey levels are the labels of a map, for a model of maps."""
    start: Path | None = None
    """Small square picture to enlarge, of a side that the model draws on its way (multiscale)."""
    prime: Path | None = None
    """Picture to go on from (PixelCNN)."""
    prime_rows: int | None = None
    """Rows of that picture to keep; None: the upper half."""
    video: Path | None = None
    """Folder of episodes (*_train.npz, *_dev.npz) whose dev clips a video model goes on from."""


def run_sample(arguments: list[str], parse) -> int:
    """Parses the rest of `onepass sample ...` and draws; Ctrl-C keeps what has been drawn."""
    given = parse(SampleArguments, arguments, "onepass sample")
    if given.num < 1:
        raise UserError(f"`--num` must be at least 1, got {given.num}.")
    model = load(given.model)
    if model.config.conditioning.kind == "video":
        return _videos(given, model)
    wishes = _wishes(given, model)
    options = _options(given, model)
    drawn = model.progressions(wishes, seed=given.seed, num=given.num, **options)
    model.condition(wishes[0])
    _make(given.out)
    pictures: list[list[np.ndarray]] = []
    start = time.perf_counter()
    with Progress(given.num, "drawing", "picture") as progress:
        try:
            for row, scales in enumerate(drawn):
                pictures.append(scales)
                write_png(given.out / f"sample_{given.seed}_{row}.png", scales[-1])
                progress.advance()
        except KeyboardInterrupt:
            progress.say(f"interrupted: keeping {len(pictures)} of {given.num} pictures")
    if pictures:
        _show(given, pictures, time.perf_counter() - start)
    return 0 if len(pictures) == given.num else INTERRUPTED


def _wishes(given: SampleArguments, model: PictureModel) -> list[Any]:
    """The condition of each picture."""
    kind = model.config.conditioning.kind
    asked = {"class": given.label, "text": given.caption, "map": given.map}
    for of, value in asked.items():
        if value is not None and of != kind:
            flag = {"class": "label", "text": "caption", "map": "map"}[of]
            raise UserError(f"`--{flag}` is for a model of another kind; this one has {kind}.")
    if kind == "class" and given.label is None:
        return [i % model.config.conditioning.classes for i in range(given.num)]
    if kind == "map" and given.map is not None:
        return [_labels(given.map, model)] * given.num
    return [asked.get(kind)] * given.num


def _options(given: SampleArguments, model: PictureModel) -> dict[str, Any]:
    temperature = given.temperature[0] if len(given.temperature) == 1 else given.temperature
    if not all(0 <= t < float("inf") for t in given.temperature):
        raise UserError(f"`--temperature` must be 0 or more, got {min(given.temperature):g}.")
    size = given.size or model.size
    options: dict[str, Any] = {"size": given.size, "temperature": temperature}
    if given.prime_rows is not None and given.prime is None:
        raise UserError("`--prime-rows` needs `--prime`, the picture they are of.")
    if given.start is not None:
        options["start"] = _opened(given.start, model)
    if given.prime is not None:
        picture = read_picture(given.prime, PictureRules(size, model.channels)).levels
        rows = size // 2 if given.prime_rows is None else given.prime_rows
        if not 0 <= rows <= size:
            raise UserError(f"`--prime-rows` must be between 0 and {size}, got {rows}.")
        options["given"] = (picture, rows * size)
    return options


def _opened(path: Path, model: PictureModel) -> np.ndarray:
    """A picture at its own size, in the model's channels."""
    try:
        with Image.open(path) as opened:
            levels = np.asarray(opened.convert("L" if model.channels == 1 else "RGB"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file.") from error
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is no picture that can be read: {error}") from error
    return levels[..., None] if levels.ndim == 2 else levels


def _labels(path: Path, model: PictureModel) -> np.ndarray:
    try:
        with Image.open(path) as opened:
            labels = np.asarray(opened.convert("L")).astype(np.int32)
    except (OSError, UnidentifiedImageError) as error:
        raise UserError(f"{path} is no picture that can be read: {error}") from error
    if labels.shape != (model.size, model.size):
        raise UserError(
            f"The map must be {model.size}x{model.size} pixels, got "
            f"{labels.shape[1]}x{labels.shape[0]}."
        )
    classes = model.config.conditioning.classes
    if labels.max() >= classes:
        raise UserError(f"The map has the label {labels.max()}; there are 0 to {classes - 1}.")
    return labels


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot make the folder {folder}: {error.strerror}.") from error


def _show(given: SampleArguments, pictures: list[list[np.ndarray]], seconds: float) -> None:
    """Writes the sheets and prints what there is."""
    side = pictures[0][-1].shape[0]
    write_png(given.out / "grid.png", grid([scales[-1] for scales in pictures]))
    also = ""
    if len(pictures[0]) > 1:
        strips = [strip(scales) for scales in pictures[:STRIPS]]
        write_png(given.out / "progression.png", np.concatenate(strips))
        steps = zip(*pictures, strict=True)
        sheets = [grid([enlarged(p, side) for p in step]) for step in steps]
        write_gif(given.out / "progression.gif", sheets)
        also = ", progression.png and progression.gif (how they grew)"
    print(
        f"{given.out}: {len(pictures)} pictures of {side}x{side} pixels in {seconds:.1f} s, "
        f"compilation included; grid.png{also}"
    )


def _videos(given: SampleArguments, model: PictureModel) -> int:
    """Goes on from the beginnings of dev clips; an animation and a strip of each."""
    if given.video is None:
        raise UserError("A video model needs `--video`, a folder of episodes to go on from.")
    video = read_episodes(given.video, model.config.data.rules)
    clips, statistics = video.splits["dev"], video.statistics
    context = model.config.conditioning.context_frames
    _make(given.out)
    num = min(given.num, len(clips.frames))
    with Progress(num, "drawing", "video") as progress:
        for row in range(num):
            real = clips.frames[row]
            frames = predict(
                model,
                real[:context],
                clips.actions[row, :-1] * statistics.action_std + statistics.action_mean,
                clips.states[row, :-1] * statistics.state_std + statistics.state_mean,
                seed=given.seed,
                row=row,
                temperature=given.temperature[0],
            )
            drawn = [*real[:context], *frames]
            pairs = [grid([truth, mine], 2) for truth, mine in zip(real, drawn, strict=True)]
            write_gif(given.out / f"video_{given.seed}_{row}.gif", pairs)
            both = grid([*real, *drawn], len(real))
            write_png(given.out / f"video_{given.seed}_{row}.png", both)
            progress.advance()
    print(f"{given.out}: {num} videos; left or above the real frames, right or below the drawn")
    return 0
