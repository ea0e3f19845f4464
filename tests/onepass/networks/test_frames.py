"""Conditions at a frame rate: computed once for each call, whole, and cut at the sequence."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from causal_networks import BANDS, HOP, steps, vocoder
from runs import eagerly

import onepass
from onepass.likelihoods import Categorical, Gaussian, Integers
from onepass.model import Autoregressive
from onepass.testing import Subject, check_law

FRAMES, NUM = 6, 2
LENGTH = HOP * FRAMES
RANDOM = np.random.default_rng(0)
MEL = RANDOM.normal(size=[NUM, FRAMES, BANDS]).astype(np.float32)
SPEC = onepass.Frames([None, None, BANDS], hop=HOP)
layers = keras.layers


def model_of(network, **conditions):
    return Autoregressive(network, Gaussian(levels=256), conditions=conditions or {"mel": SPEC})


@functools.cache
def model():
    return model_of(vocoder())


def drawn(model, length=LENGTH, condition=MEL, **options):
    return model.sample(NUM, length, 1, condition, **options)


def test_both_parts_together_are_the_network():
    symbols = model().symbol_network
    wave = tf.constant(RANDOM.normal(size=[NUM, LENGTH, 1]), tf.float32)
    made = symbols.hoisted.once({"mel": tf.constant(MEL)}, LENGTH)
    found = symbols.hoisted(wave, *made.values())
    whole = model().network([wave, tf.constant(MEL)])
    np.testing.assert_allclose(found, whole, 1e-5, 1e-6)


def names_in_step(model):
    program = model.symbol_network.stepped.program(1)
    return {scope for op in program.graph.get_operations() for scope in op.name.split("/")}


def test_a_step_computes_nothing_of_the_frames_alone():
    names = names_in_step(model())
    assert "past" in "".join(names)
    assert not [n for n in names if n.startswith(("up", "smooth"))]
    types = {op.type for op in model().symbol_network.stepped.program(1).graph.get_operations()}
    assert "Conv2DBackpropInput" not in types


def test_looking_ahead_in_frames_is_no_leak_but_in_the_sequence_it_is():
    assert onepass.check_causal(vocoder(), condition={"mel": SPEC}).has_step
    x = drawn(model())
    later = MEL + np.eye(FRAMES)[-1][None, :, None].astype(np.float32)
    change = model().conditionals(x, later) - model().conditionals(x, MEL)
    assert np.abs(change)[:, LENGTH - HOP - 2].max() > 0
    leak = vocoder(after=layers.Conv1D(4, 3, padding="same", name="leak"))
    with pytest.raises(onepass.NotCausalError, match="leak"):
        model_of(leak)
    found = onepass.check_causal(leak, condition={"mel": SPEC})
    assert not found and "leak" in found.message


def test_a_cut_sequence_keeps_its_log_probabilities():
    x = drawn(model())
    nats = model().log_prob(x, MEL).numpy()
    np.testing.assert_allclose(model().log_prob(x[:, :-2], MEL), nats[:, :-2], 1e-5, 1e-5)
    ends = np.array([LENGTH - 9, LENGTH])
    cut = model().log_prob(x, MEL, lengths=ends)
    np.testing.assert_allclose(cut[0, : ends[0]], nats[0, : ends[0]], 1e-5, 1e-5)
    assert not np.any(cut[0, ends[0] :])
    np.testing.assert_allclose(model().log_prob(x, MEL[0])[0], nats[0], 1e-5, 1e-5)


@pytest.mark.parametrize("frames", [FRAMES - 1, FRAMES + 1, LENGTH])
def test_another_number_of_frames_is_refused_in_one_line(frames):
    given = np.zeros([NUM, frames, BANDS])
    with pytest.raises(ValueError, match=rf"\(2, 6, 5\), frames of 4 time steps, got.*{frames}"):
        drawn(model(), condition=given)
    with pytest.raises(ValueError, match="frames of 4 time steps") as error:
        model().log_prob(np.zeros([NUM, LENGTH]), given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"hop": 0}, "`hop` must be an integer of at least 1, got 0"),
        ({"hop": 2.5}, "`hop` must be an integer of at least 1, got 2.5"),
        ({"hop": 2, "extra": -1}, "`extra` must be an integer of at least 0, got -1"),
        ({"hop": 2, "shape": [None, 5]}, r"`shape` of Frames must be \[None, None, ...\]"),
    ],
)
def test_an_impossible_frame_rate_is_refused(given, text):
    with pytest.raises(ValueError, match=text):
        onepass.Frames(**{"shape": [None, None, 3], **given})


def test_frames_of_a_spec_have_its_shape_and_dtype():
    spec = onepass.Frames(tf.TensorSpec([None, None, 3], tf.int32), hop=256)
    assert (spec.shape.as_list(), spec.dtype, spec.hop) == ([None, None, 3], tf.int32, 256)
    assert [spec.count(n) for n in (1, 256, 257)] == [1, 1, 2]


class Extra(tf.Module):
    """A vocoder whose convolution of frames pads nothing, so that it reads two more frames."""

    def __init__(self):
        super().__init__()
        random = np.random.default_rng(1)
        self.kernel = tf.Variable(random.normal(size=[3, BANDS, 4]), dtype=tf.float32)
        self.out = tf.Variable(random.normal(size=[5, 2]), dtype=tf.float32)

    def __call__(self, waves, mel):
        frames = tf.nn.conv1d(mel, self.kernel, 1, "VALID")
        up = tf.tanh(tf.repeat(frames, HOP, axis=1))
        return tf.concat([waves, up], -1) @ self.out


def test_frames_beyond_the_sequence_are_read():
    made = model_of(Extra(), mel=onepass.Frames([None, None, BANDS], hop=HOP, extra=2))
    mel = RANDOM.normal(size=[NUM, FRAMES + 2, BANDS]).astype(np.float32)
    x = drawn(made, condition=mel)
    np.testing.assert_array_equal(drawn(made, condition=mel, method="naive"), x)
    with pytest.raises(ValueError, match="frames of 4 time steps"):
        drawn(made, condition=mel[:, 2:])


def test_an_encoder_that_reads_frames_in_both_directions_is_computed_once():
    encoder = layers.Bidirectional(layers.GRU(3, return_sequences=True), name="encoder")
    made = model_of(vocoder(encoder))
    x = drawn(made)
    np.testing.assert_array_equal(drawn(made, method="naive"), x)
    types = {op.type for op in made.symbol_network.stepped.program(1).graph.get_operations()}
    assert "While" not in types and "StatelessWhile" not in types


def together(waves, speaker, memory, mel, timed):
    """Return parameters that read a condition of each kind; the mean of frames has no time axis."""
    up = tf.repeat(mel, HOP, axis=1) * (1.0 + tf.one_hot(speaker, BANDS)[:, None])
    whole = tf.reduce_mean(mel[:, 1:], 1, keepdims=True)
    scores = tf.nn.softmax(waves @ tf.ones([1, 3]) @ tf.transpose(memory, [0, 2, 1]))
    read = scores @ memory
    return tf.cumsum(waves, 1) * 0.1 + up[..., :2] + whole[..., :2] + read[..., :2] + timed


def test_conditions_of_every_kind_go_together():
    made = model_of(
        together,
        speaker=tf.TensorSpec([None], tf.int32),
        memory=onepass.Memory([None, None, 3]),
        mel=SPEC,
        timed=tf.TensorSpec([None, None, 2]),
    )
    given = {
        "speaker": np.array([1, 3]),
        "memory": RANDOM.normal(size=[NUM, 7, 3]),
        "mel": MEL,
        "timed": RANDOM.normal(size=[NUM, LENGTH - 1, 2]),
    }
    subject = Subject(made, LENGTH - 1, given, num=NUM)
    for law in ("methods_agree", "a_row_depends_on_no_other_row"):
        assert check_law(law, subject) == ""
    data = onepass.compress(made, subject.draws, condition=given)
    found = onepass.decompress(made, data, condition=given)
    np.testing.assert_array_equal(found, subject.draws)
    with pytest.raises(ValueError, match=r"mel: float32 \[num, frames of 4, 5\]"):
        drawn(made, condition=MEL)


def attending(waves, mel):
    scores = tf.nn.softmax(waves @ tf.ones([1, BANDS]) @ tf.transpose(mel, [0, 2, 1]))
    return scores @ mel[..., :2] + tf.repeat(mel, HOP, axis=1)[..., :2]


TWO_RATES = {f"of {hop}": onepass.Frames([None, None, 2], hop=hop) for hop in (2, 4)}


@pytest.mark.parametrize(
    ("network", "options", "text"),
    [
        (attending, {}, r"frames, where there are .* onepass.Memory"),
        (lambda waves, a, b: waves, {"conditions": TWO_RATES}, r"same for all .*got \[2, 4\]"),
        (lambda images, mel: images, {"order": "raster"}, "must have no Frames in raster order"),
    ],
)
def test_frames_that_a_model_cannot_read_are_refused(network, options, text):
    with pytest.raises(ValueError, match=text):
        Autoregressive(network, Gaussian(levels=256), **{"conditions": {"mel": SPEC}} | options)


def test_a_table_of_positions_has_rows_for_whole_frames():
    keras.utils.set_random_seed(1)
    table = tf.Variable(tf.random.stateless_normal([40, 2], [1, 2]))

    def network(waves, mel):
        return tf.cumsum(waves, 1) + table[: tf.shape(waves)[1]] + tf.repeat(mel, HOP, 1)[..., :2]

    made = model_of(network, mel=SPEC)
    mel = RANDOM.normal(size=[NUM, 10, BANDS]).astype(np.float32)
    x = drawn(made, 40, mel)
    np.testing.assert_array_equal(drawn(made, 40, mel, method="naive"), x)
    with pytest.raises(ValueError, match="41 elements"):
        drawn(made, 41, np.zeros([NUM, 11, BANDS]))


def test_the_upsampling_is_trained():
    network = vocoder()
    made = model_of(network)
    before = [weight.numpy() for weight in network.weights]
    with eagerly():
        onepass.fit(made, (drawn(made), MEL), steps=1)
    changed = [np.any(w.numpy() != b) for w, b in zip(network.weights, before, strict=True)]
    assert all(changed)
    x = drawn(made)
    np.testing.assert_array_equal(drawn(made, method="naive"), x)


def test_a_draft_proposes_without_the_frames_and_may_not_read_them():
    symbols = keras.Input([None], dtype="int32"), keras.Input([None, BANDS], name="mel")
    up = layers.Dense(8)(layers.UpSampling1D(HOP)(symbols[1]))
    h = layers.Embedding(8, 8)(symbols[0])
    big = keras.Model(symbols, layers.Dense(8)(h + up))
    made = Autoregressive(big, Categorical(8), codec=Integers(8), conditions={"mel": SPEC})
    small = keras.Sequential([keras.Input([None], dtype="int32"), layers.Embedding(8, 8)])
    draft = Autoregressive(small, Categorical(8), codec=Integers(8))
    x = drawn(made)
    np.testing.assert_array_equal(drawn(made, method="speculative", draft=draft), x)
    with pytest.raises(ValueError, match="`draft` must read no Frames, got mel"):
        drawn(made, method="speculative", draft=made)


def test_a_derived_step_reads_what_was_computed_once():
    network = vocoder()
    stepped = onepass.incremental(network, condition={"mel": SPEC})
    wave = tf.constant(RANDOM.normal(size=[NUM, LENGTH, 1]), tf.float32)
    (timed,) = stepped.hoisted.once({"mel": tf.constant(MEL)}, LENGTH).values()
    outputs, _ = steps(stepped, stepped.initial_state(NUM), [wave, timed], (1, 8, LENGTH - 9))
    np.testing.assert_allclose(outputs, network([wave, tf.constant(MEL)]), 1e-4, 1e-5)


def test_a_changed_upsampling_is_followed():
    network = vocoder()
    made = model_of(network)
    x = drawn(made)
    network.get_layer("smooth").activation = keras.activations.tanh
    other = drawn(made)
    assert np.any(other != x)
    np.testing.assert_array_equal(drawn(made, method="naive"), other)
    network.get_layer("up").bias.assign_add(tf.ones([6]))
    assert np.any(drawn(made) != other)


@pytest.mark.parametrize("around", [1, 9])
def test_frames_that_are_reflected_need_only_as_many_frames_as_are_reflected(around):
    def network(waves, mel):
        frames = tf.pad(mel, [[0, 0], [around, around], [0, 0]], "REFLECT")
        frames = tf.nn.avg_pool1d(frames, 2 * around + 1, 1, "VALID")
        past = tf.pad(waves, [[0, 0], [1, 0], [0, 0]])[:, :-1]
        return 0.1 * past + tf.repeat(frames, HOP, 1)[..., :2]

    made = model_of(network, mel=SPEC)
    assert made.symbol_network.has_step
    assert onepass.check_causal(network, condition={"mel": SPEC}).has_step
    mel = RANDOM.normal(size=[NUM, around + 1, BANDS]).astype(np.float32)
    length = HOP * (around + 1) - 1
    x = drawn(made, length, mel)
    np.testing.assert_array_equal(drawn(made, length, mel, method="naive"), x)
    with pytest.raises(ValueError, match=r"reflect|paddings"):
        drawn(made, HOP * around, mel[:, 1:])


PRODUCTS = {
    "einsum": lambda f, mix, w: tf.einsum("bsc,stcd->btd", f, mix[:, :, None, None] * w),
    "einsum of the other order": lambda f, mix, w: tf.einsum(
        "stcd,bsc->btd", mix[:, :, None, None] * w, f
    ),
    "matmul": lambda f, mix, w: tf.matmul(mix, f @ w),
    "matmul of channels first": lambda f, mix, w: tf.transpose(
        tf.matmul(tf.transpose(f @ w, [0, 2, 1]), mix, transpose_b=True), [0, 2, 1]
    ),
    "attention": lambda f, mix, w: tf.nn.softmax(f @ tf.transpose(f, [0, 2, 1])) @ (f @ w),
}


@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_product_that_sums_over_the_time_of_frames_is_computed_once(kind):
    def network(waves, mel):
        frames = tf.repeat(mel, HOP, 1)[..., :1]
        times = tf.range(frames.shape[1], dtype=tf.float32)
        mix = tf.nn.softmax(-tf.abs(times[:, None] - times))
        wide = PRODUCTS[kind](frames, mix, tf.ones([1, 8]) * 0.5)
        past = tf.pad(waves, [[0, 0], [1, 0], [0, 0]])[:, :-1]
        return tf.tanh(0.1 * past + wide) @ tf.ones([8, 2])

    made = model_of(network, mel=SPEC)
    assert made.symbol_network.has_step
    x = drawn(made)
    np.testing.assert_array_equal(drawn(made, method="naive"), x)
