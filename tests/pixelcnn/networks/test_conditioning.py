"""The laws of the conditions: what each depends on, what it ignores, what it says of mistakes."""

import numpy as np
import pytest
import tensorflow as tf
from marks import some_slow

from onepass.likelihoods.noise import Initial
from pixelcnn.config import ConditioningConfig
from pixelcnn.data.captions import MAX_CAPTION_CHARACTERS, NUM_CODES, encode_caption
from pixelcnn.networks.layers import (
    FORGET_BIAS,
    NONE,
    AveragedGRU,
    CaptionMap,
    Conditioner,
    ConvLSTM,
    word_rows,
)

BATCH, SIZE = 3, 8
CONFIGS = {
    "text": dict(kind="text", text_channels=12),
    "words": dict(kind="text", text_unit="word", text_channels=12, text_map_channels=3),
    "map": dict(kind="map", classes=5, map_channels=6),
    "video": dict(kind="video", map_channels=6, action_channels=2, state_channels=3),
    "video of one frame": dict(
        kind="video", map_channels=6, context_frames=1, action_channels=2, picture_channels=1
    ),
    "video without steps": dict(kind="video", map_channels=6, context_frames=3),
}
CAPTIONS = ("a red bird", "a blue bird with a long tail", "two small dogs")


def conditioner_of(kind):
    return Conditioner(ConditioningConfig(**CONFIGS[kind]), Initial(7), SIZE)


def batch_of(kind, seed=0):
    """A batch that holds all that the kind needs."""
    config = ConditioningConfig(**CONFIGS[kind])
    random = np.random.default_rng(seed)
    step = [BATCH, config.context_frames]
    past = random.integers(0, 256, [*step, SIZE, SIZE, config.picture_channels])
    arrays = {
        "caption": np.stack([encode_caption(caption) for caption in CAPTIONS]),
        "map": random.integers(-1, 5, [BATCH, SIZE, SIZE]).astype(np.int32),
        "past": past.astype(np.int32),
        "action": random.normal(size=[*step, config.action_channels]).astype(np.float32),
        "state": random.normal(size=[*step, config.state_channels]).astype(np.float32),
    }
    return {name: tf.constant(array) for name, array in arrays.items()}


def parts(condition):
    return [part for part in condition if part is not None]


def changed(batch, name, place, number):
    """The batch with one number of one array put in place."""
    array = batch[name].numpy()
    array[place] = number
    return batch | {name: tf.constant(array)}


def vector_of(encoder, codes):
    """The vector, [channels], of one row of codes."""
    return encoder(tf.constant(codes, tf.int32)[None])[0].numpy()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_a_class_is_its_one_hot_vector_and_nothing_conditions_on_nothing():
    conditioner = Conditioner(ConditioningConfig(kind="class", classes=4), Initial(0))
    condition = conditioner({"label": tf.constant([2, 0, 3])})
    np.testing.assert_array_equal(condition.vector, np.eye(4, dtype=np.float32)[[2, 0, 3]])
    assert condition.map is None and conditioner.trainable_variables == ()
    nothing = Conditioner(ConditioningConfig(), Initial(0))
    assert (nothing({}), nothing.vector_channels, nothing.map_channels) == (NONE, 0, 0)


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_condition_has_its_channels_is_of_its_row_alone_and_reads_every_variable(kind):
    conditioner, batch = conditioner_of(kind), batch_of(kind)
    with tf.GradientTape() as tape:
        vector, map_ = condition = conditioner(batch)
        loss = sum(tf.reduce_sum(tf.sin(part)) for part in parts(condition))
    assert conditioner.vector_channels == (0 if vector is None else vector.shape[-1])
    assert conditioner.map_channels == (0 if map_ is None else map_.shape[-1])
    order = [2, 0, 1]
    permuted = conditioner({name: tf.gather(array, order) for name, array in batch.items()})
    for there, here in zip(parts(permuted), parts(condition), strict=True):
        assert here.dtype == tf.float32
        np.testing.assert_allclose(there, tf.gather(here, order), atol=1e-6)
        assert np.abs(there - here).max(axis=tuple(range(1, here.ndim))).min() > 1e-3
    variables = conditioner.trainable_variables
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        assert gradient is not None and np.abs(gradient).max() > 0, variable.name


