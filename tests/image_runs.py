"""Toy images, and tiny image models that were really trained on them, made once and shared."""

import contextlib
import dataclasses
import functools
from pathlib import Path

import made_once
import numpy as np
import pytest
from image_networks import QuickInitial
from runs import eagerly, silent

from onepass.foundation.metrics import read_metrics
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from onepass.replicator.training.training_run import train
from onepass.trained import Trained

# `card` and `joining` take `pixelcnn.model.load` for themselves before tests replace it.
from pixelcnn import card as card
from pixelcnn import density, training
from pixelcnn.config import (
    ConditioningConfig,
    DataConfig,
    FactorConfig,
    MultiscaleConfig,
    MultiscaleTrainConfig,
    OutputConfig,
    PixelCNNConfig,
    PixelCNNTrainConfig,
)
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.evaluation import evaluate
from pixelcnn.model import load
from pixelcnn.training import ImageRecipe

CLASSES = ("cat", "dog", "eel")
CAPTIONS = ("a bright half", "stripes", "a slope")
TRAIN, DEV = 24, 12
STEPS, LOOK = 160, 40  # of the runs that learn, and between their evaluations
TINY = PixelCNNConfig(layers=1, units=8, output_units=8)
GREY = OutputConfig(components=2, channels=1)
ADAM = OptimizerConfig(learning_rate=1e-2, warmup_steps=2, average_decay=0.9)
SIDES = {"pixelcnn": 8, "map": 8, "multiscale": 8, "text": 8, "video": 16}
CONDITIONS = {"pixelcnn": "class", "multiscale": "class"}


def toys(count: int, seed: int, size: int = 8) -> dict[str, np.ndarray]:
    """Return the arrays of an npz file: images of three kinds, slightly noisy, in turn."""
    draws = np.random.default_rng(seed)
    rows, columns = np.mgrid[:size, :size]
    kinds = np.stack([200 * (columns < size // 2), 90 * (rows % 2), 20 * columns + 40])
    labels = np.arange(count) % 3
    images = kinds[labels] + draws.integers(0, 12, [count, size, size])
    return {
        "images": images.astype(np.uint8),
        "labels": labels,
        "classes": np.array(CLASSES),
        # Whoever goes round the captions in place of the classes meets the own class again.
        "captions": np.array([CAPTIONS[i // 3 % 3] for i in range(count)]),
        "maps": (images > 60).astype(np.int32),
    }


def episodes(count: int, seed: int, steps: int = 4, actions: int = 2) -> dict[str, np.ndarray]:
    """Return the content of an npz file of episodes: a square that actions push, in two views."""
    draws = np.random.default_rng(seed)
    moves = draws.normal(3.0, 2.0, [count, steps, actions]).astype(np.float32)
    frames = draws.integers(0, 30, [count, 2, steps, 16, 16, 3]).astype(np.uint8)
    for e in range(count):
        for t in range(steps):
            left = int(abs(moves[e, :t].sum())) % 12
            frames[e, :, t, 4:8, left : left + 4] = 220
    states = np.cumsum(moves[..., :1], 1)
    return {"frames": frames, "actions": moves, "states": states}


@functools.cache
def images() -> Path:
    """A folder with a toy_train.npz and a toy_dev.npz, with classes, captions and maps."""

    def make(path):
        path.mkdir()
        np.savez(path / "toy_train.npz", **toys(TRAIN, 1))
        np.savez(path / "toy_dev.npz", **toys(DEV, 2))

    return made_once.once("toys", make)


@functools.cache
def videos() -> Path:
    def make(path):
        path.mkdir()
        np.savez(path / "push_train.npz", **episodes(4, 1))
        np.savez(path / "push_dev.npz", **episodes(2, 2))

    return made_once.once("episodes", make)


def config_of(kind: str, **loop):
    """The configuration of a run of `SIDES`; `loop` replaces fields of its loop."""
    colours = 3 if kind == "video" else 1
    once = {"num_steps": 3, "evaluate_every_steps": 1000, "report_every_steps": 1}
    config = dict(
        output=dataclasses.replace(GREY, channels=colours),
        conditioning=ConditioningConfig(
            CONDITIONS.get(kind, kind),
            text_unit="word",
            text_channels=4,
            text_map_channels=2,
            map_channels=4,
        ),
        data=DataConfig(SIDES[kind], colours, batch_size=4),
        # A few large steps make what frames and actions say matter.
        optimizer=dataclasses.replace(ADAM, learning_rate=0.1) if kind == "video" else ADAM,
        loop=LoopConfig(**(once | loop)),
    )
    if kind in ("pixelcnn", "map"):
        return PixelCNNTrainConfig(**config, network=TINY)
    factor = FactorConfig("B" if kind == "text" else "A", 1, 8, 8, 2, 1, 4)
    return MultiscaleTrainConfig(**config, network=MultiscaleConfig(SIDES[kind] // 2, TINY, factor))


def replaced(config, **changes):
    """The configuration with other fields, or with other fields of its parts where in a dict."""
    for name, fields in changes.items():
        if isinstance(fields, dict):
            changes[name] = dataclasses.replace(getattr(config, name), **fields)
    return dataclasses.replace(config, **changes)


def data_of(kind: str) -> Path:
    return videos() if kind == "video" else images()


@contextlib.contextmanager
def quickly():
    """A context in which nothing is compiled or drawn and initial weights are cheap."""
    with eagerly(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.EvaluationCallback, "_can_sample", lambda self: False)
        patch.setattr(density, "Initial", QuickInitial)
        yield


def trained(config, data: Path, workdir: Path):
    """Trains without a word, see `quickly`; gives the outcome."""
    with quickly():
        return train(ImageRecipe("tiny", config, data), workdir, silent)


def opened(path: Path) -> Trained:
    with quickly():
        return load(path)


@functools.cache
def run(kind: str) -> Path:
    """The run directory of a model of a kind of `SIDES`; the PixelCNN has learnt and drawn."""

    def make(path):
        if kind == "pixelcnn":
            config = config_of(kind, num_steps=STEPS, evaluate_every_steps=LOOK)
            train(ImageRecipe("tiny", config, images()), path, silent)
        else:
            trained(config_of(kind), data_of(kind), path)

    return made_once.copied_once(f"run_{kind}", make)


@functools.cache
def best_step(kind: str) -> int:
    """The step of `run(kind)` with the fewest bits on dev; machines differ."""
    lines = [line for line in read_metrics(run(kind)) if "dev_bits_per_dim" in line]
    return min(lines, key=lambda line: line["dev_bits_per_dim"])["step"]


@functools.cache
def model(kind: str):
    """The model of `run(kind)`, its programs compiled once for all tests."""
    return opened(run(kind))


def dev_of(kind: str) -> ImageDataset:
    known = model(kind)
    return ImageDataset.for_evaluation(
        data_of(kind), known.config, known.front.classes, known.front.statistics
    )


@functools.cache
def figures(kind: str) -> dict:
    """The figures of the model, but for the time that an image takes."""
    with quickly(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("pixelcnn.evaluation._seconds", lambda *_: 0.125)
        return evaluate(model(kind), dev_of(kind))
