"""The derived step of networks with attention and positions equals their call."""

import attention_networks
import keras
import numpy as np
import pytest
import tensorflow as tf
from attention_networks import SPEC, TOKENS, tokens
from causal_networks import steps
from runs import eagerly

from onepass.networks.network import as_function
from onepass.step import NotCausalError, UnsupportedNetworkError, incremental


def derived_step(network):
    with eagerly():
        return incremental(network, inputs=SPEC)


@pytest.mark.parametrize("name", attention_networks.NETWORKS)
@pytest.mark.parametrize("num", [1, 2])
def test_step_equals_the_call_on_both_sides_of_a_horizon(name, num):
    network = attention_networks.NETWORKS[name]()
    derived = derived_step(network)
    inputs = tokens(num, 100)
    whole = as_function(network, derived.specs)(inputs)
    first, state = steps(derived, derived.first_state(num, 64), [inputs], (1, 1, 31, 31))
    state = derived.lengthen_state(state, 100)
    rest, _ = steps(derived, state, [inputs[:, 64:]], (1, 31, 1, 1, 1, 1))
    # Sums in another order may round to the next bfloat16.
    unit = 2**-8 if name == "CrossShaped" else 1e-5
    atol = unit * (1.0 + float(tf.reduce_max(tf.abs(whole))))
    np.testing.assert_allclose(tf.concat([first, rest], 1), whole, rtol=1e-5, atol=atol)


class Unmasked(attention_networks.Attention):
    def masked(self, scores):
        return scores


class LooksAhead(attention_networks.Attention):
    def masked(self, scores):
        time = tf.range(tf.shape(scores)[-1])
        with tf.name_scope("peek"):
            return tf.where(time[:, None] + 1 >= time, scores, -1e9)


class SoftmaxOverQueries(attention_networks.Attention):
    def weights(self, scores):
        return tf.nn.softmax(scores, axis=-2)


class Averaged(attention_networks.Attention):
    def attend(self, query, key, value):
        pairs = tf.matmul(query, key, transpose_b=True)
        return value * tf.reduce_mean(pairs, -1, keepdims=True)


class ReversedSum(attention_networks.Attention):
    def attend(self, query, key, value):
        return tf.cumsum(value, axis=2, reverse=True)


class Flattened(attention_networks.Attention):
    """Attention whose scores have, for a moment, one axis for all pairs of time steps."""

    def masked(self, scores):
        shape = tf.shape(scores)
        flat = tf.reshape(super().masked(scores), [shape[0], shape[1], -1])
        return tf.reshape(tf.identity(flat), shape)


def unmasked_layer():
    attend = keras.layers.MultiHeadAttention(2, 4, name="looks")
    return attention_networks.model(lambda h: attend(h, h))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Unmasked, "attends to later time steps"),
        (LooksAhead, "attends to later time steps"),
        (SoftmaxOverQueries, "mixes queries with keys"),
        (Averaged, "averages over all time steps"),
        (ReversedSum, "later time steps"),
        (Flattened, "does not keep both time axes"),
        (unmasked_layer, "looks attends to later time steps"),
    ],
)
def test_attention_that_is_not_causal_or_has_no_step_is_refused(make, text):
    with pytest.raises((NotCausalError, UnsupportedNetworkError), match=text):
        incremental(make(), inputs=SPEC)


def test_cross_attention_reads_a_memory_that_is_given_once():
    tokens, memory = keras.Input([None], dtype="int32"), keras.Input([7, 6])
    h = keras.layers.Embedding(TOKENS, 12)(tokens)
    h = h + keras.layers.MultiHeadAttention(2, 4)(h, memory)
    network = keras.Model([tokens, memory], keras.layers.Dense(TOKENS)(h))
    given = tf.random.stateless_normal([2, 7, 6], [0, 1])
    rows = attention_networks.tokens(2, 20)
    with eagerly():
        derived = incremental(network)
    state = derived.first_state(2, 20, [given])
    outputs, _ = steps(derived, state, [rows], (5, 15))
    whole = network([rows, given])
    assert np.ptp(whole - network([rows, -given])) > 1e-2
    np.testing.assert_allclose(outputs, whole, atol=1e-5)


def test_a_sequence_beyond_a_table_of_positions_names_its_layer():
    """The table of an embedding layer, and one that is sliced."""
    inputs = keras.Input([None], dtype="int32")
    h = attention_networks.Positions(16)(inputs)
    few = keras.Model(inputs, keras.layers.Dense(TOKENS)(h))
    for network, most, layer in ((few, 16, "embedding"), (attention_networks.Learned(), 300, "")):
        derived = derived_step(network)
        with pytest.raises(ValueError, match=rf"at most {most}.*{layer}.*got {most + 1}"):
            derived.first_state(1, most + 1)
        given = tokens(1, most)  # 300 is no power of two
        outputs, _ = steps(derived, derived.first_state(1, most), [given], (1, most - 2, 1))
        np.testing.assert_allclose(outputs, network(given), atol=1e-5)


def test_a_window_keeps_no_more_keys_than_it_reads():
    derived = derived_step(attention_networks.Windowed())
    state = derived.first_state(1, 4000)
    kept = [value.shape[0] for name, value in state.items() if name.startswith("keys/")]
    assert kept == [20, 20]


def test_masks_are_kept_as_their_diagonals_and_a_step_beyond_the_horizon_is_refused():
    derived = derived_step(attention_networks.Rotary())
    state = derived.first_state(1, 4000)
    assert max(x.shape.num_elements() for n, x in state.items() if "table/" in n) < 10_000
    _, state = derived.step(tokens(1, 64), derived.first_state(1, 64))
    with pytest.raises(ValueError, match="at least 65 time steps"):
        derived.step(tokens(1, 1), state)


def test_tables_follow_the_weights():
    network = attention_networks.Relative()
    derived = derived_step(network)
    derived.initial_state(1, 64)
    network.bias.assign(network.bias * 2.0)
    inputs = tokens(1, 40)
    outputs, _ = steps(derived, derived.initial_state(1, 40), [inputs], (1, 39))
    np.testing.assert_allclose(outputs, network(inputs), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("GPT2", {"num_heads": 2, "max_sequence_length": 512, "dropout": 0.0}),
        ("OPT", {"num_heads": 2, "max_sequence_length": 512, "dropout": 0.0}),
        ("Llama", {"num_query_heads": 2, "num_key_value_heads": 1}),
        ("Gemma", {"num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 16}),
        ("Mistral", {"num_query_heads": 2, "num_key_value_heads": 1, "sliding_window": 16}),
        ("Qwen", {"num_query_heads": 2, "num_key_value_heads": 1}),
    ],
)
def test_a_backbone_of_keras_hub_has_a_step(family, options):
    keras_hub = pytest.importorskip("keras_hub")
    backbone = getattr(keras_hub.models, f"{family}Backbone")(
        vocabulary_size=TOKENS, num_layers=2, hidden_dim=32, intermediate_dim=64, **options
    )
    inputs = keras.Input([None], dtype="int32")
    h = backbone({"token_ids": inputs, "padding_mask": keras.ops.ones_like(inputs)})
    network = keras.Model(inputs, keras.layers.Dense(TOKENS)(h))
    derived, given = incremental(network), tokens(2, 100)
    parts = (1, 1, 40, 1, 20, 1, 36)
    outputs, _ = steps(derived, derived.initial_state(2, 100), [given], parts)
    np.testing.assert_allclose(outputs, network(given), rtol=1e-5, atol=1e-5)
