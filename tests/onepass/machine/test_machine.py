"""The step machine gives what the derived step gives, and compiles nothing for another network."""

import dataclasses
import functools
import math

import causal_networks
import keras
import numpy as np
import pytest
import tensorflow as tf

import onepass
from onepass.likelihoods import Categorical, Tabulated
from onepass.machine import assembly, execute, formulas, machine, sides
from onepass.machine.assembly import Op, assemble_program
from onepass.machine.compiler import compiled, entry
from onepass.machine.execute import settle
from onepass.machine.lowering import Lowering
from onepass.machine.machine import Pace, StepMachine
from onepass.machine.values import Unlowerable, contiguous
from onepass.networks.causality import check_causal
from onepass.networks.conditions import NOTHING
from onepass.samplers import SAMPLERS
from onepass.samplers.native import Native, on_machine
from onepass.step import UnsupportedNetworkError


@dataclasses.dataclass(frozen=True)
class Binomial(Tabulated):
    """The number of heads among `levels - 1` throws of a coin."""

    levels: int = 8
    num_parameters = 1

    def log_prob(self, parameters, symbols):
        heads, throws = tf.cast(symbols, tf.float32), self.levels - 1.0
        chance = parameters[..., 0]
        ways = math.lgamma(throws + 1) - tf.math.lgamma(heads + 1)
        ways -= tf.math.lgamma(throws - heads + 1)
        return ways + heads * chance - throws * tf.nn.softplus(chance)


DISTRIBUTIONS = {
    "mixture": onepass.likelihoods.LogisticMixture(levels=65536, components=4),
    "gaussian": onepass.likelihoods.Gaussian(levels=256),
    "real": onepass.likelihoods.Gaussian(levels=None),
    "categorical": onepass.likelihoods.Categorical(32),
    "gaussians": onepass.likelihoods.GaussianMixture(levels=1024, components=3),
    "own": Binomial(),
}


def convolutions(num_parameters, channels=8):
    inputs = keras.Input([None, 1])
    h = keras.layers.Conv1D(channels, 2, padding="causal")(inputs)
    options = dict(dilation_rate=4, padding="causal")
    a = keras.layers.Conv1D(channels, 2, activation="tanh", **options)(h)
    b = keras.layers.Conv1D(channels, 2, activation="sigmoid", **options)(h)
    h = h + keras.layers.Dense(channels)(a * b)
    small = keras.initializers.RandomNormal(stddev=0.1)
    return keras.Model(inputs, keras.layers.Dense(num_parameters, kernel_initializer=small)(h))


@functools.cache
def model_of(name):
    return new_model(name)


def new_model(name):
    distribution = DISTRIBUTIONS[name]
    keras.utils.set_random_seed(3)
    return onepass.Autoregressive(convolutions(distribution.num_parameters), distribution)


def machine_of(model):
    (found,) = model.samplers._on_machine("Native")._machines.values()
    return found


@functools.cache
def native_of(model):
    found = on_machine(Native, model.symbol_network, model.distribution)
    assert found.fault(10) == ""
    return found


def noise_of(model, seed, num, shape):
    return model.layout.noise(model.distribution, seed, num, shape)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_draw_is_that_of_the_distribution_at_the_temperature_of_every_row(name):
    model = model_of(name)
    noise, temperatures = noise_of(model, 5, 3, (15,)), np.array([1.0, 0.5, 0.0], np.float32)
    drawn = native_of(model)(noise, NOTHING, temperatures)
    given = model.symbol_network, model.distribution, noise, NOTHING, temperatures[:, None]
    expected = SAMPLERS["cached"](*given)
    np.testing.assert_allclose(drawn, expected, rtol=1e-4, atol=1e-4)
    assert drawn.dtype == expected.dtype


