"""Every primitive against numpy, forward and gradient; every way to train against one device."""

import numpy as np
import pytest
import tensorflow as tf
from in_replicas import run_checks
from replicator_checks import ALL_DTYPES, SIZES, TRAINED, samples

from onepass.foundation.errors import UserError
from onepass.replicator import strategies
from onepass.replicator.strategies.base import replica_batches, uneven_rows_error

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    return run_checks("replicator_checks", tmp_path_factory.mktemp("checks"))


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    return run_checks("replicator_training_checks", tmp_path_factory.mktemp("training"))


def extreme(x, g, reduce):
    """Returns the extreme, and its gradient: in equal shares to all who have it."""
    y = reduce(x, axis=0)
    has = x == y
    return np.broadcast_to(y, x.shape), has / has.sum(axis=0) * g.sum(axis=0)


def gathered(x, g):
    return np.broadcast_to(x, (len(x), *x.shape)), g.sum(axis=0)


def to_last(g):
    gradient = np.zeros_like(g)
    gradient[-1] = g.sum(axis=0)
    return gradient


def alike(y, x):
    return np.broadcast_to(y, x.shape)


# From the values x and weights g of all replicas to (y, gradient) of all replicas.
EXPECTED = {
    "sum": lambda x, g: (alike(x.sum(0), x), alike(g.sum(0), x)),
    "mean": lambda x, g: (alike(x.mean(0), x), alike(g.mean(0), x)),
    "min": lambda x, g: extreme(x, g, np.min),
    "max": lambda x, g: extreme(x, g, np.max),
    "gather": gathered,
    "broadcast": lambda x, g: (alike(x[-1], x), to_last(g)),
    "map_gather": lambda x, g: (gathered(x**2, g)[0], 2 * x * g.sum(axis=0)),
    "map_reduce": lambda x, g: (alike((x**2).sum(0), x), 2 * x * g.sum(0)),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("primitive", EXPECTED)
def test_a_primitive_and_its_gradient_are_those_of_numpy(checks, primitive, size):
    found = checks("primitives")[primitive][size]
    values, gradients = EXPECTED[primitive](found["x"], found["weights"])
    assert len(found["rows"]) == size
    for replica, (value, gradient) in enumerate(found["rows"]):
        np.testing.assert_array_equal(value, values[replica])
        np.testing.assert_allclose(gradient, gradients[replica], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_broadcast_and_gather_move_every_bit_of_every_dtype(checks, dtype):
    place, values = ALL_DTYPES.index(dtype), samples(dtype)
    for row in checks("every_dtype"):
        assert row[place] == values[2].tobytes()
        assert row[place + len(ALL_DTYPES)] == values.tobytes()


def test_broadcast_and_gather_move_strings_of_any_length_and_byte(checks):
    found = checks("strings")
    for copy in found["slots"][0]:
        np.testing.assert_array_equal(copy, found["words"][1])
    for copy in found["slots"][1]:
        np.testing.assert_array_equal(copy, found["words"])


def test_other_numbers_are_summed_in_their_own_dtype(checks):
    wrapped = (4 * 100 + 6) % 256
    for row in checks("sums_of_other_numbers"):
        assert row == [1 + 2 + 3 + 4, wrapped, 0 + 1 + 2 + 3, 4 + 6j, 3]


def test_a_nest_comes_back_as_it_went_in(checks):
    for row in checks("nests"):
        assert [float(np.squeeze(value)) for value in row] == [6, 6, 6]


def test_what_a_primitive_cannot_do_is_refused(checks):
    assert checks("refusals") == {
        "reducer": "`reducer` must be sum, mean, min or max, got 'product'.",
        "mean": "A mean needs floating values, got int32.",
        "sum": "A sum needs numbers, got bool.",
        "max": "A minimum or maximum needs an order, complex64 has none.",
        "source": "`source` must be in [0, 2), got 2.",
        "device": "`index` must be in [0, 1), got 1: a replica has 1 logical device(s).",
    }


def test_outputs_are_means_or_those_of_the_first_replica(checks):
    outputs = checks("outputs")
    assert (outputs["mean"], outputs["first"], outputs["none"]) == (1.5, 7, None)
    np.testing.assert_array_equal(outputs["rows"], [3, 4])


def test_replicas_share_the_rows_of_a_batch_in_order(checks):
    np.testing.assert_array_equal(checks("rows_of_batches"), np.arange(24).reshape(3, 4, 2))


def test_replicas_share_the_batches_of_input_fn(checks):
    contexts, seen = checks("rows_of_input_fn")
    assert contexts == [(1, 2)]
    np.testing.assert_array_equal(seen, np.arange(12).reshape(3, 2, 2))


def test_rows_that_the_replicas_do_not_divide_are_refused(checks):
    rule = "UserError: The rows of a global batch must be a multiple of 4 replicas"
    assert checks("uneven_rows") == [f"{rule}, got 6.", f"{rule}."]


def test_every_replica_that_asks_meets_the_batch_that_is_refused():
    shares = iter(replica_batches(tf.data.Dataset.range(10).batch(4), 0, 4, num_replicas=4))
    assert [int(next(shares)[0]) for _ in range(8)] == list(range(8))
    for _ in range(9):
        with pytest.raises(tf.errors.InvalidArgumentError) as refused:
            next(shares)
        assert isinstance(uneven_rows_error(refused.value, 4), UserError)


def test_a_process_makes_its_own_rows_and_no_others(monkeypatch):
    replicator, made = strategies.single(), []
    for name, value in (("num_replicas", 4), ("num_workers", 2), ("worker_index", 1)):
        monkeypatch.setattr(replicator, name, value)
    # Of one replica here, the rows of two arrive one after the other, as those of two replicas do.
    steps = tf.data.Dataset.range(3).map(lambda step: step * 8 + tf.range(8, dtype=tf.int64))

    def rows(index, count):
        made.append((index, count))
        return steps.map(lambda row: row[index * 8 // count : (index + 1) * 8 // count])

    parts = [part.numpy().tolist() for part in replicator.batches(rows)]
    assert parts == [part.numpy().tolist() for part in replicator.batches(steps)]
    assert parts[:2] == [[4, 5], [6, 7]] and set(made) == {(0, 1), (1, 2)}
    with pytest.raises(UserError, match="must be a multiple of 4 replicas, got 6"):
        replicator.batches(lambda index, count: steps.map(lambda row: row[: 6 // count]))


def test_data_that_ends_ends_the_steps(checks):
    assert checks("end_of_data") == 3


def same_as_single(found, single):
    for weight, other in zip(found[0], single[0], strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], single[1], rtol=1e-5)


@pytest.mark.parametrize("size", TRAINED[1:])
@pytest.mark.parametrize(
    "kind", ["keras", "keras_sgd", "tf_keras", "tf_keras_sgd", "legacy", "own"]
)
def test_a_wrapped_optimizer_trains_as_on_one_device(training, kind, size):
    found = training("optimizers")[kind]
    same_as_single(found[size], found[1])
    assert found[1][1][0] != pytest.approx(found[1][1][-1], rel=1e-2)


@pytest.mark.parametrize("kind", ["keras", "keras_sgd", "tf_keras", "tf_keras_sgd", "own"])
def test_a_wrapped_optimizer_of_shards_trains_as_on_one_device(training, kind):
    same_as_single(training("sharded_optimizers")[kind], training("optimizers")[kind][1])


def test_what_shards_cannot_run_is_refused_in_a_line(training):
    legacy, assignment = training("refusals_of_shards")
    assert legacy.startswith("The strategy sharded cannot run `Adam`: its fused operations")
    assert assignment.startswith("`count:0` is assigned and then read in another tf.cond")


@pytest.mark.parametrize("size", TRAINED)
def test_a_row_that_overflows_in_float16_skips_the_step_on_every_replica(training, size):
    scales, weight = training("loss_scaling")[size]
    assert scales == [1024.0, 2048.0, 1024.0, 1024.0, 2048.0]
    np.testing.assert_allclose(weight, [2.0 * 0.8**4], rtol=1e-3)  # four steps of five


@pytest.mark.parametrize("size", TRAINED)
def test_several_steps_per_call_are_as_many_calls(training, size):
    weights, losses = training("optimizers")["own"][1]
    same_as_single(training("steps_per_call")[size], (weights, losses[-1:]))


def test_variables_and_ops_lie_on_logical_devices(training):
    devices, _ = training("logical_devices")
    assert devices == {
        "two on one": [["CPU:1"], ["CPU:2"]],
        "two on each of two": [["CPU:0", "CPU:2"], ["CPU:1", "CPU:3"]],
    }
    assert training("ops_on_logical_devices") == ["CPU:1", "CPU:3"]


def test_logical_devices_train_as_one_device(training):
    for found in training("logical_devices")[1].values():
        same_as_single(found, training("optimizers")["own"][1])


@pytest.mark.parametrize("size", TRAINED[1:])
def test_compiled_training_averages_figures_and_gradients(training, size):
    found = training("training")
    same_as_single(found[size], found[1])


def test_run_makes_its_steps(training):
    rule = "`num_steps` must be a positive multiple of `steps_per_call` (3), got 5."
    assert training("run") == (6, rule)


def test_one_replica_needs_no_strategy():
    replicator = strategies.single()
    facts = (replicator.num_replicas, replicator.num_workers, replicator.is_chief)
    assert facts == (1, 1, True)
    assert not replicator.is_async


def test_an_object_that_is_no_optimizer_is_refused():
    with pytest.raises(ValueError, match="`optimizer` must have `apply_gradients`, got a dict"):
        strategies.single().wrap_optimizer({})
