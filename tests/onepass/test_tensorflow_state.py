"""Where TensorFlow cannot run, every public entry says in one line what it needs."""

import functools
import json
import os
import select
import signal
import traceback
import warnings

import keras
import numpy as np
import own_models
import pytest
import tensorflow as tf
from causal_networks import token_network, wave_network

import onepass
from onepass.foundation.rules import UserError
from serving.client.calls import ClientError
from wavenet.data import audio

ROWS = np.arange(12, dtype=np.int32).reshape(2, 6)
FRAMES = np.full([3, 80], -3.0, np.float32)
WAVE = np.sin(np.arange(4000) / 20).astype(np.float32)


@functools.cache
def network(outputs=16):
    keras.utils.set_random_seed(1)
    return token_network(keras.layers.Embedding(outputs, 4), keras.layers.Dense(outputs))


@functools.cache
def flow():
    return wave_network(keras.layers.Dense(2, kernel_initializer="zeros"))


def made():
    return onepass.Autoregressive(network(), onepass.likelihoods.Categorical(16))


@pytest.fixture(scope="module")
def model():
    return made()


@pytest.fixture(scope="module")
def student():
    return onepass.FlowStudent([flow()], onepass.likelihoods.Linear(256))


@pytest.fixture(scope="module")
def entries(model, student, tmp_path_factory):
    """Return the public calls of a user's model and of a student, by name."""
    folder, data = tmp_path_factory.mktemp("state"), onepass.compress(model, ROWS)
    onepass.save(model, folder / "saved")
    return {
        "Autoregressive": made,
        "sample": lambda: model.sample(1, 4, 0),
        "top_k": lambda: model.sample(1, 4, 0, top_k=2),
        "stream": lambda: model.stream(length=4, seed=0),
        "check_causal": model.check_causal,
        "fit": lambda: onepass.fit(model, ROWS, steps=1),
        "evaluate": lambda: onepass.evaluate(model, ROWS),
        "compress": lambda: onepass.compress(model, ROWS),
        "decompress": lambda: onepass.decompress(model, data),
        "save": lambda: onepass.save(model, folder / "again"),
        "load": lambda: onepass.load(folder / "saved"),
        "load shipped": lambda: onepass.load("shipped-small"),
        "export": lambda: onepass.export(model, folder / "own" / "1"),
        "FlowStudent.sample": lambda: student.sample(1, 4, 0),
        "FlowStudent.stream": lambda: student.stream(length=4, seed=0),
        "FlowStudent.log_density": lambda: student.log_density(1, 4, 0),
        "distill": lambda: onepass.distill(model, ROWS, steps=1),
    }


@pytest.fixture(scope="module")
def in_functions(model, student):
    """Return the calls that also run inside a `tf.function`, by name."""
    return {
        "log_prob": lambda: model.log_prob(ROWS),
        "log_prob of lists": lambda: model.log_prob([[1, 2, 3], [4]]),
        "conditionals": lambda: model.conditionals(ROWS),
        "incremental": lambda: onepass.incremental(network()),
    }


def lines_of(calls):
    """The one line that every call raises; an empty one if it raises none."""
    lines = {}
    for name, call in calls.items():
        try:
            call()
            lines[name] = ""
        except UserError as error:
            lines[name] = str(error)
        except ValueError as error:  # of a bundle
            lines[name] = f"{type(error).__name__}: {error}"
    return lines


def assert_all(lines, *parts):
    for name, line in lines.items():
        assert "\n" not in line and all(part in line for part in parts), (name, line)


def test_a_graph_names_eager_execution(entries, in_functions):
    with tf.Graph().as_default():
        lines = lines_of({**entries, **in_functions})
    assert_all(lines, "eager execution", "tf.Graph().as_default()", "disable_eager_execution")


def test_a_function_of_tensorflow_names_eager_execution(entries):
    lines = {}
    tf.function(lambda: lines.update(lines_of(entries)), autograph=False)()
    assert_all(lines, "eager execution", "outside of `tf.function`")