def test_a_token_of_a_large_vocabulary_is_where_the_noise_is_in_the_exact_running_sum():
    levels, rng = 70_000, np.random.default_rng(3)
    keras.utils.set_random_seed(3)
    network = causal_networks.token_network(
        keras.layers.Embedding(levels + 1, 4), keras.layers.Dense(levels)
    )
    model = onepass.Autoregressive(network, Categorical(levels), start=levels)
    noise = rng.uniform(size=[1, 6, 1]).astype(np.float32)
    drawn = native_of(model)(tf.constant(noise), NOTHING, 1.0).numpy()
    before = np.concatenate([[[levels]], drawn[:, :-1]], 1)
    shares = np.exp(model.network(before).numpy()[0].astype(np.float64))
    sums = np.cumsum(shares, -1)
    expected = [
        np.searchsorted(row, u * row[-1], side="right")
        for row, u in zip(sums, noise.ravel(), strict=True)
    ]
    # Float32 sums in sequence would be off by many tokens; rounding of each sum may be by one.
    assert np.abs(drawn[0] - expected).max() <= 1


def two_attentions():
    tokens = keras.Input([None], dtype="int32")
    h = keras.layers.Embedding(32, 64)(tokens)
    for _ in range(2):
        h = h + keras.layers.MultiHeadAttention(2, 32)(h, h, use_causal_mask=True)
        h = h + keras.layers.Dense(64)(keras.layers.Dense(160, activation="gelu")(h))
    return onepass.Autoregressive(
        keras.Model(tokens, keras.layers.Dense(32)(h)), onepass.likelihoods.Categorical(32)
    )


def wide_convolutions():
    # 150 outputs are not a whole number of panels; lag 1 is a block of one step, 3 is in between.
    stack = []
    for dilation in (1, 3, 40):
        options = dict(dilation_rate=dilation, padding="causal", activation="tanh")
        stack += [keras.layers.Conv1D(150, 3, **options), keras.layers.Dense(150)]
    network = causal_networks.wave_network(*stack, keras.layers.Dense(12))
    return onepass.Autoregressive(network, DISTRIBUTIONS["mixture"])


@pytest.fixture
def ways(monkeypatch):
    """Whether threads work together, which alternates from piece to piece."""
    ways = []

    def alternate(pace):
        ways.append(len(ways) % 3 != 1)  # also a piece of another way in between
        return ways[-1]

    monkeypatch.setattr(Pace, "choose", alternate)
    return ways


@pytest.mark.parametrize(("threads", "patience"), [(2, 10**9), (3, 10**9), (2, -1)])
@pytest.mark.parametrize("make", [two_attentions, wide_convolutions])
def test_threads_that_divide_products_draw_what_one_draws_to_the_last_bit(
    make, threads, patience, ways, monkeypatch
):
    # Without patience, a team ends after every step.
    teams = []

    def members_of(rows, threads, together):
        teams.append(threads if together else 1)
        return members(rows, threads, together)

    members = machine._members
    monkeypatch.setattr(assembly, "_WORTH_DIVIDING", 1)
    keras.utils.set_random_seed(1)
    model = make()
    alone = [np.asarray(model.sample(num, 53, seed=2)) for num in (1, 4)]
    monkeypatch.setattr(machine, "_LOST", patience)
    monkeypatch.setattr(machine, "_LARGE", 0)
    monkeypatch.setattr(machine, "_WORTH_A_MEMBER", 1)
    monkeypatch.setattr(machine, "_WORTH_A_THREAD", 1)
    monkeypatch.setattr(machine, "cores", lambda: threads)
    monkeypatch.setattr(machine, "_members", members_of)
    ways.clear()
    for num, expected in zip((1, 4), alone, strict=True):
        np.testing.assert_array_equal(model.sample(num, 53, seed=2), expected)
    assert max(teams) == threads and {True, False} == set(ways)
    assert (len(ways) > 12) == (patience < 0)  # pieces of 16 steps, or of one


def skipping(width):
    """A network whose layers add to a sum, which is read at the end."""
    inputs = keras.Input([None, 1])
    h, total = keras.layers.Dense(width)(inputs), 0.0
    for dilation in (1, 2, 7, 20):
        options = dict(dilation_rate=dilation, padding="causal")
        z = keras.layers.Conv1D(width, 2, activation="tanh", **options)(h)
        h = (h + keras.layers.Dense(width)(z)) * 0.7
        total = total + keras.layers.Dense(64)(z)
    return onepass.Autoregressive(
        keras.Model(inputs, keras.layers.Dense(12)(total)), DISTRIBUTIONS["mixture"]
    )


