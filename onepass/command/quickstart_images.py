"""Draw the quickstart's images with shipped models: pixel by pixel, and in O(log N) passes."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from onepass.foundation.progress import Progress
from onepass.trained import Trained
from pixelcnn.model import load
from pixelcnn.sampling.grids import enlarge_pixels, grid, strip, write_gif, write_png

SETS = {
    "digits": ("shipped-digits-teacher", "shipped-digits"),
    "digits-64": ("shipped-digits-64-teacher", "shipped-digits-64"),
}
IMAGES = 20


def image_files() -> list[str]:
    """Return the names of the files that `draw_images` writes."""
    kinds = ("pixel-by-pixel.png", "multiscale.png", "scales.png", "growing.gif")
    return [f"{name}-{kind}" for name in SETS for kind in kinds]


def draw_images(out: Path, seed: int) -> str:
    """Draw contact sheets of each set of images with both models; return the report's section."""
    rows = []
    for name, models in SETS.items():
        for model_name in models:
            model = load(model_name)
            scales, seconds = _time_images(model, model_name, seed)
            slug = "pixel-by-pixel" if model.network.multiscale is None else "multiscale"
            write_png(out / f"{name}-{slug}.png", grid([s[-1] for s in scales], 5))
            if model.network.multiscale is not None:
                _show_growth(out / name, scales)
            passes = model.front.size**2 if model.network.multiscale is None else _passes(model)
            rows.append(f"| {name}, {slug} | {model.front.size} | {passes} | {seconds:.3f} |")
    table = "\n".join(rows)
    return f"""## Images

| | side, pixels | network passes without a cache | seconds per image |
|---|---|---|---|
{table}

Classes in turn. Compare `{out}/digits-multiscale.png` with `digits-pixel-by-pixel.png`; look at
`digits-growing.gif` and `digits-scales.png`, and the same for `digits-64`."""


def _time_images(model: Trained, name: str, seed: int) -> tuple[list[list[np.ndarray]], float]:
    """Return the scales of each image, and the median seconds per image after the first."""
    classes = [i % len(model.front.classes) for i in range(IMAGES)]
    scales, times = [], []
    with Progress(IMAGES, f"drawing with {name}", "image") as progress:
        for image in model.stream(IMAGES, seed=seed, condition=classes, scales=True):
            scales.append([scale[0] for scale in image])
            times.append(time.perf_counter())
            progress.advance()
    return scales, float(np.median(np.diff(times)))


def _show_growth(stem: Path, scales: Sequence[list[np.ndarray]]) -> None:
    strips = np.concatenate([strip(image) for image in scales[:6]])
    write_png(stem.with_name(f"{stem.name}-scales.png"), strips)
    side = scales[0][-1].shape[0]
    sheets = [
        grid([enlarge_pixels(p, side) for p in step], 5) for step in zip(*scales, strict=True)
    ]
    write_gif(stem.with_name(f"{stem.name}-growing.gif"), sheets, 0.8)


def _passes(model: Trained) -> int:
    sizes = model.network.multiscale.sizes
    return sizes[0] ** 2 + 3 * (len(sizes) - 1)
