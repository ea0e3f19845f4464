"""A sampler whose step runs on the step machine: nothing is compiled for a new network or length.

The step with its draw is traced for one row and lowered (`autoregressive.machine`); any number of
rows run the same program. A processor's alternative to `cached`, which XLA compiles.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from autoregressive.incremental import UnsupportedNetworkError
from autoregressive.incremental.derive import Incremental, bucket
from autoregressive.machine.machine import StepMachine
from autoregressive.machine.values import Unlowerable
from autoregressive.symbols import SteppedSymbols
from likelihoods.distribution import Distribution

# XLA treats all rows of a batch in one operation; the machine runs every instruction for each row.
MOST_ROWS = 8  # of a network whose instructions are small
LARGE_INSTRUCTION = 150  # multiplications of one: from here on the machine is faster at any batch


def native(network: SteppedSymbols, distribution: Distribution) -> "Native | None":
    """Return the sampler on the step machine, or None where it cannot or should not run.

    Args:
      network: of symbols.
      distribution: of the symbols.
    """
    if network.block != 1 or tf.config.list_logical_devices("GPU"):
        return None
    return Native(network, distribution)


class NativeState(NamedTuple):
    """Where a chunk ended: the machine, and the workspace of every row."""

    machine: StepMachine
    workspaces: np.ndarray


class Native:
    """The sampler of a network and a distribution on the step machine.

    Args:
      network: in time order, with a step of one symbol.
      distribution: of the symbols.
    """

    def __init__(self, network: SteppedSymbols, distribution: Distribution):
        self._network, self._distribution = network, distribution
        self._machines: dict[Any, StepMachine] = {}
        self._firsts: dict[int, Any] = {}
        self._faults: dict[int, str] = {}

    def __call__(
        self, noise: tf.Tensor, condition: tf.Tensor | None, temperature: Any
    ) -> tf.Tensor:
        """Return symbols [batch, time]; arguments as for `cached`."""
        return self.advance(
            noise, condition, temperature, self.begin(noise.shape[0], noise.shape[1])
        )[0]

    def _horizon(self, length: int) -> int:
        """Return the horizon of a state for `length` symbols; 0: of any number."""
        return bucket(length) if getattr(self._network, "has_horizon", False) else 0

    def begin(self, batch: int, length: int) -> tuple[int, Any]:
        """Return the state before the first of `length` symbols of `batch` rows."""
        changed = [machine.refresh() for machine in self._machines.values()]
        # A derived step reads the same weights as its first state, which is a pass of the network.
        is_derived = isinstance(getattr(self._network, "stepped", None), Incremental)
        if any(changed) or not is_derived:
            self._firsts = {}
        horizon = self._horizon(length)
        if horizon not in self._firsts:
            once = {"at_once": True} if is_derived else {}
            self._firsts[horizon] = self._network.initial_state(1, length, **once)
        return batch, self._firsts[horizon]

    def advance(
        self, noise: tf.Tensor, condition: tf.Tensor | None, temperature: Any, state: Any
    ) -> tuple[tf.Tensor, NativeState]:
        """Return the next symbols [batch, time] and the new state.

        Args:
          noise: of this chunk, as for `cached`.
          condition: of this chunk, as for `cached`.
          temperature: as for `cached`.
          state: of `begin`, or of the chunk before, which is consumed.

        Raises:
          UnsupportedNetworkError: the machine does not know an operation.
        """
        given = [np.asarray(noise)] + ([] if condition is None else [np.asarray(condition)])
        settings = [np.asarray(temperature)]
        if isinstance(state, NativeState):
            state = _with_present_weights(state)
            state.machine.put(state.workspaces, settings)
        else:
            batch, first = state
            machine = self.machine(noise, condition, first)
            workspaces = machine.begin(batch, settings, tf.nest.flatten(first))
            state = NativeState(machine, workspaces)
        (symbols,) = state.machine.run(state.workspaces, *given)
        return tf.constant(symbols.reshape(symbols.shape[:2])), state

    def machine(self, noise: tf.Tensor, condition: tf.Tensor | None, state: Any) -> StepMachine:
        """Return the machine for arguments of these shapes, lowered once.

        Raises:
          UnsupportedNetworkError: the machine does not know an operation.
        """
        flat = tf.nest.flatten(state)
        given = [noise] + ([] if condition is None else [condition])
        specs = [tf.TensorSpec([1, 1, *x.shape[2:]], x.dtype) for x in given]
        key = tuple((tuple(x.shape), x.dtype) for x in [*specs, *flat])
        if key not in self._machines:
            step = self._step(state, condition is not None)
            try:
                self._machines[key] = StepMachine(step, specs, [tf.TensorSpec([])], flat)
            except Unlowerable as error:
                raise UnsupportedNetworkError(str(error)) from None
        return self._machines[key]

    def pays(self, batch: int, length: int) -> bool:
        """Return whether the machine is faster than what XLA compiles, by what was measured.

        Args:
          batch: number of rows.
          length: number of symbols of each.
        """
        if self.fault(length):
            return False
        machine = next(iter(self._machines.values()))
        return batch <= MOST_ROWS or machine.multiplications >= LARGE_INSTRUCTION

    def fault(self, length: int) -> str:
        """Return the operation that the machine does not know, "" if it knows all.

        Args:
          length: number of symbols of a row.
        """
        horizon = self._horizon(length)
        if horizon not in self._faults:
            self._faults[horizon] = self._unknown(length)
        return self._faults[horizon]

    def _unknown(self, length: int) -> str:
        noise = self._distribution.noise(0, tf.range(1), 0, 1)
        spec = getattr(self._network, "condition", None)
        condition = None if spec is None else tf.zeros([1, 1, *spec.shape[2:]], spec.dtype)
        try:
            self.machine(noise, condition, self.begin(1, length)[1])
        except UnsupportedNetworkError as error:
            return str(error)
        return ""

    def _step(self, first: Any, has_condition: bool) -> Callable:
        network, distribution = self._network, self._distribution
        dtype = tf.float32 if distribution.levels is None else tf.int32

        def step(noise, *given):
            condition = given[0] if has_condition else None
            temperature, *flat = given[1:] if has_condition else given
            state = tf.nest.pack_sequence_as(first, flat)
            parameters, after = network.stepper(condition)(0, 0, state)
            drawn = distribution.sample(parameters, noise, temperature)
            drawn = tf.cast(tf.reshape(drawn, [1, 1]), dtype)
            return [drawn], tf.nest.flatten({"input": network.read(drawn), "network": after})

        return step


def _with_present_weights(state: NativeState) -> NativeState:
    """Return a state that continues with the network's weights as they are now."""
    machine, workspaces = state
    contents = machine.contents(workspaces)
    return (
        NativeState(machine, machine.begin(len(workspaces), [], contents))
        if machine.refresh()
        else state
    )
