"""The derived step equals the call; what is not causal is refused by the name of its layer."""

import causal_networks
import indexing_networks
import numpy as np
import pytest
import refused_networks
import tensorflow as tf
from runs import eagerly

from onepass.machine.machine import machine_of_step
from onepass.machine.values import Unlowerable
from onepass.networks.network import as_function
from onepass.step import NotCausalError, UnsupportedNetworkError, incremental
from onepass.step.tracing import Traces

BATCH = 2
SPECS = {
    "Conditioned": {"condition": tf.TensorSpec([None, None, 2])},
}


def arguments(specs, time=23):
    generator = np.random.default_rng(0)
    shapes = [[BATCH, time, *spec.shape[2:]] for spec in specs]
    return [
        tf.constant(
            generator.integers(0, 2, shape)
            if spec.dtype.is_integer
            else generator.normal(size=shape),
            spec.dtype,
        )
        for spec, shape in zip(specs, shapes, strict=True)
    ]


def stepped(derived, tensors, sizes):
    return causal_networks.steps(derived, derived.first_state(len(tensors[0])), tensors, sizes)[0]


@pytest.mark.parametrize("name", causal_networks.CAUSAL)
@pytest.mark.parametrize("num", [1, BATCH])
def test_step_equals_the_call(name, num):
    """So do the graph that the step is derived from, and the machine's program of the step."""
    network = causal_networks.CAUSAL[name]()
    with eagerly():
        derived = incremental(network, **SPECS.get(name, {}))
    time = derived.program(1).lengths[0]
    tensors = arguments(derived.specs, time)
    whole = as_function(network, derived.specs)(*tensors)
    tolerance = 2e-2 if name == "half_precision" else 1e-5
    close = {"rtol": tolerance, "atol": tolerance}
    rows = [x[:num] for x in tensors]
    parts = [1, 1, 10, 1, time - 13]
    np.testing.assert_allclose(stepped(derived, rows, parts), whole[:num], **close)
    graph = derived.program(1).whole([x[:1] for x in tensors])
    np.testing.assert_allclose(tf.cast(graph, tf.float32), whole[:1], **close)
    if name == "half_precision":
        with pytest.raises(Unlowerable, match="bfloat16"):
            machine_of_step(derived, derived.specs)
        return
    machine, state = machine_of_step(derived, derived.specs)
    (made,) = machine.run(machine.begin(BATCH, [], state), *(x.numpy() for x in tensors))
    np.testing.assert_allclose(made[:, :, 0, 0], whole, **close)


@pytest.mark.parametrize("name", indexing_networks.NETWORKS)
def test_entries_are_chosen_placed_and_turned_in_every_time_step(name):
    """So by steps of one row and of many, and by the step machine."""
    network = indexing_networks.NETWORKS[name]()
    with eagerly():
        derived = incremental(network, inputs=indexing_networks.SPEC)
    time = 23
    tensors = arguments(derived.specs, time)
    whole = network(*tensors)
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(stepped(derived, tensors, [1, 1, 10, 1, time - 13]), whole, **close)
    if name in indexing_networks.LEFT_TO_XLA:
        with pytest.raises(Unlowerable, match=indexing_networks.LEFT_TO_XLA[name]):
            machine_of_step(derived, derived.specs)
        return
    machine, state = machine_of_step(derived, derived.specs)
    (made,) = machine.run(machine.begin(BATCH, [], state), *(x.numpy() for x in tensors))
    np.testing.assert_allclose(made[:, :, 0, 0], whole, **close)


def test_an_associative_scan_of_unknown_length_is_traced_in_order():
    """Halving it would take 48 levels; the library is left as it was."""
    import tensorflow_probability as tfp

    network, halving = indexing_networks.associative_scan(), tfp.math.scan_associative
    traced = tf.function(Traces(network), autograph=False).get_concrete_function(
        indexing_networks.SPEC
    )
    assert len(traced.graph.get_operations()) < 300
    x = tf.random.stateless_normal([2, 9, 4], [0, 1])
    np.testing.assert_allclose(traced(x), network(x), rtol=1e-5, atol=1e-6)
    assert tfp.math.scan_associative is halving


