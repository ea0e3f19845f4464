"""Samplers of a PixelCNN, the multiscale PixelCNN and an outside peer side by side in one run."""

from pathlib import Path

from onepass.bench.images import rows as image_rows
from onepass.bench.images.arguments import SAMPLERS, BenchArguments
from onepass.bench.images.programs import MULTISCALE, configuration
from onepass.bench.images.rows import Prepared
from onepass.bench.images.targets import points, side_by_side, verdicts
from onepass.bench.options import check_names
from onepass.bench.report import Row, finished, measured, plotted
from pixelcnn.networks.config import check_size
from replicator.runs.errors import UserError
from replicator.runs.progress import Progress


def run(given: BenchArguments) -> int:
    """Measures, prints tables and verdicts; the exit status of `onepass bench images`."""
    _check(given)
    rows = _measured(given)
    seconds = [side_by_side(rows)] if given.samplers else []
    return finished(given, rows, {"": seconds, "targets": verdicts(rows)}, write_plot)


def _check(given: BenchArguments) -> None:
    check_names("sampler", given.samplers, SAMPLERS)
    if not given.samplers and not given.training:
        raise UserError("`--samplers` or `--training` must leave something to measure.")
    if given.samplers and not given.sizes:
        raise UserError("`--sizes` must name at least one size.")
    for preset in MULTISCALE.values():
        for size in given.sizes:
            check_size(size, configuration(preset, 64).network.base_size)
    given.check_files(given.plot)


def _measured(given: BenchArguments) -> list[Row]:
    print("making networks ...", flush=True)
    sizes = tuple(sorted(set(given.sizes)))
    samplers = tuple(name for name in SAMPLERS if name in given.samplers)
    prepared = image_rows.made(samplers, sizes, given.training)
    compile_all(prepared)
    return measured(image_rows.measures_of(prepared), given.rounds)


def compile_all(prepared: Prepared) -> None:
    """Makes the first call of everything that is to be timed."""
    with Progress(len(prepared), "compiling", "program") as progress:
        for timed in prepared.values():
            timed.prepare()
            progress.advance()


def write_plot(path: Path, rows: list[Row]) -> None:
    """Draws seconds an image against its side, both axes logarithmic; hollow: from a part."""
    with plotted(path, 7, 5) as figure:
        axes = figure.add_subplot(xlabel="N, pixels along a side", ylabel="seconds an image")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        for number, name in enumerate(SAMPLERS):
            _draw(axes, name, f"C{number}", points(rows, name))
        sides = sorted({side for name in SAMPLERS for side, *_ in points(rows, name)})
        axes.set_xticks(sides, [str(side) for side in sides])
        axes.grid(alpha=0.3)
        axes.legend(title="hollow: from a part")


def _draw(axes, name: str, colour: str, timed: list[tuple[int, float, bool]]) -> None:
    if not timed:
        return
    sides, seconds, _ = zip(*timed, strict=True)
    axes.plot(sides, seconds, color=colour, label=name)
    for side, value, part in timed:
        axes.plot(side, value, "o", color=colour, markerfacecolor="white" if part else colour)
