"""Checks of `strategies.sharded` on a mesh of four logical CPUs; see in_replicas.py."""

import functools

import numpy as np
import tensorflow as tf
from tensorflow.experimental import dtensor

from onepass.replicator import strategies
from onepass.replicator.training.config import OptimizerConfig
from onepass.replicator.training.state import TrainState, compile_replicated_step, compile_step

MESH = {"batch": 2, "model": 2}
ADAM = OptimizerConfig(learning_rate=1e-2, warmup_steps=2, clip_norm=1.0)
STEPS, ROWS = 20, 8


class Table(tf.Module):
    """Rows of a table, looked up, convolved and summed: what DTensor has no rules for."""

    def __init__(self, replicator=None):
        super().__init__()
        draws = np.random.default_rng(0)
        self.rows = tf.Variable(draws.normal(size=[6, 4]).astype(np.float32), name="rows")
        kernel = 0.3 * draws.normal(size=[2, 4, 6])
        self.kernel = tf.Variable(kernel.astype(np.float32), name="kernel")
        self.bias = tf.Variable(tf.zeros([6]), name="bias")
        self.scale = tf.Variable(1.0, name="scale")
        self.replicator = replicator

    def outputs(self, batch):
        hidden = tf.gather(self.rows, batch["index"])
        hidden = tf.nn.convolution(hidden, self.kernel, padding="SAME", dilations=[2])
        return tf.cumsum(tf.tanh(self.scale * hidden + self.bias), axis=1)

    def loss(self, batch):
        error = tf.reduce_mean(tf.square(self.outputs(batch) - 0.5), [1, 2])
        weight = tf.reduce_mean(batch["weight"])
        if self.replicator is not None:
            weight = self.replicator.all_reduce(weight, "mean")
        value = tf.reduce_mean(error * batch["weight"]) / weight
        return value, {"root": tf.sqrt(value)}


def batch_of(number):
    draws = np.random.default_rng(number)
    index = draws.integers(0, 6, [ROWS, 5]).astype(np.int32)
    return {"index": index, "weight": draws.uniform(0.1, 1, ROWS).astype(np.float32)}


def data():
    batches = [batch_of(i) for i in range(STEPS)]
    return tf.data.Dataset.from_tensor_slices(
        {name: np.stack([b[name] for b in batches]) for name in batches[0]}
    )


def sharded_training(layouts):
    replicator = strategies.sharded(MESH, layouts)
    with replicator.scope():
        table = Table(replicator)
        state = TrainState(table, ADAM, STEPS)
    call = compile_replicated_step(state, table.loss, False, replicator, {})
    batches = iter(replicator.batches(data()))
    losses = [float(call(batches)["loss"]) for _ in range(STEPS)]
    return replicator, state, losses, (call, batches)


@functools.cache
def automatic():
    return sharded_training({})


@functools.cache
def by_name():
    return sharded_training({"kernel": [None, None, "model"]})


def check_training():
    """Parameters and losses of one device, and of a mesh with and without layouts."""
    table = Table()
    state = TrainState(table, ADAM, STEPS)
    step = compile_step(state, table.loss, False)
    losses = [float(step(batch)["loss"]) for batch in data()]
    runs = {"automatic": automatic(), "by name": by_name()}
    found = {name: (run[1].arrays(), run[2]) for name, run in runs.items()}
    return found | {"alone": (state.arrays(), losses)}


def check_parts():
    """The shape of a device's part of every slot, after a step."""
    found = {}
    for name, (_, state, _, _) in {"automatic": automatic(), "by name": by_name()}.items():
        found[name] = {
            slot: dtensor.unpack(variable.read_value())[0].shape.as_list()
            for slot, variable in state.slots().items()
        }
    return found


def check_whole():
    """Outside of steps: functions of whole variables, what is set in them, and later steps."""
    replicator = in_scope({})
    with replicator.scope():
        table = Table()
    outputs = tf.function(table.outputs, jit_compile=True, autograph=False)
    batch = {"index": tf.constant(batch_of(0)["index"])}
    with replicator.gathered_variables():
        first = outputs(batch).numpy()
    table.rows.assign(2.0 * table.rows.numpy())
    with replicator.gathered_variables():
        second = outputs(batch).numpy()
        table.bias.assign_add(tf.ones([6]))
    plain = Table()
    expected = [plain.outputs(batch).numpy()]
    plain.rows.assign(2.0 * plain.rows)
    expected.append(plain.outputs(batch).numpy())
    parts = [part.numpy() for part in dtensor.unpack(table.bias.read_value())]
    return [first, second], expected, table.bias.numpy(), parts


def check_averaged():
    """The weights in `swap_in_average`, inside and around `gathered_variables`, and after."""
    replicator, state, _, _ = automatic()
    before = state.arrays()
    with replicator.gathered_variables(), state.swap_in_average():
        inside = [weight.numpy() for weight in state.weights]
    with state.swap_in_average(), replicator.gathered_variables():
        around = [weight.numpy() for weight in state.weights]
    return before, inside, around, state.arrays()


