"""Generates rows of a user's model from a prompt, for the signatures of `own_prompts`.

Each row is generated separately, by two kinds of functions that XLA compiles for one row and fixed
lengths: passes that read the symbols of a prompt, and a loop that draws symbols up to the row's
end.
"""

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf

from onepass.bundles.own_signatures import StreamingSequence
from onepass.bundles.streaming_models import Filled, NoiseSource, State
from onepass.likelihoods.capabilities import table_of
from onepass.likelihoods.distribution import Distribution
from onepass.likelihoods.truncated import Choice, Truncated
from onepass.model import Autoregressive
from onepass.networks.prompts import Prompt
from onepass.samplers import cached_chunk
from onepass.samplers.sampling import Samplers

COUNTS = "counts"  # of earlier symbols, in the state
PASSES = (256, 16)  # symbols of a prompt that one pass reads; the rest take one step each


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A distribution over tokens that draws as `Truncated` if a row requests it."""

    distribution: Distribution

    @property
    def levels(self) -> int | None:
        """Number of symbols."""
        return self.distribution.levels

    def sample(self, parameters: tf.Tensor, noise: tf.Tensor, temperature: Choice) -> tf.Tensor:
        """Return symbols of one row, int32 [...], from the truncated distribution if requested."""

        def whole() -> tf.Tensor:
            drawn = self.distribution.sample(parameters, noise, temperature.temperature)
            return tf.ensure_shape(tf.cast(drawn, tf.int32), noise.shape[:-1])

        def part() -> tf.Tensor:
            drawn = Truncated(self.distribution).sample(parameters, noise, temperature)
            return tf.ensure_shape(tf.cast(drawn, tf.int32), noise.shape[:-1])

        # Finding the most probable tokens takes longer than drawing one.
        return tf.cond(temperature.differs, part, whole)


def restrict_tokens(distribution: Distribution) -> Any:
    """Return a `Chosen` for a distribution over tokens, or any other distribution unchanged."""
    return distribution if table_of(distribution) is None else Chosen(distribution)


@dataclasses.dataclass(frozen=True)
class Bounded:
    """A prompt for a row that ends after at most `count` symbols, int32 []."""

    prompt: Prompt
    count: tf.Tensor

    def over(self, drawn: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Return drawn symbols, replaced by the prompt's symbols at positions that it covers."""
        return self.prompt.over(drawn, position)

    def ends(self, drawn: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Return whether the row ends with the symbols [1, 1] at a position, bool [1, 1]."""
        return self.prompt.ends(drawn, position) | (position + 1 >= self.count)


class Part(NamedTuple):
    """A request for symbols of one row, starting at a position.

    Attributes:
      source: the noise, starting at the first of these symbols.
      heat: the temperature, or the `Choice` among tokens that includes it.
      prompt: symbols [1, at least `count`] that begin with the prefix, and those that end the row.
      count: int32 [], number of symbols to return, including the prefix.
      channels: [1, time, channels], the condition, or None.
    """

    source: NoiseSource
    heat: Any
    prompt: Prompt
    count: tf.Tensor
    channels: Any


class Rows:
    """Generator of rows of a model with a step, from a prompt."""

    def __init__(self, streaming: StreamingSequence, model: Autoregressive):
        self._streaming, self._network = streaming, model.symbol_network
        self._samplers = Samplers(model)
        distribution = model.distribution
        self._noise, self._distribution = distribution.noise, restrict_tokens(distribution)
        self.longest_loop = streaming.pieces[1]
        is_of_tokens = table_of(distribution) is not None
        counts: dict[str, Filled] = {COUNTS: (tf.int32, (distribution.levels or 0,), 0)}
        self.memory = counts if is_of_tokens else {}
        options: dict[str, Any] = {"jit_compile": True, "autograph": False}
        self._draw = tf.function(self._draw_symbols, **options)
        self._read = tf.function(self._after, **options)
        sizes = PASSES if self._network.block == 1 else ()
        self._sizes = [size for size in sizes if size < self.longest_loop]

    def make_symbols(self, part: Part, state: State) -> tuple[tf.Tensor, tf.Tensor, State]:
        """Return the symbols [1, count], whether the row has ended, bool [], and the new state."""
        begun, state = self._read_prefix(part, state)
        # The loop may draw beyond `count`: XLA compiles pieces of one size, which are cut
        # afterwards.
        shapes = (tf.TensorShape([1, None]), tf.TensorShape([]))
        symbols, ended, state = tf.while_loop(
            lambda symbols, ended, _: (tf.shape(symbols)[1] < part.count) & ~ended,
            lambda symbols, _, state: self._longer(part, symbols, state),
            (begun, tf.constant(False), state),
            shape_invariants=(*shapes, {name: value.shape for name, value in state.items()}),
            parallel_iterations=1,
        )
        symbols = symbols[:, : part.count]
        missing = part.count - tf.shape(symbols)[1]
        return part.prompt.fill_ended(tf.pad(symbols, [[0, 0], [0, missing]])), ended, state

    def _read_prefix(self, part: Part, state: State) -> tuple[tf.Tensor, State]:
        """Read as much of the prefix as passes can; return what was read and the state after it."""
        position, readable = tf.constant(0), tf.minimum(part.prompt.known[0], part.count)
        for size in self._sizes:

            def body(position: tf.Tensor, state: State, size: int = size) -> tuple:
                cut = _window(part, position, size)
                start = part.source.start + position
                return position + size, self._read(cut.prompt.symbols, cut.channels, start, state)

            position, state = tf.while_loop(
                lambda position, _, size=size: position + size <= readable,
                body,
                (position, state),
                parallel_iterations=1,
            )
        return part.prompt.symbols[:, :position], state

    def _after(self, symbols: tf.Tensor, channels: Any, start: tf.Tensor, state: State) -> State:
        condition = self._streaming.conditions.split_frames(channels)
        before = self._unpack_state(start, state)
        return self._pack_state(self._samplers.read(symbols, condition, before))

    def _unpack_state(self, start: tf.Tensor, state: State) -> Any:
        """Return the step's state with the counts of symbols, which are 0 at position 0."""
        before = self._streaming.unpack_state(start, state)
        counts = {n: tf.where(start[0] == 0, 0, state[n]) for n in self.memory}
        return {**before, **counts}

    def _pack_state(self, state: Any) -> State:
        own = {name: value for name, value in state.items() if name not in self.memory}
        return {**self._streaming.pack_state(own), **{name: state[name] for name in self.memory}}

    def _longer(
        self, part: Part, begun: tf.Tensor, state: State
    ) -> tuple[tf.Tensor, tf.Tensor, State]:
        position, size = tf.shape(begun)[1], self.longest_loop
        cut = _window(part, position, size)
        source = part.source.after(position)
        new, state = self._draw(
            source.key,
            source.row,
            source.start,
            part.heat,
            cut.prompt,
            cut.count,
            cut.channels,
            state,
        )
        is_end = cut.prompt.ends(new) & (tf.range(size) < cut.count)
        return tf.concat([begun, new], 1), tf.reduce_any(is_end), state

    def _draw_symbols(
        self,
        key: tf.Tensor,
        row: tf.Tensor,
        start: tf.Tensor,
        heat: Any,
        prompt: Prompt,
        count: tf.Tensor,
        channels: tf.Tensor | None,
        state: State,
    ) -> tuple[tf.Tensor, State]:
        size = self.longest_loop
        before = self._unpack_state(start, state)
        row = tf.ensure_shape(row, [1])
        noise = self._noise(key[0], row, start[0], size)
        bounded: Any = Bounded(prompt, count)
        new, after = cached_chunk(
            self._network,
            self._distribution,
            noise,
            self._streaming.conditions.split_frames(channels),
            heat,
            before,
            bounded,
        )
        return tf.ensure_shape(new, [1, size]), self._pack_state(after)


def _window(part: Part, position: tf.Tensor, size: int) -> Part:
    prompt = part.prompt.after(position, size)
    prompt = prompt._replace(
        symbols=tf.ensure_shape(prompt.symbols, [1, size]),
        known=tf.ensure_shape(tf.minimum(prompt.known, size), [1]),
    )
    channels = part.channels
    if channels is not None:
        channels = channels[:, position : position + size]
        channels = tf.ensure_shape(channels, [1, size, channels.shape[-1]])
    return part._replace(prompt=prompt, count=part.count - position, channels=channels)
