"""Metrics of a run: a line of JSON per report, and TensorBoard events beside it."""

import json
import math
import time
from pathlib import Path

import numpy as np
import tensorflow as tf


class MetricsLog:
    """Appends to RUN/metrics.jsonl and RUN/events; a resumed run goes on where it stopped."""

    def __init__(self, folder: Path, first_step: int = 0):
        self.path = Path(folder) / "metrics.jsonl"
        _drop_from(self.path, first_step)
        self._writer = tf.summary.create_file_writer(str(Path(folder) / "events"))

    def scalars(self, step: int, figures: dict[str, float]) -> None:
        """One line with `step`, `time` (seconds since the epoch) and the figures."""
        record = {
            "step": step,
            "time": round(time.time(), 3),
            **{name: _plain(value) for name, value in figures.items()},
        }
        with open(self.path, "a") as file:
            file.write(json.dumps(record) + "\n")
        with self._writer.as_default(step=step):
            for name, value in figures.items():
                tf.summary.scalar(name, value)
        self._writer.flush()

    def audio(self, step: int, name: str, waveform: np.ndarray, sample_rate_hz: int) -> None:
        """A sound, float [samples], to TensorBoard."""
        with self._writer.as_default(step=step):
            tf.summary.audio(name, waveform[None, :, None].astype(np.float32), sample_rate_hz)
        self._writer.flush()

    def picture(self, step: int, name: str, pixels: np.ndarray) -> None:
        """A picture, uint8 [height, width, 3], to TensorBoard."""
        with self._writer.as_default(step=step):
            tf.summary.image(name, pixels[None])
        self._writer.flush()

    def close(self) -> None:
        """Flushes the events."""
        self._writer.close()


def read_metrics(folder: Path) -> list[dict]:
    """The records of RUN/metrics.jsonl, oldest first."""
    path = Path(folder) / "metrics.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def _plain(value) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _drop_from(path: Path, first_step: int) -> None:
    """Removes what a run wrote after the checkpoint that it goes on from."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= first_step:
                kept.append(line)
        except (ValueError, KeyError):
            continue  # the half line of a process that was killed
    path.write_text("".join(line + "\n" for line in kept))
