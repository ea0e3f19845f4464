"""Choose and run the samplers of a model, each compiled once."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import require
from onepass.foundation.runtime import Compiled
from onepass.likelihoods.truncated import Choice, counts_after, drawing
from onepass.networks.any_length import pad_time
from onepass.networks.conditions import Condition, between, first_state, rows
from onepass.networks.symbols import NO_STOP, Prompt
from onepass.prefix_state import Kept
from onepass.samplers import SAMPLERS, cached_chunk, find_specialised, speculative
from onepass.samplers.compiled import Call, row_bucket, time_bucket
from onepass.samplers.fixed_point import Settled
from onepass.samplers.sequential import with_memory
from onepass.samplers.speculative import check_speculative

# The largest number of prompt symbols read in one pass. Passes have power-of-two lengths, so that a
# few compiled passes serve prompts of any length.
LONGEST_PASS = 256
SHORTEST_PASS = 8


class Samplers:
    """The samplers of a network and a distribution."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._network = model.symbol_network
        self._compiled = Compiled()

    def draw(
        self,
        method: str,
        noise: tf.Tensor,
        condition: Any,
        temperature: tf.Tensor | Choice,
        prompt: Prompt | None = None,
        shared: int = 0,
        draft: Any = None,
        kept: list[Kept] | None = None,
        weights: str = "float32",
    ) -> tf.Tensor:
        """Draw the symbols of all positions, [num, time, ...] or [num, height, width, channels].

        Args:
          kept: what was kept of a `PrefixState`, if the prompt is one; see `read_once`.
          shared: number of first symbols that are known in every row.
          weights: type of large weights.
        """
        if weights != "float32":
            narrow = self.find_narrow(weights, method, temperature, condition, noise.shape[1])
            return narrow(noise, condition, temperature, prompt)
        if method == "speculative":
            return self._speculative(draft, condition)(noise, condition, temperature, prompt)
        own = self._own(method, temperature, prompt)
        if own is not None:
            return own(self._network, self._model.distribution, noise, condition, temperature)
        if method == "auto":
            method = "cached" if self._network.has_step else "fixed-point"
            num, length = noise.shape[:2]
            machine = self._machine(temperature, prompt, condition, num, length)
            if method == "cached" and machine is not None:
                return machine(noise, condition, temperature, prompt)
        if method == "cached":
            return self._sample_cached(noise, condition, temperature, prompt, shared, kept)
        drawn = self._whole(method)(noise, condition, temperature, prompt)
        return drawn.check_symbols() if isinstance(drawn, Settled) else drawn

    def _own(self, method: str, temperature: tf.Tensor | Choice, prompt: Prompt | None) -> Any:
        """Return the registered sampler of the network and the method for such draws, or None."""
        model = self._model
        find = functools.partial(find_specialised, model.network, model.distribution, method)
        own = self._compiled.once(("own", method), find)
        fits = prompt is None and _is_plain(temperature)
        if not (own and fits) and method not in ("auto", *SAMPLERS):
            reason = "such a prompt or temperature" if own else "this network"
            raise ValueError(f"`method` must not be {method!r} for {reason}.")
        return own if fits else None

    def _machine(
        self,
        temperature: tf.Tensor | Choice,
        prompt: Prompt | None,
        condition: Any,
        batch: int,
        length: int,
    ) -> Any:
        """Return the sampler on the step machine if it draws such rows faster than XLA, or None."""
        is_stepped = self._model.order == "time" and self._network.has_step
        # XLA reads prompts of derived steps in passes, whose states can be kept.
        reads_steps = prompt is None or hasattr(type(self._network), "on_machine")
        if not (is_stepped and reads_steps and _is_plain(temperature)):
            return None
        found = self._on_machine("Native" if prompt is None else "NativePrompted")
        return found if found is not None and found.pays(batch, length, condition) else None

    def machine_fault(self, length: int, condition: Condition) -> str:
        """Return why the step machine cannot draw rows of a length, or ""."""
        if getattr(self._network, "period", 0):
            return "its predictions are solved between steps"
        found = self._on_machine("Native")
        return "there is a GPU" if found is None else found.fault(length, condition)

    def _on_machine(self, kind: str, weights: str = "float32") -> Any:
        """Return the model's sampler of a kind of `onepass.samplers.native`, or None."""

        def make() -> Any:
            from onepass.samplers import native  # a heavy import

            of_kind = getattr(native, kind)
            return native.on_machine(of_kind, self._network, self._model.distribution, weights)

        return self._compiled.once((kind, weights), make)

    def find_narrow(
        self,
        weights: str,
        method: str,
        temperature: tf.Tensor | Choice,
        condition: Any,
        length: int,
    ) -> Any:
        """Return the sampler with weights of another type than float32, or raise UserError."""
        self._require_float32(weights, method == "auto", f"the method {method!r}")
        has_options = isinstance(temperature, Choice)
        fits = not has_options or self._network.block == 1
        self._require_float32(weights, fits, "options of tokens of steps of several symbols")
        kind = "NativeOutputs" if has_options else "NativePrompted"
        return self.find_with_weights(kind, weights, condition, length)

    def find_with_weights(self, kind: str, weights: str, condition: Any, length: int) -> Any:
        """Return a sampler on the machine with weights of a type; UserError: there is none."""
        from onepass.machine.weights import WEIGHTS  # a heavy import

        require(weights in WEIGHTS, "weights", f"one of {', '.join(WEIGHTS)}", repr(weights))
        is_stepped = self._model.order == "time" and self._network.has_step
        self._require_float32(weights, is_stepped, "a network without a step")
        is_renewed = getattr(self._network, "period", 0)
        self._require_float32(weights, not is_renewed, "predictions that are solved between steps")
        found = self._on_machine(kind, weights)
        self._require_float32(weights, found, "steps with a GPU")
        fault = found.fault(length, condition)
        self._require_float32(weights, not fault, f"this network: {fault}")
        return found

    def _require_float32(self, weights: str, holds: Any, what: str) -> None:
        require(holds, "weights", f"float32 for {what.rstrip('.')}", weights)

    def log_prob(self, symbols: tf.Tensor, condition: Any, weights: str) -> np.ndarray:
        """Return the log-probability of symbols by steps on the machine, or raise UserError."""
        outputs = self.find_with_weights("NativeOutputs", weights, condition, symbols.shape[1])
        return outputs.log_prob(symbols, condition)

    def _whole(self, method: str) -> Any:
        sampler = SAMPLERS[method]

        def run(
            noise: tf.Tensor, condition: Any, temperature: tf.Tensor | Choice, prompt: Prompt | None
        ) -> tf.Tensor:
            draws = drawing(self._model.distribution, temperature)
            return sampler(self._network, draws, noise, condition, temperature, prompt)

        return self._compiled.function(method, run, jit_compile=True)

    def _speculative(self, draft: Any, condition: Any) -> Any:
        check_speculative(self._model)
        network = self._network

        def make() -> Any:
            proposing = draft.as_draft(self._model)
            # raises an error for a network without steps
            first_state(network, 1, 1, rows(condition, slice(1)))

            def run(
                noise: tf.Tensor,
                condition: Any,
                temperature: tf.Tensor | Choice,
                prompt: Prompt | None,
            ) -> tf.Tensor:
                draws = drawing(self._model.distribution, temperature)
                return speculative(
                    network, draws, noise, condition, temperature, proposing, prompt=prompt
                )[0]

            return tf.function(run, autograph=False, jit_compile=True)

        getattr(draft, "follow", lambda: None)()
        proposes = draft, getattr(draft, "compiled", None)  # another one for a changed network
        return self._compiled.once(("speculative", *proposes), make)

    def _sample_cached(
        self,
        noise: tf.Tensor,
        condition: Any,
        temperature: tf.Tensor | Choice,
        prompt: Prompt | None,
        shared: int,
        kept: list[Kept] | None,
    ) -> tf.Tensor:
        if self._model.order != "time":
            raise ValueError('`method` must not be "cached" for a model in raster order.')
        num, length = noise.shape[:2]
        given = Call(noise, condition, temperature, prompt).of_rows(row_bucket(num))
        noise, condition, temperature, prompt = given
        first, state = self._begin(given, length, shared, kept)
        begun = [] if prompt is None or not first else [prompt.symbols[:num, :first]]
        if first == length:
            return begun[0]
        rest = between(condition, first)
        after = None if prompt is None else prompt.after(first)
        given = Call(noise[:, first:], rest, temperature, after)
        drawn, _ = self._chunk(given, state, time_bucket(length - first))
        return tf.concat([*begun, drawn[:num]], 1)

    def _begin(
        self, given: Call, length: int, shared: int, kept: list[Kept] | None
    ) -> tuple[int, Any]:
        """Return how many of the symbols known in every row were read, and the state after them.

        What all rows have in common is read once, for one row.
        """
        noise, condition, temperature, prompt = given
        state = first_state(self._network, noise.shape[0], length, condition)
        first, levels, event = 0, self._model.distribution.levels, self._model.layout.event
        if prompt is not None and shared:
            symbols, one, read = prompt.symbols[:, :shared], rows(condition, slice(1)), None
            if _is_one(symbols, condition):
                alone = first_state(self._network, 1, length, one)
                if _repeat_rows(alone, state) is not None:
                    read = self.read_once(symbols[:1], one, alone, kept)
            if read is None:
                first, state = self._read_symbols(symbols, condition, state)
            else:
                first, state = read[0], _repeat_rows(read[1], state)
        state = with_memory(state, temperature, event, levels)
        if prompt is not None and "counts" in state:
            for start in range(0, first, LONGEST_PASS):
                part = prompt.symbols[:, start : min(start + LONGEST_PASS, first)]
                state = {**state, "counts": counts_after(state["counts"], part)}
        return first, state

    def read_once(
        self, symbols: tf.Tensor, condition: Condition, state: Any, kept: list[Kept] | None
    ) -> tuple[int, Any]:
        """Return how many known symbols [1, n] were read from a first state, and the state then.

        It is looked for in `kept`, by the shapes of its tensors, and added to it.
        """
        wanted = [(tuple(x.shape), x.dtype) for x in tf.nest.flatten(state)]
        for count, arrays in kept or ():
            if [(x.shape, tf.as_dtype(x.dtype)) for x in arrays] == wanted:
                return count, tf.nest.pack_sequence_as(state, list(map(tf.constant, arrays)))
        count, state = self._read_symbols(symbols, condition, state)
        if kept is not None:
            kept.append(Kept(count, [x.numpy() for x in tf.nest.flatten(state)]))
        return count, state

    def _read_symbols(
        self, symbols: tf.Tensor, condition: Condition, state: Any
    ) -> tuple[int, Any]:
        """Return how many of the known symbols [batch, n] were read, and the state after them.

        They are read in passes, or step by step where a step computes a block, a whole number of
        passes or blocks.
        """
        network, start, count = self._network, 0, symbols.shape[1]
        if not getattr(network, "has_chunks", network.block == 1):
            whole = count - count % network.block
            return whole, self._read_blocks(symbols[:, :whole], condition, state)
        read = self._compiled.function("read", self.read)
        size = LONGEST_PASS
        while size >= SHORTEST_PASS:
            if start + size > count:
                size //= 2
                continue
            part = between(condition, start, start + size)
            state = read(symbols[:, start : start + size], part, state)
            start += size
        return start, state

    def _read_blocks(self, symbols: tf.Tensor, condition: Condition, state: Any) -> Any:
        batch, count = symbols.shape[:2]
        if not count:
            return state
        noise = tf.zeros([*symbols.shape, self._model.distribution.noise_channels])
        prompt = Prompt(symbols, tf.fill([batch], count), tf.constant(NO_STOP))
        given = Call(noise, between(condition, 0, count), tf.constant(1.0), prompt)
        return self._chunk(given, state, time_bucket(count))[1]

    def read(self, symbols: tf.Tensor, condition: Any, state: Any) -> Any:
        """Read known symbols [batch, n] in one pass, and return the state after them."""
        inputs = self._network.read(symbols)
        before = tf.concat([state["input"], inputs[:, :-1]], 1)
        _, after = self._network.chunk(before, state["network"], condition)
        memory = {n: counts_after(x, symbols) for n, x in state.items() if n == "counts"}
        return {"input": inputs[:, -1:], "network": after, **memory}

    def stream(
        self,
        method: str,
        noise_of: Callable[[int, int], tf.Tensor],
        num: int,
        length: int,
        chunk: int,
        condition: Any,
        temperature: tf.Tensor | Choice,
        prompt: Prompt | None,
        shared: int,
        kept: list[Kept] | None = None,
        weights: str = "float32",
    ) -> Iterator[np.ndarray]:
        """Draw symbols as `draw` does, and yield up to `chunk` of each row at a time.

        Args:
          method: "auto" or "cached".
          noise_of: function from a position and a number of symbols to their noise.
          chunk: a multiple of the network's block.
        """
        machine = None
        if weights != "float32":
            machine = self.find_narrow(weights, method, temperature, condition, length)
        elif method == "auto":
            machine = self._machine(temperature, prompt, condition, num, length)
        row_count, block = row_bucket(num), self._network.block
        if machine is None:
            whole = Call(tf.zeros([num, 0]), condition, temperature, prompt).of_rows(row_count)
            first, state = self._begin(whole, length, shared, kept)
        else:
            first, state = 0, machine.begin(num, length, condition)
        begun = np.zeros([num, 0]) if prompt is None else prompt.symbols[:, :first].numpy()
        for start in range(0, first, chunk):
            yield begun[:, start : start + chunk]
        times = time_bucket(min(chunk, length - first)) if first < length else 0
        for start in range(first, length, chunk):
            count = min(chunk, length - start)
            noise = noise_of(start, count)
            part = between(condition, start, start + count)
            after = None if prompt is None else prompt.after(start, count)
            if machine is None:
                given = Call(noise, part, temperature, after)
                symbols, state = self._chunk(given.of_rows(row_count), state, times)
            else:
                noise = pad_time(noise, -(-count // block) * block)
                symbols, state = machine.advance(noise, part, temperature, state, after)
            yield symbols[:num, :count].numpy()

    def _chunk(self, given: Call, state: Any, times: int) -> tuple[tf.Tensor, Any]:
        count = given.noise.shape[1]
        # On an accelerator the loop has a fixed length; symbols drawn beyond `count` are discarded.
        stop = None if tf.config.list_logical_devices("GPU") else tf.constant(count)

        def run(given: Call, state: Any, count: tf.Tensor | None) -> tuple[tf.Tensor, Any]:
            noise, condition, temperature, prompt = given
            draws = drawing(self._model.distribution, temperature)
            return cached_chunk(
                self._network, draws, noise, condition, temperature, state, prompt, count
            )

        function = self._compiled.function("chunk", run, jit_compile=True)
        drawn, state = function(given.of_times(times), state, stop)
        return drawn[:, :count], state


def _is_plain(temperature: tf.Tensor | Choice) -> bool:
    return not isinstance(temperature, Choice) and not temperature.shape.rank


def _is_one(symbols: tf.Tensor, condition: Condition) -> bool:
    """Return whether every row has the same symbols [batch, n], and the same condition of them."""
    read = [symbols, *tf.nest.flatten(between(condition, 0, symbols.shape[1]))]
    return all(len(x) == 1 or bool(tf.reduce_all(x == x[:1])) for x in read)


def _repeat_rows(one: Any, like: Any) -> Any:
    """Return the state of one row for all rows, in the form of `like`; None if it has another."""
    try:
        tf.nest.assert_same_structure(one, like)
    except (TypeError, ValueError):  # as for a stored step, which has groups of rows
        return None
    repeated = []
    for x, wanted in zip(tf.nest.flatten(one), tf.nest.flatten(like), strict=True):
        times = [size if own == 1 else 1 for own, size in zip(x.shape, wanted.shape, strict=True)]
        repeated.append(tf.tile(x, times) if any(size > 1 for size in times) else x)
        if repeated[-1].shape != wanted.shape:
            return None
    return tf.nest.pack_sequence_as(like, repeated)
