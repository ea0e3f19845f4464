"""Evaluation during training: bits per dimension on dev, and a grid of samples."""

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from onepass.draw import Draw
from onepass.foundation.metrics import MetricsLog
from onepass.replicator.training.state import TrainState
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.data.depth import EIGHT, rescale_levels
from pixelcnn.density import ImageDensity
from pixelcnn.sampling.generation import ImageSampler
from pixelcnn.sampling.grids import grid, write_png

SHOWN = 16  # images in a grid of samples
LARGEST_SHOWN = 64  # maximum side in pixels; larger images take too long to sample


class EvaluationCallback:
    """A callback that evaluates the averaged weights; its result selects the best checkpoint.

    For distillation it is that of `divergences`, from a batch to {part: divergence from the target
    in nats, float32 [batch]}; otherwise, bits per dimension.
    """

    def __init__(
        self,
        density: ImageDensity,
        state: TrainState,
        dataset: ImageDataset,
        folder: Path,
        divergences: Callable[[dict], Mapping[str, tf.Tensor]] | None = None,
    ) -> None:
        self.density, self.state, self.dataset, self.folder = density, state, dataset, folder
        self.sampler = ImageSampler(density)
        compiled = functools.partial(tf.function, autograph=False, reduce_retracing=True)
        self._nats = {"dev_bits_per_dim": compiled(density.code_length)}
        if divergences is not None:
            self._nats["dev_kl_bits_per_dim"] = compiled(divergences)

    def __call__(self, log: MetricsLog, step: int) -> float:
        """Log and return bits per dimension or divergence on dev; also log samples if possible."""
        total = math.inf
        with self.state.swap_in_average():
            for name, nats in self._nats.items():
                parts = self._bits(nats)
                total = sum(parts.values())
                figures = {f"{name}/{part}": bits for part, bits in parts.items()}
                log.scalars(step, {name: total} | (figures if len(parts) > 1 else {}))
            if self._can_sample():
                bits = self.density.config.data.bits
                sheet = grid([rescale_levels(image, bits, EIGHT) for image in self._images()])
                write_png(self.folder / f"step_{step:08d}.png", sheet)
                log.image(step, "samples", sheet)
        return total

    def _bits(self, nats_of: Callable[[dict], Mapping[str, tf.Tensor]]) -> dict[str, float]:
        totals: dict[str, float] = {}
        count = 0
        for batch in self.dataset.dev():
            count += int(batch["levels"].shape[0])
            numbers = self.density.drawn_numbers(batch["levels"])
            for part, nats in nats_of(batch).items():
                added = float(np.sum(nats.numpy(), dtype=np.float64)) / numbers
                totals[part] = totals.get(part, 0.0) + added
        return {part: nats / count / math.log(2.0) for part, nats in totals.items()}

    def _can_sample(self) -> bool:
        return self.density.whole and self.density.config.data.size <= LARGEST_SHOWN

    def _images(self) -> list[np.ndarray]:
        batch = next(iter(self.dataset.dev(SHOWN)))
        given = {name: v.numpy() for name, v in batch.items() if name not in ("levels", "seed")}
        images = []
        for i in range(min(SHOWN, len(batch["levels"]))):
            condition = {name: value[i : i + 1] for name, value in given.items()}
            asked = Draw(1, self.density.config.data.size, 0, condition, row=i)
            images.append(next(self.sampler.images(asked))[-1])
        return images
