"""Audio networks as networks of symbols, for samplers that make passes over blocks.

The cached step of a `WaveNet` is derived from its graph, as for any causal network. This is not
possible for a vocoder, whose layers run once per bunch of samples, or for a network with a context
stack or `prediction_windows`.
"""

import functools
from typing import Any, NamedTuple

import tensorflow as tf

from onepass.model import Autoregressive
from onepass.networks.conditions import NOTHING, Condition, as_specs, in_order
from onepass.networks.symbols import State, Step
from onepass.samplers.cached import FixedPointSampler
from onepass.samplers.fixed_point import window_of
from onepass.samplers.registry import register
from onepass.step import UnsupportedNetworkError, incremental
from wavenet.sound_network import Network


@register(Network, object, method="fixed-point")
def by_passes(network: Network, distribution: Any) -> FixedPointSampler | None:
    """Return the network's fixed-point sampler; None if it reads whole blocks of past samples."""
    is_whole = network.config.reads_blocks
    return None if is_whole else FixedPointSampler(BlockPass(network), distribution)


class PassState(NamedTuple):
    """The past that a block depends on; it ends with a whole bunch."""

    inputs: tf.Tensor
    """The latest `network.inputs`, [batch, history]."""
    condition: tf.Tensor
    """The condition of these samples, [batch, history, channels]; 0 channels if unconditional."""
    pasts: list[tf.Tensor]
    """The latest inputs of every layer, [batch, `past_steps`, residual_channels] each."""


