"""Checks of `fit` on four logical CPUs; see in_replicas.py."""

import dataclasses
import tempfile

import numpy as np
import tensorflow as tf
from fit_models import ADAM, WAVES, Line, Squared, drawn, squared

from onepass.likelihoods import Gaussian
from onepass.model import Autoregressive
from onepass.replicator import strategies
from onepass.training.fit import fit, negative_log_likelihood

SINGLE, LOCAL = "single", "local:2"
STEPS = 4
SOURCES = {
    "arrays": WAVES,
    "function": drawn,
    "iterable": [drawn(step) for step in range(STEPS)],
    "dataset": tf.data.Dataset.from_tensor_slices(np.stack([drawn(i) for i in range(STEPS)])),
}


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


def made(strategy):
    replicator = strategies.from_environment(strategy)
    with replicator.scope():
        network = Line()
    with replicator.gathered_variables():
        return replicator, Autoregressive(network, Gaussian(levels=256))


def trained(strategy, batches=WAVES, **options):
    """Return the results of `fit`: kernel, score, and the model's log-probabilities."""
    replicator, model = made(strategy)
    options = {"optimizer": ADAM, "batch_size": 4, "steps": STEPS, "loss": weighted, **options}
    outcome = fit(model, batches, replicator=replicator, log=lambda line: None, **options)
    with replicator.gathered_variables():
        return model.network.kernel.numpy(), outcome.best_score, model.log_prob(WAVES).numpy()


def check_one():
    """One device, evaluated on arrays."""
    return trained(SINGLE, evaluate=WAVES, evaluate_every=2)


def check_sharded():
    """Shards on two and on four devices, evaluated on arrays."""
    options = {"evaluate": WAVES, "evaluate_every": 2}
    return [trained(f"sharded:{mesh}", **options) for mesh in ("2x1", "2x2")]


def check_sources():
    """Every source on two devices, evaluated by a function."""
    return {
        name: trained(LOCAL, source, evaluate=score, evaluate_every=2)
        for name, source in SOURCES.items()
    }


def check_resumed():
    """A run that begins on one device, goes on on two, and is evaluated on arrays."""
    with tempfile.TemporaryDirectory() as workdir:
        trained(SINGLE, steps=2, workdir=workdir)
        return trained(LOCAL, workdir=workdir, evaluate=WAVES, evaluate_every=2)


def check_patience():
    """Training that ends at the third score and keeps the first, on one device and on two."""
    found = []
    for strategy in (SINGLE, LOCAL):
        replicator, model = made(strategy)
        scores = iter([1.0, 3.0, 2.0])
        options = {"optimizer": ADAM, "batch_size": 4, "loss": weighted, "evaluate_every": 2}
        outcome = fit(
            *(model, WAVES),
            **options,
            steps=20,
            evaluate=lambda _, scores=scores: next(scores),
            patience=2,
            replicator=replicator,
            log=lambda line: None,
        )
        with replicator.gathered_variables():
            kernel = model.network.kernel.numpy()
        found.append((outcome.step, outcome.best_step, outcome.reason, kernel))
    return found


def check_global():
    """A loss over the global batch: on one device, on two, sharded, and in microbatches on two."""
    options = {"optimizer": dataclasses.replace(ADAM, accumulate=2)}
    runs = [(SINGLE, {}), (LOCAL, {}), ("sharded:2x1", {}), (LOCAL, options)]
    return [trained(strategy, loss=Squared(), **more)[0] for strategy, more in runs]


def check_ragged():
    """Rows of different lengths: on one device, on two, sharded, and in microbatches."""
    rows = [row[: 3 * number + 1] for number, row in enumerate(WAVES)]
    lengths = [len(row) for row in rows]
    padded = {"elements": WAVES, "lengths": lengths}
    options = {"loss": negative_log_likelihood, "evaluate": rows, "evaluate_every": 2}
    halves = {"optimizer": dataclasses.replace(ADAM, accumulate=2)}
    runs = [(SINGLE, rows, {}), (LOCAL, rows, {}), (LOCAL, padded, {}), (LOCAL, rows, halves)]
    runs.append(("sharded:2x1", rows, {}))
    return [trained(strategy, given, **options, **more)[:2] for strategy, given, more in runs]


def _raised(batches, **options):
    try:
        trained(LOCAL, batches, **options)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def check_errors():
    """Return the errors of sources that end, change their shape, or give NaN at a later step."""
    late = [drawn(0), drawn(1), np.full([4, 40], np.nan, np.float32)]
    return {
        "ends": _raised(iter([drawn(0), drawn(1)])),
        "shape": _raised([drawn(0), drawn(1)[:2]]),
        "nan": _raised(late),
        "rows": _raised(WAVES, batch_size=3),
        "global": _raised(WAVES, loss=squared),
    }
