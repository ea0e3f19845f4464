"""Cached autoregressive sampling on a CPU, compiled by Numba.

Each row is bitwise identical for any batch size, chunk length and number of threads. The arithmetic
is float32, regardless of the network's `compute_dtype`.
"""

import abc
import collections
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike, DTypeLike

from onepass.foundation.errors import must_be
from onepass.foundation.runtime import cores
from onepass.likelihoods import Categorical, Gaussian, LogisticMixture
from onepass.machine.machine import Pace
from onepass.samplers.registry import register
from wavenet.network import Network, WaveNet
from wavenet.samplers.numba import bunches, samples
from wavenet.samplers.numba.state import Conditions, GenerationState, Program, first_state
from wavenet.vocoder import VocoderWaveNet

_TRIAL_STEPS = 32


class CompiledSampler(abc.ABC):
    """Base class of the Numba samplers, on `threads` cores, or all that the process may use."""

    found = "parameters"  # the second result of `generate_chunk`

    def __init__(self, network: Network, program: Program, threads: int | None) -> None:
        self.threads = cores(threads)
        self.program = program
        self._likelihood, self._config = network.likelihood, network.config
        self._paces: dict[int, Pace] = collections.defaultdict(Pace)

    def initial_state(self, batch: int) -> GenerationState:
        """Return the state before the first sample: silence, and zeroed queues.

        The first call for a batch size measures whether two threads per group of rows are faster.
        """
        if batch < 1:
            raise ValueError(must_be("batch", "at least 1", batch))
        config = self._config
        blocks = np.zeros([batch, config.context_blocks, config.context_block_samples], np.float32)
        state = first_state(self.program, blocks, self.threads, self._paces[batch])
        if state.pace is not None and not state.pace.is_settled:
            self._try_out(state.copy())
        return state

    def _try_out(self, state: GenerationState) -> None:
        samples = _TRIAL_STEPS * self.program.bunch
        silence = np.zeros([state.batch, samples, self._config.gate_inputs], np.float32)
        conditions = self._given_conditions(silence)
        noise = np.zeros([state.batch, samples, self._likelihood.noise_channels], np.float32)
        while state.pace is not None and not state.pace.is_settled:
            state.run(conditions, noise, np.zeros(noise.shape[:2], np.int32), True, 1.0)
            state = state.after(samples, state.blocks)

    def generate_chunk(
        self,
        state: GenerationState,
        condition: np.ndarray | None,
        noise: np.ndarray,
        temperature: float = 1.0,
    ) -> tuple[np.ndarray, np.ndarray, GenerationState]:
        """Draw the next levels, int32 [batch, time]; return them, their parameters, and the state.

        The given state is consumed. The condition is [batch, time, channels], the noise float32
        [batch, time, noise_channels]; the time must be `context_block_samples` with a context
        stack, and a multiple of the bunch for a vocoder.
        """
        noise = as_compiled(noise, np.float32)
        check_shape("noise", noise, (state.batch, None, self._likelihood.noise_channels))
        levels = np.zeros(noise.shape[:2], np.int32)
        parameters, state = self._advance(state, condition, noise, levels, False, temperature)
        return levels, parameters, state

    def conditionals(
        self, state: GenerationState, condition: np.ndarray | None, levels: np.ndarray
    ) -> tuple[np.ndarray, GenerationState]:
        """Return the parameters of `generate_chunk` at given levels, and the next state."""
        levels = as_compiled(levels, np.int32)
        check_shape("levels", levels, (state.batch, None))
        self._check_range(levels)
        noise = np.zeros([*levels.shape, self._likelihood.noise_channels], np.float32)
        return self._advance(state, condition, noise, levels, True, 1.0)

    def prime(
        self, state: GenerationState, condition: np.ndarray | None, levels: np.ndarray
    ) -> GenerationState:
        """Consume the state; return it after levels int32 [batch, time], whole context blocks."""
        levels = np.asarray(levels)
        config = self._config
        length = config.context_block_samples if config.context_layers else levels.shape[1]
        for start in range(0, levels.shape[1], length):
            part = slice(start, start + length)
            here = None if condition is None else condition[:, part]
            _, state = self.conditionals(state, here, levels[:, part])
        return state

    def _advance(
        self,
        state: GenerationState,
        condition: np.ndarray | None,
        noise: np.ndarray,
        levels: np.ndarray,
        given: bool,
        temperature: float,
    ) -> tuple[np.ndarray, GenerationState]:
        conditions = self._conditions(state, condition, levels.shape[1])
        parameters = state.run(conditions, noise, levels, given, temperature)
        return parameters, state.after(levels.shape[1], self._blocks_after(state.blocks, levels))

    @abc.abstractmethod
    def _conditions(
        self, state: GenerationState, condition: np.ndarray | None, time: int
    ) -> Conditions:
        """Check a chunk's condition and return it for every step."""

    @abc.abstractmethod
    def _given_conditions(self, condition: np.ndarray) -> Conditions:
        """Return the condition of every step, from the condition of every sample."""

    def _blocks_after(self, blocks: np.ndarray, levels: np.ndarray) -> np.ndarray:
        return blocks

    def _check_range(self, levels: np.ndarray) -> None:
        count = self._likelihood.levels
        if levels.size and not 0 <= levels.min() <= levels.max() < count:
            raise ValueError(
                f"`levels` must be in [0, {count}), got {levels.min()} to {levels.max()}."
            )


