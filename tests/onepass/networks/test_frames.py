"""Conditions at a frame rate: computed once for each call, whole, and cut at the sequence."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from runs import eagerly

import onepass
from onepass.likelihoods import Categorical, Gaussian, Integers
from onepass.model import Autoregressive

HOP, FRAMES, BANDS, NUM = 4, 6, 5, 2
LENGTH = HOP * FRAMES
RANDOM = np.random.default_rng(0)
MEL = RANDOM.normal(size=[NUM, FRAMES, BANDS]).astype(np.float32)
SPEC = onepass.Frames([None, None, BANDS], hop=HOP)
METHODS = ("cached", "naive", "fixed-point")
layers = keras.layers


def vocoder(encoder=None, after=None, width=8):
    """Return a Keras model of waves and mel frames, whose upsampling looks ahead."""
    keras.utils.set_random_seed(1)
    waves, mel = keras.Input([None, 1]), keras.Input([None, BANDS], name="mel")
    frames = mel if encoder is None else encoder(mel)
    up = layers.Conv1DTranspose(6, 2 * HOP, strides=HOP, padding="same", name="up")(frames)
    up = layers.Conv1D(6, 3, padding="same", activation="relu", name="smooth")(up)
    h = layers.Dense(width)(waves) + layers.Dense(width, name="first")(up)
    h = layers.Conv1D(width, 2, padding="causal", activation="tanh", name="past")(h)
    h = h + layers.Dense(width, name="second")(up)
    return keras.Model([waves, mel], layers.Dense(2)(h if after is None else after(h)))


def model_of(network, **conditions):
    return Autoregressive(network, Gaussian(levels=256), conditions=conditions or {"mel": SPEC})


@functools.cache
def model():
    return model_of(vocoder())


def drawn(model, length=LENGTH, condition=MEL, **options):
    return model.sample(NUM, length, 1, condition, **options)


def test_every_method_draws_the_same_also_in_a_partial_last_frame():
    length = LENGTH - 3
    x = drawn(model(), length)
    for method in METHODS:
        np.testing.assert_array_equal(drawn(model(), length, method=method), x)
    parts = model().stream(length=length, seed=1, condition=MEL, num=NUM, chunk=5)
    np.testing.assert_array_equal(np.concatenate(list(parts), 1), x)
    y, nats = drawn(model(), length, return_log_prob=True)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_allclose(nats, model().log_prob(x, MEL), 1e-4, 1e-4)
    prompted = [drawn(model(), length, prefix=x[:, :7], method=method) for method in METHODS]
    np.testing.assert_array_equal(prompted, [x] * 3)


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


def test_what_is_kept_for_a_time_step_is_as_narrow_as_possible():
    assert [x.shape[2] for x in model().symbol_network.hoisted.conditions.values()] == [6]
    narrow = model_of(vocoder(width=2)).symbol_network.hoisted.conditions
    assert [x.shape[2] for x in narrow.values()] == [2, 2]


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
    one = model().log_prob(x[:1], MEL[:1])
    np.testing.assert_allclose(one, nats[:1], 1e-5, 1e-5)
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
    network = Extra()
    spec = onepass.Frames([None, None, BANDS], hop=HOP, extra=2)
    made = model_of(network, mel=spec)
    mel = RANDOM.normal(size=[NUM, FRAMES + 2, BANDS]).astype(np.float32)
    x = drawn(made, condition=mel)
    np.testing.assert_array_equal(drawn(made, condition=mel, method="naive"), x)
    with pytest.raises(ValueError, match="frames of 4 time steps"):
        drawn(made, condition=mel[:, 2:])
    before = network.kernel.numpy()
    onepass.fit(made, (x, mel), steps=1)
    assert np.any(network.kernel.numpy() != before)


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
    x = drawn(made, LENGTH - 1, given)
    np.testing.assert_array_equal(drawn(made, LENGTH - 1, given, method="naive"), x)
    np.testing.assert_array_equal(drawn(made, LENGTH - 1, given, method="cached"), x)
    data = onepass.compress(made, x, condition=given)
    np.testing.assert_array_equal(onepass.decompress(made, data, condition=given), x)
    alone = made.sample(1, LENGTH - 1, 1, {k: v[:1] for k, v in given.items()})
    np.testing.assert_array_equal(alone, x[:1])
    with pytest.raises(ValueError, match=r"mel: float32 \[num, frames of 4, 5\]"):
        drawn(made, condition=MEL)


def test_frames_that_meet_the_sequence_at_their_own_rate_are_refused():
    def attending(waves, mel):
        scores = tf.nn.softmax(waves @ tf.ones([1, BANDS]) @ tf.transpose(mel, [0, 2, 1]))
        up = tf.repeat(mel, HOP, axis=1)
        return scores @ mel[..., :2] + up[..., :2]

    with pytest.raises(ValueError, match=r"frames, where there are .* onepass.Memory"):
        model_of(attending, mel=SPEC)


def test_two_frame_rates_are_refused():
    def both(waves, a, b):
        return waves + tf.repeat(a, 2, axis=1) + tf.repeat(b, 4, axis=1)

    specs = {name: onepass.Frames([None, None, 2], hop=hop) for name, hop in (("a", 2), ("b", 4))}
    with pytest.raises(
        ValueError, match=r"`hop` must be the same for all conditions, got \[2, 4\]"
    ):
        model_of(both, **specs)


def test_a_model_of_images_reads_no_frames():
    with pytest.raises(ValueError, match="`conditions` must have no Frames in raster order"):
        Autoregressive(
            lambda images, mel: images,
            Categorical(4),
            order="raster",
            conditions={"mel": SPEC},
        )


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


def test_a_file_of_elements_is_decoded_with_the_frames():
    x = drawn(model(), LENGTH - 1)
    data = onepass.compress(model(), x, condition=MEL)
    np.testing.assert_array_equal(onepass.decompress(model(), data, condition=MEL), x)


def test_a_saved_model_draws_the_same(tmp_path):
    onepass.save(model(), tmp_path / "model")
    loaded = onepass.load(tmp_path / "model")
    (spec,) = loaded.conditions.values()
    assert isinstance(spec, onepass.Frames) and (spec.hop, spec.extra) == (HOP, 0)
    np.testing.assert_array_equal(drawn(loaded, LENGTH - 3), drawn(model(), LENGTH - 3))
    x = drawn(model())
    np.testing.assert_array_equal(drawn(loaded), x)
    np.testing.assert_allclose(loaded.log_prob(x, MEL), model().log_prob(x, MEL), 1e-5, 1e-5)


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
    state, outputs = stepped.initial_state(NUM), []
    for part in (slice(0, 1), slice(1, 9), slice(9, LENGTH)):
        output, state = stepped.step(wave[:, part], state, timed[:, part])
        outputs.append(output)
    np.testing.assert_allclose(tf.concat(outputs, 1), network([wave, tf.constant(MEL)]), 1e-4, 1e-5)


class Scaled(tf.Module):
    """Frames that are repeated and scaled by a number that is no variable."""

    scale = 1.0

    def __call__(self, x, mel):
        h = tf.pad(x, [[0, 0], [1, 0], [0, 0]])[:, :-1]
        return 0.1 * h + self.scale * tf.repeat(mel, 4, 1) * tf.constant([1.0, 0.0])


def test_a_changed_number_in_what_is_computed_once_is_followed():
    network = Scaled()
    made = onepass.Autoregressive(
        network,
        onepass.likelihoods.Gaussian(256),
        inputs=tf.TensorSpec([None, None, 1]),
        conditions={"mel": onepass.Frames([None, None, 1], hop=4)},
    )
    mel = np.random.default_rng(0).random([1, 3, 1])
    before = made.sample(1, 12, seed=1, condition={"mel": mel})
    network.scale = -1.0
    after = made.sample(1, 12, seed=1, condition={"mel": mel})
    assert np.any(before != after)
    np.testing.assert_array_equal(
        made.sample(1, 12, seed=1, condition={"mel": mel}, method="naive"), after
    )


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