@pytest.fixture
def two_sides(monkeypatch):
    """Let two threads divide the instructions of any step, large or small."""
    monkeypatch.setattr(sides, "_EXCHANGE", 1.0)
    monkeypatch.setattr(sides, "_FETCH", 0.0)
    monkeypatch.setattr(sides, "_BARRIER", 0.0)
    monkeypatch.setattr(sides, "_WORTHWHILE", 10.0)
    monkeypatch.setattr(sides, "_WORTH_HALVING", 0.0)
    monkeypatch.setattr(machine, "_WORTH_A_THREAD", 1)
    monkeypatch.setattr(machine, "cores", lambda: 2)


# 150 outputs are halved, and not a whole number of panels.
@pytest.mark.parametrize(("width", "patience"), [(40, 10**9), (150, 10**9), (40, -1)])
def test_threads_with_different_instructions_draw_what_one_draws_to_the_last_bit(
    width, patience, ways, monkeypatch, request
):
    made = []

    def divide(program):
        made.append(divide_step(program))
        return made[-1]

    divide_step = machine.divide_step
    keras.utils.set_random_seed(1)
    model = skipping(width)
    alone = [np.asarray(model.sample(num, 75, seed=2)) for num in (1, 4)]
    request.getfixturevalue("two_sides")
    monkeypatch.setattr(machine, "divide_step", divide)
    monkeypatch.setattr(machine, "_LOST", patience)
    for num, expected in zip((1, 4), alone, strict=True):
        np.testing.assert_array_equal(model.sample(num, 75, seed=2), expected)
    assert {True, False} == set(ways)
    (parts,) = made
    assert parts is not None
    early = sum(int(part[:, assembly.EARLY].sum()) for part in parts)
    assert early == 4  # past rows of the next step, of every convolution
    whole = machine_of(model).program.rows
    counts = [int((rows[:, 0] == Op.PRODUCT).sum()) for rows in (*parts, whole)]
    assert (counts[0] + counts[1] > counts[2]) == (width == 150)
    for part, other in (parts, parts[::-1]):
        waits = part[:, assembly.WAITS]
        assert set(waits[waits > 0]) == set(other[other[:, assembly.TELLS] > 0, assembly.TELLS])


@pytest.mark.parametrize("lag", [1, 20])
def test_two_threads_multiply_the_arguments_of_later_steps_as_one_does(lag, monkeypatch, two_sides):
    step, state = conditioned(lag)
    found = StepMachine(step, [tf.TensorSpec([1, 1, 24]), tf.TensorSpec([1, 1, 20])], [], state)
    given = [np.random.default_rng(n).normal(size=[2, 75, 1, 1, n]) for n in (24, 20)]
    drawn = []
    for together in (False, True):
        monkeypatch.setattr(Pace, "choose", lambda pace, together=together: together)
        workspaces = found.begin(2, [], state)
        parts = [(0, 1), (1, 18), (18, 75)]  # blocks begin anew in every chunk
        drawn.append(
            [found.run(workspaces, *(x[:, low:high] for x in given))[0] for low, high in parts]
        )
    for alone, together in zip(*drawn, strict=True):
        np.testing.assert_array_equal(together, alone)
    rows = np.concatenate(sides.divide_step(found.program))
    ahead = rows[rows[:, 0] == Op.AHEAD, assembly.EARLY].tolist()
    assert sorted(ahead) == [1] * 4 + [2] * 4  # each is computed early, and read


def test_a_thread_that_cannot_start_ends_the_others(monkeypatch):
    pool = machine.ThreadPoolExecutor

    class OneThread(pool):
        def submit(self, *arguments):
            if self._work_queue.qsize() or self._threads:
                raise RuntimeError("can't start new thread")
            return super().submit(*arguments)

    ran = []
    monkeypatch.setattr(machine, "ThreadPoolExecutor", OneThread)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        machine._run_all(ran.append, 2)
    assert not ran


