"""Results for tests/test_replicator.py, computed in a process with four logical CPUs."""

import numpy as np
import tensorflow as tf

from onepass.replicator import strategies

SIZES = (1, 2, 4)  # replicas of a primitive
TRAINED = (1, 4)  # and of a training
SHAPE = (2, 3)
ALL_DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)


def table(size, seed=0):
    """Returns float32 [size, 2, 3], the value of each replica, some of them equal."""
    return np.random.default_rng(seed).integers(-3, 4, (size, *SHAPE)).astype(np.float32)


def replicator_of(size):
    return strategies.single() if size == 1 else strategies.local(size)


def forever():
    return tf.data.Dataset.from_tensors(np.zeros((4, 1), np.float32)).repeat()


def copies(variable):
    return [v.numpy() for v in getattr(variable, "values", [variable])]


def probe(size, function, like):
    """Returns [[results of replica 0], ...]; `like` are values with their shapes and dtypes."""
    replicator = replicator_of(size)
    with replicator.scope():
        slots = [tf.Variable(tf.zeros_like(v), trainable=False) for v in like]

    def step(batch):
        for slot, value in zip(slots, function(replicator), strict=True):
            slot.assign(value)

    replicator.compile(step)(iter(replicator.batches(forever())))
    return [list(row) for row in zip(*[copies(slot) for slot in slots], strict=True)]


def with_gradient(size, primitive, like):
    """Returns [(y, dL/dx) of each replica]; L is the sum of y times the weights of the replica."""
    values, weights = table(size), np.random.default_rng(1).normal(size=(size, *like.shape))

    def function(replicator):
        x = tf.constant(values)[replicator.replica_id]
        weight = tf.constant(weights, tf.float32)[replicator.replica_id]
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = primitive(replicator, x)
            loss = tf.reduce_sum(weight * y)
        return [y, tape.gradient(loss, x)]

    return {"x": values, "weights": weights, "rows": probe(size, function, [like, values[0]])}


def over_sizes(primitive, gathers=False):
    like = {size: np.zeros((size, *SHAPE) if gathers else SHAPE, np.float32) for size in SIZES}
    return {size: with_gradient(size, primitive, like[size]) for size in SIZES}


PRIMITIVES = {
    "sum": lambda replicator, x: replicator.all_sum(x),
    "mean": lambda replicator, x: replicator.all_reduce(x, "mean"),
    "min": lambda replicator, x: replicator.all_reduce(x, "min"),
    "max": lambda replicator, x: replicator.all_reduce(x, "max"),
    "gather": lambda replicator, x: replicator.all_gather(x),
    "broadcast": lambda replicator, x: replicator.broadcast(x, replicator.num_replicas - 1),
    "map_gather": lambda replicator, x: replicator.map_gather(tf.square, x),
    "map_reduce": lambda replicator, x: replicator.map_reduce(tf.square, x, "sum"),
}


def check_primitives():
    return {name: over_sizes(each, "gather" in name) for name, each in PRIMITIVES.items()}


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


def check_every_dtype():
    tables = {dtype: samples(dtype) for dtype in ALL_DTYPES}

    def function(replicator):
        values = {k: tf.constant(v)[replicator.replica_id] for k, v in tables.items()}
        moved = replicator.broadcast(values, source=2)
        rows = replicator.all_gather(values)
        return [*(moved[k] for k in ALL_DTYPES), *(rows[k] for k in ALL_DTYPES)]

    like = [tables[k][0] for k in ALL_DTYPES] + [tables[k] for k in ALL_DTYPES]
    rows = probe(4, function, like)
    return [[value.tobytes() for value in row] for row in rows]


