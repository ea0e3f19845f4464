"""Speculative sampling: a cheap draft proposes blocks, and one pass of the model confirms them.

Given its noise, every symbol is a function of the symbols before it (`Distribution.sample`). A pass
over a proposed block computes all these functions at once. The proposals up to the first that
differs are the model's own symbols, and so is the symbol that the pass drew at that one. From there
the draft proposes again. So the symbols are those of every other method for the same noise,
whatever the draft proposes; only the number of passes depends on the draft. A draft that is a
function of the same noise agrees with the model wherever their distributions are close (a
coupling). Source: Wiggers and Hoogeboom 2020, "Predictive Sampling with Forecasting Autoregressive
Models", arXiv:2002.09928; blocks as in Leviathan et al. 2023, arXiv:2211.17192.
"""

from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from autoregressive.given import first_state, over_time
from autoregressive.prompts import Prompt
from autoregressive.symbols import State, TimeOrder
from likelihoods.distribution import Distribution
from likelihoods.truncated import Choice, Truncated

BLOCK = 16


class Block(NamedTuple):
    """The inputs of a draft for one block.

    Attributes:
      noise: [batch, n, noise channels], of the model's distribution.
      condition: of the block: [batch, n, channels], a `Given` or None.
      temperature: see `Distribution.sample`.
    """

    noise: tf.Tensor
    condition: Any
    temperature: tf.Tensor


class Draft(Protocol):
    """A source of proposals: pure functions of tensors, which XLA can compile."""

    def initial_state(self, batch: int) -> Any:
        """Return the state before the first symbol."""

    def memory(self, block: Block) -> Any:
        """Return the state that the proposals of one block share, before the first of them."""

    def propose(
        self, block: Block, symbols: tf.Tensor, known: tf.Tensor, memory: Any, state: Any
    ) -> tuple[tf.Tensor, Any, Any]:
        """Return symbols int32 [batch, n], the memory, and the state after the whole block.

        Args:
          block: whose symbols are proposed.
          symbols: int32 [batch, n], of which the first `known` are the model's.
          known: int32 [batch]. Only the last known symbol may differ from the previous proposal's.
          memory: of the previous proposal, or from `memory`.
          state: before the block.
        """


class _Progress(NamedTuple):
    """A block between two passes; `states` are those of the model and the draft after it."""

    symbols: tf.Tensor
    known: tf.Tensor
    open: tf.Tensor
    memory: Any
    states: Any


