"""A folder of real recordings and configurations small enough to be trained in a second."""

import contextlib
import dataclasses
import functools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import made_once
import numpy as np
import pytest
import tensorflow as tf

from onepass.foundation.run_directory import Checkpoints
from onepass.replicator.training.config import LoopConfig, OptimizerConfig
from wavenet import shipped
from wavenet.config import DataConfig, TrainConfig, WaveNetConfig

NEVER = 10**9
TINY = TrainConfig(
    WaveNetConfig(
        layers=2, stacks=1, filter_width=2, residual_channels=4, gate_channels=4, skip_channels=4,
        front_width=4, linear_prediction=True, input_gain=4.0, components=2, condition_channels=4,
        upsample_factors=(16, 16),
    ),
    DataConfig(16_000, ("mel",), level_db=-23.0, mel_bands=8, clip_samples=512, batch_size=2),
    OptimizerConfig(learning_rate=1e-2, warmup_steps=3, clip_norm=5.0),
    LoopConfig(num_steps=8, report_every_steps=1, evaluate_every_steps=NEVER),
)  # fmt: skip


def looped(config: TrainConfig = TINY, **loop) -> TrainConfig:
    return dataclasses.replace(config, loop=dataclasses.replace(config.loop, **loop))


def options(config: TrainConfig = TINY) -> list[str]:
    words = ["--network.layers", "2", "--network.stacks", "1", "--network.front-width", "4"]
    words += ["--network.linear-prediction", "--network.components", "2"]
    for part in ("residual", "gate", "skip", "condition"):
        words += [f"--network.{part}-channels", "4"]
    words += ["--data.mel-bands", "8", "--data.clip-samples", "512"]
    words += ["--optimizer.learning-rate", "0.01", "--optimizer.warmup-steps", "3"]
    words += ["--optimizer.clip-norm", "5"]
    for name, value in dataclasses.asdict(config.loop).items():
        if not isinstance(value, bool):
            words += [f"--loop.{name.replace('_', '-')}", str(value)]
    return words


def recordings(folder: Path, train: int = 3, dev: int = 1) -> Path:
    """A folder with a few of the shipped recordings, the shortest first."""
    for split, count in (("train", train), ("dev", dev)):
        (folder / split).mkdir(parents=True)
        files = sorted(
            (shipped.recordings_folder() / split).iterdir(), key=lambda p: p.stat().st_size
        )
        for file in files[:count]:
            shutil.copy(file, folder / split / file.name)
    return folder


@functools.cache
def speech() -> Path:
    """A folder of `recordings`, made once for all processes."""
    return made_once.once("speech", recordings)


@functools.cache
def wavenet_run(name: str, config: TrainConfig = TINY) -> Path:
    """A copy of a run of two steps on `speech`, made once for all processes."""
    from onepass.replicator.training.training_run import train
    from wavenet.training import SpeechRecipe

    def make(path):
        with unevaluated(), eagerly():
            train(SpeechRecipe("tiny", looped(config, num_steps=2), speech()), path, silent)

    return made_once.copied_once(f"wavenet_{name}", make)


def silent(line: str) -> None:
    """Say nothing."""


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """A context in which functions that are made run operation by operation."""
    traced = tf.function

    def untraced(function=None, **options):
        if function is None:
            return functools.partial(untraced, **options)

        def call(*arguments, **named):
            return function(*arguments, **named)

        call.get_concrete_function = traced(function, **options).get_concrete_function
        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf, "function", untraced)
        yield


@contextlib.contextmanager
def unevaluated(students: bool = True) -> Iterator[None]:
    """A context in which evaluations, or those of WaveNets alone, give 1.0 and no sound."""
    from distill.training import EvaluationCallback as OfStudents
    from wavenet.training import EvaluationCallback as OfTeachers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OfTeachers, "__call__", lambda *_: 1.0)
        if students:
            patch.setattr(OfStudents, "__init__", lambda *_: None)
            patch.setattr(OfStudents, "__call__", lambda *_: 1.0)
        yield


def newest(run: Path) -> dict[str, np.ndarray]:
    return Checkpoints(run / "checkpoints").newest()[0]


def steps_of(run: Path) -> list[int]:
    """The steps of the lines of metrics, evaluations left out."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if "loss" in line]


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Fails unless both hold the same names with the same bits."""
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