def test_new_weights_are_read_by_the_next_call_and_the_next_chunk():
    model = new_model("real")
    sampler, noise = native_of(model), noise_of(model, 5, 1, (20,))
    before = sampler(noise, NOTHING, 1.0)
    _, state = sampler.advance(noise[:, :10], NOTHING, 1.0, sampler.begin(1, 20))
    for variable in model.network.variables:
        variable.assign(variable * 0.5)
    after, _ = sampler.advance(noise[:, 10:], NOTHING, 1.0, state)
    assert (after.numpy() != before[:, 10:].numpy()).any()
    fresh = on_machine(Native, model.symbol_network, model.distribution)(noise, NOTHING, 1.0)
    np.testing.assert_array_equal(sampler(noise, NOTHING, 1.0), fresh)


def test_nothing_is_compiled_for_a_second_network():
    model = model_of("real")
    native_of(model)(noise_of(model, 5, 1, (4,)), NOTHING, 1.0)
    before = execute.run.stats.cache_misses, len(execute.run.signatures)
    for name, num, length in (("categorical", 1, 9), ("gaussian", 5, 31)):
        model = model_of(name)
        native_of(model)(noise_of(model, 2, num, (length,)), NOTHING, 0.5)
    assert (execute.run.stats.cache_misses, len(execute.run.signatures)) == before
    assert len(execute.run.signatures) == 1


def test_the_machine_is_what_auto_takes_and_xla_compiles_nothing(monkeypatch):
    model = new_model("mixture")
    monkeypatch.setattr(model.samplers, "_chunk", None)  # would be compiled by XLA
    drawn = model.sample(num=2, length=15, seed=4)
    streamed = np.concatenate(list(model.stream(length=15, seed=4, num=2, chunk=7)), 1)
    np.testing.assert_array_equal(streamed, drawn)
    noise = noise_of(model, 4, 2, (15,))
    expected = SAMPLERS["cached"](model.symbol_network, model.distribution, noise)
    expected = model.codec.decode(expected)
    np.testing.assert_allclose(drawn, expected, atol=2e-4)


def unknown():
    strange = keras.layers.Lambda(lambda x: tf.math.digamma(x * x + 1.0), name="strange")
    front = keras.layers.Conv1D(4, 2, padding="causal")
    return causal_networks.wave_network(front, strange, keras.layers.Dense(2))


def test_what_the_machine_does_not_know_is_named_and_left_to_xla():
    model = onepass.Autoregressive(unknown(), DISTRIBUTIONS["gaussian"])
    found = on_machine(Native, model.symbol_network, model.distribution)
    assert "Digamma" in found.fault(10)
    assert "Digamma" in check_causal(model.network).left_to_xla
    assert check_causal(model_of("gaussian").network).left_to_xla == ""
    with pytest.raises(UnsupportedNetworkError, match="Digamma"):
        found(noise_of(model, 5, 1, (4,)), NOTHING, 1.0)
    drawn = model.sample(num=1, length=12, seed=4)
    np.testing.assert_array_equal(drawn, model.sample(num=1, length=12, seed=4, method="cached"))


HEADS, DEPTH, HORIZON = 2, 4, 12


def called(step, state, *given):
    """Return what a step gives of one row, [time, ...], time step by time step."""
    rows = []
    for at in range(len(given[0])):
        (row,), state = step(*(tf.constant(each[at], tf.float32) for each in given), *state)
        rows.append(row)
    return np.stack(rows)


