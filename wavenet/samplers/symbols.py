"""Audio networks as networks of symbols, for the samplers of `onepass.samplers`."""

import copy
import functools
from typing import Any

import tensorflow as tf

from onepass.model import Autoregressive
from onepass.networks.conditions import NOTHING, Condition, as_specs, in_order
from onepass.networks.symbols import State, Step
from onepass.step import incremental
from wavenet.network import Network

WINDOW = 64  # samples of a pass of the method "fixed-point"


def autoregressive(network: Network) -> Autoregressive:
    """Return an audio network as a model of samples in [-1, 1], float32 [batch, time].

    The condition is a result of `network.condition`, [batch, time, channels]. The model is created
    once per network and cached there.
    """

    def make() -> Autoregressive:
        return Autoregressive.of_symbols(SoundSymbols(network), network.likelihood, network.codec)

    return network.compiled.once("autoregressive", make)


class SoundSymbols:
    """An audio network as a causal network over levels, int32 [batch, time], with its own step.

    Attributes:
      block: samples that a step of the layers draws; passes consist of whole blocks.
      reach: number of past samples that a sample depends on; None: all of them.
      has_chunks: whether one pass reads several samples.
      window: number of samples of such passes in the method "fixed-point"; 0: there are none.
      period, renew_samples, renew: those of `Network`, for the step machine.
      keeps_first: whether the first state changes only with weights that a step reads.
    """

    has_step = keeps_first = True

    def __init__(self, network: Network) -> None:
        config = network.config
        self.network = network
        self.block = config.bunch_samples
        self.inputs = tf.TensorSpec([None, None], tf.int32 if config.reads_levels else tf.float32)
        channels = config.gate_inputs - config.context_channels * bool(config.context_layers)
        dtype = network.front_dtype if config.conditioner_units else network.dtype
        self.conditions = as_specs(
            tf.TensorSpec([None, None, channels], dtype) if channels else None
        )
        self.reach = None if config.reads_blocks else config.receptive_field
        self.has_chunks = not config.reads_blocks
        self.window = WINDOW if self.has_chunks else 0
        self.period, self.renew_samples = network.period, network.renew_samples
        self.renew = network.renew

    def parameters(self, symbols: tf.Tensor, condition: Condition = NOTHING) -> tf.Tensor:
        """Return each sample's parameters given the levels before it, [batch, time, parameters]."""
        return self.parameters_after(self.read(symbols), condition)

    def parameters_after(self, inputs: tf.Tensor, condition: Condition = NOTHING) -> tf.Tensor:
        """Return each sample's parameters, from unshifted network inputs as returned by `read`."""
        return self.network(inputs, self.prepare_condition(condition))

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

    def initial_state(self, batch: int, length: int = 0, fixed: Any = None) -> State:
        """Return the state before the first sample: silence."""
        del length, fixed  # the state does not depend on them
        silence = tf.fill([batch, 1], tf.constant(self.network.silence, self.inputs.dtype))
        return {"input": silence, "network": self.network.initial_state(batch)}

    def stepper(self, condition: Condition) -> Step:
        """See `SteppedSymbols.stepper`."""
        run = self.network.stepper(self.prepare_condition(condition))

        def step(time: Any, remainder: int, state: State) -> tuple[tf.Tensor, Any]:
            return run(time, remainder, state["input"], state["network"])

        return step

    def chunk(self, inputs: tf.Tensor, state: Any, condition: Condition) -> tuple[tf.Tensor, Any]:
        """See `Network.chunk`; `state` is the entry "network" of the whole state."""
        return self.network.chunk(inputs, state, self.prepare_condition(condition))

    @functools.cached_property
    def on_machine(self) -> "SoundSymbols":
        """The network for the step machine: with a step of its layers derived from their graph.

        The layers' own step keeps all queues in one tensor, of which XLA makes a few operations.
        The machine computes in float32 what is bfloat16 elsewhere.
        """
        config, network = self.network.config, copy.copy(self.network)  # with the same variables
        if network.dtype == tf.bfloat16:
            network.dtype = tf.float32
        network.is_renewed = bool(network.period)
        hidden = tf.TensorSpec([None, None, config.residual_channels], network.dtype)
        kernel = network.stack.layers[0].condition_kernel
        local = None if kernel is None else [None, None, kernel.shape[0]]
        local = None if local is None else tf.TensorSpec(local, network.dtype)
        with tf.init_scope():
            network.stack = incremental(self.network.stack.__call__, inputs=hidden, condition=local)
        return SoundSymbols(network)
