"""A second call with other elements, seeds and lengths of the same bucket compiles nothing."""

import functools
import gc
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from causal_networks import token_network, wave_network
from tensorflow.python.framework.func_graph import FuncGraph

import onepass
import serving
from distill.flow_student import FlowStudent
from onepass.machine.machine import StepMachine


class Counts(NamedTuple):
    """Numbers since `Compilations` began.

    Attributes:
      traces: graphs of functions, loops and branches that TensorFlow has traced.
      programs: bytes of programs that XLA has compiled and that are still there.
      machines: steps that were lowered.
    """

    traces: int
    programs: int
    machines: int


class Compilations:
    """A counter, as a context manager; `counts` is up to date after it."""

    def __enter__(self):
        gc.disable()  # programs that go meanwhile would hide those that come
        self._programs, self._made, self._before = program_bytes(), {}, {}
        for kind, method in ((FuncGraph, "__init__"), (StepMachine, "_lower_step")):
            self._made[kind], self._before[kind] = 0, (method, getattr(kind, method))
            setattr(kind, method, self._counting(kind, getattr(kind, method)))
        return self

    def _counting(self, kind, function):
        def counting(*arguments, **options):
            self._made[kind] += 1
            return function(*arguments, **options)

        return counting

    def __exit__(self, *_):
        for kind, (method, function) in self._before.items():
            setattr(kind, method, function)
        made = program_bytes() - self._programs
        gc.enable()
        self.counts = Counts(self._made[FuncGraph], made, self._made[StepMachine])


