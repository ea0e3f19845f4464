"""A frozen function computes what the live one does, and has its gradients, as data alone."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from onepass.foundation.rules import UserError
from onepass.storage.frozen import Frozen, read_program, write_program

GAIN = tf.constant(np.linspace(1.0, 2.0, 300, dtype=np.float32))  # too large to be inlined


def thawed(frozen, folder):
    """The program of a frozen graph after it was written and read."""
    spec = {
        "sha256": write_program(folder, frozen),
        "functions": {name: dataclasses.asdict(x) for name, x in frozen.functions.items()},
        "weights": [
            ("trained" if isinstance(each, tf.Variable) else "constant", "")
            for each in frozen.weights
        ],
    }
    return read_program(folder, spec)


def frozen_of(function, shape):
    frozen = Frozen()
    frozen.add("call", function, [tf.TensorSpec(shape)])
    return frozen


def gradients(function, x, weights):
    """The value of a function, and the gradients of its sum of squares, as a step computes them."""

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            loss = tf.reduce_sum(y * y)
        return y, [tf.convert_to_tensor(each) for each in tape.gradient(loss, [x, *weights])]

    return step()


@tf.custom_gradient
def steep(x):
    """A function whose gradient is that of none of its operations, and reads a large constant."""
    y = tf.tanh(x)
    return y, lambda upstream: 3.0 * upstream * y * tf.reduce_sum(GAIN)


@tf.custom_gradient
def gentle(x):
    """A function whose gradient, a third of that of its operations, reads what it computes."""
    y = tf.tanh(x)
    return y, lambda upstream: upstream * (1.0 - y * y) / 3.0


class Product(tf.Module):
    """A product with a gradient of its own for its weight."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable([[0.5, -1.0], [2.0, 0.25]])

    def __call__(self, x):
        @tf.custom_gradient
        def product(x):
            def gradient(upstream, variables):
                (weight,) = variables
                of_weight = 7.0 * tf.tensordot(x, upstream, [[0, 1], [0, 1]])
                return tf.tensordot(upstream, tf.transpose(weight), 1), [of_weight]

            return tf.tensordot(x, self.weight, 1), gradient

        return product(x)


class Loop(tf.Module):
    """A loop over time with a choice, a weight, and functions with gradients of their own."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable([[0.5, -1.0], [0.3, 0.25]])

    def __call__(self, x):
        def step(state, row):
            state = gentle(tf.nn.silu(state @ self.weight) + row)
            return tf.cond(tf.reduce_sum(row) > 0.0, lambda: state * self.weight[0], lambda: state)

        rows = tf.transpose(x, [1, 0, 2])
        return tf.transpose(tf.scan(step, rows, tf.zeros_like(rows[0])), [1, 0, 2])


class Layers(tf.Module):
    """A recurrent layer of Keras, with its activations computed again for the gradient."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.GRU(2, return_sequences=True, activation="silu")
        self.layer.build([None, None, 2])
        self.last = keras.layers.Dense(2, activation="gelu")
        self.last.build([None, None, 2])

    def __call__(self, x):
        return tf.recompute_grad(lambda h: self.last(h))(self.layer(x))


@pytest.mark.parametrize("make", [lambda: steep, Product, Loop, Layers])
def test_a_frozen_function_has_the_values_and_the_gradients_of_the_live_one(make, tmp_path):
    keras.utils.set_random_seed(1)
    live = make()
    frozen = frozen_of(live, [None, None, 2])
    program = thawed(frozen, tmp_path)
    x = tf.random.stateless_normal([3, 4, 2], [1, 2])
    weights = [each for each in frozen.weights if isinstance(each, tf.Variable)]
    expected, wanted = gradients(live, x, weights)
    for made in (program, thawed(frozen_of(program["call"], [None, None, 2]), tmp_path)):
        found, same = gradients(made["call"], x, made.variables)
        np.testing.assert_array_equal(found, expected)
        for one, other in zip(same, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_gradient_that_only_python_computes_is_missed_only_in_training(tmp_path):
    @tf.custom_gradient
    def function(x):
        return 2.0 * x, lambda upstream: tf.constant(upstream.numpy())

    call = thawed(frozen_of(function, [None]), tmp_path)["call"]
    np.testing.assert_array_equal(call([1.0, 2.0]), [2.0, 4.0])
    with pytest.raises(UserError, match=r"^The model cannot be trained: the gradient of \S+ had"):
        gradients(call, tf.constant([1.0]), [])


def test_a_weight_that_a_call_assigns_to_keeps_its_value(tmp_path):
    weight, mask = tf.Variable([1.0, 2.0]), tf.constant([1.0, 0.0])

    def masked(x):
        weight.assign(weight * mask)
        return x * weight

    frozen = frozen_of(masked, [None, 2])
    frozen.add("other", lambda x: x * weight, [tf.TensorSpec([None, 2])])
    program = thawed(frozen, tmp_path)
    np.testing.assert_array_equal(program["call"]([[3.0, 3.0]]), [[3.0, 0.0]])
    np.testing.assert_array_equal(program["other"]([[3.0, 3.0]]), [[3.0, 6.0]])
    np.testing.assert_array_equal(weight, [1.0, 2.0])


def test_weights_keep_their_types_and_bits(tmp_path):
    values = [
        tf.constant([1.0, -np.inf, np.nan, 1e-40], dtype)
        for dtype in (tf.bfloat16, tf.float16, tf.float32, tf.float64)
    ]
    values += [tf.constant([[-128], [127]], tf.int8), tf.constant(True), tf.zeros([0, 3], tf.int64)]
    values += [tf.constant([1.0 + 2.0j], tf.complex64), tf.constant(2**63, tf.uint64)]
    variables = [tf.Variable(each) for each in values]
    frozen = Frozen()
    frozen.add("call", lambda: [tf.identity(each) for each in variables], [])
    for found, value in zip(thawed(frozen, tmp_path)["call"](), values, strict=True):
        assert found.dtype == value.dtype
        assert found.numpy().tobytes() == value.numpy().tobytes()


def test_rare_operations_are_stored_too(tmp_path):
    def function(x):
        rows = tf.ragged.range([2, 3]).to_tensor()
        singular = tf.linalg.svd(tf.matmul(x, x, transpose_a=True), compute_uv=False)
        both = tf.image.resize(x[..., tf.newaxis], [2, 3])[..., 0] + tf.cast(rows, tf.float32)
        return both * singular[:, :1, tf.newaxis] + tf.math.segment_sum(x[0], [0, 0, 1])[:, :1]

    x = tf.random.stateless_normal([2, 3, 2], [1, 2])
    call = thawed(frozen_of(function, [None, 3, 2]), tmp_path)["call"]
    np.testing.assert_array_equal(call(x), tf.function(function)(x))


def test_the_same_model_gives_the_same_files(tmp_path):
    folders = [tmp_path / str(number) for number in range(6)]
    live = Loop()
    for folder in folders:
        folder.mkdir()
        write_program(folder, frozen_of(live, [None, None, 2]))
    for name in ("graph.pb", "weights.safetensors"):
        assert len({(folder / name).read_bytes() for folder in folders}) == 1
