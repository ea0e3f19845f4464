"""A new network is traced a few times until its first sound; another length compiles nothing."""

import os
import subprocess
import sys

import causal_networks
import keras
import numpy as np
import pytest
import tensorflow as tf

import onepass
from onepass.likelihoods import Categorical, Gaussian, Integers
from onepass.samplers.sampling import Samplers
from onepass.step import NotCausalError
from onepass.step.tracing import Traces


class Counted(tf.Module):
    """Two dilated convolutions, which count how often Python runs them."""

    def __init__(self, parameters=2):
        super().__init__()
        self.kernels = [
            causal_networks.variable(shape, seed)
            for seed, shape in enumerate([[2, 1, 4], [2, 4, parameters]])
        ]
        self.traced = self.eager = 0
        self.scale = 1.0

    def __call__(self, x):
        if tf.executing_eagerly():
            self.eager += 1
        else:
            self.traced += 1
        for dilation, kernel in enumerate(self.kernels, 1):
            x = tf.pad(x, [[0, 0], [dilation, 0], [0, 0]])
            x = self.scale * tf.tanh(tf.nn.convolution(x, kernel, 1, "VALID", dilations=[dilation]))
        return x


def test_up_to_the_first_sound_a_network_is_traced_for_four_shapes():
    network = Counted()
    model = onepass.Autoregressive(network, Gaussian(levels=256))
    model.sample(num=1, length=100, seed=1)
    assert network.traced <= 4 and network.eager <= 4


def test_padded_rows_and_times_change_nothing(monkeypatch):
    monkeypatch.setattr(Samplers, "_machine", lambda *_: None)
    layers = keras.layers
    network = causal_networks.token_network(
        layers.Embedding(8, 4), layers.Conv1D(8, 3, padding="causal")
    )
    model = onepass.Autoregressive(network, Categorical(8), codec=Integers(8))
    options = {"seed": 2, "length": 40, "prefix": [[1, 2, 3], [4], [5, 6]]}
    options |= {"temperature": [0.5, 1.0, 1.5], "top_k": 5, "stop": 7}
    naive = model.sample(num=3, method="naive", **options)
    np.testing.assert_array_equal(model.sample(num=3, method="cached", **options), naive)
    for chunk in (7, 64):
        parts = np.concatenate(list(model.stream(num=3, chunk=chunk, **options)), 1)
        np.testing.assert_array_equal(parts, naive[:, : parts.shape[1]])


def test_a_network_that_was_changed_before_the_first_sound_is_traced_again():
    network = Counted()
    model = onepass.Autoregressive(network, Gaussian(levels=256))
    network.scale = 0.5
    drawn = model.sample(num=2, length=30, seed=3)
    np.testing.assert_array_equal(drawn, model.sample(num=2, length=30, seed=3, method="naive"))


def test_graphs_are_kept_for_a_few_shapes_only():
    network = Counted()
    traces = Traces(network)
    for length in [*range(4, 24), 23, 23]:
        traces.of([tf.TensorSpec([1, length, 1])])
    assert network.traced == 20 and len(traces._graphs) == 8


def in_blocks(x):
    """Four steps at a time, the sum of the block before: takes multiples of four only."""
    blocks = tf.reduce_sum(tf.reshape(x, [-1, x.shape[1] // 4, 4, 1]), 2)
    before = tf.repeat(tf.pad(blocks, [[0, 0], [1, 0], [0, 0]])[:, :-1], 4, axis=1)
    return tf.concat([before, 0.0 * before], 2)


def test_a_network_that_takes_multiples_of_a_length_is_probed_with_these():
    onepass.Autoregressive(in_blocks, Gaussian(levels=256))
    with pytest.raises(NotCausalError, match="must be causal"):
        onepass.Autoregressive(lambda x: in_blocks(tf.reverse(x, [1])), Gaussian(levels=256))


PROGRAM = """
import tensorflow as tf, onepass
kernel = tf.Variable(tf.ones([2, 1, 2]) * 0.3)
network = lambda x: tf.nn.conv1d(tf.pad(x, [[0, 0], [1, 0], [0, 0]]), kernel, 1, "VALID")
model = onepass.Autoregressive(network, onepass.likelihoods.Gaussian(levels=256))
print(model.sample(num=1, length=5, seed=1, method="cached").tolist())
"""


@pytest.mark.integration
def test_xla_keeps_what_it_compiles_where_its_own_variable_says(tmp_path):
    flags = f"--tf_xla_persistent_cache_directory={tmp_path}"
    environment = os.environ | {"TF_XLA_FLAGS": flags, "PYTHONHASHSEED": "0"}
    printed, kept = [], []
    for _ in range(2):
        command = [sys.executable, "-c", PROGRAM]
        run = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        printed.append(run.stdout.splitlines()[-1])
        kept.append({path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()})
    assert kept[0] and kept[0] == kept[1] and printed[0] == printed[1]
