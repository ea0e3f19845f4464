"""`NamedConditions`: the conditions of a call by name, in the form that samplers read."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from onepass.networks.condition_specs import Specs


class NamedConditions(NamedTuple):
    """Conditions by name.

    Attributes:
      timed: conditions with the elements' time axis, [batch, time, ...] each.
      fixed: conditions that are the same at every time step, [batch, ...] each; for images, all.
    """

    timed: dict[str, tf.Tensor]
    fixed: dict[str, tf.Tensor]

    def names(self) -> set[str]:
        """Return the names of all conditions."""
        return {*self.timed, *self.fixed}


Condition = tf.Tensor | NamedConditions | None


def over_time(function: Callable[[tf.Tensor], tf.Tensor], condition: Any) -> Any:
    """Return a condition with `function` applied to its tensors that have a time axis.

    Args:
      function: function of a tensor [batch, time, ...].
      condition: a tensor with a time axis, `NamedConditions` or None.
    """
    if isinstance(condition, NamedConditions):
        return condition._replace(timed={n: function(x) for n, x in condition.timed.items()})
    return None if condition is None else function(condition)


def between(condition: Any, start: Any, stop: Any = None) -> Any:
    """Return the time steps from `start` up to, but not including, `stop` of a condition."""
    return over_time(lambda x: x[:, start:stop], condition)


def rows(condition: Any, which: slice) -> Any:
    """Return the rows of a condition that a slice selects."""
    return tf.nest.map_structure(lambda x: None if x is None else x[which], condition)


def fixed_of(condition: Any) -> dict[str, tf.Tensor]:
    """Return the conditions that are the same at every time step, by name."""
    return condition.fixed if isinstance(condition, NamedConditions) else {}


def timed_of(condition: Any) -> list[tf.Tensor]:
    """Return the tensors of a condition that have a time axis."""
    if condition is None:
        return []
    return tf.nest.flatten(condition.timed if isinstance(condition, NamedConditions) else condition)


def of_time(condition: Any, tensors: list[tf.Tensor]) -> Any:
    """Return `tensors` in the structure that `timed_of` flattens, without fixed conditions."""
    if isinstance(condition, NamedConditions):
        return NamedConditions(tf.nest.pack_sequence_as(condition.timed, tensors), {})
    return tensors[0] if tensors else None


def first_state(network: Any, batch: int, length: int, condition: Any) -> Any:
    """Return a network's state before the first of `length` symbols.

    Args:
      network: a `SteppedSymbols`.
      batch: number of rows.
      length: number of symbols; 0: unknown.
      condition: the conditions of all rows.
    """
    fixed = fixed_of(condition)
    return network.initial_state(batch, length, *([fixed] if fixed else []))


def in_order(condition: Any, specs: Specs) -> list[tf.Tensor]:
    """Return the tensors of a condition in the order of the network's arguments.

    Args:
      condition: the tensor of the only condition, tensors by name, `NamedConditions` or None.
      specs: specs by name of the conditions to return.

    Raises:
      ValueError: a condition is missing.
    """
    if isinstance(condition, NamedConditions):
        condition = {**condition.timed, **condition.fixed}
    found = []
    for name, spec in specs.items():
        each = condition.get(name) if isinstance(condition, Mapping) else condition
        if each is None:
            raise ValueError(f"`condition` must be given, {spec.shape}, got None.")
        if each.shape.rank == spec.shape.rank + 1:  # one channel, as in bundles
            each = each[..., 0]
        found.append(tf.cast(each, spec.dtype))
    return found


class OwnStep:
    """A network with a user-defined step and conditions that are the same at every time step.

    These conditions are kept in its state and passed to every step.

    Args:
      network: a `SteppedNetwork`.
      is_fixed: for each of the network's conditions, whether it is the same at every time step.
    """

    def __init__(self, network: Any, is_fixed: list[bool]) -> None:
        self._network, self._is_fixed = network, is_fixed

    def initial_state(self, batch: int, fixed: list[tf.Tensor]) -> Any:
        """Return the state before the first time step."""
        return {"own": self._network.initial_state(batch), "fixed": list(fixed)}

    def step(self, inputs: tf.Tensor, state: Any, *timed: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Return the parameters of the next time steps, and the state after them."""
        fixed, others = iter(state["fixed"]), iter(timed)
        conditions = [next(fixed if is_fixed else others) for is_fixed in self._is_fixed]
        outputs, after = self._network.step(inputs, state["own"], *conditions)
        return outputs, {"own": after, "fixed": state["fixed"]}
