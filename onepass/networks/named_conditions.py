"""`NamedConditions`: the conditions of a call by name, in the form that samplers read."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from onepass.networks.condition_specs import Specs


class NamedConditions(NamedTuple):
    """Conditions by name."""

    timed: dict[str, tf.Tensor]  # conditions with the elements' time axis, [batch, time, ...] each
    fixed: dict[str, tf.Tensor]  # the same at every time step, [batch, ...] each; for images, all

    def names(self) -> set[str]:
        """Return the names of all conditions."""
        return {*self.timed, *self.fixed}


Condition = tf.Tensor | NamedConditions | None


def over_time(function: Callable[[tf.Tensor], tf.Tensor], condition: Any) -> Any:
    """Return a condition with `function` applied to its tensors that have a time axis."""
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
    """Return a network's state before the first of `length` symbols."""
    fixed = fixed_of(condition)
    return network.initial_state(batch, length, *([fixed] if fixed else []))


def in_order(condition: Any, specs: Specs) -> list[tf.Tensor]:
    """Return the tensors of a condition in the order of the network's arguments."""
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
    """A network with its own step, whose state keeps the conditions without a time axis."""

    def __init__(self, network: Any, is_fixed: list[bool]) -> None:
        self._network, self._is_fixed = network, is_fixed

    def initial_state(self, batch: int, fixed: list[tf.Tensor]) -> Any:
        """See `SteppedNetwork.initial_state`; the state keeps `fixed`."""
        return {"own": self._network.initial_state(batch), "fixed": list(fixed)}

    def step(self, inputs: tf.Tensor, state: Any, *timed: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """See `SteppedNetwork.step`."""
        fixed, others = iter(state["fixed"]), iter(timed)
        conditions = [next(fixed if is_fixed else others) for is_fixed in self._is_fixed]
        outputs, after = self._network.step(inputs, state["own"], *conditions)
        return outputs, {"own": after, "fixed": state["fixed"]}