def test_log_prob_of_arrays_is_the_same_inside_a_function(model):
    @tf.function(autograph=False)
    def inside():
        return model.log_prob(ROWS), model.log_prob([[1, 2, 3], [4]]), model.conditionals(ROWS)

    outside = model.log_prob(ROWS), model.log_prob([[1, 2, 3], [4]]), model.conditionals(ROWS)
    for found, expected in zip(inside(), outside, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    with pytest.raises(ValueError, match="`elements` must be in"):
        tf.function(lambda: model.log_prob(ROWS + 16), autograph=False)()


def test_checked_numerics_are_refused_by_what_is_compiled(entries, model):
    tf.debugging.enable_check_numerics()
    try:
        compiled = set(entries) - {"Autoregressive", "check_causal", "fit", "evaluate", "distill"}
        compiled -= {"save", "load shipped"}
        lines = lines_of({name: entries[name] for name in sorted(compiled)})
        watched = made()
        expected = watched.log_prob(ROWS)
        with pytest.raises(UserError, match="disable_check_numerics"):
            onepass.fit(watched, ROWS, steps=1, jit_compile=True)
    finally:
        tf.debugging.disable_check_numerics()
    assert_all(lines, "enable_check_numerics", "tf.debugging.disable_check_numerics() first")
    np.testing.assert_array_equal(watched.sample(2, 5, 3), model.sample(2, 5, 3))
    np.testing.assert_allclose(expected, model.log_prob(ROWS), rtol=1e-6)


def answer_of_fork(child, seconds=300.0):
    """Return the result of `child` in a forked process; None if the process never answers."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of a fork among threads
        pid = os.fork()
    if pid == 0:
        try:
            answer = child()
        except BaseException:
            answer = traceback.format_exc()
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
    os.close(write)
    try:
        is_ready = select.select([read], [], [], seconds)[0]
        parts = []
        while is_ready and (part := os.read(read, 2**16)):
            parts.append(part)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
    return json.loads(b"".join(parts)) if parts else None


@pytest.mark.integration
def test_a_fork_after_tensorflow_was_used_names_spawn_and_what_needs_none_goes_on(
    entries, in_functions, tmp_path
):
    speech, images = onepass.load("shipped-small"), onepass.load("shipped-digits-teacher")
    teacher, bundle = onepass.load("shipped-teacher"), own_models.bundle("own")
    calls = {
        **entries,
        **in_functions,
        "speech": lambda: speech.sample(condition=FRAMES, seed=1),
        "stream of speech": lambda: next(speech.stream(condition=FRAMES, seed=1)),
        "log_density": lambda: speech.log_density(1, 256, 0, FRAMES),
        "teacher": lambda: teacher.sample(condition=FRAMES, seed=1),
        "log_prob of speech": lambda: teacher.log_prob(WAVE),
        "images": lambda: images.sample(condition=7, seed=1),
        "log_prob of images": lambda: images.log_prob(np.zeros([1, 32, 32, 3], np.uint8), 7),
        "bundle": lambda: bundle.sample(1, 4, 0),
    }

    def child():
        lines = lines_of(calls)
        audio.write(tmp_path / "a.wav", WAVE, 16000)
        with pytest.raises(ClientError, match="There is no server"):
            onepass.load("http://127.0.0.1:9/name")
        frames = speech.front.frames(WAVE).shape
        return [lines, len(onepass.list_models()), list(frames)]

    found = answer_of_fork(child)
    assert isinstance(found, list), found
    lines, models, frames = found
    assert_all(lines, "multiprocessing.get_context('spawn')", "gunicorn without --preload")
    assert models == len(onepass.list_models())
    assert frames[1] == 80 and len(audio.read(tmp_path / "a.wav")) == len(WAVE)
    assert not any(lines_of({"sample": entries["sample"]}).values())  # the parent goes on
