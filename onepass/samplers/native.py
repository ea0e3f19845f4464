"""A sampler whose step runs on the step machine, without compilation for new networks or lengths.

The step and the draw are traced for one row and lowered to instructions (`onepass.machine`),
which any number of rows run. On CPUs it is an alternative to `cached`, which XLA compiles.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.likelihoods.distribution import Distribution
from onepass.likelihoods.truncated import Choice, counts_after, drawing, first_counts, with_counts
from onepass.machine.machine import StepMachine
from onepass.machine.values import Unlowerable
from onepass.networks.any_length import pad_time
from onepass.networks.conditions import (
    NOTHING,
    Condition,
    between,
    first_state,
    over_time,
    rows,
    with_steps,
)
from onepass.networks.elements import layout_of
from onepass.networks.symbols import Prompt, SteppedSymbols
from onepass.step import UnsupportedNetworkError
from onepass.step.derive import Incremental

# XLA computes all rows of a batch in one operation; the machine runs every instruction per row.
MOST_ROWS = 8  # largest batch for networks with small instructions
MOST_PARAMETERS = 1 << 24  # that `NativeOutputs.log_prob` holds at once
LARGE_INSTRUCTION = 150  # multiplications in one; above, the machine wins at any batch size
UNKNOWN = {tf.int32: -1, tf.float32: tf.float32.min}  # below all symbols: one that is to be drawn
SYMBOLS_AT_ONCE = 32  # between looks whether all rows have ended


def on_machine(
    kind: Callable[..., Any],
    network: SteppedSymbols,
    distribution: Distribution,
    weights: str = "float32",
) -> Any:
    """Return a sampler of a kind, such as `Native`, on the step machine.

    It is None without a step or with a GPU and, but for `NativeOutputs`, if predictors are solved
    between steps.
    """
    draws_renewed = kind is not NativeOutputs and bool(getattr(network, "period", 0))
    if not network.has_step or draws_renewed or tf.config.list_logical_devices("GPU"):
        return None
    return kind(getattr(network, "on_machine", network), distribution, weights)


class First(NamedTuple):
    """The state before the first symbol."""

    batch: int
    of_one: Any  # the state of one row, tensors by name
    of_rows: list  # tensors of the state in order, each the same for all rows or [batch, ...]


class NativeState(NamedTuple):
    """The state at the end of a chunk: the machine, and the workspace of every row."""

    machine: StepMachine
    workspaces: np.ndarray
    of_one: Any  # as in `First`


class Drawing(NamedTuple):
    """The state of `NativeOutputs` after symbols that it has drawn."""

    network: Any  # `First` or `NativeState`
    inputs: tf.Tensor  # the network's next, [batch, 1, ...]
    counts: Any  # of symbols so far, where draws depend on them


class Native:
    """A sampler for a network and a distribution that runs on the step machine.

    A step draws one symbol or a block of them, in which the condition must be constant.
    """

    _num_inputs = 1  # arguments of steps before the condition
    _settings: ClassVar[list[tf.TensorSpec]] = [tf.TensorSpec([])]  # the temperature

    def __init__(
        self, network: SteppedSymbols, distribution: Distribution, weights: str = "float32"
    ) -> None:
        self._network, self._distribution, self._weights = network, distribution, weights
        self._machines: dict[Any, StepMachine] = {}
        self._firsts: dict[int, Any] = {}
        self._faults: dict[Any, str] = {}

    def __call__(
        self, noise: tf.Tensor, condition: Condition, temperature: Any, prompt: Prompt | None = None
    ) -> tf.Tensor:
        """Draw the same symbols [batch, time] as `cached` on the step machine."""
        num, length = noise.shape[:2]
        noise = pad_time(noise, _whole_blocks(length, self._network.block))
        first = self.begin(num, length, condition)
        return self.advance(noise, condition, temperature, first, prompt)[0][:, :length]

    def _horizon(self, length: int) -> int:
        if not getattr(self._network, "has_horizon", False):
            return 0
        # A short table of positions can make the horizon less than the next power of two.
        stepped: Any = getattr(self._network, "stepped", None)
        return stepped.horizon(length)

    def begin(self, batch: int, length: int, condition: Condition = NOTHING) -> "First":
        """Return the state before the first of `length` symbols of `batch` rows."""
        changed = [machine.refresh() for machine in self._machines.values()]
        # The first state of a derived step depends only on weights that its step also reads.
        is_derived = isinstance(getattr(self._network, "stepped", None), Incremental)
        keeps_first = is_derived or getattr(self._network, "keeps_first", False)
        if any(changed) or not keeps_first:
            self._firsts = {}
        if condition.fixed:
            given = (rows(condition, slice(row, row + 1)) for row in range(batch))
            states = [first_state(self._network, 1, length, each) for each in given]
            together = zip(*map(tf.nest.flatten, states), strict=True)
            return First(batch, states[0], [np.stack([np.asarray(x) for x in y]) for y in together])
        horizon = self._horizon(length)
        if horizon not in self._firsts:
            once = {"at_once": True} if is_derived else {}
            self._firsts[horizon] = self._network.initial_state(1, length, **once)
        first = self._firsts[horizon]
        return First(batch, first, tf.nest.flatten(first))

    def advance(
        self,
        noise: tf.Tensor,
        condition: Condition,
        temperature: Any,
        state: Any,
        prompt: Prompt | None = None,
    ) -> tuple[tf.Tensor, Any]:
        """Draw the next symbols [batch, time] from a state, used once; return them and the next.

        Symbols after the end of all rows are zeros. `Native` itself takes no prompt.
        """
        if prompt is None or not prompt.stops:
            return self._advance(noise, condition, temperature, state, prompt)
        length, parts, ended = noise.shape[1], [], False
        together = _whole_blocks(SYMBOLS_AT_ONCE, self._network.block)
        for start in range(0, length, together):
            now = slice(start, min(start + together, length))
            part = between(condition, now.start, now.stop)
            after = prompt.after(start, now.stop - start)
            drawn, state = self._advance(noise[:, now], part, temperature, state, after)
            parts.append(drawn)
            ended |= tf.reduce_any(after.ends(drawn), 1)
            if tf.reduce_all(ended):
                break
        return pad_time(tf.concat(parts, 1), length), state

    def _advance(
        self,
        noise: tf.Tensor,
        condition: Condition,
        temperature: Any,
        state: Any,
        prompt: Prompt | None,
    ) -> tuple[tf.Tensor, Any]:
        block, shape = self._network.block, noise.shape
        if shape[1] % block:
            raise ValueError(f"`noise` must hold whole blocks of {block}, got {shape[1]} symbols.")
        condition = over_time(lambda x: np.asarray(x)[:, ::block], condition)
        inputs = self._inputs(noise, prompt)
        given = list(map(np.asarray, [*inputs, *condition.timed.values()]))
        settings = [np.asarray(temperature)]
        if isinstance(state, NativeState):
            state = _with_present_weights(state)
            state.machine.put(state.workspaces, settings)
        else:
            machine = self.machine(inputs, condition, state.of_one)
            workspaces = machine.begin(state.batch, settings, state.of_rows)
            state = NativeState(machine, workspaces, state.of_one)
        with np.errstate(invalid="ignore"):  # of NaN, whose integer is negative or 0
            (symbols,) = state.machine.run(state.workspaces, *given)
        symbols = symbols if self._distribution.levels is None else np.maximum(symbols, 0)
        return tf.constant(symbols.reshape([*shape[:-1]])), state

    def _inputs(self, noise: tf.Tensor, prompt: Prompt | None) -> list[tf.Tensor]:
        """Return the arguments of steps before the condition."""
        del prompt
        return [self._in_blocks(noise)]

    def machine(self, inputs: Sequence[tf.Tensor], condition: Condition, state: Any) -> StepMachine:
        """Return the machine for arguments of these shapes, lowered once; `state` is one row's."""
        flat = tf.nest.flatten(state)
        arguments = [*inputs, *condition.timed.values()]
        specs = [tf.TensorSpec([1, 1, *x.shape[2:]], x.dtype) for x in arguments]
        key = tuple((tuple(x.shape), x.dtype) for x in [*specs, *flat])
        if key not in self._machines:
            step = self._step(state, condition)
            try:
                self._machines[key] = StepMachine(step, specs, self._settings, flat, self._weights)
            except Unlowerable as error:
                raise UnsupportedNetworkError(str(error.args[0])) from None
        return self._machines[key]

    def pays(self, batch: int, length: int, condition: Condition = NOTHING) -> bool:
        """Return whether the machine is faster than XLA, according to measurements."""
        if self.fault(length, condition):
            return False
        machine = next(iter(self._machines.values()))
        return batch <= MOST_ROWS or machine.multiplications >= LARGE_INSTRUCTION

    def fault(self, length: int, condition: Condition = NOTHING) -> str:
        """Return an error message that names an operation that the machine lacks, or ""."""
        shapes = [(name, tuple(x.shape[1:])) for name, x in sorted(condition.fixed.items())]
        key = self._horizon(length), *shapes
        if key not in self._faults:
            self._faults[key] = self._unknown(length, condition)
        return self._faults[key]

    def _unknown(self, length: int, condition: Any) -> str:
        condition = rows(between(condition, 0, 1), slice(1))
        try:
            state = self.begin(1, length, condition).of_one
            self.machine(self._example_inputs(state), condition, state)
        except UnsupportedNetworkError as error:
            return str(error)
        return ""

    def _example_inputs(self, state: Any) -> list[tf.Tensor]:
        del state
        layout = getattr(self._network, "layout", None) or layout_of(self._distribution, "time")
        noise = layout.noise(self._distribution, 0, 1, layout.shape([self._network.block]))
        return self._inputs(noise, None)

    def _in_blocks(self, values: tf.Tensor) -> tf.Tensor:
        """Return values [batch, time, ...], in whole blocks, as [batch, steps, block, ...]."""
        values = tf.convert_to_tensor(values)
        return tf.reshape(values, [len(values), -1, self._network.block, *values.shape[2:]])

    def _known_symbols(self, noise: tf.Tensor, prompt: Prompt | None) -> tf.Tensor:
        """Return the symbols of the noise's positions, `UNKNOWN` where they are to be drawn."""
        known = tf.fill(noise.shape[:-1], tf.constant(UNKNOWN[self._dtype], self._dtype))
        if prompt is None:
            return known
        symbols = pad_time(prompt.symbols, noise.shape[1])
        return prompt._replace(symbols=symbols).over(known, 0)

    @property
    def _dtype(self) -> tf.DType:
        return tf.float32 if self._distribution.levels is None else tf.int32

    def _step(self, first: Any, like: Any) -> Callable:
        network, distribution, dtype = self._network, self._distribution, self._dtype
        num_inputs, end = self._num_inputs, self._num_inputs + len(like.timed)

        def step(*given: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            noise, *known = given[:num_inputs]
            run = network.stepper(with_steps(like, given[num_inputs:end]))
            temperature, *flat = given[end:]
            state, made = tf.nest.pack_sequence_as(first, flat), []
            for index in range(network.block):
                parameters, after = run(0, index, state)
                own = noise[:, :, index]
                drawn = distribution.sample(parameters, own, temperature)
                drawn = tf.cast(tf.reshape(drawn, own.shape[:-1]), dtype)
                for symbols in known:
                    drawn = _put_known(symbols[:, :, index], drawn)
                made.append(drawn)
                state = {"input": network.read(drawn), "network": after}
            return [tf.stack(made, 2)], tf.nest.flatten(state)

        return step


class NativePrompted(Native):
    """A sampler on the step machine of rows that may begin with known symbols."""

    _num_inputs = 2

    def _inputs(self, noise: tf.Tensor, prompt: Prompt | None) -> list[tf.Tensor]:
        known = self._known_symbols(noise, prompt)
        return [*super()._inputs(noise, prompt), self._in_blocks(known)]


class NativeOutputs(Native):
    """The parameters of a network's steps, computed on the step machine.

    Symbols are drawn from them, as options of tokens ask, by XLA.
    """

    _settings: ClassVar[list[tf.TensorSpec]] = []

    def outputs(
        self, inputs: tf.Tensor, condition: Condition, state: Any
    ) -> tuple[np.ndarray, Any]:
        """Return the parameters [batch, n, num_parameters] of time steps, and the next state.

        The inputs [batch, n, ...] are those before each step, of all rows or of the first ones,
        which alone advance; all else is as in `advance`.
        """
        length, block = inputs.shape[1], self._network.block
        if block > 1:
            inputs = self._in_blocks(inputs)
            condition = over_time(lambda x: np.asarray(x)[:, ::block], condition)
        if not isinstance(state, NativeState):
            machine = self.machine([inputs], condition, state.of_one)
            workspaces = machine.begin(state.batch, [], state.of_rows)
            state = NativeState(machine, workspaces, state.of_one)
        given = [np.asarray(each) for each in (inputs, *condition.timed.values())]
        (parameters,) = state.machine.run(state.workspaces[: len(inputs)], *given)
        found = parameters[:, :, 0, 0]
        return found if block == 1 else found.reshape([len(found), length, -1]), state

    def _advance(
        self,
        noise: tf.Tensor,
        condition: Condition,
        temperature: Any,
        state: Any,
        prompt: Prompt | None,
    ) -> tuple[tf.Tensor, Drawing]:
        network, inputs, counts = self._begin_drawing(noise, temperature, state)
        if isinstance(network, NativeState):
            network = _with_present_weights(network)
        length, parts, known = noise.shape[1], [], 0
        drawing_noise, symbols = noise.numpy(), self._known_symbols(noise, prompt).numpy()
        if prompt is not None:
            known = min(length, int(prompt.known.numpy().min()))
        if known:  # what is known in all rows is read at once
            parts.append(tf.constant(symbols[:, :known]))
            read = tf.concat([inputs, self._network.read(parts[0])], 1)
            now = between(condition, 0, known)
            _, network = self.outputs(read[:, :-1], now, network)
            inputs, counts = read[:, -1:], counts_after(counts, parts[0])
        for time in range(known, length):
            now = between(condition, time, time + 1)
            parameters, network = self.outputs(inputs, now, network)
            each = slice(time, time + 1)
            drawn, inputs, counts = self._draw(
                parameters, drawing_noise[:, each], temperature, counts, symbols[:, each]
            )
            parts.append(drawn)
        return tf.concat(parts, 1), Drawing(network, inputs, counts)

    def _begin_drawing(self, noise: tf.Tensor, temperature: Any, state: Any) -> Drawing:
        if isinstance(state, Drawing):
            return state
        batch, _, *event = noise.shape[:-1]
        inputs = tf.repeat(tf.constant(state.of_one["input"]), batch, 0)
        counts = first_counts(temperature, [batch, *event], self._distribution.levels)
        return Drawing(state, inputs, counts)

    @functools.cached_property
    def _draw(self) -> Callable[..., tuple[tf.Tensor, tf.Tensor, Any]]:
        def run(
            parameters: tf.Tensor,
            noise: tf.Tensor,
            temperature: Choice,
            counts: Any,
            known: tf.Tensor,
        ) -> tuple[tf.Tensor, tf.Tensor, Any]:
            draws = drawing(self._distribution, temperature)
            drawn = draws.sample(parameters, noise, with_counts(temperature, counts))
            drawn = tf.cast(tf.reshape(drawn, noise.shape[:-1]), self._dtype)
            drawn = _put_known(known, drawn)
            return drawn, self._network.read(drawn), counts_after(counts, drawn)

        return tf.function(run, autograph=False, jit_compile=True)

    def renew(self, state: Any, values: dict[str, Any]) -> Any:
        """Return a state with other entries of the network's, by name, [batch, ...] each."""
        none = tf.nest.map_structure(lambda _: None, state.of_one)
        given = tf.nest.flatten(none | {"network": none["network"] | values})
        if isinstance(state, NativeState):
            state.machine.put(state.workspaces, given)
            return state
        pairs = zip(state.of_rows, given, strict=True)
        return state._replace(of_rows=[old if new is None else new for old, new in pairs])

    def log_prob(self, symbols: tf.Tensor, condition: Condition, longest: int = 0) -> np.ndarray:
        """Return the log-probability of symbols [batch, time, ...] given those before them.

        The state is made for rows of `longest` symbols, or more if there are more.
        """
        batch, length = symbols.shape[:2]
        state: Any = self.begin(batch, max(length, longest), condition)
        first = tf.repeat(tf.constant(state.of_one["input"]), batch, 0)
        inputs = tf.concat([first, self._network.read(symbols)[:, :-1]], 1)
        inputs = pad_time(inputs, _whole_blocks(length, self._network.block))
        together = max(1, MOST_PARAMETERS // (batch * self._distribution.num_parameters))
        together = _whole_blocks(together, self._network.block)
        parts = []
        for start in range(0, length, together):
            steps = slice(start, min(start + together, length))
            now = between(condition, steps.start, steps.stop)
            parameters, state = self.outputs(inputs[:, start : start + together], now, state)
            found = parameters[:, : steps.stop - start]
            parts.append(self._distribution.log_prob(found, symbols[:, steps]).numpy())
        return np.concatenate(parts, 1)

    def _example_inputs(self, state: Any) -> list[tf.Tensor]:
        block, one = self._network.block, state["input"]
        return [one if block == 1 else self._in_blocks(tf.repeat(one, block, 1))]

    def _step(self, first: Any, like: Any) -> Callable:
        count, network = len(like.timed), self._network

        def step(inputs: tf.Tensor, *given: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
            run = network.stepper(with_steps(like, given[:count]))
            state, made = tf.nest.pack_sequence_as(first, list(given[count:])), []
            block = network.block
            for index, each in enumerate([inputs] if block == 1 else tf.unstack(inputs, axis=2)):
                parameters, after = run(0, index, {**state, "input": each})
                made.append(parameters)
                state = {"input": each, "network": after}
            return [made[0] if block == 1 else tf.stack(made, 2)], tf.nest.flatten(state)

        return step


def _whole_blocks(count: int, block: int) -> int:
    """Return the number of symbols of the blocks that hold `count` of them."""
    return -(-count // block) * block


def _put_known(known: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
    return tf.where(known > UNKNOWN[known.dtype], known, drawn)


def _with_present_weights(state: NativeState) -> NativeState:
    machine, workspaces, _ = state
    if not machine.is_stale:
        return state
    contents = machine.contents(workspaces)
    machine.refresh()
    return state._replace(workspaces=machine.begin(len(workspaces), [], contents))
