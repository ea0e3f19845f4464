"""Pictures to look at: grids, strips that show a picture grow, animations."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from replicator.runs.atomic_files import replacing

GAP = 2  # pixels between two pictures
LEAST_SIDE = 96  # small pictures are shown enlarged, pixel by pixel, to at least this
WHITE = 255


def grid(pictures: Sequence[np.ndarray], columns: int | None = None) -> np.ndarray:
    """One picture, uint8 [height, width, 3], of pictures uint8 [side, side, 1 or 3] in rows.

    columns: in a row; None: about as many as there are rows.
    """
    columns = columns or max(1, int(np.ceil(np.sqrt(len(pictures)))))
    shown = [enlarged(colour(picture), LEAST_SIDE) for picture in pictures]
    side, rows = shown[0].shape[0], -(-len(shown) // columns)
    sheet = np.full([rows * (side + GAP) + GAP, columns * (side + GAP) + GAP, 3], WHITE, np.uint8)
    for i, picture in enumerate(shown):
        top, left = GAP + i // columns * (side + GAP), GAP + i % columns * (side + GAP)
        sheet[top : top + side, left : left + side] = picture
    return sheet


def strip(scales: Sequence[np.ndarray]) -> np.ndarray:
    """The scales of a picture side by side, each enlarged to the side of the last."""
    side = enlarged(scales[-1], LEAST_SIDE).shape[0]
    return grid([enlarged(colour(picture), side) for picture in scales], len(scales))


def colour(picture: np.ndarray) -> np.ndarray:
    """uint8 [height, width, 3] of a grey or a colour picture."""
    return np.repeat(picture, 3, -1) if picture.shape[-1] == 1 else picture


def enlarged(picture: np.ndarray, least: int) -> np.ndarray:
    """The picture with every pixel repeated, so that it is at least `least` pixels wide."""
    times = -(-least // picture.shape[1])
    return picture.repeat(times, 0).repeat(times, 1) if times > 1 else picture


def write_png(path: Path, picture: np.ndarray) -> None:
    """Writes a picture uint8 [height, width, 1 or 3]; the file is whole or not there."""
    image = Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture)
    with replacing(Path(path)) as temporary:
        image.save(temporary, "PNG")


def write_gif(path: Path, frames: Sequence[np.ndarray], frame_seconds: float = 0.5) -> None:
    """Writes an endless animation of frames uint8 [height, width, 1 or 3] of one size."""
    images = [
        Image.fromarray(colour(frame)).convert("P", palette=Image.Palette.ADAPTIVE)
        for frame in frames
    ]
    with replacing(Path(path)) as temporary:
        images[0].save(
            temporary,
            "GIF",
            save_all=True,
            append_images=images[1:],
            duration=round(1000 * frame_seconds),
            loop=0,
            disposal=1,
        )
