"""Speculative sampling: a cheap draft proposes blocks, which passes of the model check.

A pass over a proposed block computes the distribution of every symbol given the proposals before
it. A rule decides which proposals are kept and replaces the first that is not; from there the draft
proposes again. The quality of the draft affects the number of passes, not the distribution.
Sources: Wiggers and Hoogeboom 2020, arXiv:2002.09928; Leviathan et al. 2023, arXiv:2211.17192.

Coupling keeps a proposal if it equals the symbol that the model itself draws with its noise. The
symbols are those of every other sampler, at any temperature. With 65,536 levels it seldom keeps a
proposal, because the draft must hit the exact level.

Rejection keeps a proposal from the draft's distribution q with probability min(1, p / q), where p
is the model's; the first that is not kept is redrawn from the residual distribution

    r(x) = max(0, p(x) - q(x)) / sum_x max(0, p(x) - q(x))

so that every symbol has the model's distribution (Leviathan et al., theorem 3.5; for continuous
drafts Wang et al. 2024, arXiv 2411.11925), but differs from the draws of other samplers. r is drawn
by rejection: a candidate from p is kept with probability max(0, 1 - q / p). It suits many levels
with similar neighbours, as in 16-bit audio.

All random numbers have an address (seed, row, position): block length and batch affect only
rounding.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import tensorflow as tf

from onepass.likelihoods import noise
from onepass.likelihoods.distribution import Distribution
from onepass.likelihoods.truncated import (
    counts_after,
    drawing,
    first_counts,
    recalling,
    with_counts,
)
from onepass.networks.conditions import (
    NOTHING,
    Condition,
    Frames,
    describe_spec,
    first_state,
    is_at_rate,
    over_time,
)
from onepass.networks.symbols import Prompt, State

CANDIDATES = 16  # per round
ROUNDS = 1 << 17  # at most; if all fail, p and q differ only by rounding
KEEPING, DRAWING = 1, 2  # folded into the seed, for independent random numbers


class SymbolDistributions(NamedTuple):
    """Distributions of symbols, given by parameters [..., parameters]."""

    likelihood: Distribution
    parameters: tf.Tensor

    def log_prob(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return the log-probability of symbols, float32 [...], in nats."""
        return self.likelihood.log_prob(self.parameters, symbols)

    def at(self, place: tf.Tensor) -> "SymbolDistributions":
        """Return the distributions at one position per row, [batch]."""
        return self._replace(parameters=tf.gather(self.parameters, place, batch_dims=1))


class Address(NamedTuple):
    """The address of random numbers: seed uint32 [2], rows int32 [batch], start [] or [batch]."""

    seed: tf.Tensor
    rows: tf.Tensor
    start: tf.Tensor


class Block(NamedTuple):
    """The inputs of a draft and of a rule for one block of n symbols."""

    # The noise of the model's distribution, [batch, n, noise channels]; for rejection, the noise of
    # the draft's distribution.
    noise: tf.Tensor
    condition: Any
    temperature: tf.Tensor  # 1 samples the model, less nears its mode; 1 for rejection
    draft_condition: Any = None  # if it differs from the model's
    address: Address | None = None  # of the random numbers for rejection


# Function from the first rejected position [batch] to new symbols there, int32 [batch, 1 or n].
Fresh = Callable[[tf.Tensor], tf.Tensor]
# Function from a guess int32 [batch, n], the model's distributions given the guess before each
# symbol, the draft's distributions or None, and the block, to which symbols are kept, bool [batch,
# n], and a `Fresh`.
Rule = Callable[
    [tf.Tensor, SymbolDistributions, SymbolDistributions | None, Block], tuple[tf.Tensor, Fresh]
]


def coupling(
    guess: tf.Tensor, p: SymbolDistributions, q: SymbolDistributions | None, block: Block
) -> tuple[tf.Tensor, Fresh]:
    """Keep the symbols that the model itself draws with its noise; a `Rule`."""
    del q  # any proposal will do
    drawn = p.likelihood.sample(p.parameters, block.noise, block.temperature)
    own = tf.cast(tf.reshape(drawn, guess.shape), tf.int32)
    return own == guess, lambda first: own


