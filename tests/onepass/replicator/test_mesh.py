"""A mesh of devices trains as one device does, with variables that are really in shards."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from replicated import Momentum
from runs import assert_same
from tensorflow.experimental import dtensor

from onepass.foundation.rules import UserError
from onepass.replicator import strategies
from onepass.replicator.training.config import OptimizerConfig
from onepass.replicator.training.state import TrainState, compile_replicated_step, compile_step

pytestmark = [pytest.mark.integration, pytest.mark.four_devices("tensorflow")]

MESH = {"batch": 2, "model": 2}
LAYOUTS = {"automatic": {}, "by name": {"kernel": [None, None, "model"]}}
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


@functools.cache
def trained(name):
    """Return the replicator, the state, the losses and the step after STEPS steps on a mesh."""
    replicator = strategies.sharded(MESH, LAYOUTS[name])
    with replicator.scope():
        table = Table(replicator)
        state = TrainState(table, ADAM, STEPS)
    call = compile_replicated_step(state, table.loss, False, replicator, {})
    batches = iter(replicator.batches(data()))
    losses = [float(call(batches)["loss"]) for _ in range(STEPS)]
    return replicator, state, losses, call


@functools.cache
def alone():
    """Return the arrays and losses of one device."""
    table = Table()
    state = TrainState(table, ADAM, STEPS)
    step = compile_step(state, table.loss, False)
    losses = [float(step(batch)["loss"]) for batch in data()]
    return state.arrays(), losses


@pytest.mark.parametrize("layouts", LAYOUTS)
def test_twenty_steps_on_2x2_are_those_of_one_device(layouts):
    (_, state, found_losses, _), (arrays, losses) = trained(layouts), alone()
    found = state.arrays()
    assert found["step"] == 20 and found.keys() == arrays.keys()
    for name, value in arrays.items():
        scale = max(np.max(np.abs(value)), 1e-12)
        assert np.max(np.abs(found[name] - value)) / scale < 1e-5, name
    np.testing.assert_allclose(found_losses, losses, rtol=1e-5)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    ("layouts", "cut"),
    [
        # Without layouts, wherever it divides.
        ("automatic", {"rows": [3, 2], "kernel": [2, 2, 3], "bias": [3], "scale": []}),
        # A pattern cuts a weight and its moments and nothing else.
        ("by name", {"rows": [6, 4], "kernel": [2, 4, 3], "bias": [6], "scale": []}),
    ],
)
def test_slots_are_cut_as_their_weights(layouts, cut):
    parts = {
        slot: dtensor.unpack(variable.read_value())[0].shape.as_list()
        for slot, variable in trained(layouts)[1].slots().items()
    }
    kinds = ("weights", "first", "second", "average")
    whole = {f"{kind}/{name}": shape for kind in kinds for name, shape in cut.items()}
    assert parts == {"step": [], **whole}


def in_scope(layouts, mesh=MESH):
    """Return a table, and the replicator in whose scope it is."""
    replicator = strategies.sharded(mesh, layouts)
    with replicator.scope():
        return Table(), replicator


def test_a_whole_variable_serves_any_function_and_is_cut_up_again():
    table, replicator = in_scope({})
    outputs = tf.function(table.outputs, jit_compile=True, autograph=False)
    batch, plain = {"index": tf.constant(batch_of(0)["index"])}, Table()
    for _ in range(2):
        with replicator.gathered_variables():
            found = outputs(batch).numpy()
        np.testing.assert_allclose(found, plain.outputs(batch), rtol=1e-5, atol=1e-6)
        table.rows.assign(2.0 * table.rows.numpy())
        plain.rows.assign(2.0 * plain.rows)
    with replicator.gathered_variables():
        table.bias.assign_add(tf.ones([6]))
    np.testing.assert_array_equal(table.bias.numpy(), np.ones(6))
    parts = dtensor.unpack(table.bias.read_value())
    assert [part.shape.as_list() for part in parts] == [[3]] * 4


def test_the_average_stands_in_for_the_weights():
    replicator, state, _, _ = trained("automatic")
    before = state.arrays()
    averages = [value for name, value in before.items() if name.startswith("average/")]
    weights = [value for name, value in before.items() if name.startswith("weights/")]
    assert any(np.any(a != w) for a, w in zip(averages, weights, strict=True))
    with replicator.gathered_variables(), state.swap_in_average():
        inside = [weight.numpy() for weight in state.weights]
    with state.swap_in_average(), replicator.gathered_variables():
        around = [weight.numpy() for weight in state.weights]
    for found in (inside, around):
        for value, average in zip(found, averages, strict=True):
            np.testing.assert_array_equal(value, average)
    assert_same(state.arrays(), before)


def test_arrays_cross_to_one_device_and_to_another_mesh():
    arrays = trained("automatic")[1].arrays()
    assert arrays["step"] == 20
    one = TrainState(Table(), ADAM, STEPS)
    replicator = strategies.sharded({"batch": 4}, {})
    with replicator.scope():
        other = TrainState(Table(), ADAM, STEPS)
    for state in (one, other):
        state.restore(arrays)
        assert_same(state.arrays(), arrays)


def test_a_step_that_is_not_finite_changes_nothing():
    _, state, _, call = trained("automatic")
    before, bad = state.arrays(), batch_of(1)
    bad["weight"][3] = np.nan
    loss = call(iter([{name: tf.constant(value) for name, value in bad.items()}]))["loss"]
    assert np.isnan(loss) and before["step"] == 20
    assert_same(state.arrays(), before)


OF_LINE = {"weight": [None, "model"], "out": ["model"]}


def line(replicator, steps_per_call=1):
    """Return what six steps of a user's own leave and give: a product, a table, an optimiser."""
    draws = np.random.default_rng(0)
    optimizer = Momentum()
    with replicator.scope():
        weight = tf.Variable(draws.normal(size=[4, 6]).astype(np.float32), name="weight")
        out = tf.Variable(draws.normal(size=[6]).astype(np.float32), name="out")
        optimizer.build([weight, out])
    wrapped = replicator.wrap_optimizer(optimizer)

    def step(batch):
        with tf.GradientTape() as tape:
            hidden = tf.tanh(tf.matmul(batch["x"], weight))
            predicted = tf.reduce_sum(hidden * out, -1)
            loss = replicator.all_reduce(tf.reduce_mean(tf.square(predicted - batch["y"])), "mean")
        pairs = zip(tape.gradient(loss, [weight, out]), [weight, out], strict=True)
        wrapped.apply_gradients(pairs)
        rows = replicator.all_gather(tf.shape(batch["x"]))
        return {"loss": loss, "rows": rows, "nothing": None}

    x = draws.normal(size=[6, ROWS, 4]).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices({"x": x, "y": x.sum(-1)})
    call, batches = replicator.compile(step, steps_per_call), iter(replicator.batches(dataset))
    for _ in range(6 // steps_per_call):
        outputs = call(batches)
    with pytest.raises(tf.errors.OutOfRangeError):
        call(batches)
    assert outputs["nothing"] is None
    variables = [v.numpy() for v in (weight, out, *optimizer.slots)]
    return variables, float(outputs["loss"]), outputs["rows"].numpy()


@pytest.mark.parametrize(("layouts", "steps_per_call"), [({}, 1), (OF_LINE, 1), (OF_LINE, 2)])
def test_a_step_function_is_one_global_computation(layouts, steps_per_call):
    expected, loss, rows = line(strategies.single())
    found, found_loss, found_rows = line(strategies.sharded(MESH, layouts), steps_per_call)
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
    assert found_loss == pytest.approx(loss, rel=1e-5)
    np.testing.assert_array_equal(found_rows, rows)


@pytest.mark.parametrize(
    ("mesh", "layouts", "said"),
    [
        ({"batch": 4, "model": 2}, {}, "`devices` must be 1 to 4 (CPU), got 8"),
        ({"batch": 0}, {}, "`mesh` must have sizes of at least 1, got batch=0."),
        ({"rows": 2}, {}, "`mesh` must have a dimension 'batch', got rows."),
        (MESH, {"kernel": ["modle"]}, "'kernel' names 'modle'; the dimensions of the mesh are"),
        (MESH, {"(": ["model"]}, "`layouts`: '(' must be a regular expression"),
        (MESH, {"kernel": ["model", None]}, "for each of the 3 axes of `kernel`, got 2."),
        (
            {"batch": 4},
            {"bias": ["batch"]},
            "axis 0 of `bias`, of size 6, along 'batch', but its 4",
        ),
        (MESH, {"kernle": ["model"]}, "'kernle' is found in the name of no variable; names are r"),
        (MESH, {}, "The rows of a global batch must be a multiple of 2 shards, got 5."),
    ],
)
def test_mistakes_are_explained_in_a_line(mesh, layouts, said):
    with pytest.raises(UserError) as caught:
        _, replicator = in_scope(layouts, mesh)
        rows = 4 if layouts else 5
        replicator.compile(tf.reduce_sum)(iter([tf.ones([rows, 2])]))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_what_only_whole_variables_or_steps_have_is_refused_in_a_line():
    replicator = strategies.sharded(MESH, {})
    with replicator.scope():
        weight = tf.Variable([1.0, 2.0], name="weight")
        other = tf.Variable([1.0, 2.0], trainable=False, name="other")

    def local(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(batch) * tf.reduce_sum(weight * other)
        return loss, tape.gradient(loss, [weight])

    call = replicator.compile_training(local, lambda loss, g: ([weight - g[0]], loss), [weight])
    with pytest.raises(ValueError, match=r"`other:0` is read on each device but is not in `reads`"):
        call(iter([tf.ones([4])]))
    with pytest.raises(RuntimeError, match="`all_sum` may only be called in a step"):
        replicator.all_sum(1.0)
