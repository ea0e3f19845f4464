"""Image models exported: their batches, steps and samplers, drawn, trained and run by JAX."""

import dataclasses

import image_runs
import numpy as np
import pytest
import tensorflow as tf
from carried import assert_same_steps, assert_same_training
from image_networks import QuickInitial
from image_runs import ADAM, SIDES, config_of, data_of

from distill.images import training as distillation
from distill.images.config import PRESETS, FlowTargets
from distill.images.flow import FILE
from onepass.foundation.files import write_npz
from onepass.replicator.portable import run as portable_run
from onepass.replicator.portable.export import export_portable, training_step
from onepass.replicator.training.state import TrainState
from pixelcnn import density, training
from pixelcnn.data import batch_sampling
from pixelcnn.data.dataset import ImageDataset
from pixelcnn.density import ImageDensity, ImageLoss


@pytest.fixture(scope="module", autouse=True)
def quick(quick_compilation):
    """Neither JAX nor TensorFlow spends time on what these tests do not look at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(density, "Initial", QuickInitial)
        yield


def dataset_of(kind, **changes):
    """The toys of a kind, its configuration resolved."""
    dataset = ImageDataset.read(data_of(kind), image_runs.replaced(config_of(kind), **changes))
    return dataclasses.replace(dataset, config=dataset.resolved_config)


def exported(kind, folder, **changes):
    """Exports a run; gives its dataset, and its state and its loss in TensorFlow."""
    dataset = dataset_of(kind, **changes)
    config = image_runs.replaced(config_of(kind), **changes)
    recipe = training.ImageRecipe("tiny", config, data_of(kind))
    export_portable(recipe, folder, log=image_runs.silent)
    made = ImageDensity(dataset.config)
    state = TrainState(made, config.optimizer, config.loop.num_steps)
    training.start_density(made, state, dataset)
    return dataset, state, ImageLoss(made)


@pytest.mark.parametrize("kind", SIDES)
def test_run_py_draws_the_batches_of_the_pipeline(kind, tmp_path):
    shown = {"data": {"flip": True, "shift": 2}}
    changes = {"conditioning": {"jitter": 0.5}} if kind == "video" else shown
    dataset = dataset_of(kind, **changes)
    arrays, settings = dataset.training_arrays
    write_npz(tmp_path / "a.npz", arrays)
    drawn = batch_sampling.open_batches(tmp_path, {**settings, "file": "a.npz"})
    for step in (0, 1, 1_000_000):
        expected = next(iter(dataset.training(step)))
        found = drawn(step)
        assert {"levels", "seed"} < found.keys() == expected.keys()
        for name, array in found.items():
            np.testing.assert_array_equal(array, expected[name])
            assert array.dtype == expected[name].dtype.as_numpy_dtype


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("map", {}),
        pytest.param("text", {"parts": ("8.2",)}, marks=pytest.mark.slow),
        pytest.param(
            "video",
            {"parts": ("16.3",), "optimizer": ADAM, "conditioning": {"jitter": 0.5}},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_steps_in_jax_equal_those_in_tensorflow(kind, changes, tmp_path):
    dataset, state, loss = exported(kind, tmp_path, **changes)
    assert_same_steps(tmp_path, state, loss, dataset.training(0))


EVERY_TERM = FlowTargets(likelihood=1.0, forward=1.0, guidance=1.0, draws=4, features=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "changes"),
    [("guided-smoke", {"table_side": 2}), ("flow-smoke", {"targets": EVERY_TERM})],
)
def test_distillations_in_jax_have_a_frozen_teacher_and_the_steps_of_tensorflow(
    preset, changes, tmp_path
):
    config = dataclasses.replace(PRESETS[preset].config, **changes)
    teacher, run = image_runs.model("multiscale"), image_runs.run("multiscale")
    recipe = distillation.ImageStudentRecipe(preset, config, image_runs.images(), teacher, run)
    export_portable(recipe, tmp_path, log=image_runs.silent)
    dataset = distillation.dataset_for(config, teacher, image_runs.images())
    student, frozen = distillation.student_and_teacher(dataset.config, teacher)
    state = TrainState(student, config.optimizer, config.loop.num_steps)
    distillation.start(state, student, teacher)
    seen = distillation.features_for(config, dataset, tmp_path / FILE)
    loss = distillation.LOSSES[config.kind](config, student, frozen, seen)
    # Gradients of tables that are nearly alike are differences of large numbers.
    assert_same_steps(tmp_path, state, loss, dataset.training(0), rel=1e-4, moments=5e-5)


@pytest.mark.slow
def test_dropout_and_crops_are_those_of_a_compiled_step(tmp_path):
    factor = dataclasses.replace(config_of("multiscale").network.factor, dropout=0.5)
    network = {"base_size": 2, "crop": 4, "factor": factor}
    dataset, state, loss = exported("multiscale", tmp_path, network=network, parts=("8.2",))
    run, batch = portable_run.Training(tmp_path), next(iter(dataset.training(0)))
    start, metrics = state.arrays(), run.advance(run.batch(0))
    losses = {}
    for compiled in (False, True):
        step = tf.function(training_step(state, loss), jit_compile=compiled, autograph=False)(batch)
        losses[compiled] = float(step["loss"])
    # The generator of masks is XLA's: TensorFlow's other kernels give other masks, as good.
    assert losses[False] != pytest.approx(losses[True], rel=1e-4)
    assert float(metrics["loss"]) == pytest.approx(losses[True], rel=1e-6)
    state.assign([step[f"slot/{name}"] for name in state.slots()])
    assert_same_training(run.arrays(), state.arrays(), start)
