"""What a run looks at while it trains: bits per dimension on dev, and pictures."""

import math
from pathlib import Path

import numpy as np
import tensorflow as tf

from pixelcnn.data.dataset import Shelf
from pixelcnn.density import PictureDensity
from pixelcnn.networks.config import part_names
from pixelcnn.sampling.generation import Painter, Request
from pixelcnn.sampling.grids import grid, write_png
from replicator.runs.metrics import MetricsLog
from replicator.training.state import TrainState

SHOWN = 16  # pictures of a sheet
LARGEST_SHOWN = 64  # pixels; larger pictures take too long for a look in between


class Watcher:
    """Called by the trainer; gives the bits per dimension on dev under the average weights."""

    def __init__(self, density: PictureDensity, state: TrainState, shelf: Shelf, folder: Path):
        self.density, self.state, self.shelf, self.folder = density, state, shelf, folder
        self.painter = Painter(density)
        self._nats = tf.function(density.nats, autograph=False, reduce_retracing=True)

    def __call__(self, log: MetricsLog, step: int) -> float:
        """Bits per dimension on dev; logs them part by part, and a sheet of pictures."""
        with self.state.averaged():
            parts = self._bits()
            total = sum(parts.values())
            figures = {f"dev_bits_per_dim/{part}": bits for part, bits in parts.items()}
            log.scalars(step, {"dev_bits_per_dim": total} | (figures if len(parts) > 1 else {}))
            if self._can_draw():
                sheet = grid(self._pictures())
                write_png(self.folder / f"step_{step:08d}.png", sheet)
                log.image(step, "samples", sheet)
        return total

    def _bits(self) -> dict[str, float]:
        """What each part adds to the bits per dimension of a picture."""
        totals: dict[str, float] = {}
        count = 0
        for batch in self.shelf.dev():
            count += int(batch["levels"].shape[0])
            for part, nats in self._nats(batch).items():
                totals[part] = totals.get(part, 0.0) - float(np.sum(nats.numpy(), dtype=np.float64))
        return {
            part: nats / count / self.density.numbers / math.log(2.0)
            for part, nats in totals.items()
        }

    def _can_draw(self) -> bool:
        """Whether the model is whole and its pictures small."""
        model = self.density.multiscale
        whole = model is None or len(model.parts) == len(part_names(model.sizes))
        return whole and self.density.config.data.size <= LARGEST_SHOWN

    def _pictures(self) -> list[np.ndarray]:
        """One picture for each of the first conditions of dev."""
        batch = next(iter(self.shelf.dev(SHOWN)))
        told = {name: v.numpy() for name, v in batch.items() if name not in ("levels", "seed")}
        pictures = []
        for i in range(min(SHOWN, len(batch["levels"]))):
            condition = {name: value[i : i + 1] for name, value in told.items()}
            request = Request((i,), 0, self.density.config.data.size, condition)
            pictures.append(next(self.painter.pictures(request))[-1])
        return pictures
