"""What `save` writes is loaded without trust, drawn from, judged and trained as the live model."""

import numpy as np
import pytest
import tensorflow as tf
import users_networks

import onepass
from onepass import likelihoods
from onepass.storage.models import first_fault

LEVELS = 8


@pytest.mark.parametrize("mode", ["eager", "check numerics"])
def test_a_model_is_saved_as_ever_where_functions_run_eagerly_or_numerics_are_checked(
    mode, tmp_path
):
    model = users_networks.model("recomputed activations")
    expected = model.sample(1, 6, 3)
    try:
        if mode == "eager":
            tf.config.run_functions_eagerly(True)
        else:
            tf.debugging.enable_check_numerics()
        onepass.save(model, tmp_path)
    finally:
        tf.config.run_functions_eagerly(False)
        tf.debugging.disable_check_numerics()
    np.testing.assert_array_equal(onepass.load(tmp_path).sample(1, 6, 3), expected)


def test_a_bundle_has_its_model(tmp_path):
    model = users_networks.model("constant table")
    bundle = onepass.load(onepass.export(model, tmp_path / "mine" / "1", length=16))
    drawn = bundle.autoregressive.sample(1, 6, 3)
    np.testing.assert_array_equal(drawn, model.sample(1, 6, 3))


class Table(tf.Module):
    """A network that looks its inputs up in a table of keys."""

    def __init__(self):
        super().__init__()
        pairs = tf.lookup.KeyValueTensorInitializer(tf.range(8), tf.random.uniform([8]))
        self.table = tf.lookup.StaticHashTable(pairs, 0.0)

    def __call__(self, x):
        return tf.stack([self.table.lookup(x)] * LEVELS, -1)


class Counted(tf.Module):
    """A network that counts its calls."""

    def __init__(self):
        super().__init__()
        self.calls = tf.Variable(0.0)

    def __call__(self, x):
        self.calls.assign_sub(1.0)
        return tf.one_hot(x, LEVELS) + 0.0 * self.calls


def read(x):
    first = tf.io.decode_raw(tf.io.read_file("/etc/hostname"), tf.uint8)[0]
    return tf.one_hot(x, LEVELS) + 0.0 * tf.cast(first, tf.float32)


def host(x):
    h = tf.py_function(lambda y: 2.0 * y, [tf.one_hot(x, LEVELS)], tf.float32)
    return tf.ensure_shape(h, [*x.shape, LEVELS])


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (lambda: read, r"it holds a disallowed operation: ReadFile\."),
        (lambda: host, r"runs Python code \(`tf.py_function`\)\."),
        (Table, "it reads a table or another resource that is not a weight; hold what"),
        (Counted, r"changes a weight or a table \(AssignSubVariableOp\)"),
    ],
)
def test_what_does_more_than_compute_is_refused_in_one_sentence_when_it_is_saved(
    network, says, tmp_path
):
    inputs = tf.TensorSpec([None, None], tf.int32)
    model = onepass.Autoregressive(network(), likelihoods.Categorical(LEVELS), inputs=inputs)
    with pytest.raises(onepass.UserError, match=rf"^The model cannot be stored: [^\n]*{says}"):
        onepass.save(model, tmp_path / "mine")
    assert not list(tmp_path.iterdir())


def test_what_only_asserts_and_prints_is_left_out(tmp_path, capfd):
    def network(x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 8)]):
            tf.print("network")
            return tf.one_hot(x, LEVELS) * 2.0

    inputs = tf.TensorSpec([None, None], tf.int32)
    model = onepass.Autoregressive(network, likelihoods.Categorical(LEVELS), inputs=inputs)
    folder = onepass.save(model, tmp_path / "mine")
    expected = model.sample(1, 6, 3)
    capfd.readouterr()
    np.testing.assert_array_equal(onepass.load(folder).sample(1, 6, 3), expected)
    assert "network" not in "".join(capfd.readouterr())


def test_what_16_bits_round_is_no_difference_and_what_they_do_not_is_one():
    def half(scale):
        return lambda x: tf.cast(tf.cast(scale * x, tf.bfloat16), tf.float32)

    specs = [tf.TensorSpec([None, None, 1])]
    assert first_fault(half(1.0), half(1.01), specs) == ""
    assert first_fault(lambda x: x, half(1.0), specs) == ""
    assert "differs by" in first_fault(half(1.0), half(1.5), specs)
    assert "differs by" in first_fault(lambda x: x, lambda x: 1.01 * x, specs)
