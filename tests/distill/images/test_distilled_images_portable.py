"""Distillations of images exported: their steps in JAX, with a frozen teacher."""

import dataclasses

import image_runs
import pytest
import tensorflow as tf
from carried import assert_equal, assert_same_training
from image_networks import QuickInitial
from image_runs import images

from distill.images import training
from distill.images.config import PRESETS, FlowTargets
from distill.images.flow import FILE
from onepass.replicator.portable import run as portable_run
from onepass.replicator.portable.export import export_portable, training_step
from onepass.replicator.training.state import TrainState
from pixelcnn import density

EVERY_TERM = FlowTargets(likelihood=1.0, forward=1.0, guidance=1.0, draws=4, features=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "changes"),
    [("guided-smoke", {"table_side": 2}), ("flow-smoke", {"targets": EVERY_TERM})],
)
def test_steps_in_jax_equal_those_in_tensorflow(
    preset, changes, tmp_path, monkeypatch, quick_compilation
):
    monkeypatch.setattr(density, "Initial", QuickInitial)
    config = dataclasses.replace(PRESETS[preset].config, **changes)
    teacher, run = image_runs.model("multiscale"), image_runs.run("multiscale")
    recipe = training.ImageStudentRecipe(preset, config, images(), teacher, run)
    export_portable(recipe, tmp_path, log=image_runs.silent)
    dataset = training.dataset_for(config, teacher, images())
    student, frozen = training.student_and_teacher(dataset.config, teacher)
    state = TrainState(student, config.optimizer, config.loop.num_steps)
    training.start(state, student, teacher)
    start, exported = state.arrays(), portable_run.Training(tmp_path)
    assert_equal(exported.arrays(), start)
    seen = training.features_for(config, dataset, tmp_path / FILE)
    loss = training.LOSSES[config.kind](config, student, frozen, seen)
    step = tf.function(training_step(state, loss), autograph=False)
    for number, batch in enumerate(dataset.training(0).take(2)):
        metrics = exported.advance(exported.batch(number))
        expected = step(batch)
        state.assign([expected[f"slot/{name}"] for name in state.slots()])
        assert float(metrics["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-4, abs=1e-6)
    # Gradients of tables that are nearly alike are differences of large numbers.
    assert_same_training(exported.arrays(), state.arrays(), start, moments=5e-5)