def program_bytes():
    """Return the executable bytes in memory that are of no file: compiled programs."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, rights, *rest = line.split()
        if "x" in rights and len(rest) == 3:
            first, end = (int(address, 16) for address in addresses.split("-"))
            total += end - first
    return total


LAYERS, SYMBOLS, WIDTH, MOST = keras.layers, 8, 8, 256


def causal(dilation):
    return LAYERS.Conv1D(WIDTH, 2, padding="causal", dilation_rate=dilation)


class Attending(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = LAYERS.MultiHeadAttention(2, 4)

    def call(self, inputs):
        return self.attention(inputs, inputs, use_causal_mask=True)


class Placed(keras.layers.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(MOST, WIDTH), initializer="uniform")

    def call(self, inputs):
        return inputs + self.table[: tf.shape(inputs)[1]]


KINDS = {
    "positions, convolution and attention": lambda: [Placed(), causal(2), Attending()],
    "convolution": lambda: [causal(1)],
    "dense": lambda: [LAYERS.Dense(WIDTH, activation="relu")],
    "dilated convolutions": lambda: [causal(1), causal(2), causal(4)],
    "GRU": lambda: [LAYERS.GRU(WIDTH, return_sequences=True)],
    "LSTM": lambda: [LAYERS.LSTM(WIDTH, return_sequences=True)],
    "attention": lambda: [Attending()],
    "positions": lambda: [Placed()],
}
QUICK = ("positions, convolution and attention",)


@functools.cache
def model_of(kind):
    keras.utils.set_random_seed(1)
    network = token_network(LAYERS.Embedding(SYMBOLS, WIDTH), *KINDS[kind](), LAYERS.Dense(SYMBOLS))
    return onepass.Autoregressive(network, onepass.likelihoods.Categorical(SYMBOLS), start=0)


def rows_of(seed, length=40):
    return np.random.default_rng(seed).integers(0, SYMBOLS, [1, length]).astype(np.int32)


def sampling(method, lengths, rows=(1, 1), **options):
    """Return a call of `sample`; lengths and rows of a bucket differ, if the method has buckets."""

    def call(model, number):
        later = min(number, 1)
        draft = {"draft": model_of("dense")} if method == "speculative" else {}
        model.sample(rows[later], lengths[later], seed=number, method=method, **draft, **options)

    return call


def streaming(chunk, **options):
    def call(model, number):
        length = (40, 37)[min(number, 1)]
        list(model.stream(length=length, seed=number, chunk=chunk, **options))

    return call


def decompressing(model, number, length=40):
    elements = rows_of(number, length)
    data = onepass.compress(model, elements, verify=False)
    np.testing.assert_array_equal(onepass.decompress(model, data), elements)


CALLS = {
    "auto": sampling("auto", (40, 37), (4, 3)),
    "cached": sampling("cached", (40, 37), (4, 3)),
    "cached, top-k": sampling("cached", (40, 37), top_k=3),
    "stream": streaming(16),
    "stream, one at a time": streaming(1),
    "naive": sampling("naive", (20, 20)),
    "fixed-point": sampling("fixed-point", (20, 20)),
    "speculative": sampling("speculative", (20, 20)),
    "log_prob": lambda model, number: model.log_prob(rows_of(number)),
    "compress": lambda model, number: onepass.compress(model, rows_of(number)),
    "decompress": decompressing,
}


def of_bundle(num=1, with_prefix=False, **options):
    """Return a call of `sample` of a bundle, whose lengths differ."""

    def call(bundle, number):
        length = (40, 37)[min(number, 1)]
        prefix = {"prefix": rows_of(number, length - 9)} if with_prefix else {}
        bundle.sample(num, length, number, **prefix, **options)

    return call


BUNDLE_CALLS = {
    "sample": of_bundle(),
    "sample, rows": of_bundle(3),
    "sample, top-k": of_bundle(top_k=3),
    "sample, prefix": of_bundle(with_prefix=True),
    # Of one length, since oneDNN makes kernels for every shape.
    "log_prob": lambda bundle, number: bundle.log_prob(rows_of(number)),
    "stream": streaming(16),
    "stream, top-k": streaming(16, top_k=3),
}


def of_kinds():
    slow = pytest.mark.slow
    return [pytest.param(each, marks=() if each in QUICK else slow) for each in KINDS]


@pytest.mark.parametrize("kind", of_kinds())
def test_a_second_call_compiles_nothing(kind):
    model, found = model_of(kind), {}
    for name, call in CALLS.items():
        call(model, 0)
        with Compilations() as again:
            call(model, 1)
            call(model, 2)
        if again.counts != Counts(0, 0, 0):
            found[name] = again.counts
    assert found == {}


@pytest.mark.parametrize("kind", of_kinds())
def test_a_second_call_of_a_bundle_compiles_nothing(kind, tmp_path):
    bundle, found = (
        serving.load(onepass.export(model_of(kind), tmp_path / "own" / "1", length=64)),
        {},
    )
    for name, call in BUNDLE_CALLS.items():
        with Compilations() as first:
            call(bundle, 0)
        assert (first.counts.traces, first.counts.machines) == (0, 0), name
        if name == "sample":
            assert first.counts.programs
        with Compilations() as again:
            call(bundle, 1)
            call(bundle, 2)
        if again.counts != Counts(0, 0, 0):
            found[name] = again.counts
    assert found == {}


def test_a_step_that_xla_compiles_in_place_of_the_machine_is_compiled_once(monkeypatch):
    monkeypatch.setattr("onepass.samplers.native.on_machine", lambda *_: None)
    model = model_of.__wrapped__("convolution")
    decompressing(model, 0, length=9)
    CALLS["stream"](model, 0)
    with Compilations() as again:
        decompressing(model, 1, length=19)
        CALLS["stream"](model, 1)
    assert again.counts.programs == 0


def test_decoding_thousands_of_elements_maps_no_memory():
    model, elements = model_of("positions, convolution and attention"), rows_of(3, MOST)
    data = onepass.compress(model, elements, verify=False)
    onepass.decompress(model, data)
    before = len(Path("/proc/self/maps").read_text().splitlines())
    for _ in range(12):  # 3,072 elements
        np.testing.assert_array_equal(onepass.decompress(model, data), elements)
    assert len(Path("/proc/self/maps").read_text().splitlines()) < before + 30


def test_a_student_streams_single_elements_with_one_program():
    network = wave_network(causal(2), LAYERS.Dense(2))
    student = FlowStudent([network], onepass.likelihoods.Reals())
    drawn = student.sample(1, 9, seed=1)
    parts = np.concatenate(list(student.stream(length=9, seed=1, chunk=1)), 1)
    np.testing.assert_allclose(parts, drawn, atol=1e-5)
    with Compilations() as again:
        list(student.stream(length=19, seed=2, chunk=1))  # positions that the first call had not
    assert again.counts == Counts(0, 0, 0)