def check_strings():
    words = np.array([["", "a"], ["a longer one", "b\0c"], ["\xff\x00é", ""], ["d", "e"]])
    words = np.char.encode(words, "utf-8").astype(object)
    words[1, 1] = b"b\0c"

    def function(replicator):
        value = tf.constant(words)[replicator.replica_id]
        return [replicator.broadcast(value, source=1), replicator.all_gather(value)]

    like = [tf.constant(words[0]), tf.constant(words)]
    replicator = replicator_of(4)
    with replicator.scope():
        slots = [tf.Variable(tf.fill(v.shape, "?"), trainable=False) for v in like]

    def step(batch):
        for slot, value in zip(slots, function(replicator), strict=True):
            slot.assign(value)

    replicator.compile(step)(iter(replicator.batches(forever())))
    return {"words": words, "slots": [copies(slot) for slot in slots]}


def check_sums_of_other_numbers():
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
    return [[complex(v) for v in row] for row in probe(4, function, like)]


def check_nests():
    def function(replicator):
        index = tf.cast(replicator.replica_id, tf.float32)
        nest = {"a": [index, None], "b": (tf.cast(index, tf.int64), index[tf.newaxis])}
        summed = replicator.all_sum(nest)
        if summed["a"][1] is not None or not isinstance(summed["b"], tuple):
            raise AssertionError(summed)
        return [summed["a"][0], *summed["b"]]

    return probe(4, function, [np.float32(0), np.int64(0), np.zeros(1, np.float32)])


def check_refusals():
    found, replicator = {}, replicator_of(2)
    cases = {
        "reducer": lambda: replicator.all_reduce(1.0, "product"),
        "mean": lambda: replicator.all_reduce(tf.constant(1), "mean"),
        "sum": lambda: replicator.all_sum(tf.constant(True)),
        "max": lambda: replicator.all_reduce(tf.complex(1.0, 0.0), "max"),
        "source": lambda: replicator.broadcast(1.0, source=2),
        "device": lambda: replicator.logical_device(1).__enter__(),
    }
    for name, case in cases.items():
        try:
            replicator.compile(lambda batch, case=case: case())(iter(replicator.batches(forever())))
        except ValueError as error:
            found[name] = str(error)
    return found


def check_outputs():
    replicator = replicator_of(4)

    def step(batch):
        index = replicator.replica_id
        return {"mean": tf.cast(index, tf.float32), "first": index + 7, "none": None, "rows": batch}

    batch = np.arange(8, dtype=np.float32)
    outputs = replicator.compile(step)(iter(replicator.batches(endless(batch))))
    return {k: None if v is None else v.numpy() for k, v in outputs.items()}


def endless(*batches):
    return tf.data.Dataset.from_tensor_slices(np.stack(batches)).repeat()


def rows_seen(replicator, iterator, calls, width):
    with replicator.scope():
        slot = tf.Variable(tf.zeros([width], tf.int64), trainable=False)
    call, seen = replicator.compile(lambda batch: slot.assign(batch) * 0), []
    for _ in range(calls):
        call(iterator)
        seen.append(copies(slot))
    return np.array(seen)


def check_rows_of_batches():
    replicator = replicator_of(4)
    batches = np.arange(24, dtype=np.int64).reshape(3, 8)
    return rows_seen(replicator, iter(replicator.batches(endless(*batches))), 3, 2)


def check_rows_of_input_fn():
    replicator, contexts = replicator_of(2), []

    def input_fn(context):
        contexts.append((context.num_input_pipelines, context.num_replicas_in_sync))
        return tf.data.Dataset.range(12).batch(2, drop_remainder=True)

    seen = rows_seen(replicator, iter(replicator.dataset(input_fn)), 3, 2)
    return contexts, seen


def check_uneven_rows():
    replicator, found = replicator_of(4), []
    known = tf.data.Dataset.from_tensors(np.zeros((6, 1)))
    unknown = tf.data.Dataset.range(12).batch(6)
    for dataset in (known, unknown):
        try:
            replicator.compile(lambda batch: None)(iter(replicator.batches(dataset)))
        except ValueError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def check_end_of_data():
    replicator, calls = replicator_of(2), 0
    iterator = iter(replicator.batches(tf.data.Dataset.range(12).batch(4)))
    call = replicator.compile(lambda batch: tf.reduce_sum(batch))
    try:
        for _ in range(9):
            call(iterator)
            calls += 1
    except tf.errors.OutOfRangeError:
        return calls