def attending(kind):
    """A step with a cache of keys and values over a horizon, and its first state."""
    width = HEADS * DEPTH
    kernels = [causal_networks.variable([width, width], seed) for seed in range(4)]
    table = causal_networks.variable([HORIZON, width], 9)
    size = 5 if kind == "window" else HORIZON

    def step(inputs, position, keys, values):
        x = inputs + tf.gather(table, tf.minimum(position, HORIZON - 1))
        q, k, v = (tf.reshape(x[0] @ w, [1, 1, HEADS, DEPTH]) for w in kernels[:3])
        slot = [[position % size]] if kind == "window" else [[position]]
        keys = tf.tensor_scatter_nd_update(keys, slot, k)
        values = tf.tensor_scatter_nd_update(values, slot, v)
        seen = tf.range(size) <= position
        if kind == "matmul":
            k_first, v_first = (tf.transpose(c, [1, 2, 0, 3]) for c in (keys, values))
            scores = tf.matmul(tf.transpose(q, [0, 2, 1, 3]), k_first, transpose_b=True)
            scores += (1.0 - tf.cast(seen, tf.float32)) * -1e9
            powers = tf.exp(scores - tf.reduce_max(scores, -1, keepdims=True))
            chances = powers / tf.reduce_sum(powers, -1, keepdims=True)
            found = tf.transpose(tf.matmul(chances, v_first), [0, 2, 1, 3])
        else:
            scores = tf.einsum("bqhd,kbhd->bhqk", q, keys)
            if kind != "open":
                scores = tf.where(seen, scores, -1e9)
            found = tf.einsum("bhqk,kbhd->bqhd", tf.nn.softmax(scores), values)
        y = tf.reshape(found, [1, width]) @ kernels[3]
        return [y], [position + 1, keys, values]

    cache = tf.zeros([size, 1, HEADS, DEPTH])
    return step, [tf.constant(0), cache, cache]


@pytest.mark.parametrize("kind", ["einsum", "matmul", "window", "open"])
def test_attention_reads_only_the_rows_that_are_filled(kind):
    step, state = attending(kind)
    machine = StepMachine(step, [tf.TensorSpec([1, 1, HEADS * DEPTH])], [], state)
    # A softmax over empty rows too is another function: then nothing is left out.
    assert machine.program.rows[:, -1].any() == (kind != "open")
    inputs = np.random.default_rng(0).normal(size=[2, HORIZON, 1, 1, HEADS * DEPTH])
    workspaces = machine.begin(2, [], state)
    parts = [machine.run(workspaces, x)[0] for x in (inputs[:, :5], inputs[:, 5:])]
    expected = [called(step, state, row) for row in inputs]
    np.testing.assert_allclose(np.concatenate(parts, 1), expected, rtol=1e-5, atol=1e-5)


def fused(kind):
    """A step of one product and what is added or multiplied, and its first state."""
    kernels = [causal_networks.variable([24, 24], seed) for seed in range(3)]
    row = causal_networks.variable([24], 7)

    def step(x, before):
        x = x[0]
        if kind == "residual":
            y = (x + tf.tanh(x @ kernels[0]) @ kernels[1] + row) * 0.7
        elif kind == "difference":
            y = (x - x @ kernels[0]) - (x @ kernels[1] - x)
        elif kind == "channels":
            y = (x @ kernels[0] + row) * row * 2.0
        elif kind == "both":
            y = 0.0 + (x @ kernels[0] + before @ kernels[1]) * 1.0
        elif kind == "read twice":
            product = x @ kernels[0]
            y = (x + product) * (product * 3.0)
        else:
            y = before - (before + x @ kernels[0]) * -0.5
        return [y], [tf.tanh(y)]

    return step, [tf.ones([1, 24])]


KINDS = ["residual", "difference", "channels", "both", "read twice", "state"]


@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_factors_are_parts_of_products(kind):
    step, state = fused(kind)
    machine = StepMachine(step, [tf.TensorSpec([1, 1, 24])], [], state)
    rows = machine.program.rows
    maps = rows[rows[:, 0] == int(Op.MAP), 8].tolist()
    # The hyperbolic tangents, and what reads a product twice or is not a product's, stay.
    most = {"residual": 2, "read twice": 4, "state": 2, "difference": 2}.get(kind, 1)
    assert len(maps) <= most, [list(formulas.FUNCTIONS)[code] for code in maps]
    inputs = np.random.default_rng(0).normal(size=[3, 6, 1, 1, 24]).astype(np.float32)
    (made,) = machine.run(machine.begin(3, [], state), inputs)
    expected = [called(step, state, row) for row in inputs]
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-5)


