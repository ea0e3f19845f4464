"""Checks of `fit` on four logical CPUs; see in_replicas.py."""

import numpy as np
import tensorflow as tf
from fit_models import ADAM, WAVES, Line, drawn

from autoregressive.fit import fit
from autoregressive.model import Autoregressive
from likelihoods import Gaussian
from replicator import strategies

SINGLE, LOCAL, SHARDED = "single", "local:2", "sharded:2x1"
SOURCES = {
    "arrays": WAVES,
    "function": drawn,
    "iterable": [drawn(step) for step in range(6)],
    "dataset": tf.data.Dataset.from_tensor_slices(np.stack([drawn(step) for step in range(6)])),
}


def noisy(model, batch):
    """A loss whose noise is addressed by step and row."""
    seeds = tf.stack([batch["step"], batch["row"]], axis=1)
    weights = tf.map_fn(
        lambda seed: tf.random.stateless_uniform([], seed), seeds, fn_output_signature=tf.float32
    )
    log_prob = tf.reduce_mean(model.log_prob(batch["elements"]), axis=1)
    return -tf.reduce_mean(weights * log_prob), {"weight": tf.reduce_mean(weights)}


def made(strategy):
    """A replicator, and a model in its scope."""
    replicator = strategies.from_environment(strategy)
    with replicator.scope():
        return replicator, Autoregressive(Line(), Gaussian(levels=256))


def trained(strategy, batches=WAVES, **options):
    """What `fit` leaves: kernel, score, and the model's log-probabilities."""
    replicator, model = made(strategy)
    options = {"optimizer": ADAM, "batch_size": 4, "steps": 6, **options}
    outcome = fit(model, batches, replicator=replicator, log=lambda line: None, **options)
    with replicator.gathered_variables():
        return model.network.kernel.numpy(), outcome.best_score, model.log_prob(WAVES).numpy()


def check_sources():
    """Every source, on one device and on two."""
    return {
        (name, strategy): trained(strategy, source, loss=noisy)
        for name, source in SOURCES.items()
        for strategy in (SINGLE, LOCAL)
    }


def check_evaluation():
    """Scores of arrays and of a function, three times in a run, on every strategy."""
    scores = {"arrays": WAVES, "function": lambda model: -np.mean(model.log_prob(WAVES))}
    return {
        (name, strategy): trained(strategy, evaluate=score, evaluate_every=2)
        for name, score in scores.items()
        for strategy in (SINGLE, LOCAL, SHARDED)
    }


def check_resumed(folder="."):
    """A run that changes from one device to two, and back, in a work directory."""
    import tempfile

    with tempfile.TemporaryDirectory() as workdir:
        for steps, strategy in ((2, SINGLE), (4, LOCAL), (6, SINGLE)):
            found = trained(strategy, steps=steps, workdir=workdir)
    return found


def _raised(batches, **options):
    try:
        trained(LOCAL, batches, **options)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def check_errors():
    """What is raised of a source that ends, changes its shape, or gives NaN at a later step."""
    late = [drawn(0), drawn(1), np.full([4, 40], np.nan, np.float32)]
    return {
        "ends": _raised(iter([drawn(0), drawn(1)])),
        "shape": _raised([drawn(0), drawn(1)[:2]]),
        "nan": _raised(late),
        "rows": _raised(WAVES, batch_size=3),
    }
