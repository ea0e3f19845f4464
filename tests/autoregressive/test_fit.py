"""`fit`: the same weights in memory, in a work directory, and after a stop in between."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from autoregressive.fit import fit
from autoregressive.model import Autoregressive
from likelihoods import Gaussian
from replicator.runs.errors import UserError
from replicator.training.config import OptimizerConfig

ADAM = OptimizerConfig(learning_rate=1e-2, warmup_steps=2)
WAVES = np.sin(np.arange(40)[None] * np.linspace(0.2, 0.5, 12)[:, None]).astype(np.float32) * 0.5


class Line(tf.Module):
    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(tf.reshape(tf.linspace(-0.3, 0.3, 4), [2, 1, 2]))

    def __call__(self, x):
        return tf.nn.conv1d(tf.pad(x, [[0, 0], [1, 0], [0, 0]]), self.kernel, 1, "VALID")


def trained(steps=6, batches=WAVES, **options):
    model = Autoregressive(Line(), Gaussian(levels=256))
    options = {"optimizer": ADAM, "batch_size": 4, **options}
    outcome = fit(model, batches, steps=steps, **options)
    return model.network.kernel.numpy(), outcome


@pytest.fixture(scope="module")
def in_memory():
    return trained()[0]


def test_training_lowers_the_loss():
    model = Autoregressive(Line(), Gaussian(levels=256))
    before = float(tf.reduce_mean(model.log_prob(WAVES)))
    outcome = fit(model, WAVES, steps=40, optimizer=ADAM)
    assert outcome.step == 40 and outcome.reason == "done"
    assert float(tf.reduce_mean(model.log_prob(WAVES))) > before + 0.01


def test_memory_and_workdir_give_the_same_bits(in_memory, tmp_path):
    np.testing.assert_array_equal(trained(workdir=tmp_path)[0], in_memory)
    assert (tmp_path / "checkpoints" / "step_00000006.npz").exists()


def test_a_run_that_failed_goes_on_as_if_nothing_had_happened(in_memory, tmp_path):
    def failing(step):
        if step == 4:
            raise RuntimeError("the disk is gone")
        generator = np.random.default_rng([0, step])
        return WAVES[generator.choice(12, 4, replace=False)]

    def whole(step):
        return WAVES[np.random.default_rng([0, step]).choice(12, 4, replace=False)]

    with pytest.raises(RuntimeError, match="the disk is gone"):
        trained(batches=failing, workdir=tmp_path, evaluate=lambda model: 0.0, evaluate_every=3)
    weights, outcome = trained(
        batches=whole, workdir=tmp_path, evaluate=lambda model: 0.0, evaluate_every=3
    )
    assert outcome.step == 6
    np.testing.assert_array_equal(weights, in_memory)


def test_more_steps_go_on_from_the_last(in_memory, tmp_path):
    trained(steps=3, workdir=tmp_path)
    np.testing.assert_array_equal(trained(workdir=tmp_path)[0], in_memory)
    weights, outcome = trained(workdir=tmp_path)
    assert outcome.reason == "finished before"
    np.testing.assert_array_equal(weights, in_memory)


def test_another_run_is_not_written_over(tmp_path):
    trained(steps=1, workdir=tmp_path)
    with pytest.raises(UserError, match="another configuration"):
        trained(steps=1, workdir=tmp_path, batch_size=3)


def test_iterables_datasets_and_functions_give_the_same_weights():
    parts = [WAVES[:4], WAVES[4:8], WAVES[8:]]
    expected = trained(batches=parts)[0]
    dataset = tf.data.Dataset.from_tensor_slices(WAVES).batch(4)
    for batches in (dataset, lambda step: parts[step % 3], [{"elements": p} for p in parts]):
        np.testing.assert_array_equal(trained(batches=batches)[0], expected)


def test_an_iterable_that_ends_is_named():
    with pytest.raises(UserError, match="The batches ended after 2"):
        trained(batches=iter([WAVES, WAVES]))


def test_own_loss_schedule_and_score():
    seen = []

    def loss(model, batch):
        seen.append(sorted(batch))
        assert batch["step"].shape == batch["row"].shape == [12]
        return -tf.reduce_mean(model.log_prob(batch["elements"]) * batch["weight"])

    batches = [{"elements": WAVES, "weight": np.float32([[0.5]] * 12)}]
    weights, outcome = trained(
        batches=batches,
        loss=loss,
        schedule=lambda step: 0.0 * tf.cast(step, tf.float32),
        evaluate=lambda model: 1.5,
        evaluate_every=3,
    )
    assert seen[0] == ["elements", "row", "step", "weight"]
    np.testing.assert_array_equal(weights, Line().kernel)  # at a rate of 0
    assert outcome.best_score == 1.5


def test_held_out_data_is_scored_with_the_loss():
    outcome = trained(evaluate=WAVES, evaluate_every=6)[1]
    assert np.isfinite(outcome.best_score)


def test_an_optimiser_of_keras_resumes_exactly(tmp_path):
    whole = trained(optimizer=keras.optimizers.Adam(1e-2))[0]
    assert (whole != Line().kernel.numpy()).all()
    trained(steps=3, optimizer=keras.optimizers.Adam(1e-2), workdir=tmp_path)
    resumed = trained(optimizer=keras.optimizers.Adam(1e-2), workdir=tmp_path)[0]
    np.testing.assert_array_equal(resumed, whole)


def test_bad_data_is_named_before_training():
    with pytest.raises(ValueError, match="must be finite, got nan"):
        trained(batches=np.full([4, 8], np.nan, np.float32))
    with pytest.raises(ValueError, match=r"must be in \[-1, 1\]"):
        trained(batches=[WAVES, 3.0 * WAVES])
