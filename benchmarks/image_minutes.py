"""Bits per dimension of held-out images after the same minutes of the same two cores, and tfp's.

    python -m benchmarks.image_minutes images_signdigits_32 run --json minutes.json

`onepass train`'s own loop with a preset, and tfp.distributions.PixelCNN with Keras's Adam, side by
side, a process each, on the same images. A minute of two cores is two minutes of the processor time
of a process that computes with one thread, so that neither other work on the machine nor waiting
for a second thread counts. What a new network starts from and the tracing of the first update
count; reading the images and evaluations do not. Both are scored with averages of their weights, on
the dev images: settings were chosen on half A, the even ones; half B, the odd ones, is for the
report. The same command goes on where it was interrupted.
"""

import argparse
import dataclasses
import functools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import report, tfp_pixelcnn
from onepass.foundation.files import read_npz, write_npz, write_text
from onepass.foundation.interrupt import StopRequest
from onepass.foundation.rules import UserError
from onepass.replicator.training.loop import Listener
from onepass.replicator.training.state import TrainState
from onepass.replicator.training.training_run import TrainingRun
from pixelcnn.config import PRESETS, PixelCNNTrainConfig
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.density import CompiledNats, ImageDensity
from pixelcnn.training import ImageRecipe

CORES = 2
MARKS = (1.0, 3.0, 10.0, 30.0)  # minutes
OURS, PEER = "onepass", "tfp"
DROPOUTS = (0.0, 0.3)  # of tfp, each a run; the better one on half A counts at each mark
PRESET = "pixelcnn-minutes-32"
NO_END = 10**9  # updates: a mark ends the training, and the rate of the preset is constant
STATUS_SECONDS = 10.0
SAVE_SECONDS = 60.0  # of processor time, between the peer's checkpoints
HALVES = {"half_a": slice(0, None, 2), "half_b": slice(1, None, 2)}
POINTS, CLOCK, LOG = "points.json", "clock.txt", "log.txt"
ONE_THREAD = dict.fromkeys(
    (
        "TF_NUM_INTRAOP_THREADS",
        "TF_NUM_INTEROP_THREADS",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
    ),
    "1",
)
Score = Callable[[], np.ndarray]


@dataclasses.dataclass(frozen=True)
class PeerSettings:
    """Settings of tfp's PixelCNN and of its training, beyond `tfp_pixelcnn.LIKE_SIZE`."""

    distribution: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    batch_size: int = 4
    shift: int = 1
    learning_rate: float = 2e-3
    average_decay: float = 0.998


