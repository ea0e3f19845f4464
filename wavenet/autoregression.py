"""WaveNets as networks of symbols, sampled by the components of `autoregressive`.

A `WaveNet` is a causal network like any other, and its cached step is derived from its graph. A
`VocoderWaveNet` has its own step: its layers run once per bunch of samples.
"""

import functools
from typing import Any

import tensorflow as tf

from autoregressive.incremental import UnsupportedNetworkError, incremental
from autoregressive.model import Autoregressive
from autoregressive.samplers import register
from autoregressive.symbols import State, Step
from foundation.errors import UserError
from wavenet.network import WaveNet
from wavenet.samplers.fixed_point import BlockPass
from wavenet.samplers.numba.sampler import is_known, sampler_for
from wavenet.samplers.vocoder import BunchStep, written_at
from wavenet.samplers.xla import Rings
from wavenet.sound_network import Network
from wavenet.vocoder import VocoderWaveNet


def autoregressive(network: Network) -> Autoregressive:
    """Return a network of sound as a model of samples in [-1, 1], float32 [batch, time].

    Its condition is the result of `network.condition`, [batch, time, channels].
    """
    return Autoregressive.of_symbols(symbols_of(network), network.likelihood, network.codec)


class SoundSymbols:
    """A network of sound over levels int32 [batch, time]; it shifts them by one itself."""

    block = 1

    def __init__(self, network: Network) -> None:
        config = network.config
        self.network = network
        self.inputs = tf.TensorSpec([None, None], tf.int32 if config.reads_levels else tf.float32)
        channels = config.gate_inputs - config.context_channels * bool(config.context_layers)
        dtype = network.front_dtype if config.conditioner_units else network.dtype
        self.condition = tf.TensorSpec([None, None, channels], dtype) if channels else None

    def parameters(self, symbols: tf.Tensor, condition: tf.Tensor | None = None) -> tf.Tensor:
        """Return the parameters [batch, time, num_parameters]; row t reads the levels before t."""
        return self.parameters_after(self.read(symbols), condition)

    def parameters_after(self, inputs: tf.Tensor, condition: tf.Tensor | None = None) -> tf.Tensor:
        """Return the parameters of all samples; the network reads the inputs before each."""
        return self.network(inputs, self.given(condition))

    @functools.cached_property
    def block_passes(self) -> BlockPass | None:
        """Passes of the network over blocks; None for a context stack, which reads whole blocks."""
        return None if self.network.config.context_layers else BlockPass(self.network)

    @property
    def call(self) -> Any:
        """Raise UserError: the network is stored in a model folder, with its configuration."""
        raise UserError("A shipped kind of network is stored in its own model folder.")

    def positions(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return int32 [1, time]."""
        return tf.range(tf.shape(symbols)[1])[tf.newaxis]

    def read(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return the network's input for levels [batch, time]."""
        return tf.cast(self.network.inputs(symbols), self.inputs.dtype)

    def given(self, condition: tf.Tensor | None) -> tf.Tensor | None:
        """Return the condition as the network takes it; raise ValueError if it is missing."""
        if self.condition is None:
            return None
        if condition is None:
            raise ValueError(f"`condition` must be given, {self.condition.shape}, got None.")
        return tf.cast(condition, self.condition.dtype)


class WaveNetSymbols(SoundSymbols):
    """A `WaveNet` as a network of symbols, whose step is derived from its graph."""

    network: WaveNet

    @functools.cached_property
    def stepped(self) -> Any:
        """The network as a causal one with `initial_state` and `step`, derived on first use.

        Raises:
          UnsupportedNetworkError: the network has a context stack, which reads whole blocks of
            sound.
        """
        if self.network.context_stack is not None:
            raise UnsupportedNetworkError(
                "context reads the sound in whole blocks; no step can be derived from it"
            )
        with tf.init_scope():
            return incremental(self.network.of_past, inputs=self.inputs, condition=self.condition)

    @property
    def has_step(self) -> bool:
        """True if it can be sampled by "cached"."""
        return self.network.context_stack is None

    def initial_state(self, batch: int, length: int = 0) -> State:
        """Return the state before the first sample: silence."""
        silence = tf.fill([batch, 1], tf.constant(self.network.silence, self.inputs.dtype))
        return {"input": silence, "network": self.stepped.initial_state(batch)}

    def stepper(self, condition: tf.Tensor | None) -> Step:
        """Return the step of a chunk: from time, remainder and state to parameters and state."""
        given = self.given(condition)

        def step(time: Any, remainder: int, state: State) -> tuple[tf.Tensor, Any]:
            now = [] if given is None else [given[:, time][:, tf.newaxis]]
            return self.stepped.step(state["input"], state["network"], *now)

        return step

    def chunk(
        self, inputs: tf.Tensor, state: Any, condition: tf.Tensor | None
    ) -> tuple[tf.Tensor, Any]:
        """Return the parameters of n samples in one pass, and the network's state after them.

        The inputs are those before each sample, [batch, n, ...]; the state is only the network's.
        """
        given = self.given(condition)
        return self.stepped.step(inputs, state, *([] if given is None else [given]))


class VocoderSymbols(SoundSymbols):
    """A `VocoderWaveNet`, with its own steps: the layers once a bunch, a head every sample."""

    network: VocoderWaveNet
    has_step = True

    def __init__(self, network: VocoderWaveNet) -> None:
        super().__init__(network)
        config = network.config
        self.block, self._rings = config.bunch_samples, Rings(config)
        self._history = max(config.history_samples, config.prediction_order, 1)

    @property
    def stepped(self) -> Any:
        """Raise UnsupportedNetworkError, since only the first step of a bunch runs the layers."""
        raise UnsupportedNetworkError(
            f"the layers of a vocoder make {self.block} samples at once; it has no step of one"
        )

    def initial_state(self, batch: int, length: int = 0) -> State:
        """Return the state before the first sample: silence, and empty queues."""
        network, config = self.network, self.network.config
        wide, none = [self._history + self.block, batch], [batch]
        units = config.bunch_samples * 2 * config.head_channels
        return {
            "input": tf.zeros([batch, 1]),
            "network": {
                "number": tf.constant(0),
                "buffers": tuple(tf.zeros(wide, network.front_dtype) for _ in range(3)),
                "newest": tuple(tf.zeros(none, network.front_dtype) for _ in range(3)),
                "given": tf.zeros([batch, units], network.dtype),
                "queues": tf.zeros(
                    [self._rings.slots, batch, config.residual_channels], network.dtype
                ),
            },
        }

    def stepper(self, condition: tf.Tensor | None) -> Step:
        """Return the step of a chunk of whole bunches, whose first one also runs the layers."""
        network, bunch, given = self.network, self.block, self.given(condition)
        made = network.split(given)
        bunches = BunchStep(network, self._rings, made)
        local = tf.cast(made.local, network.dtype)[:, ::bunch]
        gates = bunches.gate_offsets(local, local.shape[0], local.shape[1])

        def step(time: Any, remainder: int, state: State) -> tuple[tf.Tensor, Any]:
            past = dict(state["network"])
            end, buffers = self._history + remainder, past["buffers"]
            if remainder == 0:
                buffers = tuple(tf.pad(x[bunch:], [[0, bunch], [0, 0]]) for x in buffers)
            buffers = written_at(buffers, end - 1, _rows(state["input"], past["newest"]))
            if remainder == 0:
                now = (past["number"], time, end, buffers, past["queues"], gates[time // bunch])
                past["given"], past["queues"] = bunches.of_bunch(*now)
                past["number"] += 1
            part = tf.split(past["given"], bunch, -1)[remainder]
            parameters, predicted = bunches.parameters(time, end, buffers, part)
            past["buffers"] = buffers
            past["newest"] = (predicted, bunches.gain[:, time], bunches.shrink[:, time])
            return parameters[:, tf.newaxis], past

        return step


def _rows(inputs: tf.Tensor, newest: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
    """Return the newest sample's row of the wave, the residuals and the samples over the level."""
    predicted, gain, shrink = newest
    value = tf.cast(inputs[:, 0], predicted.dtype)
    return value, (value - predicted) * gain, value * shrink


@functools.singledispatch
def symbols_of(network: Network) -> Any:
    """Return a network of sound as one of symbols; further kinds of networks register here."""
    raise TypeError(f"`network` must be a network of sound, got {type(network).__name__}.")


@symbols_of.register
def _(network: WaveNet) -> Any:
    return WaveNetSymbols(network)


@symbols_of.register
def _(network: VocoderWaveNet) -> Any:
    return VocoderSymbols(network)


@register(Network, object)
def compiled_loop(network: Network, distribution: Any) -> Any:
    """Return the sampler by Numba's loops; None if no loop is known or there is a GPU."""
    if not is_known(network) or tf.config.list_physical_devices("GPU"):
        return None

    def sample(
        symbols: SoundSymbols,
        distribution: Any,
        noise: tf.Tensor,
        condition: tf.Tensor | None,
        temperature: float,
    ) -> tf.Tensor:
        length = noise.shape[1]
        block = network.config.block_samples
        beyond = [[0, 0], [0, -length % block], [0, 0]]
        noise = tf.pad(noise, beyond)
        condition = None if condition is None else tf.pad(symbols.given(condition), beyond)
        sampler = sampler_for(network)
        state, levels = sampler.initial_state(noise.shape[0]), []
        for part in _chunks(noise.shape[1], block if network.config.context_layers else 0):
            here = None if condition is None else condition[:, part]
            drawn, _, state = sampler.generate_chunk(state, here, noise[:, part], temperature)
            levels.append(tf.constant(drawn))
        return tf.concat(levels, 1)[:, :length]

    return sample


def _chunks(length: int, chunk: int) -> list[slice]:
    """Return the slices of `length` samples in chunks of `chunk`; 0: one slice of all."""
    chunk = chunk or length
    return [slice(first, first + chunk) for first in range(0, length, chunk)]
