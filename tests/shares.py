"""A loss on shares of a batch (of replicas, of accumulation), compared with the whole batch."""

import numpy as np
import tensorflow as tf

from onepass.replicator.training.batches import split_microbatches

# Replicas, and microbatches of each, that eight rows are cut for.
CUTS = ((2, 1), (8, 1), (2, 4))


class Together:
    """Replicas that are traced one after another, whose collectives have the results of all."""

    def __init__(self, shares):
        self.num_replicas, self._shares, self._results = len(shares), shares, []

    def run(self, function):
        """Returns what `function(share, replicator)` gives for every share."""
        while True:
            self._recorded, answers = [], []
            for number, share in enumerate(self._shares):
                self.replica_id, self._calls = number, 0
                answers.append(function(share, self))
            if not self._recorded:
                return answers
            self._results.append(self._resolved())

    def _resolved(self):
        """The result of the collective that all have come to."""
        reduce, values = self._recorded[0][0], [value for _, value in self._recorded]
        return tf.nest.map_structure(lambda *each: reduce(tf.stack(each)), *values)

    def all_reduce(self, value, reducer):
        assert reducer == "mean"
        return self._exchange_value(value, lambda stacked: tf.reduce_mean(stacked, 0))

    def all_gather(self, value):
        return self._exchange_value(value, tf.identity)

    def _exchange_value(self, value, reduce):
        number, self._calls = self._calls, self._calls + 1
        if number < len(self._results):
            return tf.nest.map_structure(tf.identity, self._results[number])
        if number == len(self._results):
            self._recorded.append((reduce, value))
        return tf.nest.map_structure(lambda x: reduce(tf.stack([x] * self.num_replicas)), value)


def cut(loss, batch, replicas, microbatches):
    """The microbatches of all replicas, with what each must know of the whole batch."""
    rows = len(next(iter(batch.values()))) // replicas
    shares = [{k: v[i * rows : (i + 1) * rows] for k, v in batch.items()} for i in range(replicas)]
    each = Together(shares).run(
        lambda share, replicator: split_microbatches(loss, share, microbatches, replicator)
    )
    # A Python number would have every part traced for itself.
    each = [{name: tf.convert_to_tensor(value) for name, value in part.items()} for part in each]
    if microbatches == 1:
        return each
    return [{k: v[i] for k, v in share.items()} for share in each for i in range(microbatches)]


def assert_cuts_change_nothing(loss, batch, weights, logged=()):
    """The loss, its terms and its gradients of a batch are the means over its parts."""

    @tf.function(autograph=False)
    def evaluated(part):
        with tf.GradientTape() as tape:
            value, terms = loss(part)
        gradients = tape.gradient(value, weights, unconnected_gradients="zero")
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return {"loss": value, **terms}, gradients

    terms, gradients = evaluated(batch)
    size = max(float(tf.reduce_max(tf.abs(g))) for g in gradients)
    assert size > 0
    for replicas, microbatches in CUTS:
        parts = [evaluated(part) for part in cut(loss, batch, replicas, microbatches)]
        for name in terms.keys() - set(logged):
            mean = np.mean([part[0][name] for part in parts])
            np.testing.assert_allclose(mean, terms[name], rtol=2e-4, atol=1e-5, err_msg=name)
        for i, gradient in enumerate(gradients):
            mean = np.mean([part[1][i] for part in parts], axis=0)
            np.testing.assert_allclose(mean, gradient, atol=2e-4 * size, rtol=1e-3)
