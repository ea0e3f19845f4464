"""Training of an image model, with evaluation meanwhile: from images to a run directory."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import tensorflow as tf

from onepass.foundation.files import write_npz
from onepass.foundation.metrics import MetricsLog
from onepass.foundation.rules import defaults
from onepass.interface import Draw
from onepass.planning.trainable import Trainable
from onepass.replicator.training.state import TrainState
from onepass.replicator.training.training_run import PortableBatches, Recipe, Setup, TrainingRun
from pixelcnn.config import AnyTrainConfig
from pixelcnn.data import batch_sampling
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.data.image_file import EIGHT, rescale_levels
from pixelcnn.density import CompiledNats, ImageDensity, ImageLoss, condition_specs
from pixelcnn.linear_start import IMAGES, start_linearly
from pixelcnn.model import ImageSampler
from pixelcnn.sampling.grids import grid, write_png

PLANNED_CLASSES = 10  # assumed number of classes if the configuration leaves it to the data
SHOWN = 16  # images in a grid of samples
LARGEST_SHOWN = 64  # maximum side in pixels; larger images take too long to sample


class EvaluationCallback:
    """A callback that scores averaged weights by bits per dimension, or by `divergences`."""

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
        self._nats = {"dev_bits_per_dim": CompiledNats(density)}
        if divergences is not None:
            self._nats["dev_kl_bits_per_dim"] = CompiledNats(
                density, lambda batch: {part: -nats for part, nats in divergences(batch).items()}
            )

    def __call__(self, log: MetricsLog, step: int) -> float:
        """Log and return bits per dimension or divergence on dev; also log samples if possible."""
        total = math.inf
        with self.state.swap_in_average():
            for name, nats in self._nats.items():
                found = nats.code_lengths(self.dataset.dev())
                unit = found.sizes * math.log(2.0)
                parts = {part: float(np.mean(x / unit)) for part, x in found.parts.items()}
                total = sum(parts.values())
                figures = {f"{name}/{part}": bits for part, bits in parts.items()}
                log.scalars(step, {name: total} | (figures if len(parts) > 1 else {}))
            if self._can_sample():
                bits = self.density.config.data.bits
                sheet = grid([rescale_levels(image, bits, EIGHT) for image in self._images()])
                write_png(self.folder / f"step_{step:08d}.png", sheet)
                log.image(step, "samples", sheet)
        return total

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


IMAGES_FILE = "images.npz"  # name of the file with images in an exported folder
CHANGEABLE = ("loop", "data_folder", "dev_digest")


class ImageRecipe(Recipe):
    """Recipe for training an image model."""

    things: ClassVar = "images"
    changeable: ClassVar = CHANGEABLE

    def prepare(self, run: TrainingRun) -> ImageDataset:
        """Claim the run, and return the images with the resolved configuration."""
        dataset = ImageDataset.read(self.data, self.config)
        config = dataset.resolved_config
        dataset = dataclasses.replace(dataset, config=config)
        stored = self.describe_run(config.kind, config, **facts_of(dataset))
        run.claim(stored, CHANGEABLE, defaults(config))
        run.log_lines(dataset.notes)
        return dataset

    def set_up(self, run: TrainingRun, prepared: ImageDataset) -> Setup:
        """Return the training state, loss, batches and evaluation callback as a `Setup`."""
        density = ImageDensity(prepared.config)
        optimizer, loop = self.config.optimizer, self.config.loop
        state = TrainState(density, optimizer, loop.num_steps)
        return Setup(
            state,
            ImageLoss(density),
            prepared.training,
            lambda: EvaluationCallback(density, state, prepared, run.samples()),
            portable_batches(prepared),
            functools.partial(start_density, density, state, prepared),
        )


def start_density(density: ImageDensity, state: TrainState, dataset: ImageDataset) -> None:
    """Start a PixelCNN with a mixture from the best linear prediction of its training images."""
    if density.pixelcnn is None or not density.config.output.has_density:
        return
    arrays, settings = dataset.training_arrays
    draw, rows = batch_sampling.batches_of(arrays, settings), dataset.config.data.batch_size
    levels = [draw(step)["levels"] for step in range(-(-IMAGES // rows))]
    start_linearly(density.pixelcnn, np.concatenate(levels)[:IMAGES], density.config.seed)
    state.start(state.weights)


def portable_batches(dataset: ImageDataset) -> PortableBatches:
    """Return the training batches for a machine without TensorFlow."""
    arrays, settings = dataset.training_arrays
    write = functools.partial(write_npz, arrays=arrays)
    return PortableBatches(batch_sampling, {**settings, "file": IMAGES_FILE}, write)


def facts_of(dataset: ImageDataset) -> dict:
    """Return the facts about the images for config.json."""
    return {
        "class_names": list(dataset.classes),
        "statistics": dataset.statistics and dataset.statistics.to_dict(),
        "dev_digest": dataset.dev_digest,
    }


def trainable(config: AnyTrainConfig) -> Trainable:
    """Return the training step of a configuration, for planning."""
    make = functools.partial(trainable, config)
    conditioning, data = config.conditioning, config.data
    if conditioning.kind in ("class", "map") and not conditioning.classes:
        conditioning = dataclasses.replace(conditioning, classes=PLANNED_CLASSES)
    if conditioning.kind == "video":
        conditioning = dataclasses.replace(conditioning, picture_channels=data.channels)
    config = dataclasses.replace(config, conditioning=conditioning)
    density = ImageDensity(config)
    state = TrainState(density, config.optimizer, config.loop.num_steps)
    images = [1, data.size, data.size, data.channels]
    spec = {
        **condition_specs(config),
        "levels": tf.TensorSpec(images, tf.int32),
        "seed": tf.TensorSpec([1, 2], tf.int32),
    }
    model = Trainable(state, ImageLoss(density), spec, config.loop.jit_compile, make)
    return model.resize_batches(data.batch_size, config.optimizer.accumulate)