@pytest.mark.parametrize("kind", some_slow(["text", "words", "map", "video"], ("text", "video")))
def test_xla_computes_the_same_condition_and_gradients(kind):
    conditioner, batch = conditioner_of(kind), batch_of(kind)

    def outcome(batch):
        with tf.GradientTape() as tape:
            condition = parts(conditioner(batch))
            loss = sum(tf.reduce_sum(tf.sin(part)) for part in condition)
        return condition, tape.gradient(loss, conditioner.trainable_variables)

    compiled = tf.function(outcome, jit_compile=True)(batch)
    traced = tf.function(outcome)(batch)
    for one, other in zip(tf.nest.flatten(compiled), tf.nest.flatten(traced), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize("kind", ["text", "words"])
def test_a_caption_ends_with_its_closing_code(kind):
    encoder = conditioner_of(kind).text
    codes = encode_caption(CAPTIONS[0])
    end = int(np.count_nonzero(codes))
    vector = vector_of(encoder, codes)
    if kind == "text":
        assert np.abs(vector_of(encoder, codes[: end - 1]) - vector).max() > 1e-4
    noisy = codes.copy()
    noisy[end:] = 1 + np.arange(len(codes) - end) % (NUM_CODES - 1)
    np.testing.assert_array_equal(vector_of(encoder, noisy), vector)
    np.testing.assert_allclose(vector_of(encoder, codes[:end]), vector, atol=1e-6)
    longer = np.pad(codes, [0, 37])
    np.testing.assert_allclose(vector_of(encoder, longer), vector, atol=1e-6)


def test_every_character_of_a_full_caption_counts():
    encoder = conditioner_of("text").text
    codes = encode_caption(("a bird, " * 50)[:MAX_CAPTION_CHARACTERS])
    vector = vector_of(encoder, codes)
    for at in (0, 1, 2, 100, MAX_CAPTION_CHARACTERS - 2, MAX_CAPTION_CHARACTERS - 1):
        other = codes.copy()
        other[at] = encode_caption("q")[0]
        assert np.abs(vector_of(encoder, other) - vector).max() > 1e-4


def test_a_caption_of_words_is_the_sum_of_its_words_over_the_root_of_their_number():
    encoder = conditioner_of("words").text
    texts = ("red", "bird", "3d", "red bird, 3D", "3d: bird-red")
    red, bird, design, one, other = (vector_of(encoder, encode_caption(text)) for text in texts)
    np.testing.assert_allclose(one, (red + bird + design) / np.sqrt(3), rtol=1e-5)
    np.testing.assert_allclose(other, one, rtol=1e-5)


def test_the_rows_of_a_word_are_those_of_every_model_before():
    # Stored tables are read by these numbers.
    rows, ends = word_rows(tf.constant(encode_caption("a dog, dog"))[None])
    np.testing.assert_array_equal(np.flatnonzero(ends[0]), [0, 4, 9])
    np.testing.assert_array_equal(rows[0, 0], [129, 7260])
    for place in (2, 3, 4, 7, 8, 9):
        np.testing.assert_array_equal(rows[0, place], [3347, 5324])


def test_the_map_of_a_caption_is_linear_in_its_vector_and_has_a_value_for_each_place():
    config = ConditioningConfig("text", text_channels=4, text_map_channels=2)
    painted = CaptionMap(config, 32, Initial(7))
    vectors = tf.constant(np.random.default_rng(0).normal(size=[2, 4]).astype(np.float32))
    one, other, both = painted(tf.concat([vectors, [vectors[0] + vectors[1]]], 0)).numpy()
    np.testing.assert_allclose(one + other, both, atol=1e-5)
    np.testing.assert_array_equal(one, np.kron(one[::4, ::4], np.ones([4, 4, 1])))
    assert len(np.unique(one)) == 8 * 8 * 2


def test_the_unit_follows_its_equations():
    gru = AveragedGRU(3, 2, Initial(1))
    gru.bias.assign([0.1, -0.2, 0.3, 0.4, -0.5, 0.6])
    steps = np.random.default_rng(2).normal(size=[1, 4, 3]).astype(np.float32)
    W, U = gru.input_kernel.numpy(), gru.state_kernel.numpy()
    h, states = np.zeros(2), []
    for x in steps[0]:
        r, z, n = np.split(x @ W + gru.bias.numpy(), 3)
        from_r, from_z, from_n = np.split(h @ U, 3)
        n = np.tanh(n + sigmoid(r + from_r) * from_n)
        h = (1 - sigmoid(z + from_z)) * h + sigmoid(z + from_z) * n
        states.append(h)
    mask = tf.constant([1.0, 1.0, 1.0, 0.0])[None, :, None]
    mean = gru(tf.constant(steps), mask)
    np.testing.assert_allclose(mean[0], np.mean(states[:3], 0), atol=1e-6)


def test_a_label_reaches_two_pixels_and_numbers_stand_in_place_of_one_hot_labels():
    conditioner, batch = conditioner_of("map"), batch_of("map")
    batch = changed(batch, "map", (0, 3, 4), 0)
    here, other = (conditioner(each).map for each in (batch, changed(batch, "map", (0, 3, 4), 1)))
    reached = np.zeros([BATCH, SIZE, SIZE], bool)
    reached[0, 1:6, 2:7] = True
    np.testing.assert_array_equal(np.abs(other - here).max(-1) > 0, reached)
    labels = batch["map"].numpy()
    assert (labels == -1).any()
    one_hot = (labels[..., None] == np.arange(5)).astype(np.float32)
    np.testing.assert_array_equal(conditioner({"map": tf.constant(one_hot)}).map, here)


def test_video_follows_the_numbers_of_every_step_and_every_frame_and_hands_the_last_one_on():
    conditioner, batch = conditioner_of("video"), batch_of("video")
    numbers = [batch["action"], batch["state"]]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(numbers)
        condition = conditioner(batch)
        vector, map_ = (tf.reduce_sum(tf.sin(part)) for part in condition)
    assert all((np.abs(slope) > 1e-6).all() for slope in tape.gradient(map_, numbers))
    for slope in tape.gradient(vector, numbers):  # which reads the last step alone
        assert (np.abs(slope[:, -1]) > 1e-6).all() and not np.any(slope[:, :-1])
    levels = batch["past"].numpy()
    for frame in (0, 1):
        place = (1, frame, 2, 5, 0)
        other = changed(batch, "past", place, 255 if levels[place] < 128 else 0)
        moved = np.abs(conditioner(other).map - condition.map)[..., :6].max((1, 2, 3))
        assert moved[1] > 1e-5 and moved[0] == moved[2] == 0
    np.testing.assert_allclose(condition.map[..., 6:], 2 * levels[:, -1] / 255 - 1, atol=1e-6)
    assert conditioner.vector_channels == 64


def test_the_convolutional_lstm_follows_its_equations_and_carries_what_moves_sideways():
    lstm = ConvLSTM(3, 2, Initial(1), width=1)
    lstm.bias.assign(np.linspace(-0.5, 0.5, 8))
    frames = np.random.default_rng(2).normal(size=[1, 3, 1, 1, 3]).astype(np.float32)
    kernel = lstm.kernel.numpy()[0, 0]
    h, c = np.zeros(2), np.zeros(2)
    for x in frames[0, :, 0, 0]:
        i, f, g, o = np.split(np.concatenate([x, h]) @ kernel + lstm.bias.numpy(), 4)
        c = sigmoid(f + FORGET_BIAS) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
    np.testing.assert_allclose(lstm(tf.constant(frames))[0, 0, 0], h, atol=1e-6)
    frames = np.zeros([1, 3, 1, 9, 1], np.float32)
    frames[0, 0, 0, 4] = 1.0
    seen = ConvLSTM(1, 2, Initial(1))(tf.constant(frames)).numpy()[0, 0]
    np.testing.assert_array_equal(np.abs(seen).max(-1) > 0, np.abs(np.arange(9) - 4) <= 3)


WITHOUT = "`batch` must have `{name}` for kind {kind}, got "
SHAPE = "`{name}` must have the shape "


@pytest.mark.parametrize(
    ("kind", "name", "shape", "message"),
    [
        *((kind, name, None, WITHOUT) for kind, name in (("text", "caption"), ("map", "map"))),
        *(("video", name, None, WITHOUT) for name in ("past", "action")),
        ("video", "past", (3, 2, 6, 8, 3), "The height of `past` must be a multiple of 4, got 6."),
        ("video", "past", (3, 2, 8, 5, 3), "The width of `past` must be a multiple of 4, got 5."),
        ("video", "past", (3, 4, 8, 8, 3), SHAPE + "[any, 2, any, any, 3], got (3, 4, 8, 8, 3)."),
        ("video", "action", (3, 2, 7), SHAPE + "[any, 2, 2], got (3, 2, 7)."),
        ("map", "map", (3, 8, 8, 1), SHAPE + "[any, any, any], got (3, 8, 8, 1)."),
        ("text", "caption", (201,), SHAPE + "[any, any], got (201,)."),
    ],
)
def test_what_the_batch_lacks_or_has_in_another_shape_is_named(kind, name, shape, message):
    batch = {other: array for other, array in batch_of(kind).items() if other != name}
    if shape is not None:
        batch[name] = tf.zeros(shape, tf.float32 if name == "action" else tf.int32)
    with pytest.raises(ValueError) as error:
        conditioner_of(kind)(batch)
    assert str(error.value).startswith(message.format(name=name, kind=kind))
