"""`incremental`: a network's cached step, derived from its graph."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from autoregressive.incremental.layer_names import layer_names
from autoregressive.incremental.plan import Plan, State
from autoregressive.incremental.verification import verify
from autoregressive.networks import as_function, brings_step, condition_spec, input_spec


class Incremental:
    """A network that processes a few times per call, with the past in a state.

    Law: for x [batch, time, ...] split along time into parts of any length, `step` over the parts
    returns the rows of `network(x)`, up to rounding.

    Args:
      function: from inputs, and a condition if there is one, to [batch, time, parameters].
      specs: of its arguments, [None, None, ...].
      names: of the network's layers, for errors.
    """

    def __init__(
        self, function: Callable, specs: list[tf.TensorSpec], names: frozenset[str] = frozenset()
    ):
        self._function, self._names, self.specs = function, names, specs
        self._plans: dict[int, Plan] = {}
        self._starts: dict[int, Callable[[], State]] = {}
        self._compiled = tf.function(self._step, autograph=False)
        with tf.init_scope():
            verify(self, self.plan(1), specs)

    def plan(self, batch: int) -> Plan:
        """Return the plan for a batch size, computed once."""
        if batch not in self._plans:
            specs = [_sized(spec, batch) for spec in self.specs]
            with tf.init_scope():
                self._plans[batch] = Plan(self._function, specs, self._names)
        return self._plans[batch]

    def initial_state(self, batch: int) -> State:
        """Return the state before the first time, tensors by name, for `batch` rows."""
        if batch not in self._starts:
            self._starts[batch] = tf.function(self.plan(batch).initial_state, autograph=False)
        return self._starts[batch]()

    def step(
        self, inputs: tf.Tensor, state: State, condition: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, State]:
        """Return the parameters [batch, n, parameters] of the next n times, and the state.

        Args:
          inputs: [batch, n, ...] with static n.
          state: from `initial_state`, or from the previous step.
          condition: [batch, n, channels], if the network has one.
        """
        inputs = tf.convert_to_tensor(inputs)
        if None in inputs.shape[:2]:
            raise ValueError(
                f"`inputs` must have a static batch size and number of times, got {inputs.shape}."
            )
        # Traced once per number of rows, also when called in a graph.
        return self._compiled(inputs, state, condition)

    def _step(self, inputs: tf.Tensor, state: State, condition: tf.Tensor | None):
        arguments = [inputs] if condition is None else [inputs, condition]
        return self.plan(inputs.shape[0]).step(arguments, state)


def _sized(spec: tf.TensorSpec, batch: int) -> tf.TensorSpec:
    return tf.TensorSpec([batch, *spec.shape[1:]], spec.dtype)


def incremental(
    network: Any,
    *,
    inputs: tf.TensorSpec | None = None,
    condition: tf.TensorSpec | None = None,
) -> Any:
    """Derive the cached step of a causal network from its graph.

    The network is traced at two lengths. Every operation on a tensor with a time axis is replaced
    by one on a few rows and the past rows that it needs. A network that has both methods of a
    `SteppedNetwork` is returned unchanged.

    Args:
      network: a `tf.Module`, a Keras model or a function of [batch, time, channels] and, as an
        optional second argument, of a condition [batch, time, channels].
      inputs: spec of the first argument, [None, None, channels]; by default that of a Keras model,
        or float32 [None, None, 1].
      condition: spec of the second argument, if there is one and `network` is not a Keras model
        with two inputs.

    Returns:
      An object with `initial_state(batch)` and `step(inputs, state, condition)`. `step` takes n
      rows [batch, n, channels] and returns parameters [batch, n, parameters] and the next state.

    Raises:
      NotCausalError: the network looks ahead, depends on the length or has its own randomness;
        the message names the layer.
      UnsupportedNetworkError: an operation has no rule; the message names it.
    """
    if brings_step(network):
        return network
    specs = [input_spec(network, inputs)]
    second = condition_spec(network, condition)
    specs += [] if second is None else [second]
    return Incremental(as_function(network, specs), specs, layer_names(network))