def conditioned(step_of):
    """A step of an argument that reaches products in several ways, and its first state."""
    kernels = [causal_networks.variable([20, 24], seed) for seed in range(3)]
    ring = tf.zeros([step_of, 1, 24])

    def step(x, c, position, past):
        x, c = x[0], c[0]
        old = tf.gather(past, position % step_of)
        taps = tf.concat([old, x, c], -1) @ tf.concat([KERNEL, kernels[0]], 0)
        y = x + tf.tanh(taps + c @ kernels[1]) + 0.5 * (c[:, 2:18] @ kernels[2][2:18])
        past = tf.tensor_scatter_nd_update(past, [[position % step_of]], y[None])
        return [y], [position + 1, past]

    return step, [tf.constant(0), ring]


KERNEL = causal_networks.variable([48, 24], 5)


@pytest.mark.parametrize("lag", [1, 2, 3, 20])
def test_products_of_arguments_and_of_past_rows_are_those_of_single_steps(lag):
    step, state = conditioned(lag)
    specs = [tf.TensorSpec([1, 1, 24]), tf.TensorSpec([1, 1, 20])]
    machine = StepMachine(step, specs, [], state)
    ops = machine.program.rows[:, 0].tolist()
    assert ops.count(int(Op.AHEAD)) == 4 and ops.count(int(Op.PAST)) == 1  # `x` is given, too
    generator, time = np.random.default_rng(0), 37
    given = [generator.normal(size=[5, time, 1, 1, n]).astype(np.float32) for n in (24, 20)]
    whole = machine.run(machine.begin(5, [], state), *given)[0]
    workspaces, parts = machine.begin(5, [], state), []
    for start, stop in ((0, 1), (1, 18), (18, 37)):  # blocks begin anew in every chunk
        parts += machine.run(workspaces, *(each[:, start:stop] for each in given))
    np.testing.assert_array_equal(np.concatenate(parts, 1), whole)
    alone = machine.run(machine.begin(1, [], state), *(each[3:4] for each in given))[0]
    np.testing.assert_array_equal(alone[0], whole[3])
    expected = called(step, state, *(each[3] for each in given))
    np.testing.assert_allclose(whole[3], expected, rtol=1e-4, atol=1e-4)


def branching(clears=False, advances=1, by_input=False):
    """A machine of a step that adds products of its input and of the row five steps before."""
    weights = np.random.default_rng(0).normal(size=[32, 16]).astype(np.float32)

    def step(x, position, ring):
        def run(is_odd):
            past = ring[tf.math.floormod(position + 1, 6)][tf.newaxis]
            slot = tf.reshape(tf.math.floormod(position, 6), [1, 1])
            after = tf.tensor_scatter_nd_update(ring, slot, x)
            after = tf.zeros_like(ring) if is_odd and clears else after
            made = tf.matmul(tf.concat([past, x], 1), weights)
            made = tf.nn.relu(made) if is_odd else made
            return made, position + (advances if is_odd else 1), after

        which = tf.gather(tf.constant([0, 1]), tf.math.floormod(position, 2))
        which = tf.cast(x[0, 0] > 0.0, tf.int32) if by_input else which
        made, *states = tf.switch_case(which, [lambda: run(False), lambda: run(True)])
        return [made], states

    first = [tf.constant(0), tf.zeros([6, 16])]
    return StepMachine(step, [tf.TensorSpec([1, 16])], [], first), weights, first


