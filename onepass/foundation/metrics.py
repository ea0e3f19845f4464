"""Metrics of a run: one line of JSON per report, TensorBoard events, and a plot of the losses."""

import contextlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from onepass.foundation.files import replacing, write_text
from onepass.foundation.rules import UserError
from onepass.foundation.runtime import name_for_tensorflow

LONGEST_STEP_SECONDS = 600.0  # a longer gap between reports means that the run was stopped


class MetricsLog:
    """Writes RUN/metrics.jsonl and RUN/events; the constructor drops records after `first_step`.

    TensorFlow drops events without an error if the disk is full.
    """

    def __init__(self, folder: Path, first_step: int = 0):
        self.path, self._events = Path(folder) / "metrics.jsonl", Path(folder) / "events"
        _drop_after(self.path, first_step)
        with contextlib.ExitStack() as stack, _naming(self._events):
            self._events.mkdir(parents=True, exist_ok=True)
            name = stack.enter_context(name_for_tensorflow(self._events))
            self._writer = tf.summary.create_file_writer(name)
            self._name = stack.pop_all()  # must stay valid while the writer is used

    def scalars(self, step: int, figures: dict[str, float]) -> None:
        """Append metrics to both files, and in metrics.jsonl also `step` and `time` (Unix time)."""
        numbers = {name: float(value) for name, value in figures.items()}
        plain = {name: v if math.isfinite(v) else None for name, v in numbers.items()}
        record = {"step": step, "time": round(time.time(), 3), **plain}
        with _naming(self.path), open(self.path, "a") as file:
            file.write(json.dumps(record) + "\n")
        with self._event(step):
            for name, value in figures.items():
                tf.summary.scalar(name, value)

    def audio(self, step: int, name: str, waveform: np.ndarray, sample_rate_hz: int) -> None:
        """Write a waveform, float [samples] in [-1, 1], to TensorBoard."""
        with self._event(step):
            tf.summary.audio(name, waveform[None, :, None].astype(np.float32), sample_rate_hz)

    def image(self, step: int, name: str, pixels: np.ndarray) -> None:
        """Write an image, uint8 [height, width, 3], to TensorBoard."""
        with self._event(step):
            tf.summary.image(name, pixels[None])

    def close(self) -> None:
        """Flush and close the events file."""
        with self._name, _naming(self._events):
            self._writer.close()

    @contextlib.contextmanager
    def _event(self, step: int) -> Iterator[None]:
        with _naming(self._events):
            with self._writer.as_default(step=step):
                yield
            self._writer.flush()


def read_metrics(folder: Path) -> list[dict]:
    """Return the records in RUN/metrics.jsonl, oldest first, without incomplete lines."""
    path = Path(folder) / "metrics.jsonl"
    if not path.exists():
        return []
    records = [_record(line) for line in path.read_text().splitlines()]
    return [record for record in records if record is not None]


def training_seconds(run: Path) -> float:
    """Return the training seconds of a run without pauses; 0 if it has fewer than two records."""
    times = np.array([record["time"] for record in read_metrics(run)])
    steps = np.diff(times)
    return float(steps[(steps > 0) & (steps < LONGEST_STEP_SECONDS)].sum())


def _record(line: str) -> dict | None:
    try:
        record = json.loads(line)
    except (RecursionError, ValueError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _drop_after(path: Path, last_step: int) -> None:
    if not path.exists():
        return
    with _naming(path):
        text = path.read_text(errors="replace")
    records = ((line, _record(line)) for line in text.splitlines())
    kept = "".join(f"{line}\n" for line, r in records if r is not None and r["step"] <= last_step)
    if kept != text:
        write_text(path, kept)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "message", None) or error
        raise UserError(f"Cannot write {path}: {str(reason).splitlines()[0]}.") from error


PLOT_FILE = "loss.png"
Curve = tuple[list[int], list[float]]  # steps and values


def loss_curves(run: Path) -> dict[str, Curve]:
    """Return steps and finite values of "loss" and "dev" in RUN/metrics.jsonl, by these names."""
    records = read_metrics(run)
    curves = {}
    for name in ("loss", "dev"):
        known = [each for each in records if each.get(name) is not None]
        finite = [each for each in known if math.isfinite(each[name])]
        curves[name] = ([each["step"] for each in finite], [each[name] for each in finite])
    return curves


def loss_figure(run: Path, is_same: bool) -> Figure:
    """Return a plot of training loss and held-out score, in one panel if the score `is_same`."""
    curves = loss_curves(run)
    figure = Figure(figsize=(8.0, 4.0 if is_same else 6.0), layout="constrained")
    panels = figure.subplots(1 if is_same else 2, 1, squeeze=False, sharex=True)[:, 0]
    (steps, losses), (scored, scores) = curves["loss"], curves["dev"]
    panels[0].plot(steps, losses, color="tab:blue", linewidth=0.8, label="training batches")
    score = "validation" if is_same else "score"
    panels[-1].plot(scored, scores, color="tab:orange", marker="o", markersize=3, label=score)
    if scores:
        best = min(range(len(scores)), key=scores.__getitem__)
        label = f"best, {scores[best]:.4g} at {scored[best]}"
        panels[-1].plot(scored[best], scores[best], "*", color="tab:red", ms=10, label=label)
    panels[0].set_ylabel("loss")
    panels[-1].set_ylabel("loss" if is_same else "score, lower is better")
    panels[-1].set_xlabel("updates")
    for panel in panels:
        panel.grid(alpha=0.3)
        panel.legend(loc="upper right", fontsize=9)
    return figure


def write_loss_plot(run: Path, is_same: bool) -> None:
    """Write `loss_figure` to RUN/loss.png, atomically."""
    path, figure = Path(run) / PLOT_FILE, loss_figure(run, is_same)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=100)
