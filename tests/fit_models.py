"""A small model for `fit`, its data, and a run that a signal ends: `python fit_models.py RUN`."""

import functools
import os
import signal
import sys

import numpy as np
import tensorflow as tf

from onepass.likelihoods import LogisticMixture
from onepass.model import Autoregressive
from onepass.replicator.training.config import OptimizerConfig
from onepass.training.fit import fit

ADAM = OptimizerConfig(learning_rate=1e-2, warmup_steps=2)
WAVES = np.sin(np.arange(40)[None] * np.linspace(0.2, 0.5, 12)[:, None]).astype(np.float32) * 0.5


class Line(tf.Module):
    """A convolution over two samples."""

    def __init__(self, outputs=2):
        super().__init__()
        values = tf.linspace(-0.3, 0.3, 2 * outputs)
        self.kernel = tf.Variable(tf.reshape(values, [2, 1, outputs]))

    def __call__(self, x):
        return tf.nn.conv1d(tf.pad(x, [[0, 0], [1, 0], [0, 0]]), self.kernel, 1, "VALID")


@functools.cache
def _model():
    return Autoregressive(Line(3), LogisticMixture(levels=256, components=1))


def untrained():
    """A model over the one network, which has its first weights again: it is checked once."""
    model = _model()
    model.network.kernel.assign(Line(3).kernel)
    return Autoregressive.of_symbols(model.symbol_network, model.distribution, model.codec)


def trained(steps=6, batches=WAVES, **options):
    model = untrained()
    outcome = fit(model, batches, steps=steps, **{"optimizer": ADAM, "batch_size": 4, **options})
    return model.network.kernel.numpy(), outcome


def drawn(step):
    """The batch that `fit` draws from WAVES at a step, with the seed 0."""
    return WAVES[np.random.default_rng([0, step]).choice(12, 4, replace=False)]


class Squared:
    """The square of the mean of the global batch, in which every row has a weight of its own."""

    @staticmethod
    def mean(model, batch):
        weight = 1.5 + tf.sin(tf.cast(batch["row"], tf.float32))
        return -tf.reduce_mean(weight[:, tf.newaxis] * model.log_prob(batch["elements"]))

    def __call__(self, model, batch):
        share = self.mean(model, batch)
        return tf.square(share + tf.stop_gradient(batch.get("mean", share) - share))

    def global_inputs(self, model, batch, replicator):
        return replicator.all_reduce({"mean": self.mean(model, batch)}, "mean")


def squared(model, batch):
    """The same, in ignorance of shares."""
    return tf.square(Squared.mean(model, batch))


def killed(workdir):
    """Trains until the process kills itself before the fifth step is made."""

    def batches(step):
        if step == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return drawn(step)

    trained(batches=batches, workdir=workdir, evaluate=lambda model: 0.0, evaluate_every=3)


if __name__ == "__main__":
    killed(sys.argv[1])
