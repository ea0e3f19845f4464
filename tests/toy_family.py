"""A family of models of its own: the shares of the grey levels of images, as a table of logits."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Annotated

import numpy as np
import tensorflow as tf
import tyro

from onepass.foundation.atomic_files import write_npz
from onepass.foundation.run_directory import RunDirectory
from onepass.likelihoods import Categorical, Integers
from onepass.model import Autoregressive
from onepass.replicator.training.batches import as_dataset
from onepass.replicator.training.config import LoopConfig, OptimizerConfig, Preset, TrainingOptions
from onepass.replicator.training.family import ModelFamily, Parts
from onepass.replicator.training.state import TrainState
from onepass.replicator.training.training_run import PortableBatches, Recipe, Setup
from pixelcnn.data import batch_sampling

ADAM = OptimizerConfig(learning_rate=0.1, warmup_steps=1)
LOOP = LoopConfig(num_steps=2, evaluate_every_steps=2, report_every_steps=1)


@dataclasses.dataclass(frozen=True)
class ToyConfig:
    """A whole training run."""

    levels: int = 256
    """Number of levels."""
    rows: int = 4
    """Images per batch."""
    optimizer: OptimizerConfig = ADAM
    loop: LoopConfig = LOOP


@dataclasses.dataclass(frozen=True)
class ToyArguments(TrainingOptions):
    """Count levels."""

    data: Path
    config: Annotated[ToyConfig, tyro.conf.arg(name="")]


@dataclasses.dataclass(frozen=True)
class ToyEvaluation:
    """Measure bits per level."""

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    data: Path | None = None
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False

    def check(self):
        """Every option is right."""


class Table(tf.Module):
    def __init__(self, levels):
        super().__init__(name="toy")
        self.logits = tf.Variable(tf.zeros([levels]), name="logits")

    def __call__(self, symbols):
        return tf.zeros_like(symbols, tf.float32)[..., tf.newaxis] + self.logits

    def nats(self, batch):
        levels = tf.cast(batch["levels"], tf.int32)
        return -tf.reduce_mean(tf.gather(tf.nn.log_softmax(self.logits), levels))


def images_of(data):
    with np.load(data) as stored:
        return {"levels": stored["images"][..., np.newaxis]}


class ToyRecipe(Recipe):
    things, changeable = "images", ("loop", "data_folder")

    @property
    def rows(self):
        return self.config.rows

    def prepare(self, run):
        run.claim(self.describe_run("toy", self.config), self.changeable)
        return images_of(self.data)

    def set_up(self, run, prepared):
        table = Table(self.config.levels)
        state = TrainState(table, self.config.optimizer, self.config.loop.num_steps)
        settings = {"kind": "images", "batch_size": self.rows, "seed": 0, "flip": False}
        settings |= {"shift": 0, "dropout": 0.0}
        drawn = batch_sampling.batches_of(prepared, settings)

        def batches(step, shard_index, num_shards):
            make = functools.partial(drawn, shard_index=shard_index, num_shards=num_shards)
            return as_dataset(make, step, rows=self.rows // num_shards)

        def loss(batch):
            nats = table.nats(batch)
            return nats, {"bits": nats / math.log(2.0)}

        return Setup(
            state,
            loss,
            batches,
            lambda: lambda log, step: float(table.nats(prepared)),
            PortableBatches(
                batch_sampling,
                settings | {"file": "toys.npz"},
                functools.partial(write_npz, arrays=prepared),
            ),
        )


def load(path):
    run = RunDirectory.open(path)
    levels, arrays = run.config()["levels"], run.checkpoints().newest()[0]
    table = Table(levels)
    table.logits.assign(next(v for name, v in arrays.items() if name.startswith("average/")))
    model = Autoregressive(
        table,
        Categorical(levels),
        codec=Integers(levels),
        inputs=tf.TensorSpec([None, None], tf.int32),
    )
    model.spec = {"step": int(arrays["step"])}
    return model


def evaluate(given, model, data):
    return {"bits": float(model.network.nats(images_of(data))) / math.log(2.0)}


TOY = ModelFamily(
    verb="train",
    makes="arrays",
    presets={"toy-smoke": Preset("Shares of levels.", ToyConfig())},
    options=lambda preset: ToyArguments,
    score=lambda config: "best dev {:.3f} nats",
    evaluation=ToyEvaluation,
    training_data=lambda path: Path(RunDirectory.open(path).config()["data_folder"]),
    load_parts=lambda: Parts(
        recipe=lambda preset, given: ToyRecipe(preset, given.config, given.data),
        load=load,
        evaluate=evaluate,
        report=lambda figures: f"{figures['bits']:.3f} bits",
        measure=None,
        card=None,
    ),
)
