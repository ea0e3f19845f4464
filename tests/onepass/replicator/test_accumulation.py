"""Less memory: a batch in parts, and layers computed again, give the gradients of the whole."""

import numpy as np
import pytest
import tensorflow as tf

from onepass.foundation.runtime import call_rematerialised, rematerialising
from onepass.replicator.training.batches import accumulate_gradients, split_microbatches

ROWS, LAYERS = 8, 3


class Counting:
    """A loss that needs the mean, the first row and the neighbour of its share."""

    def __call__(self, batch):
        raise NotImplementedError

    def global_inputs(self, batch, replicator):
        known = replicator.all_reduce({"mean": tf.reduce_mean(batch["x"])}, "mean")
        known["first"] = replicator.replica_id * batch["x"].shape[0]
        known["lasts"] = replicator.all_gather(batch["x"][-1])
        return known


@pytest.fixture
def batch():
    return {"x": tf.range(ROWS, dtype=tf.float32) ** 2}


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_a_part_knows_its_place_and_the_whole(batch, parts):
    cut = split_microbatches(Counting(), batch, parts)
    rows = ROWS // parts
    whole = batch["x"].numpy()
    np.testing.assert_array_equal(cut["x"], whole.reshape(parts, rows))
    np.testing.assert_allclose(cut["mean"], np.full(parts, whole.mean()))
    np.testing.assert_array_equal(cut["first"], np.arange(parts) * rows)
    np.testing.assert_array_equal(cut["lasts"], np.tile(whole[rows - 1 :: rows], (parts, 1)))


def test_one_part_is_the_batch_and_a_plain_mean_over_rows_needs_to_know_nothing(batch):
    assert split_microbatches(Counting(), batch, 1) is batch
    assert split_microbatches(lambda part: part, batch, 2).keys() == batch.keys()


def test_gradients_of_parts_have_the_mean_of_the_whole(batch):
    cut = split_microbatches(lambda part: part, batch, 4)
    seen = accumulate_gradients(
        lambda part: {"a": tf.reduce_mean(part["x"]), "b": [part["x"][0]]}, cut, 4
    )
    whole = batch["x"].numpy()
    np.testing.assert_allclose(seen["a"], whole.mean())
    np.testing.assert_allclose(seen["b"][0], whole[::2].mean())


def test_rows_that_the_parts_do_not_divide_are_refused(batch):
    with pytest.raises(ValueError, match=r"`x` must have a multiple of 3 rows.* got 8"):
        split_microbatches(Counting(), batch, 3)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_layer_is_computed_again_with_the_same_gradients(jit_compile):
    kernels = [tf.Variable(tf.eye(4) * (0.5 + i)) for i in range(LAYERS)]
    given = tf.constant(np.random.default_rng(0).normal(size=(5, 4)), tf.float32)

    def layer(kernel, x, pair):
        scale, absent = pair
        assert absent is None
        return {"x": tf.tanh(x @ kernel) * scale}

    def gradients(x, scale):
        with tf.GradientTape() as tape:
            tape.watch((x, scale))
            hidden = x
            for kernel in kernels:
                hidden = call_rematerialised(lambda *a, kernel=kernel: layer(kernel, *a), hidden,
                                    (scale, None))["x"]  # fmt: skip
            value = tf.reduce_sum(hidden**2)
        return tape.gradient(value, [x, scale, *kernels])

    found = []
    for wanted in (False, True):
        traced = tf.function(gradients, jit_compile=jit_compile, autograph=False)
        with rematerialising(wanted):
            found.append([v.numpy() for v in traced(given, tf.constant(0.7))])
            graph = traced.get_concrete_function(given, tf.constant(0.7)).graph
        count = sum(op.type == "Tanh" for op in graph.get_operations())
        assert count == LAYERS * (1 + wanted)
    for plain, again in zip(*found, strict=True):
        np.testing.assert_allclose(again, plain, rtol=1e-6)