@pytest.mark.parametrize("name", refused_networks.REFUSED)
def test_a_network_without_a_step_is_refused_by_the_name_of_its_layer(name):
    make, text = refused_networks.REFUSED[name]
    with pytest.raises((NotCausalError, UnsupportedNetworkError), match=text):
        incremental(make())


def test_the_step_follows_the_weights():
    network = causal_networks.Chomped()
    with eagerly():
        derived = incremental(network)
    for variable in network.variables:
        variable.assign(variable * 1.5)
    tensors = arguments(derived.specs)
    np.testing.assert_allclose(
        stepped(derived, tensors, [1, 22]), network(*tensors), rtol=1e-5, atol=1e-5
    )


def test_zeros_may_be_another_operation_for_a_longer_input():
    def network(x):
        h = tf.concat([x, 2.0 * x], -1)
        return tf.concat([tf.zeros_like(h), h + tf.ones_like(h)], -1)

    rows = 8  # 976 numbers are one constant, 1,504 are filled in
    derived = incremental(network, inputs=tf.TensorSpec([None, None, 1]))
    x = tf.random.stateless_normal([rows, 5, 1], [0, 1])
    np.testing.assert_allclose(stepped(derived, [x], [5]), network(x), atol=1e-6)


def test_state_is_no_larger_than_the_reach_of_the_network():
    derived = incremental(causal_networks.dilated_functional())
    rows = sorted(x.shape[0] for x in derived.first_state(1).values() if x.shape.rank)
    assert rows == [1, 1, 8]


def test_rows_that_several_slices_read_are_kept_once():
    derived = incremental(causal_networks.taps())
    rows = sorted(x.shape[0] for x in derived.first_state(1).values() if x.shape.rank)
    assert sum(rows) <= 2 + 6 + 1 + 3  # the rows of both layers, and those whose channels turn


def test_a_network_with_its_own_step_keeps_it():
    class Own:
        def initial_state(self, batch):
            return batch

        def step(self, inputs, state, condition=None):
            return inputs, state

    network = Own()
    assert incremental(network) is network


def test_a_loaded_program_has_a_step_too(tmp_path):
    module = tf.Module()
    module.network = causal_networks.Chomped()
    spec = tf.TensorSpec([None, None, 1])
    module.call = tf.function(module.network, input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    with eagerly():
        derived = incremental(loaded.call, inputs=spec)
    tensors = arguments([spec])
    np.testing.assert_allclose(
        stepped(derived, tensors, [1, 2, 20]), loaded.call(*tensors), rtol=1e-5, atol=1e-5
    )


EQUAL = {
    "matrices": lambda rows: (
        tf.tile(0.5 * tf.eye(2)[tf.newaxis], [tf.shape(rows)[0], 1, 1]),
        lambda state, of: tf.matmul(state, of[0]) + of[1],
    ),
    "ones": lambda rows: (0.5 * tf.ones_like(rows), lambda state, of: state * of[0] + of[1]),
    "second": lambda rows: (0.5 * tf.ones_like(rows), lambda state, of: state * of[0] - of[1]),
}


@pytest.mark.parametrize("kind", EQUAL)
def test_a_scan_reads_rows_that_are_equal_at_all_times(kind):
    def network(x):
        rows = tf.transpose(
            tf.concat([x, tf.pad(x, [[0, 0], [3, 0], [0, 0]])[:, :-3]], -1), [1, 0, 2]
        )
        equal, step = EQUAL[kind](rows)
        states = tf.scan(step, (equal, rows), initializer=tf.zeros([tf.shape(x)[0], 2]))
        return tf.transpose(states, [1, 0, 2])

    derived = incremental(network)
    x = tf.random.stateless_normal([2, 9, 1], [1, 2])
    np.testing.assert_allclose(stepped(derived, [x], (4, 5)), network(x), rtol=1e-5, atol=1e-6)


def test_a_scan_of_equal_rows_alone_is_named():
    def network(x):
        rows = 0.5 * tf.ones_like(tf.transpose(x, [1, 0, 2]))
        states = tf.scan(lambda state, row: state + row, rows, initializer=tf.zeros_like(rows[0]))
        return tf.transpose(states, [1, 0, 2]) + x

    with pytest.raises(UnsupportedNetworkError, match=r"scan: .*all rows that it reads are equal"):
        incremental(network)