class Course:
    """A training that is scored when it has taken the minutes of a mark.

    Its clock starts when it is made. Clock and points are kept in files: a training that resumes
    continues both.

    Args:
      folder: of the files, created if missing.
      marks: minutes of `CORES` cores, ascending.
      score: function that returns bits per dimension of each dev image, float64 [images].
      facts: what every point says about the training.
    """

    def __init__(
        self, folder: Path, marks: Sequence[float], score: Score, facts: Mapping[str, Any]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.marks, self.score, self.facts = folder, marks, score, facts
        self.points = read_points(folder)
        self._started = processor_seconds()  # as if training had never stopped

    def begin(self, step: int) -> None:
        """Add the time that `step` updates had taken in earlier processes."""
        self._started -= seconds_at(self.folder / CLOCK, step)

    def advance(self, step: int) -> bool:
        """Note the time after `step` updates; at a mark, score. Return whether it was the last."""
        seconds = processor_seconds() - self._started
        with (self.folder / CLOCK).open("a") as file:
            file.write(f"{step} {seconds:.3f}\n")
        minutes = seconds / 60 / CORES
        scored = {point["mark"] for point in self.points}
        due = [mark for mark in self.marks if mark not in scored and mark <= minutes]
        for mark in due:
            point = {"mark": mark, "minutes": minutes, "updates": step, **self.facts}
            self.points.append(point | {"bits": np.round(self.score(), 5).tolist()})
            write_text(self.folder / POINTS, json.dumps(self.points) + "\n")
        if due:
            self._started = processor_seconds() - seconds
        return minutes >= self.marks[-1]


class MarkListener(Listener):
    """The events of a training loop, for a `Course`."""

    def __init__(self, course: Course) -> None:
        self.course = course

    def begin(self, step: int) -> None:
        """Continue the clock."""
        self.course.begin(step)

    def on_update(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Note the time; return whether the last mark is passed."""
        return self.course.advance(step)


def processor_seconds() -> float:
    """Return the processor seconds of all threads of this process."""
    return time.process_time()


def read_points(folder: Path) -> list[dict]:
    """Return the points of a course in the order of its marks; [] before the first."""
    file = folder / POINTS
    return json.loads(file.read_text()) if file.exists() else []


def seconds_at(file: Path, step: int) -> float:
    """Return the processor seconds that `step` updates had taken, by a clock's file."""
    seconds = 0.0
    for line in file.read_text().splitlines() if file.exists() else ():
        updates, spent = line.split()
        if int(updates) <= step:
            seconds = float(spent)
    return seconds


def train_preset(
    data: str, folder: Path, config: PixelCNNTrainConfig, marks: Sequence[float]
) -> list[dict]:
    """Train as `onepass train` does, without its evaluations; return the points."""
    loop = dataclasses.replace(
        config.loop, num_steps=NO_END, evaluate_every_steps=NO_END, save_every_minutes=1.0
    )
    recipe = ImageRecipe(PRESET, dataclasses.replace(config, loop=loop), data)
    with TrainingRun(folder / "run", rows=recipe.rows, optimizer=config.optimizer) as run:
        with run.preparing():
            dataset = recipe.prepare(run)
        with run.variables():
            setup = recipe.set_up(run, dataset)
        network: Any = setup.state
        facts = {"weights": network.size, "batch": recipe.rows}
        density: Any = setup.loss
        score = functools.partial(score_average, setup.state, density.density, dataset)
        listener = MarkListener(Course(folder, marks, score, facts))
        run.train(
            setup.state,
            setup.loss,
            loop,
            setup.batches,
            lambda: None,
            start=setup.start,
            listener=listener,
        )
    return read_points(folder)


def score_average(state: TrainState, density: ImageDensity, dataset: ImageDataset) -> np.ndarray:
    """Return bits per dimension of each dev image, with averaged weights."""
    with state.swap_in_average():
        return CompiledNats(density).code_lengths(dataset.dev()).bits_per_element


def train_peer(
    data: str, folder: Path, settings: PeerSettings, marks: Sequence[float], size: int = 32
) -> list[dict]:
    """Train tfp's PixelCNN with Keras's Adam on the batches of our own pipeline; return the points.

    Its initial weights and dropout have no seed.
    """
    config: Any = PRESETS[PRESET].config
    images = dataclasses.replace(
        config.data, size=size, batch_size=settings.batch_size, shift=settings.shift
    )
    dataset = ImageDataset.read(data, dataclasses.replace(config, data=images))
    classes = len(dataset.classes)
    distribution = tfp_pixelcnn.make(size, classes, **settings.distribution)
    training = tfp_pixelcnn.Training(distribution, settings.learning_rate, settings.average_decay)
    weights = sum(math.prod(weight.shape) for weight in training.weights)
    facts = {"weights": weights, "batch": settings.batch_size}
    course = Course(folder, marks, lambda: training.bits(dataset.dev()), facts)
    checkpoint = folder / "checkpoint.npz"
    if checkpoint.exists():
        restore(training, checkpoint)
    saved = processor_seconds()
    course.begin(training.step)
    with StopRequest() as stop:
        for batch in dataset.training(training.step):
            loss = training.update(batch)
            if not math.isfinite(loss):
                raise UserError(f"tfp's loss was {loss} at update {training.step}.")
            ended = course.advance(training.step) or stop.signal_name
            if ended or processor_seconds() - saved > SAVE_SECONDS:
                save(training, checkpoint)
                saved = processor_seconds()
            if ended:
                break
    return read_points(folder)


def save(training: tfp_pixelcnn.Training, file: Path) -> None:
    """Write all variables of a training to an npz file."""
    write_npz(file, {f"{i:03d}": v.numpy() for i, v in enumerate(training.variables)})


def restore(training: tfp_pixelcnn.Training, file: Path) -> None:
    """Read what `save` wrote."""
    arrays = read_npz(file)
    for i, variable in enumerate(training.variables):
        variable.assign(arrays[f"{i:03d}"])


def train_side(side: str, data: str, folder: Path, marks: Sequence[float]) -> None:
    """Train one side with the settings chosen for it; `side` is `OURS` or one of `peer_sides`."""
    if side == OURS:
        config: Any = PRESETS[PRESET].config
        train_preset(data, folder / side, config, marks)
    else:
        dropout = float(side.removeprefix(f"{PEER}-"))
        train_peer(data, folder / side, PeerSettings({"dropout_p": dropout}), marks)


def peer_sides(dropouts: Sequence[float]) -> list[str]:
    """Return the name of tfp's run with each rate of dropout."""
    return [f"{PEER}-{dropout:g}" for dropout in dropouts]


def train_all(data: str, folder: Path, marks: Sequence[float], sides: Sequence[str]) -> None:
    """Train all sides at once, each in a process of its own; print how far they are."""
    processes = {}
    for side in sides:
        (folder / side).mkdir(parents=True, exist_ok=True)
        words = ["-m", "benchmarks.image_minutes", data, str(folder), "--side", side, "--marks"]
        command = [sys.executable, *words, *map(str, marks)]
        with (folder / side / LOG).open("a") as log:
            processes[side] = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **ONE_THREAD}
            )
    try:
        while any(process.poll() is None for process in processes.values()):
            time.sleep(STATUS_SECONDS)
            print(", ".join(status(folder / side, marks) for side in processes), flush=True)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait()
    for side, process in processes.items():
        if process.returncode:
            raise UserError(f"{side} ended with status {process.returncode}: {folder / side / LOG}")


