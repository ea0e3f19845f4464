"""A prefix is read once, and what is drawn of its state is, to the bit, what is drawn of it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from causal_networks import token_network, wave_network
from laws.own_networks import model, tokens
from laws.table import subject_of
from marks import some_slow
from networks import condition_of, network_of
from vocoders import vocoder_of

import onepass
from onepass.foundation.rules import UserError
from onepass.likelihoods import Categorical, Integers
from onepass.model import Autoregressive
from onepass.samplers.sampling import Samplers
from wavenet.samplers.symbols import autoregressive

LENGTH, SEED, NUM = 30, 5, 3
# Networks with and without a horizon, of integers and reals, with channels and conditions.
QUICK = ("rotary", "recurrent", "own distribution", "conditions", "codes", "start")
SLOW = ("windowed", "mini gpt", "embedding", "mu-law", "integers", "memory", "stereo", "scan")


def begun(name, count):
    """The first elements of a draw."""
    return subject_of(name).draws[0, :count]


def given_of(name, num=1):
    """The condition of some rows, the same for each."""
    return subject_of(name).condition_of([0] * num)


@pytest.mark.parametrize("name", some_slow([*QUICK, *SLOW], SLOW))
def test_a_state_draws_to_the_bit_what_its_prefix_draws(name):
    condition = given_of(name)
    for count in (1, 12, LENGTH):
        prefix, made = begun(name, count), model(name)
        state = made.read(prefix, LENGTH, condition)
        given = (NUM, LENGTH, SEED, given_of(name, NUM))
        drawn = made.sample(*given, state=state)
        np.testing.assert_array_equal(drawn, made.sample(*given, prefix=prefix))
        np.testing.assert_array_equal(drawn, made.sample(*given, state=state))
        np.testing.assert_array_equal(drawn[:, :count], np.stack([prefix] * NUM))
    parts = list(made.stream(*given, state=state, chunk=7))
    expected = list(made.stream(*given, prefix=prefix, chunk=7))
    np.testing.assert_array_equal(np.concatenate(parts, 1), np.concatenate(expected, 1))


OPTIONS = {
    "penalties": {"repetition_penalty": 1.7, "presence_penalty": 0.5, "min_length": 25, "stop": 4},
    "choice": {"top_k": 3, "temperature": [0.5, 1.0, 2.0], "allowed": [2, 4, 9]},
    "log-probabilities": {"return_log_prob": True},
    "passes": {"method": "fixed-point"},
    "naive": {"method": "naive"},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_a_state_takes_every_option_that_a_prefix_takes(case):
    made, prefix, options = model("rotary"), tokens(20), OPTIONS[case]
    state = made.read(prefix, LENGTH)
    drawn = made.sample(NUM, LENGTH, SEED, state=state, **options)
    expected = made.sample(NUM, LENGTH, SEED, prefix=prefix, **options)
    np.testing.assert_array_equal(np.asarray(drawn), np.asarray(expected))


def test_a_row_of_a_state_is_the_row_of_its_prefix_in_a_ragged_batch():
    made, prefixes = model("rotary"), [tokens(1), tokens(20), tokens(12)]
    ragged = made.sample(NUM, LENGTH, SEED, prefix=prefixes)
    for row, prefix in enumerate(prefixes):
        drawn = made.sample(NUM, LENGTH, SEED, state=made.read(prefix, LENGTH))
        np.testing.assert_array_equal(drawn[row], ragged[row])


@pytest.fixture
def reads(monkeypatch):
    """The shapes of the symbols that were read ahead of a draw."""
    shapes, read = [], Samplers._read_symbols

    def count(self, symbols, condition, state):
        shapes.append(tuple(symbols.shape))
        return read(self, symbols, condition, state)

    monkeypatch.setattr(Samplers, "_read_symbols", count)
    return shapes


def test_many_continuations_read_their_prefix_once(reads):
    made, prefix = model("rotary"), tokens(20)
    state = made.read(prefix, LENGTH)
    for seed in range(3):
        made.sample(NUM, LENGTH, seed, state=state)
    list(made.stream(NUM, LENGTH, 1, state=state))
    assert reads == [(1, 20)]
    made.sample(NUM, LENGTH, 1, prefix=prefix)  # all rows have one prefix
    assert reads == [(1, 20)] * 2
    made.sample(2, LENGTH, 1, prefix=[prefix, tokens(25, seed=2)])  # no rows have
    assert reads == [(1, 20)] * 2 + [(2, 20)]


def test_rows_of_another_horizon_read_the_prefix_once_more(reads):
    made, prefix = model("rotary"), tokens(20)
    state = made.read(prefix)
    for length in (LENGTH, 200, 200, LENGTH, 64):
        drawn = made.sample(NUM, length, SEED, state=state)
        expected = made.sample(NUM, length, SEED, prefix=prefix)
        np.testing.assert_array_equal(drawn, expected)
    assert [each.length for each in state.kept] == [16, 16]
    assert len(reads) == 2 + 5


@pytest.mark.parametrize("name", ["rotary", "recurrent", "conditions", "codes"])
def test_a_state_that_was_saved_draws_the_same(name, tmp_path):
    made, condition = model(name), given_of(name)
    state = made.read(begun(name, 12), LENGTH, condition)
    state.save(tmp_path / "prefix.state")
    stored = onepass.PrefixState.load(tmp_path / "prefix.state")
    assert len(stored) == 12
    given = (NUM, LENGTH, SEED, given_of(name, NUM))
    np.testing.assert_array_equal(
        made.sample(*given, state=stored), made.sample(*given, state=state)
    )


def refused(words, call, *arguments, **options):
    with pytest.raises(ValueError, match=words) as error:
        call(*arguments, **options)
    assert "\n" not in str(error.value)


def convolved(activation="tanh", seed=1):
    keras.utils.set_random_seed(seed)
    convolution = keras.layers.Conv1D(4, 2, padding="causal", activation=activation)
    network = token_network(keras.layers.Embedding(7, 3), convolution, keras.layers.Dense(6))
    return Autoregressive(network, Categorical(6), start=6)


def test_a_state_of_another_model_or_of_other_weights_is_refused():
    made = convolved()
    state = made.read([1, 2, 3])
    np.testing.assert_array_equal(  # as another process makes it
        convolved().sample(1, 9, 1, state=state), made.sample(1, 9, 1, state=state)
    )
    for other in (convolved(seed=2), convolved("sigmoid"), model("start")):
        refused("`state` must be of the model that draws", other.sample, 1, 9, state=state)
        refused("`state` must be of the model that draws", other.stream, 1, 9, state=state)
    made.network.layers[-1].bias.assign_add([0.0, 1e-3, 0.0, 0.0, 0.0, 0.0])
    refused("got one of another model or other weights", made.sample, 1, 9, state=state)


def test_a_state_of_another_condition_is_refused_in_any_row():
    made, condition = model("conditions"), given_of("conditions")
    state = made.read(begun("conditions", 12), LENGTH, condition)
    later = {**condition, "mel": condition["mel"].copy()}
    later["mel"][:, 12:] += 1.0
    made.sample(1, LENGTH, SEED, later, state=state)  # what follows the prefix may differ
    for name, place in (("mel", (1, 11)), ("speaker", 1), ("memory", (1, 4))):
        other = given_of("conditions", 2)
        other[name][place] += 1
        words = "`condition` must be, for the 12 elements of `state`"
        refused(words, made.sample, 2, LENGTH, SEED, other, state=state)


def test_what_is_no_state_is_refused_in_one_line():
    made = model("rotary")
    state = made.read(tokens(12), LENGTH)
    refused("`state` must be what `read` returns, got 3", made.sample, 1, LENGTH, state=3)
    refused(
        "`prefix` must be None next to `state`", made.sample, 1, LENGTH, state=state, prefix=[1]
    )
    refused("`prefix` must be at most as long as `length`, 11", made.sample, 1, 11, state=state)
    refused("`prefix` must have at least one element, got none", made.read, [])
    refused(r"`prefix` must have 1 rows", made.read, tokens(2, 4))
    refused(r"in \[0, 12\]", made.read, [13])
    refused("`prefix` must be at most as long as `length`, 3", made.read, tokens(4), 3)
    refused("`read` needs a model in time order, got raster", model("images").read, [1])
    refused("reads no prefix ahead of a draw", student().read, [0.5])
    stepless = Autoregressive(
        Stepless(), Categorical(6), inputs=tf.TensorSpec([None, None], tf.int32)
    )
    refused("it is written for all steps at once", stepless.read, [1])


class Stepless(tf.Module):
    no_step = "it is written for all steps at once"

    def __call__(self, tokens):
        return tf.one_hot(tokens, 6)


def student():
    return onepass.FlowStudent([wave_network(keras.layers.Dense(2))], Integers(4))


def test_a_damaged_file_is_refused_in_one_line(tmp_path):
    path, load = tmp_path / "state", onepass.PrefixState.load
    refused("no such file", load, path)
    model("rotary").read(tokens(12), LENGTH).save(path)
    content = path.read_bytes()
    for damaged in (b"", content[:100], content[:-1], content + b"0", b"\xff" * 64):
        path.write_bytes(damaged)
        refused("state is damaged: it is not the state of a prefix that was saved", load, path)
    for place in (8, 30, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(UserError, match="damaged"):
            load(path)


@pytest.mark.parametrize("method", ["auto", "cached"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: network_of("softmax, speakers"),
        lambda: network_of("mixture, context"),
        lambda: vocoder_of("bunches of 4"),
    ],
)
def test_a_wavenet_continues_from_its_state_whole_blocks_or_not(make, method):
    network = make()
    made, block = autoregressive(network), network.config.block_samples
    condition = condition_of(network, 1, 48)
    sound = made.sample(1, 48, 3, condition)[0]
    for count in (block, block + 3):
        state = made.read(sound[:count], 48, condition)
        given = (2, 48, SEED, None if condition is None else np.repeat(condition, 2, 0))
        np.testing.assert_array_equal(
            made.sample(*given, state=state, method=method),
            made.sample(*given, prefix=sound[:count], method=method),
        )
