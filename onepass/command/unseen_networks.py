"""The quickstart's step with networks of Keras and PyTorch that the library has never seen."""

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

from onepass.likelihoods.distribution import Categorical
from onepass.model import Autoregressive
from onepass.networks.from_torch.network import load_network
from wavenet.optional_packages import is_installed

VOCABULARY, TOKENS = 256, 256
CHILD_SECONDS = 300  # after which the process of PyTorch is given up


@dataclasses.dataclass(frozen=True)
class StepFigures:
    """Comparison of a derived step with the whole network."""

    name: str  # what the network is written in
    derived_seconds: float  # to derive, check and compile the step
    step_seconds: float  # to draw `TOKENS` tokens by the step
    whole_seconds: float  # to draw them by the whole network, called once per token
    equal: int  # number of tokens that are equal


def keras_gpt() -> keras.Model:
    """Return a GPT with random weights, int32 [batch, time] to logits [batch, time, tokens]."""
    layers, draw = keras.layers, keras.initializers.RandomNormal
    width, heads, num_layers = 64, 4, 2
    tokens = keras.Input([None], dtype="int32")
    positions = keras.ops.cumsum(keras.ops.ones_like(tokens), 1) - 1
    h = layers.Embedding(VOCABULARY, width, draw(stddev=1.0, seed=1))(tokens)
    # Positions that weigh less would draw one token again and again.
    h = h + layers.Embedding(TOKENS, width, draw(stddev=3.0, seed=2))(positions)
    for n in range(num_layers):
        normed = layers.LayerNormalization()(h)
        attention = layers.MultiHeadAttention(heads, width // heads, seed=n)
        h = h + attention(normed, normed, use_causal_mask=True)
        wide = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(h))
        h = h + layers.Dense(width)(wide)
    return keras.Model(tokens, layers.Dense(VOCABULARY)(h))


def measure_keras() -> StepFigures:
    """Return the figures of the GPT of Keras; the whole network is called once per token."""
    model, derived, seconds, tokens = _draw(keras_gpt())
    _draw_once(model, "naive")  # compiles
    wanted, whole = _time_call(lambda: _draw_once(model, "naive"))
    return StepFigures("Keras", derived, seconds, whole, _count_equal(tokens, wanted))


def measure_torch() -> StepFigures | str:
    """Return the figures of the GPT of PyTorch, or why there are none, in a sentence.

    PyTorch calls the whole network once per token, in a process of its own.
    """
    if not is_installed("torch"):
        return "With `pip install 'onepass[torch]'` a network of PyTorch is drawn with too."
    with tempfile.TemporaryDirectory() as folder:
        words = [folder, str(VOCABULARY), str(TOKENS)]
        command = [sys.executable, "-m", "onepass.command.torch_gpt", *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS)
        except subprocess.TimeoutExpired:
            return f"PyTorch did not answer within {CHILD_SECONDS} s."
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            return f"The network of PyTorch could not be converted: {last}"
        network = load_network(Path(folder) / "network")
        drawn = json.loads((Path(folder) / "drawn.json").read_text(encoding="utf-8"))
    _, derived, seconds, tokens = _draw(network)
    equal = _count_equal(tokens, np.array(drawn["tokens"]))
    return StepFigures("PyTorch", derived, seconds, drawn["seconds"], equal)


def report_steps(found: list[StepFigures | str]) -> str:
    """Return the section of the report on networks, as Markdown."""
    figures = [each for each in found if isinstance(each, StepFigures)]
    rows = "\n".join(
        f"| {each.name} | {each.derived_seconds:.1f} s | "
        f"{each.whole_seconds / each.step_seconds:.1f} times | {each.equal} of {TOKENS} |"
        for each in figures
    )
    missing = "".join(f"\n{each}" for each in found if isinstance(each, str))
    return f"""## Networks that onepass has never seen

| a small GPT of | its step derived in | as fast as the whole network | tokens equal |
|---|---|---|---|
{rows}

A network written for whole sequences is called anew for every token. From its graph, onepass
derives a step that computes only what the next token adds: once, in the seconds of the first
column. The second column says how many times sooner {TOKENS} tokens are then drawn, the third how
many of them are those that the whole network draws.{missing}"""


def _draw(network: Any) -> tuple[Autoregressive, float, float, np.ndarray]:
    """Return a model, the seconds to derive and compile its step and to draw, and the tokens."""
    start = time.perf_counter()
    model = Autoregressive(network, Categorical(VOCABULARY))
    _draw_once(model)
    first = time.perf_counter() - start
    tokens, seconds = _time_call(lambda: _draw_once(model))
    return model, max(0.0, first - seconds), seconds, tokens


def _draw_once(model: Autoregressive, method: str = "auto") -> np.ndarray:
    """Return the most probable tokens, int [TOKENS]."""
    return np.asarray(model.sample(1, TOKENS, seed=0, temperature=0.0, method=method))[0]


def _time_call(call: Callable[[], np.ndarray]) -> tuple[Any, float]:
    start = time.perf_counter()
    return call(), time.perf_counter() - start


def _count_equal(tokens: np.ndarray, wanted: np.ndarray) -> int:
    return int(np.sum(tokens == wanted))
