"""One rule for every integer argument, of every model and function of the library."""

import functools

import image_bundles
import keras
import numpy as np
import pytest
import sound_bundles
import tensorflow as tf

import onepass
from onepass.bundles.errors import ServingError
from onepass.foundation.rules import check_flag, integer

TOKENS = np.arange(24, dtype=np.int32).reshape(2, 12) % 16
WAVES = np.zeros([8, 12], np.float32)
FRAMES = np.full([3, 7], 0.5, np.float32)
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


def of_speech(call, **given):
    model = sound_bundles.model("plain")
    drawn = getattr(model, call)(**({"condition": FRAMES} | given))
    return streamed(drawn) if call == "stream" else drawn


def of_images(**given):
    return image_bundles.model("pixelcnn").sample(**({"condition": 2} | given))


OF_STUDENT = "num length seed"
DOORS = {
    "sample": (functools.partial(sample, tokens), "num length seed top_k"),
    "stream": (functools.partial(stream, tokens), "num length seed top_k chunk"),
    "FlowStudent.sample": (functools.partial(sample, student), OF_STUDENT),
    "FlowStudent.stream": (functools.partial(stream, student), f"{OF_STUDENT} chunk"),
    "FlowStudent.log_density": (functools.partial(density, student), OF_STUDENT),
    "fit": (fitted, "steps batch_size evaluate_every patience seed"),
    "distill": (distilled, "steps batch_size seed"),
    "evaluate": (evaluated, "batch_size"),
    "trained.sample": (functools.partial(of_speech, "sample"), "seed num length"),
    "trained.stream": (functools.partial(of_speech, "stream"), "seed num length chunk refine"),
    "trained.log_density": (
        functools.partial(of_speech, "log_density", num=1, length=60, seed=0),
        "seed num",
    ),
    "images": (of_images, "seed num batch length"),
}
EVERY = [(door, name) for door, (_, names) in DOORS.items() for name in names.split()]


def assert_refused(call, name):
    for value in (*REFUSED, *([2**31] if name not in LARGE else [2**64] * (name == "seed"))):
        if value is None and name in OPTIONAL:
            continue
        with pytest.raises((ValueError, ServingError)) as caught:
            call(**{name: value})
        line = str(caught.value)
        assert line.startswith(f"`{name}` must be ") and repr(value) in line, (value, line)
        assert "\n" not in line


@pytest.mark.parametrize(("door", "name"), EVERY)
def test_what_is_no_integer_in_range_is_named_at_every_door(door, name):
    assert_refused(DOORS[door][0], name)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("door", "name"), [each for each in EVERY if each[0] != "images"])
def test_an_integer_of_every_library_means_the_same_at_every_door(door, name):
    call, _ = DOORS[door]
    expected = call(**{name: 7})
    for value in TAKEN if door in ("sample", "evaluate") else TAKEN[:1]:
        np.testing.assert_array_equal(call(**{name: value}), expected)
    if name in LARGE:
        call(**{name: LARGE[name]})


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
