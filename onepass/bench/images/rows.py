"""What `onepass bench images` measures, as rows with the ratios that they are held to."""

import functools
from collections.abc import Iterator

from onepass.bench.images import programs, tfp_pixelcnn
from onepass.bench.images import training as image_training
from onepass.bench.images.passes import count_passes
from onepass.bench.images.programs import Timed
from onepass.bench.report import Measure, Measures, Row

# A sampler's speed is also given as so many times that of these.
AGAINST = {
    "naive": (),
    "cached": ("naive", "tfp"),
    "multiscale-A": ("naive", "cached", "tfp"),
    "multiscale-B": ("naive", "cached", "tfp"),
    "tfp": ("naive",),
}
SPEED, TIME, PASSES, STEP = "pixels/s", "s/picture", "passes", "s/step"
COMPILING = "s to compile"
TRAINING, PEER_TRAINING = "training", "tfp training"
Prepared = dict[tuple[str, int], Timed]


def made(samplers: tuple[str, ...], sizes: tuple[int, ...], training: bool) -> Prepared:
    """What is to be timed, not compiled yet, by name and size."""
    timed: Prepared = {}
    for size in sizes:
        for name in samplers:
            timed[name, size] = _sampler(name, size, max(sizes))
    if training:
        for dtype in image_training.DTYPES:
            timed[f"{TRAINING}, {dtype}", image_training.SIZE] = image_training.own_step(dtype)
        timed[PEER_TRAINING, image_training.SIZE] = image_training.peer_step()
    return timed


def _sampler(name: str, size: int, largest: int) -> Timed:
    if name in programs.MULTISCALE:
        return programs.multiscale(name, size, largest)
    make = {"naive": programs.naive, "cached": programs.cached, "tfp": tfp_pixelcnn.sampler}[name]
    return make(size)


def measures_of(prepared: Prepared) -> Measures:
    """A row and a function to measure it for everything that is said of what was prepared."""
    measures: Measures = []
    for (name, size), timed in prepared.items():
        if name in AGAINST:
            against = [other for other in AGAINST[name] if (other, size) in prepared]
            measures += _measures_of_sampler(name, size, against, timed)
        else:
            measures += _measures_of_training(name, size, timed)
    for name in programs.MULTISCALE:
        measures += _counts(name, [size for known, size in prepared if known == name])
    if {"tfp", PEER_TRAINING} & {name for name, _ in prepared}:
        measures += _sizes_of_networks()
    return measures


def title(name: str, size: int) -> str:
    """What the rows of a sampler are called: its name, and what part of an image was timed."""
    passes = whole = 1
    if name == "naive":
        passes, whole = programs.passes_timed(size), size**2
    if name == "tfp":
        passes, whole = tfp_pixelcnn.passes_timed_of(size)
    return name if passes == whole else f"{name}, {passes} of {whole:,} passes"


def size_name(size: int) -> str:
    """How rows tell the size of an image."""
    return f"{size}x{size}"


def _measures_of_sampler(
    name: str, size: int, against: list[str], timed: Timed
) -> Iterator[tuple[Row, Measure]]:
    what, at = title(name, size), size_name(size)
    over: list[str | None] = [title(other, size) for other in against]
    first, *others = over or [None]
    yield Row(what, at, 1, SPEED, first), lambda: size**2 / timed.measure()
    for other in others:
        yield Row(what, at, 1, SPEED, other), lambda: size**2 / timed.seconds
    yield Row(what, at, 1, TIME), lambda: timed.seconds
    yield _compile_row(name, at, 1, timed)


def _measures_of_training(name: str, size: int, timed: Timed) -> Iterator[tuple[Row, Measure]]:
    at, batch = size_name(size), image_training.BATCH
    over = None if name == PEER_TRAINING else PEER_TRAINING
    yield Row(name, at, batch, "pictures/s", over), lambda: batch / timed.measure()
    yield Row(name, at, batch, STEP), lambda: timed.seconds
    yield _compile_row(name, at, batch, timed)


def _compile_row(name: str, at: str, batch: int, timed: Timed) -> tuple[Row, Measure]:
    return Row(f"{name}, {timed.engine}", at, batch, COMPILING), lambda: timed.compile_seconds


def _counts(name: str, sizes: list[int]) -> Iterator[tuple[Row, Measure]]:
    counted = count_passes(name, max(sizes)) if sizes else {}
    for size in sizes:
        passes, steps = counted[size]
        row = Row(f"{name}, {PASSES}", size_name(size), 1, PASSES)
        yield row, functools.partial(float, passes)
        if steps:
            row = Row(f"{name}, shallow steps", size_name(size), 1, "steps")
            yield row, functools.partial(float, steps)


def _sizes_of_networks() -> Iterator[tuple[Row, Measure]]:
    size = image_training.SIZE
    own = programs.weights_and_work(programs.pixelcnn())
    theirs = tfp_pixelcnn.weights_and_work(tfp_pixelcnn.make(size))
    for i, unit in enumerate(("weights", "MFLOP/pixel")):
        ours = f"PixelCNN, {unit}"
        yield Row(ours, size_name(size), 1, unit), functools.partial(float, own[i])
        row = Row(f"tfp PixelCNN, {unit}", size_name(size), 1, unit, ours)
        yield row, functools.partial(float, theirs[i])
