"""Plot the losses of a run from its metrics."""

import math
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from onepass.foundation.atomic_files import replacing
from onepass.foundation.errors import UserError
from onepass.foundation.metrics import read_metrics

PLOT_FILE = "loss.png"
Curve = tuple[list[int], list[float]]  # steps and values


def loss_curves(run: Path) -> dict[str, Curve]:
    """Return steps and finite values of "loss" and "dev" in RUN/metrics.jsonl, by these names."""
    records = read_metrics(run)
    curves = {}
    for name in ("loss", "dev"):
        known = [(record["step"], record.get(name)) for record in records]
        pairs = [(step, value) for step, value in known if value is not None]
        pairs = [(step, value) for step, value in pairs if math.isfinite(value)]
        curves[name] = ([step for step, _ in pairs], [value for _, value in pairs])
    return curves


def loss_figure(run: Path, is_same: bool) -> Figure:
    """Return a plot of training loss and held-out score, in one panel if the score `is_same`."""
    curves = loss_curves(run)
    figure = Figure(figsize=(8.0, 4.0 if is_same else 6.0), layout="constrained")
    panels = figure.subplots(1 if is_same else 2, 1, squeeze=False, sharex=True)[:, 0]
    panels[0].plot(*curves["loss"], color="tab:blue", linewidth=0.8, label="training batches")
    score = "validation" if is_same else "score"
    panels[-1].plot(*curves["dev"], color="tab:orange", marker="o", markersize=3, label=score)
    _mark_best(panels[-1], curves["dev"])
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
    try:
        with replacing(path) as temporary:
            figure.savefig(temporary, format="png", dpi=100)
    except OSError as error:
        raise UserError(f"Cannot write {path}: {error.strerror or error}.") from error


def _mark_best(axes: Axes, curve: Curve) -> None:
    steps, values = curve
    if values:
        best = min(range(len(values)), key=values.__getitem__)
        label = f"best, {values[best]:.4g} at {steps[best]}"
        axes.plot(steps[best], values[best], "*", color="tab:red", markersize=10, label=label)
