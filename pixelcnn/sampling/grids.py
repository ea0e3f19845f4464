"""Images for display: grids, strips of an image's scales, and animations."""

import itertools
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from onepass.foundation.files import replacing

GAP = 2  # pixels between two images
LEAST_SIDE = 96  # minimum side in pixels to which small images are enlarged
WHITE = 255
NAME_CHARACTERS = 40  # maximum number of characters of a class in a file name
NAMED = re.compile(r"sample_\d+_(\d+)(?:_.*)?\.png")
STRIPS = 8  # number of images whose scales are shown
SHEETS = ("grid.png", "progression.png", "progression.gif")
LINES, LINE_HEIGHT, FONT_SIZE = 3, 12, 10  # number of lines of a label, and sizes in pixels
CHARACTER_WIDTH = 5.5  # mean width of a character in pixels


def grid(images: Sequence[np.ndarray], columns: int | None = None) -> np.ndarray:
    """Arrange images, uint8 [height, width, 1 or 3] each, in a grid, uint8 [height, width, 3]."""
    columns = columns or max(1, int(np.ceil(np.sqrt(len(images)))))
    shown = [enlarge_pixels(colour(image), LEAST_SIDE) for image in images]
    (high, wide), rows = shown[0].shape[:2], -(-len(shown) // columns)
    sheet = np.full([rows * (high + GAP) + GAP, columns * (wide + GAP) + GAP, 3], WHITE, np.uint8)
    for i, image in enumerate(shown):
        top, left = GAP + i // columns * (high + GAP), GAP + i % columns * (wide + GAP)
        sheet[top : top + high, left : left + wide] = image
    return sheet


def label_image(image: np.ndarray, text: str) -> np.ndarray:
    """Return the enlarged image with text below it, uint8 [height, width, 3]."""
    above = enlarge_pixels(colour(image), LEAST_SIDE)
    width = above.shape[1]
    lines = textwrap.wrap(text, int(width / CHARACTER_WIDTH), max_lines=LINES, placeholder="...")
    below = Image.new("RGB", (width, LINES * LINE_HEIGHT), "white")
    pen, font = ImageDraw.Draw(below), ImageFont.load_default(FONT_SIZE)
    for i, line in enumerate(lines):
        pen.text((0, i * LINE_HEIGHT), line, "black", font)
    return np.concatenate([above, np.asarray(below)])


def write_sheets(
    folder: Path, images: Sequence[Sequence[np.ndarray]], labels: Sequence[str] | None = None
) -> str:
    """Write a grid of images and, if they have several scales, a strip and an animation of them.

    Labels of the grid are repeated cyclically. Return the names of the files, for a message.
    """
    last = [scales[-1] for scales in images]
    side = last[0].shape[0]
    if labels:
        last = [label_image(image, text) for image, text in zip(last, itertools.cycle(labels))]
    write_png(folder / "grid.png", grid(last))
    if len(images[0]) == 1:
        for name in SHEETS[1:]:  # left over from a different model
            (folder / name).unlink(missing_ok=True)
        return "grid.png"
    strips = [strip(scales) for scales in images[:STRIPS]]
    write_png(folder / "progression.png", np.concatenate(strips))
    steps = zip(*images, strict=True)
    write_gif(
        folder / "progression.gif", [grid([enlarge_pixels(p, side) for p in s]) for s in steps]
    )
    return "grid.png, progression.png and progression.gif (how they grew)"


def image_name(seed: int, row: int, label: str | None = None) -> str:
    """Return the file name of an image, with the seed, the row and, if given, the class."""
    shown = "" if label is None else "_" + re.sub(r"[^\w.-]+", "-", label)[:NAME_CHARACTERS]
    return f"sample_{seed}_{row}{shown}.png"


def remove_older(folder: Path, seed: int, num: int) -> str:
    """Remove a seed's image files of rows `num` and above; return a clause for a message."""
    rows = {path: NAMED.fullmatch(path.name) for path in folder.glob(f"sample_{seed}_*.png")}
    older = [path for path, row in rows.items() if row and int(row[1]) >= num]
    for path in older:
        path.unlink()
    return f"; removed {len(older)} images of an earlier, larger grid" if older else ""


def strip(scales: Sequence[np.ndarray]) -> np.ndarray:
    """Arrange the scales of an image in a row, each enlarged to the same size."""
    side = enlarge_pixels(scales[-1], LEAST_SIDE).shape[0]
    return grid([enlarge_pixels(colour(image), side) for image in scales], len(scales))


def colour(image: np.ndarray) -> np.ndarray:
    """Convert a grey or colour image to uint8 [height, width, 3]."""
    return np.repeat(image, 3, -1) if image.shape[-1] == 1 else image


def enlarge_pixels(image: np.ndarray, least: int) -> np.ndarray:
    """Enlarge an image to a width of at least `least` pixels by repeating pixels."""
    times = -(-least // image.shape[1])
    return image.repeat(times, 0).repeat(times, 1) if times > 1 else image


def write_png(path: Path, image: np.ndarray) -> None:
    """Write a PNG file atomically: uint8 [height, width, 1 or 3], or uint16 [height, width, 1]."""
    if image.dtype == np.uint16 and image.shape[-1] != 1:
        raise ValueError(f"`image` must have 1 channel for a 16-bit PNG, got {image.shape[-1]}.")
    file = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    with replacing(Path(path)) as temporary:
        file.save(temporary, "PNG")


def write_gif(path: Path, frames: Sequence[np.ndarray], frame_seconds: float = 0.5) -> None:
    """Write an endless animation of frames uint8 [height, width, 1 or 3] with the same size."""
    images = [
        Image.fromarray(colour(frame)).convert("P", palette=Image.Palette.ADAPTIVE)
        for frame in frames
    ]
    options = {"save_all": True, "append_images": images[1:], "loop": 0, "disposal": 1}
    with replacing(Path(path)) as temporary:
        images[0].save(temporary, "GIF", duration=round(1000 * frame_seconds), **options)
