"""Where a trained model comes from: how long it took, and which revision wrote it."""

import subprocess
from pathlib import Path

import numpy as np

from replicator.metrics import read_metrics

LONGEST_STEP_SECONDS = 600.0  # a longer pause between two reports was a pause of the run


def training_seconds(run: Path) -> float:
    """The time that a run spent, from the times in its metrics, pauses left out."""
    times = np.array([record["time"] for record in read_metrics(run)])
    steps = np.diff(times)
    return float(steps[(steps > 0) & (steps < LONGEST_STEP_SECONDS)].sum())


def git_revision() -> str:
    """The revision of this checkout, or `unknown` outside one."""
    folder = Path(__file__).parent
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