def test_branches_share_the_products_of_past_rows_at_any_position_of_a_row():
    machine, weights, first = branching()
    pasts = [each.reads[4].buffer for each in machine.program.instructions if each.op is Op.PAST]
    assert len(pasts) == 2
    assert pasts[0] is pasts[1]
    x = np.random.default_rng(1).normal(size=[2, 40, 16]).astype(np.float32)
    past = np.concatenate([np.zeros([2, 5, 16], np.float32), x[:, :-5]], 1)
    expected = np.concatenate([past, x], 2) @ weights
    expected[:, 1::2] = np.maximum(expected[:, 1::2], 0.0)
    workspaces = machine.begin(2, [], first)
    (ahead,) = machine.run(workspaces[:1], x[:1, :3, None])
    (made,) = machine.run(workspaces, np.stack([x[0, 3:30], x[1, :27]])[:, :, None])
    np.testing.assert_allclose(ahead[0, :, 0], expected[0, :3], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(made[0, :, 0], expected[0, 3:30], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(made[1, :, 0], expected[1, :27], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"clears": True}, "the same rows in different ways"),
        ({"advances": 2}, "the same rows in different ways"),
        ({"by_input": True}, "not chosen by the position alone"),
    ],
)
def test_branches_that_the_machine_would_run_wrong_are_left_to_xla(options, reason):
    with pytest.raises(Unlowerable, match=reason):
        branching(**options)


@pytest.mark.parametrize("dtype", [np.float64, np.int32])
def test_products_of_doubles_and_of_whole_numbers_are_those_of_numpy(dtype):
    draws = np.random.default_rng(0)
    kept, table = (draws.integers(-9, 9, [1, 5, 4]).astype(dtype) for _ in range(2))
    kept = kept + dtype(0.1)  # is not exact in float32

    def step(x, kept):
        return [tf.matmul(x, kept), tf.matmul(x, table), tf.matmul(table, x)], [kept]

    machine = StepMachine(step, [tf.TensorSpec([1, 4, 5], dtype)], [], [tf.constant(kept)])
    given = draws.integers(-9, 9, [2, 3, 1, 4, 5]).astype(dtype) * dtype(7)
    made = machine.run(machine.begin(2, [], [kept]), given)
    for found, expected in zip(made, (given @ kept, given @ table, table @ given), strict=True):
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=1e-14, atol=1e-12)


@pytest.mark.parametrize("exponent", [-1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 2.5])
def test_a_power_known_in_advance_needs_no_function_of_single_numbers(exponent):
    def step(x):
        return [tf.pow(x, exponent) + tf.cast(tf.pow(tf.cast(x, tf.int32), 3), tf.float32)], []

    machine = StepMachine(step, [tf.TensorSpec([1, 1, 40])], [], [])
    codes = machine.program.rows[:, 8][machine.program.rows[:, 0] == int(Op.MAP)]
    assert (formulas.CODES["Pow"] in codes) == (exponent == 2.5)
    given = np.random.default_rng(0).uniform(0.0, 9.0, [2, 3, 1, 1, 40]).astype(np.float32)
    given[0, 0, ..., :2] = 0.0, 1e-12
    (made,) = machine.run(machine.begin(2, [], []), given)
    with np.errstate(divide="ignore"):
        expected = np.power(given, exponent) + given.astype(np.int32) ** 3
    np.testing.assert_allclose(made, expected.reshape(made.shape), rtol=2e-6)


