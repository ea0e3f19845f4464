"""Tokens of a GPT, drawn greedily: the derived step, caches written by hand, whole passes.

KerasHub's `GPT2CausalLM.generate`, transformers' GPT-2 (PyTorch) and a `tf.while_loop` with keys
and values, in one run. "mini" is a GPT of three layers of 64 channels and 256 tokens, "GPT-2" that
of 124 million weights. Weights are random: the work does not depend on them. A network with a
window of 256 tokens is timed far into a sequence and near its beginning.

    pip install keras-hub torch transformers      # the peers, where they are wanted
"""

import dataclasses
import functools
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

import onepass
from benchmarks.gpu.gpt import gpt
from benchmarks.handwritten_cache import HandwrittenCache
from benchmarks.report import Benchmark, Row

BATCHES = (1, 8)
KERAS_HUB, TRANSFORMERS, HANDWRITTEN = "KerasHub", "transformers", "tf.while_loop with keys"
NAIVE, XLA_STEP = "naive", "derived step, XLA"
AGAINST = {
    "derived step": (NAIVE, XLA_STEP, HANDWRITTEN, TRANSFORMERS),
    "derived step of KerasHub's": (KERAS_HUB,),
    "position 8,000": ("position 300",),
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a GPT."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    positions: int = 1024


SHAPES = {"mini": Shape(3, 64, 4, 256), "GPT-2": Shape(12, 768, 12, 50_257)}
QUICK = {"tiny": Shape(1, 16, 2, 32, 64)}
TOKENS, QUICK_TOKENS = 256, 8
WINDOW, EARLY, LATE, CHUNK = 256, 300, 8_000, 100


def benchmark(quick: bool = False) -> Benchmark:
    """Return the benchmark of tokens; `quick` has a tiny network and few tokens."""
    found = Benchmark("tokens")
    count = QUICK_TOKENS if quick else TOKENS
    for size, shape in (QUICK if quick else SHAPES).items():
        for batch in BATCHES:
            _add(found, size, shape, batch, count)
    if not quick:
        _add_positions(found)
    return found


def _add(found: Benchmark, size: str, shape: Shape, batch: int, count: int) -> None:
    """Add the rows of one shape and batch."""
    network = random_gpt(shape)
    calls: dict[str, Callable[[], Any]] = {
        "derived step": functools.partial(_drawn, _model(network, shape), batch, count),
        XLA_STEP: _xla_step(_model(network, shape), batch, count),
        HANDWRITTEN: functools.partial(HandwrittenCache(network).tokens, batch, count),
    }
    if shape.layers < SHAPES["GPT-2"].layers:
        calls[NAIVE] = functools.partial(_drawn, _model(network, shape), batch, count, "naive")
    for name, call in calls.items():
        row = Row(name, size, batch, "tokens/s", AGAINST.get(name, ()))
        found.add(row, functools.partial(_speed, call, batch * count))
    found.peer(KERAS_HUB, lambda: _add_keras_hub(found, size, shape, batch, count))
    found.peer(TRANSFORMERS, lambda: _add_transformers(found, size, shape, batch, count))


def random_gpt(shape: Shape, scale: float = 0.05) -> keras.Model:
    """Return a GPT with random weights of this standard deviation."""
    network = gpt(shape.layers, shape.width, shape.heads, shape.vocabulary, shape.positions)
    draws = np.random.default_rng(0)
    for variable in network.weights:
        variable.assign(scale * draws.standard_normal(variable.shape, np.float32))
    return network


def _model(network: keras.Model, shape: Shape) -> onepass.Autoregressive:
    tokens = onepass.likelihoods.Categorical(shape.vocabulary)
    codec = onepass.likelihoods.Integers(shape.vocabulary)
    return onepass.Autoregressive(network, tokens, codec=codec)


def _drawn(
    model: onepass.Autoregressive, batch: int, count: int, method: str = "auto"
) -> np.ndarray:
    """Return the most probable tokens, int32 [batch, count]."""
    return model.sample(batch, count, seed=0, temperature=0.0, method=method)


def _xla_step(model: onepass.Autoregressive, batch: int, count: int) -> Callable[[], Any]:
    """Return a call that samples by the step that XLA compiles, where `auto` takes the machine."""
    model.samplers._compiled.once(("Native", "float32"), lambda: None)
    return functools.partial(_drawn, model, batch, count)


def _speed(call: Callable[[], Any], tokens: int) -> float:
    start = time.perf_counter()
    np.asarray(call())
    return tokens / (time.perf_counter() - start)


def _add_keras_hub(found: Benchmark, size: str, shape: Shape, batch: int, count: int) -> None:
    """Add `GPT2CausalLM.generate`, and our sampler of the same network; their tokens are equal."""
    keras_hub: Any = importlib.import_module("keras_hub")

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=shape.vocabulary,
        num_layers=shape.layers,
        num_heads=shape.heads,
        hidden_dim=shape.width,
        intermediate_dim=4 * shape.width,
        max_sequence_length=shape.positions,
        dropout=0.0,
    )
    network = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    network.compile(sampler="greedy")
    inputs = keras.Input([None], dtype="int32")
    logits = network({"token_ids": inputs, "padding_mask": keras.ops.ones_like(inputs)})
    model = _model(keras.Model(inputs, logits), shape)

    # The first token is given, and is what our model reads before its first.
    prompt = np.zeros([batch, count + 1], np.int32)
    prompt[:, 0] = shape.vocabulary // 2
    mask = np.zeros_like(prompt)
    mask[:, 0] = 1
    given = {"token_ids": prompt, "padding_mask": mask}

    def generate() -> np.ndarray:
        return network.generate(given, stop_token_ids=None)["token_ids"][:, 1:]

    ours = functools.partial(_drawn, model, batch, count)
    same = np.mean(ours() == np.asarray(generate()))
    name = "derived step of KerasHub's"
    found.add(Row(name, size, batch, "tokens/s", AGAINST[name]), _timed(ours, batch * count))
    found.add(Row(KERAS_HUB, size, batch, "tokens/s"), _timed(generate, batch * count))
    found.add(Row("share of equal tokens", size, batch, ""), lambda: float(same))