class NumbaSampler(CompiledSampler):
    """The sampler of a `WaveNet`; it copies the network's weights when it is created."""

    def __init__(self, network: WaveNet, threads: int | None = None) -> None:
        check_known(network)
        super().__init__(network, samples.program_of(network), threads)
        self.network = network
        if network.context_stack is not None:
            self._blocks = tf.function(network.context_stack.blocks, autograph=False)

    def _conditions(
        self, state: GenerationState, condition: np.ndarray | None, time: int
    ) -> Conditions:
        condition = self._with_context(state, condition, time)
        check_shape("condition", condition, (state.batch, time, self._config.gate_inputs))
        return self._given_conditions(condition)

    def _given_conditions(self, condition: np.ndarray) -> Conditions:
        return Conditions(condition, np.zeros([*condition.shape[:2], 0], np.float32))

    def _with_context(
        self, state: GenerationState, condition: np.ndarray | None, time: int
    ) -> np.ndarray:
        parts = [] if condition is None else [np.asarray(condition).astype(np.float32)]
        stack = self.network.context_stack
        if stack is not None:
            if time != stack.block_samples:
                raise ValueError(
                    f"a chunk must have the {stack.block_samples} samples of a context block, "
                    f"got {time}."
                )
            parts.append(
                np.repeat(self._blocks(tf.constant(state.blocks))[:, -1:].numpy(), time, 1)
            )
        return np.concatenate(parts, -1) if parts else np.zeros([state.batch, time, 0], np.float32)

    def _blocks_after(self, blocks: np.ndarray, levels: np.ndarray) -> np.ndarray:
        if self.network.context_stack is None:
            return blocks
        wave = self.network.wave(tf.constant(levels)).numpy()
        return np.concatenate([blocks, wave[:, None]], 1)[:, 1:]


class NumbaVocoderSampler(CompiledSampler):
    """The sampler of a `VocoderWaveNet`; it copies the network's weights when it is created.

    The condition must be constant within a bunch, like results of `network.condition`.
    """

    def __init__(self, network: VocoderWaveNet, threads: int | None = None) -> None:
        check_known(network)
        super().__init__(network, bunches.program_of(network), threads)
        self.network = network

    def _conditions(
        self, state: GenerationState, condition: np.ndarray | None, time: int
    ) -> Conditions:
        bunch = self._config.bunch_samples
        if time % bunch:
            raise ValueError(f"a chunk must hold whole bunches of {bunch}, got {time} samples.")
        condition = np.zeros([0]) if condition is None else np.asarray(condition, np.float32)
        check_shape("condition", condition, (state.batch, time, self._config.gate_inputs))
        return self._given_conditions(condition)

    def _given_conditions(self, condition: np.ndarray) -> Conditions:
        made = condition[:, :: self._config.bunch_samples]
        return Conditions(
            made[..., : self.network.gate_channels], bunches.describe_steps(self.network, made)
        )