def rejection(
    guess: tf.Tensor, p: SymbolDistributions, q: SymbolDistributions | None, block: Block
) -> tuple[tf.Tensor, Fresh]:
    """Keep symbols with probability min(1, p / q); a `Rule`."""
    address, size = block.address, guess.shape[1]
    if q is None or address is None:
        raise ValueError("`draft` must have densities to be accepted by rejection.")

    def fresh(first: tf.Tensor) -> tf.Tensor:
        at = tf.minimum(first, size - 1)
        where = address._replace(start=address.start + at)
        return draw_residuals(q.at(at), p.at(at), where, first < size)[:, tf.newaxis]

    return accept_proposals(guess, q, p, address), fresh


Acceptance = Literal["coupling", "rejection"]
RULES: dict[str, Rule] = {"coupling": coupling, "rejection": rejection}


def accept_proposals(
    guess: tf.Tensor, q: SymbolDistributions, p: SymbolDistributions, address: Address
) -> tf.Tensor:
    """Return which proposals int32 [batch, time] from `q` are kept, bool [batch, time]."""
    seed = noise.fold_in(address.seed, KEEPING)
    uniform = noise.uniform(seed, address.rows, address.start, guess.shape[1])[..., 0]
    return tf.math.log(uniform) <= p.log_prob(guess) - q.log_prob(guess)


