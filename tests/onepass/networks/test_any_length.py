"""Networks that were built for one length are taken at others, or padded up to it."""

import keras
import numpy as np
import one_length_networks as networks
import pytest
import tensorflow as tf
from causal_networks import steps
from one_length_networks import LENGTH, LEVELS, LIMITED, PADDED, REBUILT
from runs import eagerly

import onepass
from distill.flow_student import FlowStudent
from onepass.likelihoods import Categorical, Integers, Linear
from onepass.model import Autoregressive
from onepass.networks.any_length import any_length
from onepass.networks.causality import check_causal
from onepass.networks.conditions import KerasInputs
from onepass.networks.length_limits import Tables
from onepass.networks.network import declared_inputs
from onepass.step import UnsupportedNetworkError, incremental

layers = keras.layers
LONGER = LENGTH + 9


def specs_of(network):
    return declared_inputs(network)


def arguments(specs, length, rows=2):
    """Return random arguments; those of fewer times are the first of those of more."""
    generator, made = np.random.default_rng(3), []
    for spec in specs:
        own = [length if size is None or size == LENGTH else size for size in spec.shape[1:2]]
        most = [LONGER if size == length else size for size in own]
        shape = [rows, *most, *spec.shape[2:]]
        integers = spec.dtype.is_integer
        drawn = generator.integers(0, LEVELS, shape) if integers else generator.normal(size=shape)
        made.append(tf.constant(drawn[:, : own[0]], spec.dtype))
    return made


def called(network, values):
    return network(values if len(values) > 1 else values[0])


def model_of(network, **options):
    codec = Integers(LEVELS) if specs_of(network)[0].dtype.is_integer else Linear(LEVELS)
    return Autoregressive(network, Categorical(LEVELS), codec=codec, **options)


@pytest.mark.parametrize("name", REBUILT)
def test_a_rebuilt_network_is_the_network_and_has_a_step(name):
    keras.utils.set_random_seed(1)
    network = REBUILT[name]()
    nodes = [len(layer._inbound_nodes) for layer in network.layers]
    call, specs = any_length(network, specs_of(network))
    assert specs[0].shape[1] is None
    whole = called(network, arguments(specs, LENGTH))
    np.testing.assert_array_equal(call(*arguments(specs, LENGTH)), whole)
    for length in (1, 7):
        outputs = call(*arguments(specs, length))
        np.testing.assert_allclose(outputs, whole[:, :length], rtol=1e-5, atol=1e-5)
    fault = Tables(network, call, specs, axes=1).fault([LONGER])
    assert bool(fault) == (name in LIMITED) and f"{LIMITED.get(name, '')}" in fault
    if not fault:
        longer = call(*arguments(specs, LONGER))
        assert longer.shape == [2, LONGER, LEVELS]
        np.testing.assert_allclose(longer[:, :LENGTH], whole, rtol=1e-5, atol=1e-5)
    found = check_causal(network)
    assert found.is_causal and found.has_step and found.message == ""
    with eagerly():
        step = incremental(network)
    fixed = [x for x, spec in zip(arguments(specs, 9), specs, strict=True) if spec.shape[1]]
    timed = [x for x, spec in zip(arguments(specs, 9), specs, strict=True) if not spec.shape[1]]
    outputs, _ = steps(step, step.first_state(2, 9, fixed), timed, (1, 4, 4))
    np.testing.assert_allclose(outputs, whole[:, :9], rtol=1e-4, atol=1e-4)
    assert [len(layer._inbound_nodes) for layer in network.layers] == nodes  # as it was


@pytest.mark.parametrize("name", PADDED)
def test_what_is_of_one_length_is_padded_up_to_it(name):
    keras.utils.set_random_seed(1)
    make, layer = PADDED[name]
    network = make()
    call, specs = any_length(network, specs_of(network))
    assert specs[0].shape[1] == LENGTH
    whole = called(network, arguments(specs, LENGTH))
    for length in (1, 7, LENGTH):
        outputs = call(*arguments(specs, length))
        np.testing.assert_allclose(outputs, whole[:, :length], rtol=1e-5, atol=1e-5)
    line = f"built for {LENGTH} elements, and " + (f"its layer `{layer}` takes" if layer else "")
    for fails in (lambda: call(*arguments(specs, LENGTH + 1)), lambda: incremental(network)):
        with pytest.raises(ValueError, match=line):
            fails()
    found = check_causal(network)
    assert found.is_causal and not found.has_step and line in found.message
    with pytest.raises(UnsupportedNetworkError, match="no step can be derived"):
        incremental(network)
    with pytest.raises(ValueError, match=rf"cannot take {LENGTH + 1} elements: .*{line}"):
        Tables(network, call, specs, axes=1).check([LENGTH + 1])