def status(folder: Path, marks: Sequence[float]) -> str:
    """Return how far a side is, by the last line of its clock."""
    file = folder / CLOCK
    lines = file.read_text().split("\n") if file.exists() else []
    step, seconds = lines[-2].split() if len(lines) > 1 else ("0", "0")
    return f"{folder.name}: {step} updates, {float(seconds) / 60 / CORES:.2f}/{marks[-1]:g} min"


def compare(folder: Path, peers: Sequence[str]) -> dict[str, Any]:
    """Return the machine, the points of all sides, and a row for each mark that all have passed.

    A row compares with the one of the peer's runs that has the fewest bits on half A.
    """
    points = {side: {p["mark"]: p for p in read_points(folder / side)} for side in (OURS, *peers)}
    rows = []
    for mark in sorted(set.intersection(*(set(each) for each in points.values()))):
        bits = {side: np.array(points[side][mark]["bits"]) for side in points}
        peer = min(peers, key=lambda side: bits[side][HALVES["half_a"]].mean())
        row: dict[str, Any] = {"mark": mark, "peer": peer}
        for half, chosen in HALVES.items():
            gained = (bits[peer] - bits[OURS])[chosen]
            row[half] = {
                OURS: float(bits[OURS][chosen].mean()),
                PEER: float(bits[peer][chosen].mean()),
                "lower_by": float(gained.mean()),
                "interval": 1.96 * float(np.std(gained, ddof=1)) / math.sqrt(len(gained)),
            }
        for name, side in ((OURS, OURS), (PEER, peer)):
            point = points[side][mark]
            row[f"{name}_images"] = point["updates"] * point["batch"]
            row[f"{name}_weights"] = point["weights"]
        rows.append(row)
    every = {side: list(points[side].values()) for side in points}
    return {"machine": report.machine(), "cores": CORES, "rows": rows, "points": every}


def format_rows(rows: Sequence[Mapping[str, Any]], half: str = "half_b") -> str:
    """Return a table in Markdown: bits per dimension of half of the dev images at each mark."""
    lines = [
        "| minutes of two cores | onepass, bits/dim | tfp | lower by | images, onepass | tfp |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        bits = row[half]
        lines.append(
            f"| {row['mark']:g} | {bits[OURS]:.3f} | {bits[PEER]:.3f} | {bits['lower_by']:.3f} +- "
            f"{bits['interval']:.3f} | {row[f'{OURS}_images']:,} | {row[f'{PEER}_images']:,} |"
        )
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Train all sides to the last mark, print the table and write the JSON; return the status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="images with train and dev, as for `onepass train`")
    parser.add_argument("folder", type=Path, help="folder of both runs, continued if it exists")
    parser.add_argument("--marks", type=float, nargs="+", default=MARKS, help="minutes, ascending")
    parser.add_argument("--json", type=Path, help="file for the points and rows as JSON")
    parser.add_argument("--dropouts", type=float, nargs="+", default=DROPOUTS, help="of tfp")
    parser.add_argument("--side", help="train one side, in this process")
    given = parser.parse_args(words)
    if given.side:
        train_side(given.side, given.data, given.folder, given.marks)
        return 0
    peers = peer_sides(given.dropouts)
    train_all(given.data, given.folder, given.marks, (OURS, *peers))
    found = compare(given.folder, peers)
    print(format_rows(found["rows"]))
    if given.json:
        report.write_json(given.json, found)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(f"image_minutes: {error}", file=sys.stderr)
        sys.exit(2)