class BlockPass:
    """One pass of a network, without context stack and `prediction_windows`, over a block."""

    def __init__(self, network: Network) -> None:
        config = network.config
        if config.reads_blocks:
            raise ValueError(
                "`network` must have no context stack and no `prediction_windows` for passes over "
                "blocks."
            )
        self.network, self.bunch = network, config.bunch_samples
        past = config.history_samples + config.prediction_order
        self.history = -(-past // self.bunch) * self.bunch

    def initial_state(self, batch: int, length: int = 0, condition: Any = None) -> PassState:
        """Return the state before the first sample: silence."""
        del length, condition  # the state does not depend on them
        config, network = self.network.config, self.network
        inputs = tf.zeros([batch, self.history], network.front_dtype)
        if config.reads_levels:
            inputs = tf.fill([batch, self.history], config.levels)
        dtype = network.front_dtype if config.conditioner_units else network.dtype
        condition = tf.zeros([batch, self.history, config.gate_inputs], dtype)
        pasts = [
            tf.zeros([batch, layer.past_steps, config.residual_channels], network.dtype)
            for layer in network.stack.layers
        ]
        return PassState(inputs, condition, pasts)

    def __call__(
        self, state: PassState, levels: tf.Tensor, condition: tf.Tensor | None
    ) -> tuple[tf.Tensor, PassState]:
        """Return the parameters of a block [batch, time, parameters], and what `after` needs.

        `levels` are int32 [batch, time], whole bunches; `condition` is [batch, time, channels].
        """
        inputs = tf.cast(self.network.inputs(levels), state.inputs.dtype)
        inputs = tf.concat([state.inputs, inputs], 1)
        if condition is None:
            condition = tf.zeros([*levels.shape, 0], state.condition.dtype)
        condition = tf.concat([state.condition, tf.cast(condition, state.condition.dtype)], 1)
        parameters, hiddens = self.network.run_layers(
            inputs, condition if condition.shape[-1] else None, state.pasts, self.history
        )
        pasts = [tf.concat(both, 1) for both in zip(state.pasts, hiddens, strict=True)]
        return parameters, PassState(inputs, condition, pasts)

    def after(
        self, read: PassState, levels: tf.Tensor, samples: tf.Tensor | None = None
    ) -> PassState:
        """Return the state after the first `samples` samples of a block, int32 [batch], or all.

        Only levels in the last bunch may differ from those of the pass `read`.
        """
        if samples is None:
            samples = tf.fill(tf.shape(levels)[:1], tf.shape(levels)[1])
        inputs = tf.cast(self.network.inputs(levels), read.inputs.dtype)
        inputs = tf.concat([read.inputs[:, : self.history], inputs], 1)
        steps, layers = samples // self.bunch, self.network.stack.layers
        pasts = [
            window_of(past, steps, layer.past_steps)
            for past, layer in zip(read.pasts, layers, strict=True)
        ]
        inputs, condition = (
            window_of(each, samples, self.history) for each in (inputs, read.condition)
        )
        return PassState(inputs, condition, pasts)


def autoregressive(network: Network) -> Autoregressive:
    """Return an audio network as a model of samples in [-1, 1], float32 [batch, time].

    The condition is a result of `network.condition`, [batch, time, channels]. The model is created
    once per network and cached there.
    """

    def make() -> Autoregressive:
        return Autoregressive.of_symbols(SoundSymbols(network), network.likelihood, network.codec)

    return network.compiled.once("autoregressive", make)


class SoundSymbols:
    """An audio network as a causal network over levels, int32 [batch, time].

    Attributes:
      block: samples per block; primes and chunks consist of whole blocks.
      longest: maximum number of samples per chunk; None: unlimited.
      reach: number of past samples that a sample depends on; None: all of them.
    """

    def __init__(self, network: Network) -> None:
        config = network.config
        self.network = network
        self.block = 1 if config.prediction_windows else config.block_samples
        self.inputs = tf.TensorSpec([None, None], tf.int32 if config.reads_levels else tf.float32)
        channels = config.gate_inputs - config.context_channels * bool(config.context_layers)
        dtype = network.front_dtype if config.conditioner_units else network.dtype
        self.conditions = as_specs(
            tf.TensorSpec([None, None, channels], dtype) if channels else None
        )
        self.longest = config.block_samples if config.context_layers else None
        self.reach = None if config.reads_blocks else config.receptive_field

    def parameters(self, symbols: tf.Tensor, condition: Condition = NOTHING) -> tf.Tensor:
        """Return each sample's parameters given the levels before it, [batch, time, parameters]."""
        return self.parameters_after(self.read(symbols), condition)

    def parameters_after(self, inputs: tf.Tensor, condition: Condition = NOTHING) -> tf.Tensor:
        """Return each sample's parameters, from unshifted network inputs as returned by `read`."""
        return self.network(inputs, self.prepare_condition(condition))

    @functools.cached_property
    def block_passes(self) -> BlockPass | None:
        """The network's passes over blocks; None if it reads whole blocks of past samples."""
        return None if self.network.config.reads_blocks else _NamedPass(self)

    def positions(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return the positions 0, 1, ... of the symbols, int32 [1, time]."""
        return tf.range(tf.shape(symbols)[1])[tf.newaxis]

    def read(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return the network's inputs for levels [batch, time]."""
        return tf.cast(self.network.inputs(symbols), self.inputs.dtype)

    def prepare_condition(self, condition: Condition, like: Any = None) -> tf.Tensor | None:
        """Return the network's argument, or None for an unconditional network."""
        del like
        return next(iter(in_order(condition.timed, self.conditions)), None)

    @property
    def has_step(self) -> bool:
        """Return whether a step of one sample can be derived."""
        config: Any = self.network.config
        return not (config.reads_blocks or config.conditioner_units)

    @functools.cached_property
    def stepped(self) -> Any:
        """The incremental network with `initial_state` and `step`, derived on first use.

        Raises:
          UnsupportedNetworkError: If the network is a vocoder, or has a context stack or
            `prediction_windows`.
        """
        if not self.has_step:
            reads = self.network.config.reads_blocks
            kind = "the network reads the sound" if reads else "a vocoder makes the sound"
            raise UnsupportedNetworkError(f"{kind} in whole blocks; no step can be derived from it")
        network: Any = self.network
        with tf.init_scope():
            return incremental(network.of_past, inputs=self.inputs, condition=self.conditions)

    def initial_state(self, batch: int, length: int = 0, at_once: bool = False) -> State:
        """Return the state before the first sample: silence."""
        make = self.stepped.first_state if at_once else self.stepped.initial_state
        network: Any = self.network
        silence = tf.fill([batch, 1], tf.constant(network.silence, self.inputs.dtype))
        return {"input": silence, "network": make(batch)}

    def stepper(self, condition: Condition) -> Step:
        """Return a function from (time, remainder, state) to parameters and the next state."""
        given = self.prepare_condition(condition)

        def step(time: Any, remainder: int, state: State) -> tuple[tf.Tensor, Any]:
            now = [] if given is None else [given[:, time][:, tf.newaxis]]
            return self.stepped.step(state["input"], state["network"], *now)

        return step

    def chunk(self, inputs: tf.Tensor, state: Any, condition: Condition) -> tuple[tf.Tensor, Any]:
        """Return the parameters of n samples in one pass, and the network's state after them.

        `inputs` are the inputs before each sample, [batch, n]; `state` is the entry "network" of
        the whole state.
        """
        given = self.prepare_condition(condition)
        return self.stepped.step(inputs, state, *([] if given is None else [given]))


class _NamedPass(BlockPass):
    """A `BlockPass` that reads a `Condition` in place of the network's argument."""

    def __init__(self, symbols: SoundSymbols) -> None:
        super().__init__(symbols.network)
        self._prepare = symbols.prepare_condition

    def __call__(
        self, state: PassState, levels: tf.Tensor, condition: Any
    ) -> tuple[tf.Tensor, PassState]:
        return super().__call__(state, levels, self._prepare(condition))