KINDS = [
    *(pytest.param(name, np.float64, id=name) for name in formulas.FUNCTIONS),
    *(
        pytest.param(name, np.float32, id=f"{name}-vectors")
        for name, function in formulas.FUNCTIONS.items()
        if function.vector
    ),
]
DOMAINS = {  # of the numbers at which a function is compared
    **dict.fromkeys(("Log", "Sqrt", "Rsqrt", "Log1p", "Pow", "Lgamma"), lambda x: np.abs(x) + 1e-3),
    **dict.fromkeys(("LogicalAnd", "LogicalOr", "LogicalNot"), lambda x: x > 0),
    **dict.fromkeys(("Asin", "Acos", "Atanh"), np.tanh),
    "Acosh": lambda x: 1.0 + np.abs(x),
    "TruncateDiv": np.rint,
}


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_a_function_is_accurate(name, dtype):
    function, count = formulas.FUNCTIONS[name], 64
    generator = np.random.default_rng(1)
    given = [generator.normal(size=count) * scale for scale in (3.0, 2.0, 1.0)[: function.arity]]
    given = [DOMAINS.get(name, np.asarray)(each) for each in given]
    if name == "Select":
        given[0] = given[0] > 0
    arrays = [each.astype(dtype) for each in given]
    if name.startswith("Is"):
        arrays[0][:3] = np.inf, -np.inf, np.nan

    lowering = Lowering()
    values = [contiguous([count], dtype, kept=True) for _ in arrays]
    made = lowering.map(name, *values)
    settle(lowering, [], [made])
    program = assemble_program(lowering.assembly, [each.buffer for each in values], None)
    workspaces = program.workspace[None].copy()
    for value, array in zip(values, arrays, strict=True):
        at = program.offsets[value.buffer]
        workspaces[0, at : at + value.buffer.words] = array.view(np.float32)
    drawn = np.zeros([1, 1, count])
    rest = program.constants, workspaces, np.zeros([1, 1, 0]), drawn
    alone = np.zeros([1, 16], np.int64)
    branches = program.spans, program.clock
    execute.run(program.rows, program.position, *rest, 0, 1, 0, 1, alone, 0, *branches)
    wide = [each.astype(np.float64) for each in arrays]
    expected = formulas.fold_constants(name, wide).astype(np.float64)
    rtol, atol = (2e-6, 1e-7) if dtype is np.float32 else (1e-12, 1e-12)
    np.testing.assert_allclose(drawn[0, 0], expected, rtol=rtol, atol=atol)


def paced(pieces, seconds_of):
    """Return the ways that are chosen for pieces of which `seconds_of(piece, way)` is the time."""
    pace, ways = Pace(), []
    for piece in range(pieces):
        ways.append(pace.choose())
        pace.record(ways[-1], seconds_of(piece, ways[-1]), steps=1)
    return ways


def test_the_slower_way_of_working_is_left_and_tried_again_whatever_interrupts():
    trials, busy = 2 * Pace.RUNS, 2 * Pace.RUNS
    ways = paced(300, lambda piece, way: 2.0 if way else 1.0)
    assert not ways[0]  # with nothing known, threads apart
    assert sum(ways[:trials]) == Pace.RUNS
    assert 1 <= sum(ways[trials:]) <= 300 / Pace.LATE
    # One interruption chooses no slower way, and neither does a long piece with more to read.
    ways = paced(200, lambda piece, way: 9.0 if piece % 7 == 0 else 1.0 if way else 2.0)
    assert sum(ways[10:]) >= 186 - 5
    ways = paced(400, lambda piece, way: (1.0 if way else 1.1) * (1 if piece % 40 < 10 else 1.3))
    assert sum(ways[trials:]) >= 0.95 * (400 - trials)
    # A start next to another program is forgotten soon.
    ways = paced(300, lambda piece, way: 1.0 if not way else 9.0 if piece < busy else 0.5)
    assert not any(ways[busy : busy + 5]) and sum(ways[150:]) >= 0.85 * 150


def _doubled(number):
    return 2 * number


def test_a_disk_that_refuses_keeps_no_kernel_from_running(monkeypatch):
    def refused(*arguments):
        raise PermissionError

    made = entry(_doubled)
    for name in ("load", "save"):
        monkeypatch.setattr(made._cache._cache_file, name, refused)
    assert made(21) == 42


@compiled
def _scaled(values, factor):
    for i in range(len(values)):
        values[i] *= factor
    return values[0]


@compiled
def _scaled_twice(values, factor):
    return _scaled(values, factor) + _scaled(values, factor)


@entry
def _run(values, factor):
    return _scaled_twice(values, factor) + _scaled(values, 1)


def test_functions_that_compiled_ones_call_are_linked_for_each_type_and_refuse_other_callers():
    for kind in (np.float32, np.float64):
        values = np.arange(1, 4, dtype=kind)
        assert _run(values, 2.0) == 2 + 4 + 4
        np.testing.assert_array_equal(values, [4, 8, 12])
    with pytest.raises(TypeError, match="`_scaled` must be called by compiled functions"):
        _scaled(np.ones(1), 2.0)