def _timed(call: Callable[[], Any], tokens: int) -> Callable[[], float]:
    return functools.partial(_speed, call, tokens)


def _add_transformers(found: Benchmark, size: str, shape: Shape, batch: int, count: int) -> None:
    """Add `generate` of GPT-2 with its own cache."""
    import torch

    from benchmarks.gpu import gpu_peers

    sizes = shape.layers, shape.width, shape.heads, shape.vocabulary
    generate = gpu_peers.generated(gpu_peers.gpt_2(sizes), batch, count)

    def call() -> np.ndarray:
        with torch.inference_mode():
            return generate().numpy()

    found.add(Row(TRANSFORMERS, size, batch, "tokens/s"), _timed(call, batch * count))


class Window(keras.layers.Layer):
    """Attention to the last `WINDOW` tokens."""

    def __init__(self, heads: int, width: int, **options: Any):
        super().__init__(**options)
        self.attention = keras.layers.MultiHeadAttention(heads, width // heads)

    def call(self, hidden: Any) -> Any:
        """Return [batch, time, width]."""
        times = keras.ops.arange(keras.ops.shape(hidden)[1])
        distance = times[:, None] - times
        mask = (distance >= 0) & (distance < WINDOW)
        return self.attention(hidden, hidden, attention_mask=mask[None])


def windowed(shape: Shape) -> keras.Model:
    """Return a GPT without positions whose layers see a window."""
    inputs = keras.Input([None], dtype="int32")
    hidden = keras.layers.Embedding(shape.vocabulary, shape.width)(inputs)
    for _ in range(shape.layers):
        read = keras.layers.LayerNormalization()(hidden)
        hidden = hidden + Window(shape.heads, shape.width)(read)
        read = keras.layers.LayerNormalization()(hidden)
        inner = keras.layers.Dense(4 * shape.width, activation="gelu")(read)
        hidden = hidden + keras.layers.Dense(shape.width)(inner)
    return keras.Model(inputs, keras.layers.Dense(shape.vocabulary)(hidden))


def _add_positions(found: Benchmark) -> None:
    """Add the speed of a windowed network near position 300 and near position 8,000."""
    shape = SHAPES["mini"]
    model = _model(windowed(shape), shape)
    times: dict[int, float] = {}

    def late() -> float:
        parts = model.stream(length=LATE + CHUNK, seed=0, chunk=CHUNK, temperature=0.0)
        times.update(_chunk_seconds(parts))
        return CHUNK / times[LATE]

    found.add(Row("position 8,000", "window", 1, "tokens/s", AGAINST["position 8,000"]), late)
    found.add(Row("position 300", "window", 1, "tokens/s"), lambda: CHUNK / times[EARLY])


def _chunk_seconds(parts: Iterator[np.ndarray]) -> Iterator[tuple[int, float]]:
    """Yield the first position of every chunk and the seconds that it took."""
    position, start = 0, time.perf_counter()
    for part in parts:
        now = time.perf_counter()
        yield position, now - start
        position, start = position + part.shape[1], now