def draw_residuals(
    q: SymbolDistributions, p: SymbolDistributions, address: Address, wanted: tf.Tensor
) -> tf.Tensor:
    """Draw levels [batch] from the residual distributions of the rows that `wanted` selects."""

    def draw(
        count: tf.Tensor, levels: tf.Tensor, found: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        drawn, suits = _candidate(q, p, address, count)
        return count + 1, tf.where(found, levels, drawn), found | suits

    start = (tf.constant(0), tf.zeros_like(address.rows), ~wanted)
    return tf.while_loop(
        lambda *state: ~tf.reduce_all(state[2]), draw, start, maximum_iterations=ROUNDS
    )[1]


def _candidate(
    q: SymbolDistributions, p: SymbolDistributions, address: Address, count: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the first accepted candidate of a round, [batch], and whether there is one."""
    rows = tf.shape(address.rows)[0]
    numbers = count * CANDIDATES + tf.range(CANDIDATES)
    seeds = noise.fold_in(noise.fold_in(address.seed, DRAWING), numbers)
    seeds = tf.repeat(seeds, rows, 0)
    every_row, start = (tf.tile(x, [CANDIDATES]) for x in (address.rows, address.start))
    symbols_noise = p.likelihood.noise(seeds, every_row, start, 1)
    uniform = noise.uniform(seeds, every_row, start, 1, lane=1)
    symbols_noise = tf.reshape(symbols_noise, [CANDIDATES, rows, symbols_noise.shape[-1]])
    drawn = p.likelihood.sample(p.parameters, symbols_noise)
    uniform = tf.reshape(uniform[:, 0, 0], [CANDIDATES, rows])
    suits = uniform < -tf.math.expm1(q.log_prob(drawn) - p.log_prob(drawn))
    number = tf.range(CANDIDATES)[:, tf.newaxis]
    first = tf.reduce_min(tf.where(suits, number, CANDIDATES - 1), 0)
    return tf.reduce_sum(tf.where(number == first, drawn, 0), 0), tf.reduce_any(suits, 0)


BLOCK = 16


class Draft(Protocol):
    """A source of proposals; its methods are pure functions of tensors, which XLA can compile."""

    def initial_state(self, batch: int) -> Any:
        """Return the state before the first symbol."""

    def memory(self, block: Block) -> Any:
        """Return the initial value of the state that the proposals of one block share."""

    def propose(
        self, block: Block, symbols: tf.Tensor, known: tf.Tensor, memory: Any, state: Any
    ) -> tuple[tf.Tensor, Any, Any]:
        """Return symbols int32 [batch, n], the new memory, and the state after the whole block.

        Args:
          block: the inputs of the block whose symbols are proposed.
          symbols: int32 [batch, n]; the first `known` of each row are final.
          known: int32 [batch]. Only the last known symbol may differ from the previous proposal.
          memory: the memory that the previous proposal returned; at first, `memory(block)`.
          state: the draft's state before the block.
        """


class LastPass:
    """The draft of fixed-point sampling: it proposes what the pass before drew."""

    def initial_state(self, batch: int) -> tuple[()]:
        """See `Draft.initial_state`."""
        del batch
        return ()

    def memory(self, block: Block) -> tuple[()]:
        """See `Draft.memory`."""
        del block
        return ()

    def propose(
        self, block: Block, symbols: tf.Tensor, known: tf.Tensor, memory: Any, state: Any
    ) -> tuple[tf.Tensor, Any, Any]:
        """See `Draft.propose`."""
        del block, known
        return symbols, memory, state


class SteppedPasses:
    """Passes over blocks by a network whose step takes several symbols at once."""

    def __init__(self, network: Any) -> None:
        self.network = network

    def initial_state(self, batch: int, length: int = 0, condition: Condition = NOTHING) -> State:
        """Return the state before the first of `length` symbols."""
        return first_state(self.network, batch, length, condition)

    def __call__(self, state: State, symbols: tf.Tensor, condition: Any) -> tuple[tf.Tensor, Any]:
        """Return the parameters of symbols int32 [batch, n], and a record of them for `after`."""
        inputs = tf.concat([state["input"], self.network.read(symbols)[:, :-1]], 1)
        return self.network.chunk(inputs, state["network"], condition)

    def after(self, read: Any, symbols: tf.Tensor) -> State:
        """Return the state after a block, of which the last symbol may differ from the pass's."""
        return {"input": self.network.read(symbols[:, -1:]), "network": read}


class Settled(NamedTuple):
    """The progress of a block, during its passes and once all its symbols are final."""

    symbols: tf.Tensor
    known: tf.Tensor  # int32 [batch], number of first symbols that are final
    open: tf.Tensor  # bool [], True while any row has symbols that are not final
    corrected: tf.Tensor  # int32 [batch], number of symbols at which a proposal was rejected
    passes: tf.Tensor
    memory: Any
    # The states of the model and of the draft after the block; during the passes, the first entry
    # is the record that the model's last pass returned for `after`.
    states: Any


def speculative(
    network: Any,
    distribution: Distribution,
    noise: tf.Tensor,
    condition: Condition,
    temperature: tf.Tensor,
    draft: Draft,
    block: int = BLOCK,
    prompt: Prompt | None = None,
    states: Any = None,
) -> tuple[tf.Tensor, tf.Tensor, Any]:
    """Return symbols int32 [batch, time], the number of passes, and the states after them.

    `states` are those of network and draft before them, after whole blocks; None: the first ones.
    """
    passes = SteppedPasses(network)
    batch, wanted = noise.shape[0], noise.shape[1]
    # Blocks of equal length, since a network may have no positions beyond the last symbol.
    block = -(-wanted // -(-wanted // block))
    block = -(-block // network.block) * network.block
    short = [[0, 0], [0, -wanted % block], [0, 0]]
    length = wanted - wanted % -block
    noise = tf.pad(noise, short)
    condition = over_time(
        lambda x: tf.pad(x, [*short[:2], *[[0, 0]] * (x.shape.rank - 2)]), condition
    )
    if prompt is not None:
        prompt = prompt._replace(symbols=tf.pad(prompt.symbols, short[:2]))
    drawn = tf.TensorArray(tf.int32, noise.shape[1] // block, element_shape=[batch, block])

    memory = first_counts(temperature, [batch], distribution.levels)
    memory = () if memory is None else (memory,)

    def body(
        number: tf.Tensor, states: Any, drawn: tf.TensorArray, count: tf.Tensor, *memory: tf.Tensor
    ) -> tuple[Any, ...]:
        rows = tf.range(block) + number * block
        part = over_time(lambda x: tf.gather(x, rows, axis=1), condition)
        heat = with_counts(temperature, *memory) if memory else temperature
        now = Block(tf.gather(noise, rows, axis=1), part, heat)
        middle = tf.fill([batch, block], (distribution.levels or 0) // 2)
        symbols, known = _prompt_block(prompt, middle, number * block)
        done = settle_block(passes, distribution, coupling, draft, now, states, symbols, known)
        memory = tuple(counts_after(counts, done.symbols) for counts in memory)
        written = drawn.write(number, done.symbols)
        return number + 1, done.states, written, count + done.passes, *memory

    if isinstance(draft, SteppedDraft):
        draft = draft.of_length(length, condition)
    if states is None:
        states = passes.initial_state(batch, length, condition), draft.initial_state(batch)
    first = (0, states, drawn, 0, *memory)
    blocks = noise.shape[1] // block
    _, states, drawn, count, *_ = tf.while_loop(
        lambda number, *_: number < blocks, body, first, maximum_iterations=blocks
    )
    symbols = tf.reshape(tf.transpose(drawn.stack(), [1, 0, 2]), [batch, -1])
    return symbols[:, :wanted], count, states


def _prompt_block(
    prompt: Prompt | None, unknown: tf.Tensor, start: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    batch, size = unknown.shape
    if prompt is None:
        return unknown, tf.zeros([batch], tf.int32)
    symbols = tf.gather(prompt.symbols, start + tf.range(size), axis=1)
    return symbols, tf.clip_by_value(prompt.known - start, 0, size)


def settle_block(
    passes: SteppedPasses,
    distribution: Distribution,
    rule: Rule,
    draft: Draft,
    block: Block,
    states: Any,
    symbols: tf.Tensor,
    known: tf.Tensor,
) -> Settled:
    """Run passes over a block until all its symbols are final; a pure function.

    The states of model and draft are those before the block. Of its symbols int32 [batch, n], the
    first `known`, int32 [batch], are final.
    """
    before, drafted = states
    (batch, size), index = symbols.shape, tf.range(symbols.shape[1])

    def one_pass(progress: Settled) -> Settled:
        known = progress.known
        guess, memory, after = draft.propose(
            block, progress.symbols, known, progress.memory, drafted
        )
        guess = tf.ensure_shape(guess, [batch, size])
        parameters, read = passes(before, guess, block.condition)
        density = getattr(draft, "conditionals", None)
        q = None if density is None else density(memory)
        heat = recalling(block.temperature, guess, distribution.levels)
        p = SymbolDistributions(distribution, parameters)
        kept, fresh = rule(guess, p, q, block._replace(temperature=heat))
        kept |= index < known[:, tf.newaxis]
        first = tf.reduce_min(tf.where(kept, size, index), 1)
        return Settled(
            tf.where(index >= first[:, tf.newaxis], fresh(first), guess),
            tf.minimum(first + 1, size),
            tf.reduce_any(first < size - 1),  # no symbol of the block depends on its last one
            progress.corrected + tf.cast(first < size, tf.int32),
            progress.passes + 1,
            memory,
            (read, after),
        )

    none, start = tf.zeros([batch], tf.int32), tf.constant(0)
    memory = draft.memory(block)
    first = Settled(symbols, known, tf.constant(True), none, start, memory, states)
    done = tf.while_loop(
        lambda progress: progress.open,
        lambda progress: [one_pass(progress)],
        [one_pass(first)],
        maximum_iterations=size,
    )[0]
    after = draft.propose(block, done.symbols, done.known, done.memory, drafted)[2]
    return done._replace(states=(passes.after(done.states[0], done.symbols), after))


class SteppedDraft:
    """A smaller model in time order, with one step per symbol and the same noise, as a `Draft`."""

    def __init__(
        self, network: Any, distribution: Distribution, length: int = 0, condition: Any = None
    ) -> None:
        self._network, self._distribution = network, distribution
        self._length, self._condition = length, condition

    def initial_state(self, batch: int) -> State:
        """See `Draft.initial_state`."""
        return first_state(self._network, batch, self._length, self._condition)

    def of_length(self, length: int, condition: Any = None) -> "SteppedDraft":
        """Return the draft for sequences of `length` symbols with a condition."""
        return SteppedDraft(self._network, self._distribution, length, condition)

    def memory(self, block: Block) -> tuple[()]:
        """See `Draft.memory`; proposals share no state."""
        return ()

    def propose(
        self, block: Block, symbols: tf.Tensor, known: tf.Tensor, memory: Any, state: State
    ) -> tuple[tf.Tensor, Any, State]:
        """See `Draft.propose`."""
        size, network = symbols.shape[1], self._network
        distribution = drawing(self._distribution, block.temperature)
        step, counts = network.stepper(block.condition), getattr(block.temperature, "counts", None)
        state = state if counts is None else {**state, "counts": counts[:, 0]}

        def body(time: tf.Tensor, state: Any, drawn: tf.TensorArray) -> tuple[Any, ...]:
            parameters, after = step(time, 0, state)
            noise = block.noise[:, time][:, tf.newaxis]
            heat = with_counts(block.temperature, state.get("counts"))
            new = distribution.sample(parameters, noise, heat)
            new = tf.cast(tf.reshape(new, [-1]), tf.int32)
            new = tf.ensure_shape(tf.where(time < known, symbols[:, time], new), known.shape)
            one = new[:, tf.newaxis]
            memory = {n: counts_after(x, one) for n, x in state.items() if n == "counts"}
            after = {"input": network.read(one), "network": after, **memory}
            return time + 1, after, drawn.write(time, new)

        drawn = tf.TensorArray(tf.int32, size, element_shape=known.shape)
        _, state, drawn = tf.while_loop(
            lambda time, *_: time < size, body, (0, state, drawn), maximum_iterations=size
        )
        state = {name: value for name, value in state.items() if name != "counts"}
        return tf.transpose(drawn.stack()), memory, state


def stepped_draft(draft: Any, model: Any) -> Draft:
    """Return an `Autoregressive` as a draft for another model."""
    draft.follow()
    own, other = draft.distribution, model.distribution
    if (own.levels, own.noise_channels) != (other.levels, other.noise_channels):
        raise ValueError(
            f"`draft` must have {other.levels} levels and {other.noise_channels} noise "
            f"channels, got {own.levels} and {own.noise_channels}."
        )
    frames = [name for name, spec in draft.conditions.items() if isinstance(spec, Frames)]
    if frames:
        raise ValueError(f"`draft` must read no Frames, got {frames[0]}.")
    channels = draft.condition_channels, model.condition_channels
    is_only = bool(channels[0]) and (bool(channels[1]) or not model.conditions)
    if is_only and channels[0] != channels[1]:
        raise ValueError(
            f"`draft` must read no condition or one of {model.condition_channels} channels, "
            f"got {draft.condition_channels}."
        )
    read = {} if all(channels) else draft.conditions  # a single timed condition may have any name
    for name, spec in read.items():
        like = model.conditions.get(name)
        fits = like is not None and is_at_rate(spec) == is_at_rate(like)
        if not (fits and spec.shape.is_compatible_with(like.shape)):
            raise ValueError(
                f"`draft` must read conditions of the model, which has no {name},"
                f" {describe_spec(spec)}."
            )
    if draft.layout != model.layout:
        raise ValueError(f"`draft` must have elements {model.layout}, got {draft.layout}.")
    network = draft.symbol_network
    if not network.has_step or network.block != 1:
        raise ValueError("`draft` must have steps of one symbol.")
    return SteppedDraft(network, own)


def check_speculative(model: Any) -> None:
    """Raise ValueError if speculative sampling does not support a model."""
    if model.order != "time" or model.distribution.levels is None:
        raise ValueError('`method="speculative"` needs levels in time order.')
    if model.layout.event:
        raise ValueError(
            f'`method="speculative"` needs one channel per time step, got {model.layout.channels}.'
        )
    network = model.symbol_network
    if not getattr(network, "has_chunks", network.block == 1):
        raise ValueError('`method="speculative"` needs a model whose passes read several symbols.')