def speculative(
    network: TimeOrder,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: Any,
    temperature: tf.Tensor,
    draft: Draft,
    block: int = BLOCK,
    prompt: Prompt | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return symbols int32 [batch, time], and the number of passes of the network, int32 [].

    Args:
      network: as for `cached`; its step takes several symbols at once.
      distribution: as for `cached`.
      noise: as for `cached`.
      condition: as for `cached`.
      temperature: as for `cached`.
      draft: proposes the symbols.
      block: symbols of a proposal.
      prompt: as for `cached`.
    """
    batch, wanted = noise.shape[0], noise.shape[1]
    short = [[0, 0], [0, -wanted % block], [0, 0]]
    length = wanted - wanted % -block
    noise = tf.pad(noise, short)
    condition = over_time(
        lambda x: tf.pad(x, [*short[:2], *[[0, 0]] * (x.shape.rank - 2)]), condition
    )
    if prompt is not None:
        prompt = prompt._replace(symbols=tf.pad(prompt.symbols, short[:2]))
    drawn = tf.TensorArray(tf.int32, noise.shape[1] // block, element_shape=[batch, block])

    def body(number, states, drawn, passes):
        rows = tf.range(block) + number * block
        part = over_time(lambda x: tf.gather(x, rows, axis=1), condition)
        now = Block(tf.gather(noise, rows, axis=1), part, temperature)
        given = _given(prompt, batch, number * block, block)
        symbols, states, more = _settled(network, distribution, draft, now, states, given)
        return number + 1, states, drawn.write(number, symbols), passes + more

    if isinstance(draft, SteppedDraft):
        draft = draft.of_length(length, condition)
    states = first_state(network, batch, length, condition), draft.initial_state(batch)
    first = (0, states, drawn, 0)
    count = noise.shape[1] // block
    _, _, drawn, passes = tf.while_loop(
        lambda number, *_: number < count, body, first, maximum_iterations=count
    )
    symbols = tf.reshape(tf.transpose(drawn.stack(), [1, 0, 2]), [batch, -1])
    return symbols[:, :wanted], passes


def _given(
    prompt: Prompt | None, batch: int, start: tf.Tensor, size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return a block's symbols, int32 [batch, size], and how many of each row are known."""
    if prompt is None:
        return tf.zeros([batch, size], tf.int32), tf.zeros([batch], tf.int32)
    symbols = tf.gather(prompt.symbols, start + tf.range(size), axis=1)
    return symbols, tf.clip_by_value(prompt.known - start, 0, size)


def _settled(
    network: TimeOrder,
    distribution: Distribution,
    draft: Draft,
    block: Block,
    states: Any,
    given: tuple[tf.Tensor, tf.Tensor],
) -> tuple[tf.Tensor, Any, tf.Tensor]:
    """Return the symbols of a block, the states after it, and the number of passes."""
    before, drafted = states
    batch, size = block.noise.shape[:2]
    index = tf.range(size)

    def one_pass(progress: _Progress, passes: tf.Tensor) -> tuple[_Progress, tf.Tensor]:
        known = progress.known
        guess, memory, after = draft.propose(
            block, progress.symbols, known, progress.memory, drafted
        )
        guess = tf.ensure_shape(guess, [batch, size])
        own, state = _drawn(network, distribution, guess, block, before)
        right = (own == guess) | (index < known[:, tf.newaxis])
        first = tf.reduce_min(tf.where(right, size, index), 1)
        symbols = tf.where(index == first[:, tf.newaxis], own, guess)
        # No symbol of the block depends on its last one.
        open_ = tf.reduce_any(first < size - 1)
        known = tf.minimum(first + 1, size)
        return _Progress(symbols, known, open_, memory, (state, after)), passes + 1

    start = _Progress(*given, tf.constant(True), draft.memory(block), states)
    done, passes = one_pass(start, tf.constant(0))
    done, passes = tf.while_loop(
        lambda progress, _: progress.open, one_pass, (done, passes), maximum_iterations=size
    )
    state, after = done.states
    after = draft.propose(block, done.symbols, done.known, done.memory, drafted)[2]
    state = {"input": network.read(done.symbols[:, -1:]), "network": state}
    return done.symbols, (state, after), passes


def _drawn(
    network: TimeOrder, distribution: Distribution, guess: tf.Tensor, block: Block, state: State
) -> tuple[tf.Tensor, Any]:
    """Return the symbols that the model draws for a guess, and its network's state after them."""
    inputs = tf.concat([state["input"], network.read(guess)[:, :-1]], 1)
    parameters, after = network.chunk(inputs, state["network"], block.condition)
    drawn = distribution.sample(parameters, block.noise, block.temperature)
    return tf.cast(tf.reshape(drawn, guess.shape), tf.int32), after


class SteppedDraft:
    """A smaller model in time order, with one step per symbol, as a draft; see `Draft`.

    Args:
      network: of the smaller model.
      distribution: of the smaller model; it uses the same noise.
      length: number of symbols that it will propose; 0: unknown.
      condition: of the sequences that it will propose.
    """

    def __init__(
        self, network: Any, distribution: Distribution, length: int = 0, condition: Any = None
    ):
        self._network, self._distribution = network, distribution
        self._length, self._condition = length, condition

    def initial_state(self, batch: int) -> State:
        """Return the state before the first symbol."""
        return first_state(self._network, batch, self._length, self._condition)

    def of_length(self, length: int, condition: Any = None) -> "SteppedDraft":
        """Return the draft of sequences of `length` symbols, of conditions as they are given."""
        return SteppedDraft(self._network, self._distribution, length, condition)

    def memory(self, block: Block) -> tuple[()]:
        """Return nothing: proposals share no state."""
        return ()

    def propose(
        self, block: Block, symbols: tf.Tensor, known: tf.Tensor, memory: Any, state: State
    ) -> tuple[tf.Tensor, Any, State]:
        """Return the block that continues the known symbols; see `Draft.propose`."""
        size, network = symbols.shape[1], self._network
        is_truncated = isinstance(block.temperature, Choice)
        distribution = Truncated(self._distribution) if is_truncated else self._distribution
        step = network.stepper(block.condition)

        def body(time, state, drawn):
            parameters, after = step(time, 0, state)
            noise = block.noise[:, time][:, tf.newaxis]
            new = distribution.sample(parameters, noise, block.temperature)
            new = tf.cast(tf.reshape(new, [-1]), tf.int32)
            new = tf.ensure_shape(tf.where(time < known, symbols[:, time], new), known.shape)
            after = {"input": network.read(new[:, tf.newaxis]), "network": after}
            return time + 1, after, drawn.write(time, new)

        drawn = tf.TensorArray(tf.int32, size, element_shape=known.shape)
        _, state, drawn = tf.while_loop(
            lambda time, *_: time < size, body, (0, state, drawn), maximum_iterations=size
        )
        return tf.transpose(drawn.stack()), memory, state
