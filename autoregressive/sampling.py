"""The samplers of a model, each compiled once."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from autoregressive.drafts import check_speculative
from autoregressive.given import between, first_state, rows
from autoregressive.prompts import Prompt
from autoregressive.samplers import SAMPLERS, cached_chunk, specialised, speculative
from autoregressive.samplers.buckets import Call, row_bucket, time_bucket
from likelihoods.distribution import Distribution
from likelihoods.truncated import Choice, Truncated

# The most symbols of a prompt that one pass reads; the passes' lengths are powers of two, so that a
# few kinds of passes serve prompts of any length.
LONGEST_PASS = 256
SHORTEST_PASS = 8


class Samplers:
    """The samplers of a network and a distribution.

    Args:
      model: an `Autoregressive`; only its parts are used.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._network = model.symbol_network
        self._functions: dict[Any, Any] = {}

    def draw(
        self,
        method: str,
        noise: tf.Tensor,
        condition: Any,
        temperature: tf.Tensor | Choice,
        prompt: Prompt | None = None,
        shared: int = 0,
        draft: Any = None,
    ) -> tf.Tensor:
        """Return symbols, whose shape is that of the noise without its last axis.

        Args:
          method: name of a sampler, "auto" or "speculative".
          noise: the noise of all positions, [num, *positions, noise channels].
          condition: the conditions of all positions, or None.
          temperature: 1 samples the distribution, smaller values are closer to its mode; or a
            `Choice` of tokens.
          prompt: the given symbols of every row, and the one that ends a row; None: neither.
          shared: number of first symbols that are given in every row.
          draft: the object that proposes symbols for "speculative".
        """
        given = noise, condition, temperature
        if method == "speculative":
            return self._speculative(draft, condition, isinstance(temperature, Choice))(
                *given, prompt
            )
        if method == "auto":
            method = "cached" if self._network.has_step else "fixed-point"
            own = self._own(given, prompt)
            if own is not None:
                return own(self._network, self._model.distribution, *given)
            machine = self._machine(temperature, prompt, condition, noise.shape[0], noise.shape[1])
            if method == "cached" and machine is not None:
                return machine(*given)
        if method == "cached":
            return self._cached(*given, prompt, shared)
        return self._whole(method, isinstance(temperature, Choice))(*given, prompt)

    def _own(self, given: tuple, prompt: Prompt | None) -> Any:
        """Return the sampler registered for the network, if it supports the options; else None."""
        temperature = given[2]
        if prompt is not None or isinstance(temperature, Choice) or temperature.shape.rank:
            return None
        if "own" not in self._functions:
            model = self._model
            self._functions["own"] = specialised(model.network, model.distribution)
        return self._functions["own"]

    def _machine(
        self,
        temperature: tf.Tensor | Choice,
        prompt: Prompt | None,
        condition: Any,
        batch: int,
        length: int,
    ) -> Any:
        """Return the step machine's sampler, if it is faster and supports the options, or None."""
        plain = not isinstance(temperature, Choice) and not temperature.shape.rank
        plain &= prompt is None
        if not plain or self._model.order != "time" or not self._network.has_step:
            return None
        if "native" not in self._functions:
            from autoregressive.samplers.native import native  # which imports a compiler

            self._functions["native"] = native(self._network, self._model.distribution)
        found = self._functions["native"]
        return found if found is not None and found.pays(batch, length, condition) else None

    def _distribution(self, is_truncated: bool) -> Any:
        distribution: Distribution = self._model.distribution
        return Truncated(distribution) if is_truncated else distribution

    def _whole(self, method: str, is_truncated: bool) -> Any:
        """Return a sampler that calls the network on whole sequences or images."""
        sampler, distribution = SAMPLERS[method], self._distribution(is_truncated)

        def run(
            noise: tf.Tensor, condition: Any, temperature: tf.Tensor | Choice, prompt: Prompt | None
        ) -> tf.Tensor:
            return sampler(self._network, distribution, noise, condition, temperature, prompt)

        return self._function((method, is_truncated), run, jit_compile=True)

    def _speculative(self, draft: Any, condition: Any, is_truncated: bool) -> Any:
        """Return a sampler with a draft.

        Raises:
          ValueError: the model does not draw levels in time order, or the draft does not fit it.
        """
        check_speculative(self._model)
        network, distribution = self._network, self._distribution(is_truncated)
        name = ("speculative", draft, is_truncated)
        if name not in self._functions:
            proposing = draft.as_draft(self._model)
            # raises for a network without steps
            first_state(network, 1, 1, rows(condition, slice(1)))

            def run(
                noise: tf.Tensor,
                condition: Any,
                temperature: tf.Tensor | Choice,
                prompt: Prompt | None,
            ) -> tf.Tensor:
                given = noise, condition, temperature, proposing
                return speculative(network, distribution, *given, prompt=prompt)[0]

            self._function(name, run, jit_compile=True)
        return self._functions[name]

    def _cached(
        self,
        noise: tf.Tensor,
        condition: Any,
        temperature: tf.Tensor | Choice,
        prompt: Prompt | None,
        shared: int,
    ) -> tf.Tensor:
        if self._model.order != "time":
            raise ValueError('`method` must not be "cached" for a model in raster order.')
        num, length = noise.shape[:2]
        given = Call(noise, condition, temperature, prompt).of_rows(row_bucket(num))
        noise, condition, temperature, prompt = given
        state = first_state(self._network, noise.shape[0], length, condition)
        first, state = self._filled(prompt, shared, condition, state)
        begun = [] if prompt is None or not first else [prompt.symbols[:num, :first]]
        if first == length:
            return begun[0]
        rest = between(condition, first)
        given = Call(noise[:, first:], rest, temperature, _after(prompt, first))
        drawn, _ = self._chunk(given, state, time_bucket(length - first))
        return tf.concat([*begun, drawn[:num]], 1)

    def _filled(
        self, prompt: Prompt | None, shared: int, condition: Any, state: Any
    ) -> tuple[int, Any]:
        """Return how many shared symbols were read by whole passes, and the state after them."""
        network, start = self._network, 0
        if prompt is None or network.block != 1:
            return 0, state
        read = self._function("read", self.read)
        size = LONGEST_PASS
        while size >= SHORTEST_PASS:
            if start + size > shared:
                size //= 2
                continue
            part = between(condition, start, start + size)
            state = read(prompt.symbols[:, start : start + size], part, state)
            start += size
        return start, state

    def read(self, symbols: tf.Tensor, condition: Any, state: Any) -> Any:
        """Return the state after known symbols, which the network reads in one pass.

        Args:
          symbols: [batch, n].
          condition: the condition of these symbols, or None.
          state: the state before the first symbol, with `input` and `network`.
        """
        inputs = self._network.read(symbols)
        before = tf.concat([state["input"], inputs[:, :-1]], 1)
        _, after = self._network.chunk(before, state["network"], condition)
        return {"input": inputs[:, -1:], "network": after}

    def stream(
        self,
        seed: Any,
        num: int,
        length: int,
        chunk: int,
        condition: Any,
        temperature: tf.Tensor | Choice,
        prompt: Prompt | None,
        shared: int,
    ) -> Iterator[np.ndarray]:
        """Yield symbols [num, chunk]; the last part may be shorter.

        Args:
          seed: the noise's seed, an integer in [0, 2^64).
          num: number of rows.
          length: number of symbols of each row.
          chunk: number of symbols at a time, a multiple of the network's block.
          condition: the conditions of all positions, or None.
          temperature: 1 samples the distribution, smaller values are closer to its mode; or a
            `Choice` of tokens.
          prompt: the given symbols of every row, and the one that ends a row; None: neither.
          shared: number of first symbols that are given in every row.
        """
        distribution, layout = self._model.distribution, self._model.layout
        machine = self._machine(temperature, prompt, condition, num, length)
        row_count = row_bucket(num)
        if machine is None:
            whole = Call(tf.zeros([num, 0]), condition, temperature, prompt).of_rows(row_count)
            state = first_state(self._network, row_count, length, whole.condition)
            first, state = self._filled(whole.prompt, shared, whole.condition, state)
        else:
            first, state = 0, machine.begin(num, length, condition)
        begun = np.zeros([num, 0]) if prompt is None else prompt.symbols[:, :first].numpy()
        for start in range(0, first, chunk):
            yield begun[:, start : start + chunk]
        times = time_bucket(min(chunk, length - first)) if first < length else 0
        for start in range(first, length, chunk):
            count = min(chunk, length - start)
            noise = layout.noise(distribution, seed, num, layout.shape([count]), start)
            part = between(condition, start, start + count)
            if machine is None:
                given = Call(noise, part, temperature, _after(prompt, start, count))
                symbols, state = self._chunk(given.of_rows(row_count), state, times)
            else:
                symbols, state = machine.advance(noise, part, temperature, state)
            yield symbols[:num].numpy()

    def _chunk(self, given: Call, state: Any, times: int) -> tuple[tf.Tensor, Any]:
        """Return the next symbols and the new state, by the compiled `cached_chunk`.

        Args:
          given: noise, condition, temperature and prompt of the chunk.
          state: the state before the chunk.
          times: number of time steps that the sampler is compiled for, at least those of the chunk.
        """
        is_truncated = isinstance(given.temperature, Choice)
        distribution, count = self._distribution(is_truncated), given.noise.shape[1]
        # An accelerator's loop has a fixed length; what it draws beyond `count` is not used.
        stop = None if tf.config.list_logical_devices("GPU") else tf.constant(count)

        def run(given: Call, state: Any, count: tf.Tensor | None) -> tuple[tf.Tensor, Any]:
            noise, condition, temperature, prompt = given
            rest = noise, condition, temperature, state, prompt, count
            return cached_chunk(self._network, distribution, *rest)

        function = self._function(("chunk", is_truncated), run, jit_compile=True)
        drawn, state = function(given.of_times(times), state, stop)
        return drawn[:, :count], state

    def _function(self, name: Any, function: Any, jit_compile: bool = False) -> Any:
        """Return the function compiled, once per name."""
        if name not in self._functions:
            self._functions[name] = tf.function(function, autograph=False, jit_compile=jit_compile)
        return self._functions[name]


def _after(prompt: Prompt | None, start: int, count: int | None = None) -> Prompt | None:
    """Return the prompt of the symbols starting at `start`: all of them, or the first `count`."""
    if prompt is None:
        return None
    symbols = (
        prompt.symbols[:, start:] if count is None else prompt.symbols[:, start : start + count]
    )
    return prompt._replace(symbols=symbols, known=tf.maximum(prompt.known - start, 0))
