"""Every primitive against numpy, forward and gradient; every way to train against one device."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from replicated import (
    KINDS,
    STEPS,
    batches,
    copies,
    endless,
    loss_of,
    optimizer_of,
    replicator_of,
    run_step,
    trained,
    weights_of,
)

from onepass.foundation.rules import UserError
from onepass.replicator import strategies
from onepass.replicator.strategies.base import replica_batches, uneven_rows_error

pytestmark = [pytest.mark.integration, pytest.mark.four_devices("tensorflow")]

SIZES = (1, 2, 4)  # replicas of a primitive
TRAINED = (1, 4)  # and of a training
DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


def probe(size, function, like):
    """Returns [[results of replica 0], ...]; `like` are values with their shapes and dtypes."""
    replicator = replicator_of(size)
    with replicator.scope():
        slots = [tf.Variable(tf.zeros_like(v), trainable=False) for v in like]

    def step(replicator):
        for slot, value in zip(slots, function(replicator), strict=True):
            slot.assign(value)

    run_step(replicator, step)
    return [list(row) for row in zip(*[copies(slot) for slot in slots], strict=True)]


def extreme(x, g, reduce):
    """Returns the extreme, and its gradient: in equal shares to all who have it."""
    y = reduce(x, axis=0)
    has = x == y
    return alike(y, x), has / has.sum(axis=0) * g.sum(axis=0)


def gathered(x, g):
    return np.broadcast_to(x, (len(x), *x.shape)), g.sum(axis=0)


def to_last(g):
    gradient = np.zeros_like(g)
    gradient[-1] = g.sum(axis=0)
    return gradient


def alike(y, x):
    return np.broadcast_to(y, x.shape)


# A primitive, and from the values x and weights g of all replicas (y, gradient) of all replicas.
PRIMITIVES = {
    "sum": (lambda r, x: r.all_sum(x), lambda x, g: (alike(x.sum(0), x), alike(g.sum(0), x))),
    "mean": (
        lambda r, x: r.all_reduce(x, "mean"),
        lambda x, g: (alike(x.mean(0), x), alike(g.mean(0), x)),
    ),
    "min": (lambda r, x: r.all_reduce(x, "min"), lambda x, g: extreme(x, g, np.min)),
    "max": (lambda r, x: r.all_reduce(x, "max"), lambda x, g: extreme(x, g, np.max)),
    "gather": (lambda r, x: r.all_gather(x), gathered),
    "broadcast": (
        lambda r, x: r.broadcast(x, r.num_replicas - 1),
        lambda x, g: (alike(x[-1], x), to_last(g)),
    ),
    "map_gather": (
        lambda r, x: r.map_gather(tf.square, x),
        lambda x, g: (gathered(x**2, g)[0], 2 * x * g.sum(axis=0)),
    ),
    "map_reduce": (
        lambda r, x: r.map_reduce(tf.square, x, "sum"),
        lambda x, g: (alike((x**2).sum(0), x), 2 * x * g.sum(0)),
    ),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PRIMITIVES)
def test_a_primitive_and_its_gradient_are_those_of_numpy(name, size):
    primitive, expected = PRIMITIVES[name]
    x = np.random.default_rng(0).integers(-3, 4, (size, 2, 3)).astype(np.float32)
    shape = (size, *x.shape) if "gather" in name else x.shape
    weights = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    values, gradients = expected(x, weights)

    def function(replicator):
        own, weight = (tf.constant(each)[replicator.replica_id] for each in (x, weights))
        with tf.GradientTape() as tape:
            tape.watch(own)
            y = primitive(replicator, own)
            loss = tf.reduce_sum(weight * y)
        return [y, tape.gradient(loss, own)]

    found = probe(size, function, [values[0], x[0]])
    assert len(found) == size
    for (value, gradient), *wanted in zip(found, values, gradients, strict=True):
        np.testing.assert_array_equal(value, wanted[0])
        np.testing.assert_allclose(gradient, wanted[1], rtol=1e-5, atol=1e-6)


def samples(dtype):
    """Returns [4, 3] values of a dtype, with the awkward ones."""
    dtype = tf.as_dtype(dtype)
    if dtype == tf.bool:
        return np.array([[0, 1, 1], [1, 0, 1], [0, 0, 1], [1, 1, 0]], bool)
    if dtype.is_integer:
        return np.array([[dtype.min, dtype.max, 1 + k] for k in range(4)], dtype.as_numpy_dtype)
    rows = np.array([[-0.0, np.inf, 1.5 + k] for k in range(4)])
    if dtype.is_complex:
        rows = rows[::-1] + 0j
        rows.imag = [[np.nan, -0.0, 2.5 + k] for k in range(4)]
    return rows.astype(dtype.as_numpy_dtype)


def test_broadcast_and_gather_move_every_bit_of_every_dtype():
    tables = {dtype: samples(dtype) for dtype in DTYPES}

    def function(replicator):
        values = {k: tf.constant(v)[replicator.replica_id] for k, v in tables.items()}
        moved, rows = replicator.broadcast(values, source=2), replicator.all_gather(values)
        return [each[k] for each in (moved, rows) for k in DTYPES]

    wanted = [table[2] for table in tables.values()] + [*tables.values()]
    for row in probe(4, function, wanted):
        for dtype, value, other in zip(DTYPES * 2, row, wanted, strict=True):
            assert value.tobytes() == other.tobytes(), dtype


def test_broadcast_and_gather_move_strings_of_any_length_and_byte():
    words = np.array([["?", "a"], ["a longer one", "b\0c"], ["\xff\x00é", ""], ["d", "e"]])
    words = np.char.encode(words, "utf-8").astype(object)
    words[1, 1] = b"b\0c"

    def function(replicator):
        value = tf.constant(words)[replicator.replica_id]
        return [replicator.broadcast(value, source=1), replicator.all_gather(value)]

    for one, every in probe(4, function, [tf.constant(words[1]), tf.constant(words)]):
        np.testing.assert_array_equal(one, words[1])
        np.testing.assert_array_equal(every, words)


def test_other_numbers_are_summed_in_their_own_dtype():
    def function(replicator):
        index = replicator.replica_id
        return [
            replicator.all_sum(tf.cast(index, tf.int32) + 1),
            replicator.all_sum(tf.cast(index, tf.uint8) + tf.constant(100, tf.uint8)),
            replicator.all_sum(tf.cast(index, tf.bfloat16)),
            replicator.all_sum(tf.complex(1.0, tf.cast(index, tf.float32))),
            replicator.all_reduce(tf.cast(index, tf.int32), "max"),
        ]

    like = [np.int32(0), np.uint8(0), tf.constant(0, tf.bfloat16), np.complex64(0), np.int32(0)]
    wrapped = (4 * 100 + 6) % 256
    for row in probe(4, function, like):
        assert [complex(v) for v in row] == [1 + 2 + 3 + 4, wrapped, 0 + 1 + 2 + 3, 4 + 6j, 3]


def test_a_nest_comes_back_as_it_went_in():
    def function(replicator):
        index = tf.cast(replicator.replica_id, tf.float32)
        nest = {"a": [index, None], "b": (tf.cast(index, tf.int64), index[tf.newaxis])}
        summed = replicator.all_sum(nest)
        assert summed["a"][1] is None and isinstance(summed["b"], tuple)
        return [summed["a"][0], *summed["b"]]

    for row in probe(4, function, [np.float32(0), np.int64(0), np.zeros(1, np.float32)]):
        assert [float(np.squeeze(value)) for value in row] == [6, 6, 6]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda r: r.all_reduce(1.0, "product"), "must be sum, mean, min or max, got 'product'."),
        (lambda r: r.all_reduce(tf.constant(1), "mean"), "A mean needs floating values, got int32"),
        (lambda r: r.all_sum(tf.constant(True)), "A sum needs numbers, got bool"),
        (lambda r: r.all_reduce(tf.complex(1.0, 0.0), "max"), "an order, complex64 has none."),
        (lambda r: r.broadcast(1.0, source=2), "`source` must be in [0, 2), got 2."),
        (lambda r: r.logical_device(1).__enter__(), "got 1: a replica has 1 logical device(s)."),
    ],
)
def test_what_a_primitive_cannot_do_is_refused(function, said):
    with pytest.raises(ValueError) as caught:
        run_step(replicator_of(2), function)
    assert said in str(caught.value)


def test_outputs_are_means_or_those_of_the_first_replica():
    replicator = replicator_of(4)

    def step(batch):
        index = replicator.replica_id
        return {"mean": tf.cast(index, tf.float32), "first": index + 7, "none": None, "rows": batch}

    rows = iter(replicator.batches(endless(np.arange(8, dtype=np.float32))))
    outputs = replicator.compile(step)(rows)
    assert (float(outputs["mean"]), int(outputs["first"]), outputs["none"]) == (1.5, 7, None)
    np.testing.assert_array_equal(outputs["rows"], [3, 4])


def rows_seen(replicator, iterator):
    """Return the two rows of every replica, of three calls."""
    with replicator.scope():
        slot = tf.Variable(tf.zeros([2], tf.int64), trainable=False)
    call, seen = replicator.compile(lambda batch: slot.assign(batch) * 0), []
    for _ in range(3):
        call(iterator)
        seen.append(copies(slot))
    return seen


def test_replicas_share_the_rows_of_a_batch_in_order():
    replicator, rows = replicator_of(4), np.arange(24, dtype=np.int64).reshape(3, 8)
    found = rows_seen(replicator, iter(replicator.batches(endless(*rows))))
    np.testing.assert_array_equal(found, rows.reshape(3, 4, 2))


def test_replicas_share_the_batches_of_input_fn():
    replicator, contexts = replicator_of(2), []

    def input_fn(context):
        contexts.append((context.num_input_pipelines, context.num_replicas_in_sync))
        return tf.data.Dataset.range(12).batch(2, drop_remainder=True)

    found = rows_seen(replicator, iter(replicator.dataset(input_fn)))
    np.testing.assert_array_equal(found, np.arange(12).reshape(3, 2, 2))
    assert contexts == [(1, 2)]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: tf.data.Dataset.from_tensors(np.zeros((6, 1))), ", got 6."),
        (lambda: tf.data.Dataset.range(12).batch(6), "."),
    ],
)
def test_rows_that_the_replicas_do_not_divide_are_refused(make, said):
    replicator = replicator_of(4)
    with pytest.raises(UserError) as caught:
        replicator.compile(lambda batch: None)(iter(replicator.batches(make())))
    rule = "The rows of a global batch must be a multiple of 4 replicas"
    assert str(caught.value) == rule + said


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


def test_data_that_ends_ends_the_steps():
    replicator, calls = replicator_of(2), []
    iterator = iter(replicator.batches(tf.data.Dataset.range(12).batch(4)))
    call = replicator.compile(lambda batch: tf.reduce_sum(batch))
    with pytest.raises(tf.errors.OutOfRangeError):
        while True:
            calls.append(call(iterator))
    assert len(calls) == 3


@functools.cache
def alone(kind):
    """Return the weights and losses of one device."""
    return trained(strategies.single(), kind)


def assert_close(found, expected):
    for weight, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(weight, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrapped_optimizer_trains_as_on_one_device(kind):
    assert_close(trained(replicator_of(4), kind), alone(kind))
    losses = alone(kind)[1]
    assert losses[0] != pytest.approx(losses[-1], rel=1e-2)


def shards():
    return strategies.sharded({"batch": 2, "model": 2}, {})


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "legacy"])
def test_a_wrapped_optimizer_of_shards_trains_as_on_one_device(kind):
    assert_close(trained(shards(), kind), alone(kind))


def test_what_shards_cannot_run_is_refused_in_a_line():
    replicator = shards()
    with pytest.raises(UserError, match=r"^The strategy sharded cannot run `Adam`: its fused ope"):
        replicator.wrap_optimizer(optimizer_of("legacy"))
    with replicator.scope():
        count = tf.Variable(0.0, name="count")

    def step(batch):
        tf.cond(tf.reduce_sum(batch) > 0, lambda: count.assign_add(1.0).read_value(), lambda: 0.0)
        return count + 1.0

    with pytest.raises(UserError, match=r"^`count:0` is assigned and then read in another tf.cond"):
        replicator.compile(step)(iter(replicator.batches(batches())))


@pytest.mark.parametrize("size", TRAINED)
def test_a_row_that_overflows_in_float16_skips_the_step_on_every_replica(size):
    rows = np.ones([STEPS, 8, 1], np.float32)
    rows[2, -1] = 1e4
    replicator = replicator_of(size)
    with replicator.scope():
        weight = tf.Variable([2.0])
        inner = keras.optimizers.SGD(0.1)
        scaling = keras.optimizers.LossScaleOptimizer(inner, 1024.0, dynamic_growth_steps=2)
        scaling.build([weight])
        optimizer = replicator.wrap_optimizer(scaling)

    def step(batch):
        with tf.GradientTape() as tape:
            half = tf.cast(weight, tf.float16) * tf.cast(batch, tf.float16)
            loss = optimizer.scale_loss(tf.reduce_mean(tf.cast(half * half, tf.float32)))
        optimizer.apply([tape.gradient(loss, weight)], [weight])
        return tf.convert_to_tensor(optimizer.dynamic_scale)

    call = replicator.compile(step)
    iterator = iter(replicator.batches(tf.data.Dataset.from_tensor_slices(rows)))
    assert [float(call(iterator)) for _ in range(STEPS)] == [1024.0, 2048.0, 1024.0, 1024.0, 2048.0]
    np.testing.assert_allclose(weight.numpy(), [2.0 * 0.8**4], rtol=1e-3)  # four steps of five


@pytest.mark.parametrize("size", TRAINED)
def test_several_steps_per_call_are_as_many_calls(size):
    weights, losses = alone("own")
    assert_close(trained(replicator_of(size), "own", STEPS), (weights, losses[-1:]))


CPUS = [f"/device:CPU:{k}" for k in range(4)]


@pytest.mark.parametrize(
    ("make", "places"),
    [
        (lambda: strategies.single(logical_devices=CPUS[1:3]), [["CPU:1"], ["CPU:2"]]),
        (
            lambda: strategies.local(CPUS, devices_per_replica=2),
            [["CPU:0", "CPU:2"], ["CPU:1", "CPU:3"]],
        ),
    ],
    ids=["two on one", "two on each of two"],
)
def test_variables_lie_on_logical_devices_which_train_as_one_device(make, places):
    replicator = make()
    found = [[v.device[-5:] for v in variable.values] for variable in weights_of(replicator)]
    assert found == places
    assert_close(trained(replicator, "own"), alone("own"))


def test_operations_lie_on_logical_devices():
    replicator, found = strategies.local(4, devices_per_replica=2), []

    def step(replicator):
        with replicator.logical_device(1):
            found.append((tf.zeros([1]) + 1.0).device[-5:])

    run_step(replicator, step)
    assert found == ["CPU:1", "CPU:3"]


def test_compiled_training_averages_figures_and_gradients():
    results = []
    for size in TRAINED:
        replicator = replicator_of(size)
        weights = weights_of(replicator)

        def local(batch, replicator=replicator, weights=weights):
            with tf.GradientTape() as tape:
                loss = loss_of(replicator, weights, batch)
            return {"loss": loss}, tape.gradient(loss, weights)

        def moved(figures, gradients, weights=weights):
            return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], figures

        call = replicator.compile_training(local, moved, weights)
        iterator = iter(replicator.batches(batches()))
        losses = [float(call(iterator)["loss"]) for _ in range(STEPS)]
        results.append(([w.numpy() for w in weights], losses))
    assert_close(*results)


def test_run_makes_its_steps():
    replicator = replicator_of(2)
    with replicator.scope():
        count = tf.Variable(0, trainable=False)

    def step(batch):
        replicator.update([count], [count + 1])
        return count + 0

    def run(num_steps):
        return replicator.run(step, lambda context: batches(), num_steps, steps_per_call=3)

    assert int(run(6)) == int(count.numpy()) == 6
    with pytest.raises(ValueError) as caught:
        run(5)
    rule = "`num_steps` must be a positive multiple of `steps_per_call` (3), got 5."
    assert str(caught.value) == rule and int(count.numpy()) == 6


def test_one_replica_needs_no_strategy_and_no_dict_is_an_optimizer():
    replicator = strategies.single()
    facts = (replicator.num_replicas, replicator.num_workers, replicator.is_chief)
    assert facts == (1, 1, True) and not replicator.is_async
    with pytest.raises(ValueError, match="`optimizer` must have `apply_gradients`, got a dict"):
        replicator.wrap_optimizer({})
