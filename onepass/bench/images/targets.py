"""What the samplers of images should reach, and whether a run of the bench met it."""

import itertools
import math
import os

from onepass.bench.images.arguments import SAMPLERS
from onepass.bench.images.programs import MULTISCALE
from onepass.bench.images.rows import (
    PASSES,
    PEER_TRAINING,
    SPEED,
    TIME,
    TRAINING,
    size_name,
)
from onepass.bench.report import Row, ratio, verdict_lines
from pixelcnn.networks.config import GROUPS

# Sampler, the one it is held against, side of the image in pixels, times as fast.
TIMES = (
    ("cached", "naive", 32, 50),
    *((name, "naive", 32, 100) for name in MULTISCALE),  # the paper: 105
    *((name, "naive", 64, 600) for name in MULTISCALE),
)
AHEAD_FROM = 32  # side in pixels
LARGE, LARGE_SECONDS = 512, 60


def verdicts(rows: list[Row]) -> list[str]:
    """A line for every target: met, not met or not measured, with the figures of this run."""
    found = [_times(rows, *target) for target in TIMES]
    for name in MULTISCALE:
        found += [_ahead(rows, name), _passes(rows, name), _large(rows, name)]
    found.append(_training(rows))
    return verdict_lines(found)


def _times(rows: list[Row], name: str, over: str, size: int, least: float):
    at = size_name(size)
    figure = speed_ratio(rows, name, over, size)
    shown = "" if figure is None else f": {figure:,.0f} times"
    met = None if figure is None else figure >= least
    return met, f"{name} at least {least} times as fast as {over} at {at}{shown}"


def _ahead(rows: list[Row], name: str):
    known = {size: speed_ratio(rows, name, "cached", size) for size in _sizes(rows)}
    figures = {size: x for size, x in known.items() if x is not None and size >= AHEAD_FROM}
    shown = ", ".join(f"{size_name(size)} {x:.3g}" for size, x in figures.items())
    text = f"{name} ahead of cached at every size from {AHEAD_FROM}"
    if not figures:
        return None, text
    return min(figures.values()) > 1, f"{text}: {shown} times as fast"


def _passes(rows: list[Row], name: str):
    """Logarithmic: as many more passes for every doubling, whatever the size."""
    text = f"{name}: {len(GROUPS)} more passes for every doubling"
    counts = {_side(row): row.value for row in rows if row.what == f"{name}, {PASSES}"}
    sizes = sorted(counts)
    if len(sizes) < 2:
        return None, text
    rises = {(counts[b] - counts[a]) / math.log2(b / a) for a, b in itertools.pairwise(sizes)}
    shown = ", ".join(f"{counts[size]:.0f} at {size_name(size)}" for size in sizes)
    return rises == {len(GROUPS)}, f"{text}: counted {shown}"


def _large(rows: list[Row], name: str):
    text = f"{name}: a {size_name(LARGE)} image in under {LARGE_SECONDS} s"
    for row in rows:
        if (name_of(row), _side(row), row.unit) == (name, LARGE, TIME):
            return row.value < LARGE_SECONDS, f"{text}: {row.value:.3g} s, {os.cpu_count()} cores"
    return None, text


def _training(rows: list[Row]):
    text = "training step (float32) not slower than that of tfp's PixelCNN"
    for row in rows:
        if row.what == f"{TRAINING}, float32" and row.against == PEER_TRAINING:
            figure = ratio(row, rows) or 0.0
            return figure >= 1, f"{text}: {figure:.2f} times as fast"
    return None, text


def speed_ratio(rows: list[Row], name: str, over: str, size: int) -> float | None:
    """How many times as fast one sampler is as another; None if that was not measured."""
    for row in rows:
        held = (row.against or "").split(",")[0]
        if (name_of(row), held, _side(row), row.unit) == (name, over, size, SPEED):
            return ratio(row, rows)
    return None


def name_of(row: Row) -> str:
    """The sampler that a row is of."""
    return row.what.split(",")[0]


def side_by_side(rows: list[Row]) -> str:
    """Seconds an image as text: a line a size, a column a sampler."""
    times = {(_side(row), name_of(row)): row for row in rows if row.unit == TIME}
    names = [name for name in SAMPLERS if any(name == known for _, known in times)]
    lines = ["".join([f"{'s/picture':10s}", *(f"{name:>16s}" for name in names)])]
    for size in _sizes(rows):
        cells = [f"{_shown(times.get((size, name))):>16s}" for name in names]
        lines.append("".join([f"{size_name(size):10s}", *cells]))
    return "\n".join([*lines, "* from a part of an image; all by untrained weights"])


def _shown(row: Row | None) -> str:
    if row is None:
        return ""
    digits = f"{row.value:,.0f}" if row.value >= 100 else f"{row.value:.3g}"
    return digits + ("*" if is_part(row) else " ")


def is_part(row: Row) -> bool:
    """Whether an image's time is that of a part of it times the number of parts."""
    return "," in row.what


def points(rows: list[Row], name: str) -> list[tuple[int, float, bool]]:
    """Side in pixels, seconds an image, and whether a part was timed, smallest first."""
    found = [row for row in rows if row.unit == TIME and name_of(row) == name]
    return sorted((_side(row), row.value, is_part(row)) for row in found)


def _sizes(rows: list[Row]) -> list[int]:
    return sorted({_side(row) for row in rows if row.unit == TIME})


def _side(row: Row) -> int:
    return int(row.size.split("x")[0])
