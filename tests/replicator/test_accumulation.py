"""A batch in parts: every part knows what it must of the whole, and the mean is the whole's."""

import numpy as np
import pytest
import tensorflow as tf

from replicator.training.accumulation import accumulate_gradients, split_microbatches

ROWS = 8


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


def test_one_part_is_the_batch_itself(batch):
    assert split_microbatches(Counting(), batch, 1) is batch


def test_a_plain_mean_over_rows_needs_to_know_nothing(batch):
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
