"""Narrow weights: the error of a product is within its scales, and draws are those of one model."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from causal_networks import token_network, wave_network
from laws.own_networks import PROMPTS

import onepass
from distill.model import StudentSampler
from onepass.bundles.sampling import IMAGE_OPTIONS, OWN_OPTIONS, SOUND_OPTIONS
from onepass.foundation.rules import UserError
from onepass.interface import Draw
from onepass.machine import machine, weights
from onepass.machine.compiler import entry
from onepass.machine.kernels import BFLOAT16, INT8, LANES, multiply_kind, pad_channels
from onepass.machine.machine import StepMachine
from onepass.machine.weights import WEIGHTS, multiples_of, pack_matrix, scales_of
from onepass.testing import Subject, check_law

NARROW = ("bfloat16", "int8")
KINDS = {"bfloat16": BFLOAT16, "int8": INT8}


@pytest.fixture(autouse=True)
def all_weights(monkeypatch):
    """Let the smallest matrix be worth fewer bytes."""
    monkeypatch.setattr(weights, "WORTH_NARROWING", 1)


@entry
def times(kind, y, y_stride, w, x, x_stride, rows, inputs, vectors):
    multiply_kind(kind, y, y_stride, w, x, x_stride, rows, inputs, vectors, y, y_stride)


def narrow_matrix(matrix, kind):
    """Return the float32 matrix [inputs, outputs] that products with a matrix of a kind compute."""
    if kind == INT8:
        return multiples_of(matrix, scales_of(matrix)) * scales_of(matrix)
    return matrix.astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)


def product(x, matrix, kind, begun=0.0):
    """Return `begun` + x [rows, inputs] times a matrix, by the kernel."""
    x, wide = np.ascontiguousarray(x, np.float32), pad_channels(matrix.shape[1])
    y, packed = np.full([len(x), wide], begun, np.float32), pack_matrix(matrix, kind)
    places = [each.ctypes.data for each in (y, packed, x)]
    times(kind, places[0], 4 * wide, places[1], places[2], 4 * x.shape[1], *x.shape, wide // LANES)
    return y[:, : matrix.shape[1]]


def corner(name):
    """Return a matrix [23, 150]: of three widths of panels, and not of whole ones."""
    matrix = np.random.default_rng(0).normal(size=[23, 150]).astype(np.float32)
    if name == "zeros":
        matrix[:, 3:80] = 0.0
    elif name == "one huge":
        matrix[5, ::2] = 1e30
    elif name == "subnormal":
        matrix *= np.float32(1e-39)
    elif name == "one input":
        matrix = matrix[:1]
    return matrix


@pytest.mark.parametrize("rows", [1, 3, 7])
@pytest.mark.parametrize("name", ["plain", "zeros", "one huge", "subnormal", "one input"])
@pytest.mark.parametrize("kind", NARROW)
def test_the_error_of_a_product_is_within_the_bound_of_its_scales(kind, name, rows):
    matrix, code = corner(name), KINDS[kind]
    x = np.random.default_rng(1).normal(size=[rows, len(matrix)]).astype(np.float32)
    made, exact = product(x, matrix, code), x.astype(float) @ matrix.astype(float)
    stored = narrow_matrix(matrix, code)
    of_weight = scales_of(matrix) / 2 if kind == "int8" else np.abs(matrix) / 2**8 + 1e-40
    assert (np.abs(stored.astype(float) - matrix) <= 1.0001 * of_weight).all()
    np.testing.assert_array_equal(stored[matrix == 0.0], 0.0)
    rounding = 1e-5 * (np.abs(x).astype(float) @ np.abs(stored).astype(float)) + 1e-44
    if kind == "int8":  # the inputs have 16 bits
        rounding += np.abs(x).max(1, keepdims=True) / 65_533 * np.abs(stored.astype(float)).sum(0)
    assert (np.abs(made - x.astype(float) @ stored.astype(float)) <= rounding).all()
    lost = np.abs(x).astype(float) @ np.broadcast_to(of_weight, matrix.shape)
    assert (np.abs(made - exact) <= 1.0001 * lost + rounding).all()
    for row in range(rows):  # a row alone is the row in a batch
        np.testing.assert_array_equal(product(x[row : row + 1], matrix, code)[0], made[row])
    moved = product(x, matrix, code, begun=2.0)
    np.testing.assert_allclose(moved, made + np.float32(2.0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 40])
def test_an_input_that_is_not_finite_is_nan_in_its_own_row_alone(value, place):
    matrix = np.random.default_rng(0).normal(size=[41, 150]).astype(np.float32)
    x = np.ones([3, 41], np.float32)
    expected = product(x, matrix, INT8)
    x[1, place] = value
    made = product(x, matrix, INT8)
    assert np.isnan(made[1]).all()
    np.testing.assert_array_equal(made[[0, 2]], expected[[0, 2]])


@pytest.mark.parametrize("inputs", [516, 3072, 50_000])
def test_the_largest_sums_do_not_overflow(inputs):
    matrix = np.full([inputs, 16], -0.3, np.float32)
    for largest in (1e-20, 1.0, 1e20):
        made = product(np.full([1, inputs], largest), matrix, INT8)
        np.testing.assert_allclose(made, -0.3 * largest * inputs, rtol=1e-3)
    assert not product(np.zeros([1, inputs]), matrix, INT8).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_matrix_that_is_not_finite_and_one_of_whole_numbers_stay_float32(value):
    matrix = corner("plain")
    assert weights.kind_of(matrix, INT8) == INT8
    matrix[4, 7] = value
    assert weights.kind_of(matrix, INT8) == 0
    assert weights.kind_of(np.tri(9, dtype=np.float32), INT8) == 0


def rounded(x, kind):
    """Return the inputs of a product as int8 products read them: whole multiples of a scale."""
    scale = np.abs(x).max() / min(32767, (2**31 - 1) // 127 // x.size)
    return np.rint(x / scale) * scale if kind == "int8" else x


@pytest.mark.parametrize("kind", NARROW)
def test_a_step_is_the_step_in_numpy_with_the_same_rounded_weights(kind):
    draws = np.random.default_rng(3)
    table, first, second = (
        draws.normal(size=size).astype(np.float32) for size in ([11, 37], [37, 150], [150, 5])
    )

    def step(symbol, state):
        hidden = tf.tanh(tf.gather(table, symbol[0]) @ first + state)
        return [hidden @ second], [hidden]

    state = [tf.zeros([1, 150])]
    symbols = draws.integers(0, 11, [2, 9, 1, 1])
    made = StepMachine(step, [tf.TensorSpec([1, 1], tf.int32)], [], state, kind)
    (found,) = made.run(made.begin(2, [], state), symbols)
    code = KINDS[kind]
    rows = narrow_matrix(table.T, code).T  # of a table, each row has a scale
    products = [narrow_matrix(matrix, code) for matrix in (first, second)]
    for row in range(2):
        hidden = np.zeros(150, np.float32)
        for time in range(9):
            given = rounded(rows[symbols[row, time, 0, 0]], kind)
            hidden = np.tanh(given @ products[0] + hidden)
            expected = rounded(hidden, kind) @ products[1]
            np.testing.assert_allclose(found[row, time, 0], expected, rtol=1e-4, atol=3e-4)


@functools.cache
def gpt():
    keras.utils.set_random_seed(4)
    tokens = keras.Input([None], dtype="int32")
    h = keras.layers.Embedding(32, 48)(tokens)
    h = h + keras.layers.MultiHeadAttention(2, 24)(h, h, use_causal_mask=True)
    h = h + keras.layers.Dense(48)(keras.layers.Dense(150, activation="gelu")(h))
    network = keras.Model(tokens, keras.layers.Dense(32, name="logits")(h))
    network.get_layer("logits").kernel.assign(network.get_layer("logits").kernel * 4.0)
    return onepass.Autoregressive(network, onepass.likelihoods.Categorical(32))


@functools.cache
def sounds():
    keras.utils.set_random_seed(4)
    stack = []
    for dilation in (1, 3, 40):
        options = dict(dilation_rate=dilation, padding="causal", activation="tanh")
        stack += [keras.layers.Conv1D(40, 3, **options), keras.layers.Dense(40)]
    mixture = onepass.likelihoods.LogisticMixture(levels=65536, components=4)
    return onepass.Autoregressive(wave_network(*stack, keras.layers.Dense(12)), mixture)


def wide(levels, width, *stack):
    network = token_network(keras.layers.Embedding(levels, width), *stack)
    return onepass.Autoregressive(network, onepass.likelihoods.Categorical(levels))


@pytest.mark.parametrize("make", [gpt, sounds])
def test_float32_is_the_default_to_the_last_bit(make):
    model = make()
    expected = model.sample(2, 40, seed=3)
    np.testing.assert_array_equal(model.sample(2, 40, seed=3, weights="float32"), expected)


LAWS = (
    *("chunks_are_the_whole", "a_row_depends_on_no_other_row", "a_shorter_draw_is_a_beginning"),
    "a_prefix_is_continued",
)


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("make", [gpt, sounds])
def test_draws_of_narrow_weights_obey_the_laws_and_are_scored_otherwise(make, kind):
    subject = Subject(make(), 61, num=5, seed=3, options={"weights": kind})
    assert [check_law(law, subject) for law in LAWS] == [""] * len(LAWS)
    nats = subject.model.log_prob(subject.draws, weights=kind).numpy()
    assert (nats != subject.model.log_prob(subject.draws).numpy()).any()


@functools.cache
def rounded_gpt(kind):
    """Return the model of float32 weights that are those of `gpt` as a kind stores them."""
    model, code = gpt(), KINDS[kind]
    network = keras.models.clone_model(model.network)
    for old, new in zip(model.network.weights, network.weights, strict=True):
        value = np.asarray(old)
        if "embed" in old.path:  # each row of a table has a scale
            value = narrow_matrix(value.T, code).T
        elif value.ndim > 1:
            inputs = 2 if "attention_output" in old.path else 1
            flat = value.reshape([int(np.prod(value.shape[:inputs])), -1])
            value = narrow_matrix(flat, code).reshape(value.shape)
        new.assign(value)
    return onepass.Autoregressive(network, onepass.likelihoods.Categorical(32))


@pytest.mark.parametrize("kind", NARROW)
def test_draws_are_those_of_a_network_with_rounded_weights(kind):
    model, other = gpt(), rounded_gpt(kind)
    drawn, nats = model.sample(3, 50, seed=1, weights=kind, return_log_prob=True)
    np.testing.assert_allclose(other.log_prob(drawn), nats, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(model.log_prob(drawn, weights=kind), nats, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(other.sample(3, 50, seed=1)[:, :20], drawn[:, :20])


@pytest.mark.parametrize("name", PROMPTS)
def test_options_draw_what_they_draw_of_a_network_with_rounded_weights(name):
    options, kind = PROMPTS[name], "int8"
    subject = Subject(gpt(), 40, seed=1, options=options | {"weights": kind})
    expected = np.asarray(rounded_gpt(kind).sample(3, 40, seed=1, **options))
    np.testing.assert_array_equal(subject.draws[:, :20], expected[:, :20])  # then rounding others
    assert (subject.draws != gpt().sample(3, 40, seed=1, weights=kind)).any()
    assert [check_law(law, subject) for law in LAWS[:2]] == ["", ""]


@pytest.mark.parametrize("kind", NARROW)
def test_a_state_draws_what_its_prefix_draws_with_narrow_weights(kind):
    model, state = gpt(), gpt().read([3, 4, 5], 30)  # what it keeps is of float32 weights
    expected = model.sample(2, 30, seed=1, weights=kind, prefix=[3, 4, 5])
    np.testing.assert_array_equal(model.sample(2, 30, seed=1, weights=kind, state=state), expected)


def test_drawing_ends_once_every_row_has_ended(monkeypatch):
    model, run, steps = gpt(), StepMachine.run, []

    def counting(machine, workspaces, *given):
        steps.append(given[0].shape[1])
        return run(machine, workspaces, *given)

    monkeypatch.setattr(StepMachine, "run", counting)
    drawn = np.asarray(model.sample(2, 600, seed=1, weights="int8", stop=list(range(0, 32, 2))))
    assert (drawn[:, -1] % 2 == 0).all() and sum(steps) <= 64


def test_the_machine_holds_fewer_bytes():
    model, sizes = wide(64, 256, keras.layers.Dense(256), keras.layers.Dense(64)), {}
    for kind in WEIGHTS:
        model.sample(1, 3, weights=kind)
        name = "Native" if kind == "float32" else "NativePrompted"
        (made,) = model.samplers._on_machine(name, kind)._machines.values()
        sizes[kind] = made.program.constants.nbytes
    assert sizes["bfloat16"] < 0.55 * sizes["float32"]
    assert sizes["int8"] < 0.32 * sizes["float32"]


def test_new_weights_are_read_by_the_next_call():
    keras.utils.set_random_seed(2)
    model = wide(8, 40, keras.layers.Dense(8))
    drawn = model.sample(1, 30, weights="int8")
    before = model.log_prob(drawn, weights="int8").numpy()
    for variable in model.network.variables:
        variable.assign(variable * 3.0)
    after = model.log_prob(drawn, weights="int8").numpy()
    assert np.abs(after - before).max() > 0.01
    np.testing.assert_allclose(after, model.log_prob(drawn), atol=0.3)


@pytest.mark.parametrize("method", ["naive", "cached", "fixed-point"])
def test_other_methods_are_refused_in_one_line(method):
    expected = f"^`weights` must be float32 for the method '{method}', got int8.$"
    with pytest.raises(UserError, match=expected):
        gpt().sample(2, 9, weights="int8", method=method)


def test_an_unknown_type_and_an_operation_that_the_machine_lacks_are_refused():
    with pytest.raises(UserError, match="`weights` must be one of float32, bfloat16, int8, got"):
        gpt().sample(1, 5, weights="int4")
    strange = keras.layers.Lambda(lambda x: tf.math.digamma(x * x + 1.0), name="strange")
    network = wave_network(keras.layers.Dense(4), strange, keras.layers.Dense(2))
    model = onepass.Autoregressive(network, onepass.likelihoods.Gaussian(levels=256))
    for ask in (
        lambda: model.sample(1, 5, weights="int8"),
        lambda: model.stream(1, 5, weights="int8"),
        lambda: model.log_prob(np.zeros([1, 5]), weights="int8"),
    ):
        with pytest.raises(UserError, match="for this network: Digamma of Digamma: the step"):
            ask()


def test_what_does_not_run_on_the_machine_has_no_such_option():
    for options in (OWN_OPTIONS, SOUND_OPTIONS, IMAGE_OPTIONS, StudentSampler.options):
        assert "weights" not in options  # served models, and a student


def test_the_types_of_the_option_are_those_of_the_machine():
    (field,) = [each for each in Draw.__dataclass_fields__.values() if each.name == "weights"]
    assert field.type.__args__ == WEIGHTS


@pytest.mark.parametrize("make", [gpt, sounds])
def test_evaluate_says_the_cost_in_nats_on_the_same_data(make):
    model = make()
    data = model.sample(6, 80, seed=8)
    exact = onepass.evaluate(model, data, batch_size=4)
    assert exact.cost is None
    costs = {}
    for kind in NARROW:
        found = onepass.evaluate(model, data, batch_size=4, weights=kind)
        assert found.elements == exact.elements and found.cost.n == 6
        assert found.cost.mean == pytest.approx(found.nats.mean - exact.nats.mean, abs=1e-6)
        assert found.cost.low < found.cost.mean < found.cost.high
        costs[kind] = abs(found.cost.mean)
    assert 0 < costs["bfloat16"] < 0.1 and 0 < costs["int8"] < 0.1


def test_threads_that_divide_narrow_products_draw_what_one_draws(monkeypatch):
    model = sounds()
    alone = [np.asarray(model.sample(num, 53, seed=2, weights="int8")) for num in (1, 4)]
    monkeypatch.setattr(machine, "_LOST", 10**9)
    monkeypatch.setattr(machine, "_WORTH_A_MEMBER", 1)
    monkeypatch.setattr(machine, "_WORTH_A_THREAD", 1)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    monkeypatch.setattr(machine.Pace, "choose", lambda pace: True)
    for num, expected in zip((1, 4), alone, strict=True):
        drawn = model.sample(num, 53, seed=2, weights="int8")
        np.testing.assert_array_equal(drawn, expected)
