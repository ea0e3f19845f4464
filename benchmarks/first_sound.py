"""Processor seconds to the first sound of a network never seen: `python -m benchmarks.first_sound`.

Each network is built, wrapped and sampled in a process of its own. Processor seconds, those of all
threads, hardly depend on what else the machine does. The parts of the first sound:

- construction: `Autoregressive(...)`, with its probes of causality.
- derivation: the graph at two lengths, and its analysis.
- verification: the derived step next to the network.
- lowering: the step and its draw as a program of the step machine.
- first sample: the rest, for method "auto".
- second length, more rows, stream: what another call costs, chunks with a short last one for the
  stream.

With --xla the samples are those of method "cached", which XLA compiles: "lowering" is not needed,
and "first sample" is the compilation.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

NETWORKS = ("eight", "twenty-four", "gpt")
LENGTH, OTHER_LENGTH, ROWS, CHUNK = 200, 150, 3, 64
WORD = "FIRST_SOUND "


def eight_layers(units: int = 32, layers: int = 8) -> Any:
    """Return gated dilated convolutions from [batch, time, 1] to four logistics."""
    import keras

    inputs = keras.Input([None, 1])
    h, skipped = keras.layers.Conv1D(units, 2, padding="causal")(inputs), 0.0
    for layer in range(layers):
        options = {"dilation_rate": 2 ** (layer % 8), "padding": "causal"}
        a = keras.layers.Conv1D(units, 2, activation="tanh", **options)(h)
        gated = a * keras.layers.Conv1D(units, 2, activation="sigmoid", **options)(h)
        skipped = skipped + keras.layers.Dense(units)(gated)
        h = h + keras.layers.Dense(units)(gated)
    return keras.Model(inputs, keras.layers.Dense(12)(keras.activations.relu(skipped)))


def gpt(vocab: int = 256, width: int = 64, heads: int = 4, layers: int = 3) -> Any:
    """Return a GPT of learned positions over tokens [batch, time]."""
    import keras

    inputs = keras.Input([None], dtype="int32")
    places = keras.ops.cumsum(keras.ops.ones_like(inputs), 1) - 1
    h = keras.layers.Embedding(vocab, width)(inputs) + keras.layers.Embedding(1024, width)(places)
    for _ in range(layers):
        a = keras.layers.LayerNormalization()(h)
        h = h + keras.layers.MultiHeadAttention(heads, width // heads)(a, a, use_causal_mask=True)
        m = keras.layers.LayerNormalization()(h)
        m = keras.layers.Dense(4 * width, activation="gelu")(m)
        h = h + keras.layers.Dense(width)(m)
    return keras.Model(inputs, keras.layers.Dense(vocab)(keras.layers.LayerNormalization()(h)))


def made(name: str) -> tuple[Any, Any]:
    """Return a network and a distribution by the network's name."""
    from benchmarks.keras_wavenet import wavenet
    from onepass.likelihoods import Categorical, LogisticMixture

    if name == "gpt":
        return gpt(), Categorical(256)
    if name == "eight":
        return eight_layers(), LogisticMixture(levels=65_536, components=4)
    return wavenet(), LogisticMixture(levels=65_536, components=10)


@contextlib.contextmanager
def _counted(owner: Any, name: str, seconds: dict[str, float], part: str) -> Iterator[None]:
    """Add the processor time of the calls of a function to a part."""
    function = getattr(owner, name)

    def run(*arguments: Any, **options: Any) -> Any:
        start = time.process_time()
        try:
            return function(*arguments, **options)
        finally:
            seconds[part] = seconds.get(part, 0.0) + time.process_time() - start

    with mock.patch.object(owner, name, run):
        yield


def measure(name: str, method: str) -> dict[str, float]:
    """Return processor seconds of every part for a network, in this process."""
    import onepass
    from onepass.machine.machine import StepMachine
    from onepass.step import derive

    network, distribution = made(name)
    parts: dict[str, float] = {}

    def clock(part: str, function: Callable[[], Any], inside: tuple[str, ...] = ()) -> Any:
        start, before = time.process_time(), sum(parts.get(each, 0.0) for each in inside)
        result = function()
        spent = time.process_time() - start
        parts[part] = spent - sum(parts.get(each, 0.0) for each in inside) + before
        return result

    with (
        _counted(derive, "verify", parts, "verification"),
        _counted(StepMachine, "__init__", parts, "lowering"),
    ):
        model = clock("construction", lambda: onepass.Autoregressive(network, distribution))
        clock("derivation", lambda: model.symbol_network.stepped, ("verification",))

        def sample(num: int, length: int) -> Any:
            return model.sample(num=num, length=length, seed=1, method=method)

        clock("first sample", lambda: sample(1, LENGTH), ("lowering",))
        parts["first sound"] = sum(parts.values())
        clock("second length", lambda: sample(1, OTHER_LENGTH))
        clock("more rows", lambda: sample(ROWS, LENGTH))
        clock("a fourth row", lambda: sample(ROWS + 1, LENGTH))
        clock("stream", lambda: list(model.stream(length=LENGTH, seed=1, chunk=CHUNK)))
    return parts


def measured(name: str, method: str) -> dict[str, float]:
    """Return what `measure` finds in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.first_sound", name, "--inside"]
    words += ["--xla"] if method == "cached" else []
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    found = next(line for line in printed.splitlines() if line.startswith(WORD))
    return json.loads(found.removeprefix(WORD))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", choices=[*NETWORKS, []], metavar="NETWORK")
    parser.add_argument("--xla", action="store_true", help='method "cached", which XLA compiles')
    parser.add_argument("--rounds", type=int, default=1, help="processes per network; the least")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    method = "cached" if given.xla else "auto"
    if given.inside:
        print(WORD + json.dumps(measure(given.networks[0], method)))
        return
    for name in given.networks or NETWORKS:
        rounds = [measured(name, method) for _ in range(given.rounds)]
        print(f"{name}, processor seconds")
        for part in rounds[0]:
            print(f"  {part:<14} {min(each[part] for each in rounds):6.2f}", flush=True)


if __name__ == "__main__":
    main()
