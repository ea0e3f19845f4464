"""One rule for every integer argument, of every model and function of the library."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import onepass
from onepass.bundles.errors import ServingError
from onepass.foundation.arguments import check_flag, integer

TOKENS = np.arange(24, dtype=np.int32).reshape(2, 12) % 16
WAVES = np.zeros([8, 12], np.float32)
FRAMES = np.full([3, 80], -3.0, np.float32)
TAKEN = (np.int8(7), np.uint64(7), np.array(7), tf.constant(7))
REFUSED = (1.0, np.float32(7), "7", None, np.array([7]), [7], True, np.bool_(True), -1)
LARGE = {"seed": 2**64 - 1, "top_k": 2**64}  # other numbers end at 2^31 - 1
OPTIONAL = ("patience", "refine", "length", "chunk")  # None: not set


def test_an_integer_is_what_python_takes_as_an_index_and_no_boolean():
    assert [integer(value) for value in TAKEN] == [7] * len(TAKEN)
    assert [integer(value) for value in REFUSED] == [None] * (len(REFUSED) - 1) + [-1]
    assert all(type(integer(value)) is int for value in TAKEN)


@functools.cache
def tokens():
    keras.utils.set_random_seed(1)
    given = keras.Input([None], dtype="int32")
    hidden = keras.layers.Embedding(16, 4)(given)
    network = keras.Model(given, keras.layers.Dense(16)(hidden))
    return onepass.Autoregressive(network, onepass.likelihoods.Categorical(16))


@functools.cache
def waves():
    keras.utils.set_random_seed(1)
    given = keras.Input([None, 1])
    network = keras.Model(given, keras.layers.Dense(2)(given))
    return onepass.Autoregressive(network, onepass.likelihoods.Gaussian(256))


@functools.cache
def student():
    given = keras.Input([None, 1])
    network = keras.Model(given, keras.layers.Dense(2, kernel_initializer="zeros")(given))
    return onepass.FlowStudent([network], onepass.likelihoods.Linear(256))


load = functools.cache(onepass.load)


def streamed(parts):
    return np.concatenate(list(parts), 1)


def sample(model, **given):
    return model().sample(**{"num": 1, "length": 7, "seed": 0, **given})


def stream(model, **given):
    return streamed(model().stream(**{"num": 1, "length": 7, "seed": 0, **given}))


def density(model, **given):
    return model().log_density(**{"num": 1, "length": 7, "seed": 0, **given})


def fitted(**given):
    quiet = {"steps": 1, "batch_size": 2, "validation": TOKENS, "log": lambda line: None}
    return onepass.fit(tokens(), TOKENS, **{**quiet, **given}).step


def distilled(**given):
    options = {"steps": 1, "batch_size": 2, "student": student(), "log": lambda line: None}
    return onepass.distill(waves(), WAVES, **{**options, **given}).sample(1, 3, 0)


def evaluated(**given):
    return onepass.evaluate(tokens(), TOKENS, **given).elements


NAMES = {
    "sample": ("num", "length", "seed", "top_k"),
    "stream": ("num", "length", "seed", "top_k", "chunk"),
    "FlowStudent.sample": ("num", "length", "seed"),
    "FlowStudent.stream": ("num", "length", "seed", "chunk"),
    "FlowStudent.log_density": ("num", "length", "seed"),
    "fit": ("steps", "batch_size", "evaluate_every", "patience", "seed"),
    "distill": ("steps", "batch_size", "seed"),
    "evaluate": ("batch_size",),
}
DOORS = {
    "sample": functools.partial(sample, tokens),
    "stream": functools.partial(stream, tokens),
    "FlowStudent.sample": functools.partial(sample, student),
    "FlowStudent.stream": functools.partial(stream, student),
    "FlowStudent.log_density": functools.partial(density, student),
    "fit": fitted,
    "distill": distilled,
    "evaluate": evaluated,
}
QUICK = [(door, name) for door, names in NAMES.items() for name in names]


def assert_refused(call, name):
    for value in (*REFUSED, *([2**31] if name not in LARGE else [2**64] * (name == "seed"))):
        if value is None and name in OPTIONAL:
            continue
        with pytest.raises((ValueError, ServingError)) as caught:
            call(**{name: value})
        line = str(caught.value)
        assert line.startswith(f"`{name}` must be ") and repr(value) in line, (value, line)
        assert "\n" not in line


@pytest.mark.parametrize(("door", "name"), QUICK)
def test_what_is_no_integer_in_range_is_named_at_every_door(door, name):
    assert_refused(DOORS[door], name)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("door", "name"), QUICK)
def test_an_integer_of_every_library_means_the_same_at_every_door(door, name):
    expected = DOORS[door](**{name: 7})
    for value in TAKEN if door in ("sample", "evaluate") else TAKEN[:1]:
        np.testing.assert_array_equal(DOORS[door](**{name: value}), expected)
    if name in LARGE:
        DOORS[door](**{name: LARGE[name]})


def test_more_tokens_than_there_are_mean_all():
    expected = tokens().sample(3, 9, 1)
    for top_k in (16, 17, 2**31 - 1, 2**31, 2**64):
        np.testing.assert_array_equal(tokens().sample(3, 9, 1, top_k=top_k), expected)


def test_options_of_a_draw_are_single_values():
    model = tokens()
    for name, value in [("top_k", np.array([1, 2])), ("top_p", np.array([0.5, 0.5]))]:
        with pytest.raises(ValueError, match=f"`{name}` must be "):
            model.sample(2, 4, 0, **{name: value})
    for value in (np.array([True, False]), 1, "yes", None):
        with pytest.raises(ValueError, match="`return_log_prob` must be True or False, got"):
            model.sample(2, 4, 0, return_log_prob=value)
    assert check_flag(np.bool_(True), "name") is True


WHOLE = {  # of models that are shipped, and of what is written
    "speech": (lambda **given: load("shipped-small").sample(condition=FRAMES, **given), "seed num"),
    "speech in parts": (
        lambda **given: streamed(load("shipped-small").stream(condition=FRAMES, **given)),
        "seed num length chunk refine",
    ),
    "density of speech": (
        lambda **given: load("shipped-small").log_density(
            **{"num": 1, "length": 256, "seed": 0, "condition": FRAMES, **given}
        ),
        "seed num",
    ),
    "teacher": (
        lambda **given: load("shipped-teacher").sample(
            **{"length": 64, "condition": FRAMES, **given}
        ),
        "seed num length",
    ),
    "images": (
        lambda **given: load("shipped-digits").sample(condition=7, **given),
        "seed num batch length",
    ),
    "images in turn": (
        lambda **given: np.stack(
            list(load("shipped-digits").stream(length=32, condition=7, **given))
        ),
        "seed num",
    ),
}


@pytest.mark.integration
@pytest.mark.parametrize("door", WHOLE)
def test_shipped_models_have_the_same_rule(door):
    call, names = WHOLE[door]
    call = functools.partial(call, **({"seed": 1} if door == "images in turn" else {}))
    for name in names.split():
        assert_refused(call, name)
    np.testing.assert_array_equal(call(seed=np.int8(7)), call(seed=7))
    np.testing.assert_array_equal(call(num=np.array(2)), call(num=2))


@pytest.mark.integration
def test_what_is_written_has_the_same_rule(tmp_path):
    def export(**given):
        return onepass.export(tokens(), tmp_path / "m" / "1", **given)

    def save(**given):
        return onepass.save(waves(), tmp_path / "saved", **given)

    for value in (*REFUSED[:3], *REFUSED[4:], 2**31):
        with pytest.raises(ValueError, match="`length` must be "):
            export(length=value)
        with pytest.raises(ValueError, match="`sample_rate_hz` must be "):
            save(sample_rate_hz=value)
    bundle = onepass.load(export(length=np.int16(20)))
    assert_refused(lambda **given: sample(lambda: bundle, **given), "seed")
    assert_refused(lambda **given: sample(lambda: bundle, **given), "num")
    np.testing.assert_array_equal(
        bundle.sample(np.int8(2), np.array(7), np.int8(7), top_k=2**31),
        tokens().sample(2, 7, 7),
    )
    assert onepass.load(save(sample_rate_hz=np.int64(8000))).sample_rate_hz == 8000
