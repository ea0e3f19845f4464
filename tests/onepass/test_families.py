"""A family of models is one object: registered once, every verb of the command knows it."""

import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Annotated

import image_runs
import numpy as np
import pytest
import tensorflow as tf
import tyro

import onepass
from onepass import families
from onepass.families import ModelFamily
from onepass.foundation.files import write_npz
from onepass.foundation.metrics import read_metrics
from onepass.foundation.run_directory import RunDirectory
from onepass.likelihoods import Categorical, Integers
from onepass.model import Autoregressive
from onepass.replicator.portable import run as portable_run
from onepass.replicator.training.batches import as_dataset
from onepass.replicator.training.config import LoopConfig, OptimizerConfig, Preset, TrainingOptions
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
    recipe=lambda preset, given: ToyRecipe(preset, given.config, given.data),
    load=load,
    evaluate=evaluate,
    report=lambda figures: f"{figures['bits']:.3f} bits",
)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(families, "FAMILIES", list(families.FAMILIES))
    families.register(TOY, "toy")


@pytest.fixture
def words(tmp_path):
    np.savez(tmp_path / "toys.npz", **image_runs.toys(8, 0))
    return ["train", "toy-smoke", "--data", str(tmp_path / "toys.npz")]


def test_a_family_of_ones_own_trains_resumes_and_is_evaluated(registered, words, tmp_path, capsys):
    run = str(tmp_path / "run")
    assert onepass.main([*words, "--workdir", run]) == 0
    assert "best dev 5.3" in capsys.readouterr().out
    assert onepass.main([*words, "--workdir", run, "--loop.num-steps", "3"]) == 0
    assert "resuming from step 2" in capsys.readouterr().out
    assert onepass.main(["evaluate", run, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["model"], figures["step"]) == (run, 3)
    assert figures["data"] == words[-1] and 5.0 < figures["bits"] < 8.0
    assert onepass.main(["evaluate", run]) == 0
    assert capsys.readouterr().out == f"{figures['bits']:.3f} bits\n"


def test_its_run_is_loaded_sampled_and_exported_by_the_command(registered, words, tmp_path, capsys):
    run, out, bundle = str(tmp_path / "run"), tmp_path / "out", tmp_path / "models/toy/1"
    assert onepass.main([*words, "--workdir", run]) == 0
    drawn = onepass.load(run).sample(2, 5, seed=3)
    asked = ["sample", run, "--num", "2", "--length", "5", "--seed", "3", "--out", str(out)]
    assert onepass.main(asked) == 0
    assert len({*drawn.ravel()}) > 1
    np.testing.assert_array_equal(np.load(out / "sample_3.npy"), drawn)
    assert onepass.main(["export", run, "--length", "5", "--out", str(bundle)]) == 0
    np.testing.assert_array_equal(onepass.load(bundle).sample(2, 5, seed=3), drawn)
    capsys.readouterr()
    assert onepass.main(["export", run, "--bfloat16", "--out", str(bundle)]) == 2
    refused = f"`--bfloat16` is not for {run}, a model of arrays.\n"
    assert capsys.readouterr().err.endswith(refused)


def test_its_step_and_its_functions_are_exported(registered, words, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    assert onepass.main([*words, "--workdir", str(run), "--portable", str(out)]) == 0
    assert not run.exists()
    assert onepass.main([*words, "--workdir", str(run)]) == 0
    moved = portable_run.Training(out)
    losses = [float(moved.advance(moved.batch(step))["loss"]) for step in range(2)]
    known = [line["loss"] for line in read_metrics(run) if "loss" in line]
    np.testing.assert_allclose(losses, known, rtol=1e-5)
    carried = tmp_path / "carried"
    words = ["export", run, "--format", "stablehlo", "--length", "5", "--out", carried]
    assert onepass.main([str(word) for word in words]) == 0
    parameters = portable_run.load(carried, "call")(elements=np.zeros([1, 5], np.int32))
    logits = onepass.load(run).network.logits.numpy()
    np.testing.assert_allclose(parameters["parameters"][0, 0], logits, rtol=1e-5)


def test_its_help_lists_it_beside_the_others(registered, capsys):
    assert onepass.main(["train", "--help"]) == 0
    assert "\n  toy-smoke " in capsys.readouterr().out
    assert onepass.main(["train", "toy-smoke", "--help"]) == 0
    assert "--levels" in capsys.readouterr().out


def test_two_families_have_no_name_in_common(registered):
    with pytest.raises(ValueError, match="names of its own, got toy"):
        families.register(TOY, "toy")
    with pytest.raises(ValueError, match="names of its own, got toy-smoke"):
        families.register(TOY, "toys")
    with pytest.raises(ValueError, match="of a registered family, got 'toys'"):
        families.registered("toys")


def test_every_kind_of_the_library_has_one_family_that_loads_it():
    kinds = ["autoregressive", "flow-student", "wavenet", "parallel-wavenet", "pixelcnn"]
    assert families.known_kinds() == [*kinds, "multiscale"]
    makes = ["arrays"] * 2 + ["sound"] * 2 + ["images"] * 2
    assert [families.of_kind(kind).makes for kind in families.known_kinds()] == makes
    assert [families.of_kind(kind) for kind in ("toy", None, ["pixelcnn"])] == [None] * 3
    assert families.of_model("shipped-digits") is families.of_kind("multiscale")
    assert families.of_model("shipped-teacher") is families.of_kind("wavenet")
    assert families.of_model("shipped") is families.of_kind("parallel-wavenet")