SPECIALISED: dict[tuple[type, type], type[NumbaSampler] | type[NumbaVocoderSampler]] = {
    (WaveNet, LogisticMixture): NumbaSampler,
    (WaveNet, Gaussian): NumbaSampler,
    (WaveNet, Categorical): NumbaSampler,
    (VocoderWaveNet, LogisticMixture): NumbaVocoderSampler,
}
"""The sampler for each supported pair of network and distribution type. Types must match exactly,
since a subclass may compute or draw differently."""


class Loops(NamedTuple):
    """A factory of Numba samplers for a network."""

    network: Network

    @property
    def block(self) -> int:
        """Number of samples of which primes and chunks are multiples."""
        return self.network.config.block_samples

    @property
    def longest(self) -> int | None:
        """Maximum number of samples per chunk; None: unlimited."""
        return self.block if self.network.config.context_layers else None

    def present(self) -> CompiledSampler:
        """Return a sampler with the network's current weights."""
        return sampler_for(self.network)


OF_SAMPLES = "30 layers of 64 channels, over the derived step by XLA; over the step machine 1.03"
OF_BUNCHES = "wavenet-vocoder-16k, over its own step by XLA; over the step machine 1.4 to 1.9"


@register(WaveNet, object, method="numba", ratio=5.06, measured=OF_SAMPLES, on_processors=True)
@register(
    VocoderWaveNet, object, method="numba", ratio=1.68, measured=OF_BUNCHES, on_processors=True
)
def loops_of(network: Network, distribution: Any) -> Loops | None:
    """Return the `Loops` of a network, or None if Numba does not support it."""
    del distribution
    return Loops(network) if is_known(network) else None


def is_known(network: Network) -> bool:
    """Return whether there is a Numba sampler for a network and its distribution."""
    return (type(network), type(network.likelihood)) in SPECIALISED


def check_known(network: Network) -> None:
    """Raise a ValueError if there is no Numba sampler for a network."""
    if not is_known(network):
        known = ", ".join(f"{kind.__name__} of {of.__name__}" for kind, of in SPECIALISED)
        given = f"{type(network).__name__} of {type(network.likelihood).__name__}"
        raise ValueError(
            f"`network` must be one of {known} for numba, got {given}; sample it by cached."
        )


def sampler_for(network: Network, threads: int | None = None) -> NumbaSampler | NumbaVocoderSampler:
    """Return a Numba sampler with a network's current weights; ValueError if there is none."""
    check_known(network)
    make = SPECIALISED[type(network), type(network.likelihood)]
    return make(network, threads)


def as_compiled(array: ArrayLike, dtype: DTypeLike) -> np.ndarray:
    """Return the array as contiguous and writeable, with the given type."""
    # Numba treats a read-only array as a different type, and would compile everything again.
    return np.require(np.asarray(array), dtype, ["C_CONTIGUOUS", "WRITEABLE"])


def check_shape(name: str, array: np.ndarray, expected: tuple[int | None, ...]) -> None:
    """Raise a ValueError unless an array has the expected shape; None matches any size."""
    fits = array.ndim == len(expected) and all(
        want in (None, size) for size, want in zip(array.shape, expected, strict=False)
    )
    if not fits:
        wanted = ", ".join("time" if size is None else str(size) for size in expected)
        raise ValueError(f"`{name}` must be [{wanted}], got {list(array.shape)}.")