def test_a_model_of_one_length_is_trained_and_refuses_more_elements(tmp_path):
    """Laws of draws, storage and bundles are those of tests/laws."""
    keras.utils.set_random_seed(1)
    network = networks.mixed()
    model = model_of(network)
    drawn = model.sample(2, 6, 1)
    np.testing.assert_array_equal(drawn, model.sample(2, 6, 1, method="naive"))
    assert model.sample(2, LENGTH, 1).shape == (2, LENGTH)
    before = [x.numpy() for x in network.trainable_variables]
    with eagerly():
        onepass.fit(model, drawn, steps=1, log=lambda line: None)
    for variable, value in zip(network.trainable_variables, before, strict=True):
        assert np.any(variable.numpy() != value), variable.path
    stored = onepass.load(onepass.save(model, tmp_path / "stored"))
    for fails in (
        lambda: model.sample(2, LENGTH + 1, 1),
        lambda: model.log_prob(np.zeros([1, LENGTH + 1], np.int32)),
        lambda: model.stream(length=LENGTH + 1, seed=1),
        lambda: stored.sample(2, LENGTH + 1, 1),
        lambda: onepass.export(model, tmp_path / "models" / "1", length=LENGTH + 1),
    ):
        with pytest.raises(ValueError, match=rf"cannot take {LENGTH + 1} elements: "):
            fails()


def test_a_network_that_looks_ahead_is_refused_by_its_layer():
    waves = keras.Input([LENGTH, 1])
    wide = layers.Conv1D(4, 3, padding="same", name="wide")
    network = keras.Model(waves, layers.Dense(LEVELS)(wide(waves)))
    found = check_causal(network)
    assert not found.is_causal and found.message.startswith("wide pads on both sides")
    with pytest.raises(ValueError, match="must be causal"):
        model_of(network)


def test_a_head_of_zeros_hides_nothing():
    network = networks.relative()
    network.layers[-1].kernel.assign(tf.zeros_like(network.layers[-1].kernel))
    _, (spec,) = any_length(network, KerasInputs(network).specs)
    assert spec.shape[1] == LENGTH


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float64"])
def test_other_numbers_are_taken_too(policy):
    tokens = networks.tokens_of()
    h = layers.Embedding(LEVELS, 4, dtype=policy)(tokens)
    h = layers.Conv1D(4, 3, padding="causal", activation="tanh", dtype=policy)(h)
    network = keras.Model(tokens, layers.Dense(LEVELS, dtype=policy)(h))
    call, (spec,) = any_length(network, KerasInputs(network).specs)
    assert spec.shape[1] is None
    own = called(network, arguments([spec], LENGTH))
    assert call(*arguments([spec], LONGER)).dtype == own.dtype


def test_a_student_of_one_length_draws_any():
    made = {}
    for size in (LENGTH, None):
        keras.utils.set_random_seed(1)
        waves = keras.Input([size, 1])
        h = layers.Conv1D(4, 3, padding="causal", activation="tanh")(waves)
        network = keras.Model(waves, layers.Dense(2)(h))
        student = FlowStudent([network], Linear(LEVELS))
        made[size] = student.sample(2, LONGER, 1)
    np.testing.assert_array_equal(made[LENGTH], made[None])


@pytest.mark.slow
def test_a_bundle_draws_images_of_the_size_that_its_network_was_built_for(tmp_path):
    model = Autoregressive(networks.pixel_cnn(5), Categorical(LEVELS), order="raster")
    made = onepass.load(onepass.export(model, tmp_path / "models" / "1"))
    np.testing.assert_array_equal(made.sample(1, (5, 5, 1), 1), model.sample(1, (5, 5, 1), 1))


def test_images_of_one_size_are_taken_at_others_where_the_layers_allow_it(tmp_path):
    network = networks.pixel_cnn(5)
    model = Autoregressive(network, Categorical(LEVELS), order="raster")
    images = np.random.default_rng(0).integers(0, LEVELS, [2, 5, 5, 1])
    own = network(tf.cast(model.symbol_network.read(tf.constant(images)), tf.float32))
    np.testing.assert_array_equal(model.conditionals(images)[..., 0, :], own)
    naive = model.sample(1, (3, 4, 1), 1, method="naive")
    np.testing.assert_array_equal(model.sample(1, (3, 4, 1), 1), naive)
    stored = onepass.load(onepass.save(model, tmp_path / "stored"))  # without its assignments
    np.testing.assert_array_equal(stored.sample(1, (3, 4, 1), 1), naive)
    assert len(stored.weights_read(tf.constant(images, tf.int32)).trained) == 6


def flattened(side=5):
    images = keras.Input([side, side, 1])
    over = layers.Dense(side * side, trainable=False, name="over")
    h = layers.Reshape([side, side, 1])(over(layers.Reshape([side * side])(images)))
    over.kernel.assign(np.triu(np.ones([side * side] * 2, np.float32), 1))
    return keras.Model(images, layers.Conv2D(LEVELS, 1)(h))


def test_images_of_one_size_alone(tmp_path):
    model = Autoregressive(flattened(), Categorical(LEVELS), order="raster")
    rows = model.sample(1, (5, 5, 1), 1)
    np.testing.assert_array_equal(rows, model.sample(1, (5, 5, 1), 1, method="naive"))
    stored = onepass.load(onepass.save(model, tmp_path / "stored"))
    np.testing.assert_array_equal(rows, stored.sample(1, (5, 5, 1), 1))
    for each in (model, stored):
        with pytest.raises(ValueError, match="cannot take 4 x 5 pixels: it was built for 5 x 5 pi"):
            each.sample(1, (4, 5, 1), 1)
