"""Results for tests/test_order.py, computed in a process with four logical CPUs."""

import keras
import tensorflow as tf
from replicator_checks import forever, replicator_of

SIZE = 4


def index_of(replicator):
    """The number of the replica as Python sees it, which a step should not use."""
    return int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))


def refused(function, size=SIZE):
    """Returns the error of a step that calls function(replicator)."""
    replicator = replicator_of(size)
    try:
        replicator.compile(lambda batch: function(replicator))(iter(replicator.batches(forever())))
    except (ValueError, RuntimeError) as error:
        return type(error).__name__, str(error)
    return "none", ""


def another_order(replicator):
    replicator.all_sum(tf.zeros([2]))
    if index_of(replicator) == 2:
        replicator.all_gather(tf.zeros([3]))
    return replicator.all_reduce(tf.zeros([3]), "max")


def another_dtype(replicator):
    kinds = (tf.float32, tf.float64, tf.float32, tf.float32)
    return replicator.all_sum(tf.zeros([], kinds[index_of(replicator)]))


def called_where(replicator, is_here):
    if is_here:
        replicator.all_sum(1.0)


def missing_gradient(replicator):
    x = tf.constant(1.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = replicator.all_sum(x) if index_of(replicator) else replicator.all_sum(x + 0)
    return None if index_of(replicator) == 1 else tape.gradient(y, x)


def within_cond(replicator):
    return tf.cond(
        replicator.replica_id > 0, lambda: replicator.all_sum(1.0), lambda: tf.constant(1.0)
    )


REFUSED = {
    "order": another_order,
    "shape": lambda replicator: replicator.all_sum(tf.zeros([2 + index_of(replicator)])),
    "dtype": another_dtype,
    "source": lambda replicator: replicator.broadcast(1.0, source=index_of(replicator)),
    "missing_call": lambda replicator: called_where(replicator, index_of(replicator) != 3),
    "extra_call": lambda replicator: called_where(replicator, index_of(replicator) == 3),
    "gradient": missing_gradient,
    "cond": within_cond,
    "while": lambda replicator: tf.while_loop(
        lambda k, x: k < 3, lambda k, x: (k + 1, replicator.all_sum(x)), [0, 1.0]
    ),
    "function": lambda replicator: tf.function(lambda x: replicator.all_sum(x), autograph=False)(
        1.0
    ),
}


def check_refused():
    found = {name: refused(case) for name, case in REFUSED.items()}
    return found | {"single_in_cond": refused(within_cond, size=1)}


def check_unknown_shape():
    size = tf.Variable(2)  # a number that tracing does not know

    def function(replicator):
        return replicator.all_sum(tf.zeros(tf.reshape(size + replicator.replica_id, [1])))

    return refused(function)


def check_outside():
    found = {}
    for size in (1, 2):
        replicator = replicator_of(size)
        cases = {
            "all_sum": lambda r=replicator: r.all_sum(1.0),
            "all_reduce[min]": lambda r=replicator: r.all_reduce(1.0, "min"),
            "all_gather": lambda r=replicator: r.all_gather(1.0),
            "broadcast[0]": lambda r=replicator: r.broadcast(1.0),
            "map_gather": lambda r=replicator: r.map_gather(tf.square, 1.0),
            "map_reduce": lambda r=replicator: r.map_reduce(tf.square, 1.0, "sum"),
            "replica_id": lambda r=replicator: r.replica_id,
        }
        for name, case in cases.items():
            try:
                case()
            except RuntimeError as error:
                found[size, name] = str(error)
    return found


def check_after_refusal():
    replicator = replicator_of(2)
    iterator = iter(replicator.batches(forever()))
    try:
        replicator.compile(lambda batch: replicator.all_sum(tf.zeros([1 + index_of(replicator)])))(
            iterator
        )
    except ValueError:
        return float(replicator.compile(lambda batch: replicator.all_sum(1.0))(iterator))


def check_variables():
    replicator = replicator_of(2)
    with replicator.scope():
        weight = tf.Variable([1.0])
        optimizer = replicator.wrap_optimizer(keras.optimizers.Adam())  # never built

    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight)
        optimizer.apply([tape.gradient(loss, weight)], [weight])

    try:
        replicator.compile(step)(iter(replicator.batches(forever())))
    except ValueError as error:
        return type(error).__name__, str(error)
