"""The order rule: what would hang or go wrong in silence is one readable error instead."""

import re

import keras
import pytest
import tensorflow as tf
from replicated import replicator_of, run_step

from onepass.foundation.rules import UserError

pytestmark = [pytest.mark.integration, pytest.mark.four_devices("tensorflow")]

RULE = "Replicas must call the same primitives in the same order with the same shapes; "


def index_of():
    """The number of the replica as Python sees it, which a step should not use."""
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def refused(function, size=4):
    """Returns the error of a step that calls function(replicator)."""
    with pytest.raises((ValueError, RuntimeError)) as caught:
        run_step(replicator_of(size), function)
    assert type(caught.value).__name__ == "CollectiveOrderError"
    return str(caught.value)


def another_order(replicator):
    replicator.all_sum(tf.zeros([2]))
    if index_of() == 2:
        replicator.all_gather(tf.zeros([3]))
    return replicator.all_reduce(tf.zeros([3]), "max")


def test_another_order_names_the_call_the_replicas_and_both_orders():
    assert refused(another_order) == (
        RULE + "call 2 of the step is `all_reduce[max](float32[3])` on replica 0 and "
        "`all_gather(float32[3])` on replica 2. Order on replica 0: all_sum(float32[2]), "
        "all_reduce[max](float32[3]); on replica 2: all_sum(float32[2]), all_gather(float32[3])."
    )


def another_shape(replicator):
    return replicator.all_sum(tf.zeros([2 + index_of()]))


def another_source(replicator):
    return replicator.broadcast(1.0, source=index_of())


def another_dtype(replicator):
    kinds = (tf.float32, tf.float64, tf.float32, tf.float32)
    return replicator.all_sum(tf.zeros([], kinds[index_of()]))


def missing_call(replicator):
    if index_of() != 3:
        replicator.all_sum(1.0)


def extra_call(replicator):
    if index_of() == 3:
        replicator.all_sum(1.0)


def missing_gradient(replicator):
    x = tf.constant(1.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = replicator.all_sum(x) if index_of() else replicator.all_sum(x + 0)
    return None if index_of() == 1 else tape.gradient(y, x)


@pytest.mark.parametrize(
    ("function", "here", "there"),
    [
        (another_shape, "`all_sum(float32[2])` on replica 0", "`all_sum(float32[3])` on replica 1"),
        (another_dtype, "`all_sum(float32[])` on replica 0", "`all_sum(float64[])` on replica 1"),
        (another_source, "`broadcast[0](float32[])` on replica 0", "`broadcast[1](float32[])` on"),
        (missing_call, "`all_sum(float32[])` on replica 0", "missing on replica 3"),
        (extra_call, "missing on replica 0", "`all_sum(float32[])` on replica 3"),
        (missing_gradient, "`gradient of all_sum(float32[])` on replica 0", "missing on replica 1"),
    ],
)
def test_a_call_that_differs_is_named(function, here, there):
    message = refused(function)
    assert message.startswith(RULE)
    assert here in message and f"and {there}" in message
    assert "\n" not in message


def test_shapes_that_only_a_run_knows_are_named():
    size = tf.Variable(2)  # a number that tracing does not know

    def function(replicator):
        return replicator.all_sum(tf.zeros(tf.reshape(size + replicator.replica_id, [1])))

    rule = r"one gave a tensor of shape (\[[2-5]\]), another of shape (\[[2-5]\])\."
    shapes = re.fullmatch(re.escape(RULE) + rule, refused(function))
    assert shapes and shapes[1] != shapes[2]


def within_cond(replicator):
    return tf.cond(
        replicator.replica_id > 0, lambda: replicator.all_sum(1.0), lambda: tf.constant(1.0)
    )


def within_loop(replicator):
    return tf.while_loop(lambda k, x: k < 3, lambda k, x: (k + 1, replicator.all_sum(x)), [0, 1.0])


def within_function(replicator):
    return tf.function(lambda x: replicator.all_sum(x), autograph=False)(1.0)


@pytest.mark.parametrize(
    ("function", "size", "place"),
    [
        (within_cond, 4, "tf.cond"),
        (within_cond, 1, "tf.cond"),
        (within_loop, 4, "tf.while_loop"),
        (within_function, 4, "another tf.function"),
    ],
)
def test_a_primitive_within_another_graph_is_refused(function, size, place):
    assert refused(function, size) == (
        f"`all_sum` is called within {place}, where some replicas might not call it; call it "
        "directly in the step."
    )


OUTSIDE = {
    "all_sum": lambda r: r.all_sum(1.0),
    "all_reduce[min]": lambda r: r.all_reduce(1.0, "min"),
    "all_gather": lambda r: r.all_gather(1.0),
    "broadcast[0]": lambda r: r.broadcast(1.0),
    "map_gather": lambda r: r.map_gather(tf.square, 1.0),
    "map_reduce": lambda r: r.map_reduce(tf.square, 1.0, "sum"),
    "replica_id": lambda r: r.replica_id,
}


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_primitive_outside_a_step_is_refused(name, size):
    with pytest.raises(RuntimeError) as caught:
        OUTSIDE[name](replicator_of(size))
    assert str(caught.value) == f"`{name}` may only be called in a step."


def test_a_refused_step_leaves_the_replicator_whole():
    replicator = replicator_of(2)
    with pytest.raises(ValueError):
        run_step(replicator, lambda replicator: replicator.all_sum(tf.zeros([1 + index_of()])))
    assert float(run_step(replicator, lambda replicator: replicator.all_sum(1.0))) == 2.0


def test_variables_that_a_step_makes_are_refused_in_one_line():
    replicator = replicator_of(2)
    with replicator.scope():
        weight = tf.Variable([1.0])
        optimizer = replicator.wrap_optimizer(keras.optimizers.Adam())  # never built

    def step(replicator):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight)
        optimizer.apply([tape.gradient(loss, weight)], [weight])

    with pytest.raises(UserError) as caught:
        run_step(replicator, step)
    assert re.fullmatch(
        r"A step must not create variables( \(`.+`\))?: create them in `scope\(\)`, those of an "
        r"optimizer with `optimizer\.build\(variables\)`\.",
        str(caught.value),
    )
