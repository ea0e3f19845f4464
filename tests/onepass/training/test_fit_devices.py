"""`fit` on several devices gives what it gives on one."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
from fit_models import ADAM, WAVES, Line, Squared, drawn, squared

from onepass.likelihoods import Gaussian
from onepass.model import Autoregressive
from onepass.replicator import strategies
from onepass.training.fit import fit, negative_log_likelihood

pytestmark = [pytest.mark.slow, pytest.mark.four_devices("tensorflow"), pytest.mark.timeout(600)]
SINGLE, LOCAL = "single", "local:2"
STEPS = 4
SOURCES = {
    "arrays": WAVES,
    "function": drawn,
    "iterable": [drawn(step) for step in range(STEPS)],
    "dataset": tf.data.Dataset.from_tensor_slices(np.stack([drawn(i) for i in range(STEPS)])),
}
HALVES = {"optimizer": dataclasses.replace(ADAM, accumulate=2)}
EVALUATED = {"evaluate": WAVES, "evaluate_every": 2}


def weighted(model, batch):
    """A loss in which every row of every step has a weight of its own."""
    weight = 1.5 + tf.sin(tf.cast(batch["step"] + 3 * batch["row"], tf.float32))
    log_prob = tf.reduce_mean(model.log_prob(batch["elements"]), axis=1)
    return -tf.reduce_mean(weight * log_prob), {"weight": tf.reduce_mean(weight)}


def score(model):
    """The loss on the rows of WAVES, as `fit` computes it of arrays in parts of four."""
    parts = [
        {"elements": WAVES[i : i + 4], "step": np.zeros(4, int), "row": np.arange(i, i + 4)}
        for i in range(0, 12, 4)
    ]
    return np.mean([weighted(model, part)[0] for part in parts])


def fitted(strategy, batches=WAVES, **options):
    """Return the outcome of `fit`, the kernel, and the model's log-probabilities."""
    replicator = strategies.from_environment(strategy)
    with replicator.scope():
        network = Line()
    with replicator.gathered_variables():
        model = Autoregressive(network, Gaussian(levels=256))
    options = {"optimizer": ADAM, "batch_size": 4, "steps": STEPS, "loss": weighted, **options}
    outcome = fit(model, batches, replicator=replicator, log=lambda line: None, **options)
    with replicator.gathered_variables():
        return outcome, model.network.kernel.numpy(), model.log_prob(WAVES).numpy()


def trained(strategy, batches=WAVES, **options):
    """Return the kernel, the best score and the log-probabilities after training."""
    outcome, kernel, log_prob = fitted(strategy, batches, **options)
    return kernel, outcome.best_score, log_prob


@functools.cache
def one():
    """One device, evaluated on arrays."""
    return trained(SINGLE, **EVALUATED)


def assert_close(found, expected):
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=0, atol=5e-6)


@pytest.mark.parametrize("source", SOURCES)
def test_two_devices_give_the_weights_and_the_score_of_one(source):
    assert_close(trained(LOCAL, SOURCES[source], evaluate=score, evaluate_every=2), one())


@pytest.mark.parametrize("mesh", ["2x1", "2x2"])
def test_shards_give_the_weights_and_the_score_of_one_device(mesh):
    assert_close(trained(f"sharded:{mesh}", **EVALUATED), one())


def test_a_run_may_change_its_devices(tmp_path):
    trained(SINGLE, steps=2, workdir=tmp_path)
    assert_close(trained(LOCAL, workdir=tmp_path, **EVALUATED), one())


def test_patience_ends_on_two_devices_as_on_one():
    kernels = []
    for strategy in (SINGLE, LOCAL):
        scores = iter([1.0, 3.0, 2.0])
        asked = {"evaluate": lambda _, scores=scores: next(scores), "evaluate_every": 2}
        outcome, kernel, _ = fitted(strategy, steps=20, patience=2, **asked)
        assert (outcome.step, outcome.best_step, outcome.reason) == (6, 2, "no improvement")
        kernels.append(kernel)
    assert_close(*kernels)


@pytest.mark.parametrize(
    ("strategy", "options"), [(LOCAL, {}), ("sharded:2x1", {}), (LOCAL, HALVES)]
)
def test_a_loss_over_the_global_batch_gives_the_same_weights_on_any_number_of_devices(
    strategy, options
):
    kernel, *_ = trained(strategy, loss=Squared(), **options)
    assert_close([kernel], [trained(SINGLE, loss=Squared())[0]])


ROWS = [row[: 3 * number + 1] for number, row in enumerate(WAVES)]
PADDED = {"elements": WAVES, "lengths": [len(row) for row in ROWS]}


@pytest.mark.parametrize(
    ("strategy", "batches", "options"),
    [(LOCAL, ROWS, {}), (LOCAL, PADDED, {}), (LOCAL, ROWS, HALVES), ("sharded:2x1", ROWS, {})],
)
def test_rows_of_different_lengths_give_the_same_weights_on_any_number_of_devices(
    strategy, batches, options
):
    asked = {"loss": negative_log_likelihood, "evaluate": ROWS, "evaluate_every": 2}
    found = trained(strategy, batches, **asked, **options)
    assert_close(found[:2], trained(SINGLE, ROWS, **asked)[:2])


NAN = np.full([4, 40], np.nan, np.float32)


@pytest.mark.parametrize(
    ("batches", "options", "line"),
    [
        (lambda: iter([drawn(0), drawn(1)]), {}, "The batches ended after 2"),
        (lambda: [drawn(0), drawn(1)[:2]], {}, "all batches must have the same shapes, got {'ele"),
        (lambda: [drawn(0), drawn(1), NAN], {}, "`elements` must be finite, got nan at [0, 0]"),
        (lambda: WAVES, {"batch_size": 3}, "`batch_size` must be a multiple of 2"),
        (
            lambda: WAVES,
            {"loss": squared},
            "must be a mean over rows, or have `global_inputs`, for",
        ),
    ],
)
def test_what_is_wrong_with_a_batch_is_named_on_several_devices_too(batches, options, line):
    with pytest.raises(ValueError) as caught:
        trained(LOCAL, batches(), **options)
    assert line in str(caught.value)