def check_restored():
    """Arrays that a mesh gives, taken by one device and by a mesh of another shape."""
    _, state, _, _ = automatic()
    plain = TrainState(Table(), ADAM, STEPS)
    plain.restore(state.arrays())
    replicator = strategies.sharded({"batch": 4}, {})
    with replicator.scope():
        other = TrainState(Table(), ADAM, STEPS)
    other.restore(plain.arrays())
    return state.arrays(), plain.arrays(), other.arrays()


def check_not_finite():
    """The slots before and after a step whose loss is not finite."""
    _, state, _, (call, _) = automatic()
    before = state.arrays()
    bad = batch_of(1)
    bad["weight"][3] = np.nan
    loss = call(iter([{name: tf.constant(value) for name, value in bad.items()}]))["loss"]
    return float(loss), before, state.arrays()


def line(replicator, steps, steps_per_call=1):
    """A user's step function of a product, a table and an optimiser."""
    draws = np.random.default_rng(0)
    with replicator.scope():
        weight = tf.Variable(draws.normal(size=[4, 6]).astype(np.float32), name="weight")
        out = tf.Variable(draws.normal(size=[6]).astype(np.float32), name="out")
        momenta = [
            tf.Variable(tf.zeros_like(v), trainable=False, name=f"momentum/{v.name[:-2]}")
            for v in (weight, out)
        ]

    class Momentum:
        def apply_gradients(self, pairs):
            for momentum, (gradient, variable) in zip(momenta, pairs, strict=True):
                value = 0.9 * momentum + gradient
                momentum.assign(value)
                variable.assign_sub(0.1 * value)

    optimizer = replicator.wrap_optimizer(Momentum())

    def step(batch):
        with tf.GradientTape() as tape:
            hidden = tf.tanh(tf.matmul(batch["x"], weight))
            predicted = tf.reduce_sum(hidden * out, -1)
            loss = replicator.all_reduce(tf.reduce_mean(tf.square(predicted - batch["y"])), "mean")
        optimizer.apply_gradients(
            zip(tape.gradient(loss, [weight, out]), [weight, out], strict=True)
        )
        rows = replicator.all_gather(tf.shape(batch["x"]))
        return {"loss": loss, "rows": rows, "nothing": None}

    x = draws.normal(size=[steps, ROWS, 4]).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices({"x": x, "y": x.sum(-1)})
    call, batches = replicator.compile(step, steps_per_call), iter(replicator.batches(dataset))
    for _ in range(steps // steps_per_call):
        outputs = call(batches)
    try:
        call(batches)
        ended = False
    except tf.errors.OutOfRangeError:
        ended = True
    variables = [v.numpy() for v in (weight, out, *momenta)]
    return variables, float(outputs["loss"]), outputs["rows"].numpy(), ended, outputs["nothing"]


def check_step_functions():
    """Variables, loss, rows, whether the data ended, and None, of one device and of meshes."""
    layouts = {"weight": [None, "model"], "out": ["model"]}
    return {
        "alone": line(strategies.single(), 6),
        "automatic": line(strategies.sharded(MESH, {}), 6),
        "by name": line(strategies.sharded(MESH, layouts), 6),
        "two steps a call": line(strategies.sharded(MESH, layouts), 6, 2),
    }


def refused(make):
    try:
        make()
    except (ValueError, RuntimeError) as error:
        return type(error).__name__, str(error)
    return None


def in_scope(layouts, mesh=MESH):
    replicator = strategies.sharded(mesh, layouts)
    with replicator.scope():
        Table()
    return replicator


def unread():
    replicator = strategies.sharded(MESH, {})
    with replicator.scope():
        weight = tf.Variable([1.0, 2.0], name="weight")
        other = tf.Variable([1.0, 2.0], trainable=False, name="other")

    def local(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(batch) * tf.reduce_sum(weight * other)
        return loss, tape.gradient(loss, [weight])

    call = replicator.compile_training(local, lambda loss, g: ([weight - g[0]], loss), [weight])
    call(iter([tf.ones([4])]))


def stepped(layouts, rows):
    replicator = in_scope(layouts)
    replicator.compile(tf.reduce_sum)(iter([tf.ones([rows, 2])]))


def check_refusals():
    return {
        "devices": refused(lambda: strategies.sharded({"batch": 4, "model": 2}, {})),
        "size": refused(lambda: strategies.sharded({"batch": 0}, {})),
        "no batch": refused(lambda: strategies.sharded({"rows": 2}, {})),
        "name": refused(lambda: strategies.sharded(MESH, {"kernel": ["modle"]})),
        "expression": refused(lambda: strategies.sharded(MESH, {"(": ["model"]})),
        "axes": refused(lambda: in_scope({"kernel": ["model", None]})),
        "does not divide": refused(lambda: in_scope({"bias": ["batch"]}, {"batch": 4})),
        "nothing": refused(lambda: stepped({"kernle": ["model"]}, 4)),
        "rows": refused(lambda: stepped({}, 5)),
        "unread": refused(unread),
        "outside": refused(lambda: in_scope({}).all_sum(1.0)),
    }
