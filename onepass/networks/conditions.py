"""Conditions: their specs, their values, and those among the inputs of a Keras model."""

import itertools
import re
from collections.abc import Callable, Container, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import must_be, whole_number
from onepass.networks.condition_values import Rule, check_values
from onepass.networks.trainable import attribute_of
from onepass.prefix_state import digest_of

# Size given to axes of unknown size, in arguments without a time axis, when a network is analysed.
FIXED_ENTRIES = 7
ONLY = "condition"  # the default name of a model's only condition


class Memory(tf.TensorSpec):
    """The spec of a condition with a separate axis, such as an encoder's outputs.

    Args:
      shape: [None, entries, ...]; `entries` is None if each call may have a different number.
      dtype: type of the condition's entries.
    """

    __slots__ = ()


class Frames(tf.TensorSpec):
    """The spec of a condition at a frame rate, such as a mel spectrogram.

    Whatever the network computes of it is computed once for each call, from all frames, so that it
    may look ahead in them.

    Args:
      shape: [None, None, ...], or a spec of this shape; the second axis is that of the frames.
      dtype: type of the condition's entries.
      hop: number of time steps of a frame. The last frame may be partial.
      extra: number of frames beyond those of the sequence, such as both sides of a convolution of
        frames that pads nothing.
    """

    __slots__ = ("extra", "hop")

    def __init__(
        self, shape: Any, dtype: tf.DType = tf.float32, *, hop: int, extra: int = 0
    ) -> None:
        if isinstance(shape, tf.TensorSpec):
            shape, dtype = shape.shape, shape.dtype
        super().__init__(shape, dtype)
        if (self.shape.rank or 0) < 2 or self.shape[1] is not None:
            raise ValueError(f"`shape` of Frames must be [None, None, ...], got {self.shape}.")
        self.hop = whole_number(hop, "hop")
        self.extra = whole_number(extra, "extra", least=0)

    def count(self, length: Any) -> Any:
        """Return the number of frames of `length` time steps, a number or a tensor."""
        return -(-length // self.hop) + self.extra


Specs = dict[str, tf.TensorSpec]


def resize_spec(spec: tf.TensorSpec, shape: Any) -> tf.TensorSpec:
    """Return a spec of the same kind and dtype with another shape."""
    if isinstance(spec, Frames):
        return Frames(shape, spec.dtype, hop=spec.hop, extra=spec.extra)
    return type(spec)(shape, spec.dtype)


def is_at_rate(spec: tf.TensorSpec, axes: int = 1) -> bool:
    """Return whether an argument has the elements' `axes`: 1 of time, or 2 of images."""
    if isinstance(spec, Memory | Frames) or spec.shape.rank <= axes:
        return False
    return all(size is None for size in spec.shape[1 : 1 + axes])


def plain(spec: tf.TensorSpec) -> tf.TensorSpec:
    """Return a spec as a plain `tf.TensorSpec`, for signatures of functions."""
    return tf.TensorSpec(spec.shape, spec.dtype)


def shape_at(spec: tf.TensorSpec, batch: int, sizes: Sequence[int]) -> list[int]:
    """Return an argument's shape for elements [batch, *sizes]; free axes get `FIXED_ENTRIES`."""
    axes = len(sizes)
    if is_at_rate(spec, axes):
        return [batch, *sizes, *(size or FIXED_ENTRIES for size in spec.shape[1 + axes :])]
    if isinstance(spec, Frames):
        return [batch, spec.count(sizes[0]), *(size or FIXED_ENTRIES for size in spec.shape[2:])]
    return [batch, *(size or FIXED_ENTRIES for size in spec.shape[1:])]


def specs_at(
    specs: Sequence[tf.TensorSpec], batch: int, sizes: Sequence[int]
) -> list[tf.TensorSpec]:
    """Return the specs of arguments for elements [batch, *sizes]; see `shape_at`."""
    return [tf.TensorSpec(shape_at(spec, batch, sizes), spec.dtype) for spec in specs]


def random_tensor(
    generator: np.random.Generator, shape: Sequence[int], dtype: tf.DType, symbols: int = 2
) -> tf.Tensor:
    """Return normal floats, or integers below `symbols`."""
    is_whole = dtype.is_integer or dtype.is_bool
    drawn = generator.integers(0, symbols, shape) if is_whole else generator.normal(size=shape)
    return tf.cast(drawn, dtype)


def as_specs(given: Any) -> Specs:
    """Return specs by name, of None, 0, a channel count, a spec, or specs in a dict or list."""
    if given is None or (isinstance(given, Integral) and given == 0):
        return {}
    if isinstance(given, Integral):
        given = tf.TensorSpec([None, None, given])
    if isinstance(given, tf.TensorSpec):
        given = {ONLY: given}
    if not isinstance(given, Mapping):
        count = len(given) if isinstance(given, list | tuple) else 0
        given = dict(zip(_default_names(count), given, strict=True)) if count else {"": given}
    for name, spec in given.items():
        is_spec = isinstance(spec, tf.TensorSpec) and spec.shape.rank
        if not is_spec or not isinstance(name, str) or not name or spec.shape[0] is not None:
            kinds = "a tf.TensorSpec, onepass.Memory or Frames [None, ...]"
            raise ValueError(
                must_be("conditions", f"{kinds}, or a dict of them by name", repr(spec))
            )
    return dict(given)


def _default_names(count: int) -> list[str]:
    return [ONLY] if count == 1 else [f"{ONLY}_{place}" for place in range(1, count + 1)]


def describe_spec(spec: tf.TensorSpec, axes: int = 1) -> str:
    """Return a spec in readable form, such as "int32 [num]"."""
    names = ["time"] if axes == 1 else ["height", "width"]
    names = [f"frames of {spec.hop}"] if isinstance(spec, Frames) else names
    has_places = isinstance(spec, Frames) or is_at_rate(spec, axes)
    places = dict(enumerate(names, 1)) if has_places else {}
    sizes = [str(places.get(n, size or "any")) for n, size in enumerate(spec.shape) if n]
    return f"{spec.dtype.name} [{', '.join(['num', *sizes])}]"


class Condition(NamedTuple):
    """The values of a call's conditions by name; `NOTHING` of a network that reads none."""

    timed: dict[str, tf.Tensor]  # conditions with the elements' time axis, [batch, time, ...] each
    fixed: dict[str, tf.Tensor]  # the same at every time step, [batch, ...] each; for images, all

    def names(self) -> set[str]:
        """Return the names of all conditions."""
        return {*self.timed, *self.fixed}


NOTHING = Condition({}, {})


def only_timed(values: tf.Tensor | None) -> Condition:
    """Return the condition of a network that reads one with a time axis, or None."""
    return NOTHING if values is None else Condition({ONLY: values}, {})


def check_conditions(
    network: Any, given: Any, order: str, shape: Sequence[int | None]
) -> Condition:
    """Return a call's conditions, checked by the specs of a network; raise ValueError.

    They are given as for `check_values`, for elements of a shape whose sizes may be None.
    """
    sizes, is_time = shape[: 2 if order == "time" else 3], order == "time"
    specs = network.conditions
    counts = getattr(network, "class_counts", {}) if tf.executing_eagerly() and specs else {}
    values = check_specs(specs, given, counts, sizes)
    return by_time(values, [n for n, spec in specs.items() if is_time and is_at_rate(spec)])


def check_specs(
    specs: Specs,
    given: Any,
    class_counts: Mapping[str, int],
    sizes: Sequence[int | None] = (None, None),
) -> dict[str, tf.Tensor]:
    """Return conditions by name, checked by their specs; raise ValueError.

    `class_counts` has the number of values that an integer condition can have, if it is known, and
    `sizes` the number of rows and those of the elements' axes.
    """
    rules = {name: _rule_of(spec, sizes, class_counts.get(name)) for name, spec in specs.items()}
    return {n: tf.convert_to_tensor(x) for n, x in check_values(given, rules).items()}


def by_time(values: Mapping[str, tf.Tensor], timed: Container[str]) -> Condition:
    """Return values by name as a condition, in which those named in `timed` have a time axis."""
    return Condition(
        {name: x for name, x in values.items() if name in timed},
        {name: x for name, x in values.items() if name not in timed},
    )


def _rule_of(spec: tf.TensorSpec, sizes: Sequence[int | None], count: int | None = None) -> Rule:
    axes = len(sizes) - 1
    is_timed, is_frames = is_at_rate(spec, axes), isinstance(spec, Frames)
    known = list(sizes if is_timed else sizes[:1])
    if isinstance(spec, Frames):
        known.append(None if sizes[1] is None else spec.count(sizes[1]))
    return Rule(
        describe_spec(spec, axes),
        tuple(tf.TensorShape([*known, *spec.shape[len(known) :]]).merge_with(spec.shape)),
        np.dtype(spec.dtype.as_numpy_dtype),
        is_timed,
        low=None if count is None else 0,
        high=None if count is None else count - 1,
        note=f", frames of {spec.hop} time steps" if is_frames else "",
        needs_entries=isinstance(spec, Memory),
    )


def given_once(network: Any, given: Any, order: str, shape: Sequence[int]) -> Condition:
    """Return what `check_conditions` returns, with all computed of it that needs no elements."""
    checked, once = check_conditions(network, given, order, shape), getattr(network, "once", None)
    return checked if once is None else once(checked, shape[1])


def zeros_for(network: Any, batch: int, sizes: Sequence[int]) -> Condition:
    """Return zeros for a network's conditions."""
    specs = network.conditions
    zeros = {name: tf.zeros(shape_at(x, batch, sizes), x.dtype) for name, x in specs.items()}
    return by_time(zeros, [n for n, x in specs.items() if len(sizes) == 1 and is_at_rate(x)])


def over_time(function: Callable[[tf.Tensor], tf.Tensor], condition: Condition) -> Condition:
    """Return a condition with `function` applied to its tensors that have a time axis."""
    return condition._replace(timed={n: function(x) for n, x in condition.timed.items()})


def between(condition: Condition, start: Any, stop: Any = None) -> Condition:
    """Return the time steps from `start` up to, but not including, `stop` of a condition."""
    return over_time(lambda x: x[:, start:stop], condition)


def rows(condition: Condition, which: slice) -> Condition:
    """Return the rows of a condition that a slice selects."""
    return tf.nest.map_structure(lambda x: x[which], condition)


def each_row(condition: Condition) -> list[Condition]:
    """Return the condition of every row, each with a batch axis; one of a network without any."""
    count = max((len(x) for x in tf.nest.flatten(condition)), default=1)
    return [rows(condition, slice(row, row + 1)) for row in range(count)]


def condition_digest(condition: Condition, length: int) -> str:
    """Return a digest of what the first `length` elements of a row read of its condition."""
    return digest_of({**between(condition, 0, length).timed, **condition.fixed})


def with_steps(condition: Condition, tensors: Sequence[tf.Tensor]) -> Condition:
    """Return a condition whose tensors with a time axis, in their order, are `tensors`."""
    return Condition(dict(zip(condition.timed, tensors, strict=True)), {})


def first_state(network: Any, batch: int, length: int, condition: Condition) -> Any:
    """Return a network's state before the first of `length` symbols."""
    fixed = {"fixed": condition.fixed} if condition.fixed else {}
    return network.initial_state(batch, length, **fixed)


def in_order(values: Mapping[str, tf.Tensor], specs: Specs) -> list[tf.Tensor]:
    """Return values by name in the order of the network's arguments."""
    return [tf.cast(values[name], spec.dtype) for name, spec in specs.items()]


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


_UNNAMED = re.compile(r"(keras_tensor|input|input_layer)(_\d+)?")
TIMES = 4  # time steps of elements in trial calls


class KerasInputs:
    """Specs of a built Keras model's inputs, the elements first, and names of the others."""

    def __init__(self, network: Any) -> None:
        try:
            given = attribute_of(network, "inputs")
            inputs = [given] if isinstance(given, tf.TensorSpec) else list(given or ())
            specs = [tf.TensorSpec([None, *x.shape[1:]], x.dtype) for x in inputs]
        except (AttributeError, TypeError, ValueError):  # not a Keras model, or not built yet
            inputs, specs = [], []
        structure = attribute_of(network, "_inputs_struct")
        self._keys: list[str] | None = None
        if isinstance(structure, Mapping):
            by_tensor = {id(tensor): str(name) for name, tensor in structure.items()}
            self._keys = [by_tensor[id(tensor)] for tensor in inputs]
        names = [str(x.name) for x in inputs] if self._keys is None else self._keys
        self._order = _elements_first(specs, names, self._keys is not None)
        self.specs = [specs[place] for place in self._order]
        self.names = [names[place] for place in self._order][1:]
        if any(_UNNAMED.fullmatch(name) for name in self.names):
            self.names = _default_names(len(self.names))

    def pack_inputs(self, arguments: Sequence[tf.Tensor]) -> Any:
        """Return the elements and conditions in the structure of the model's inputs."""
        if len(self.specs) < 2:
            return arguments[0]
        placed = dict(zip(self._order, arguments, strict=True))
        listed = [placed[place] for place in sorted(placed)]
        return listed if self._keys is None else dict(zip(self._keys, listed, strict=True))

    def conditions(self, call: Callable[..., Any]) -> Specs:
        """Return the conditions' specs; `Memory` if a length may differ from the elements'."""
        found: Specs = dict(zip(self.names, self.specs[1:], strict=True))
        if self.specs and self.specs[0].shape.rank == 4:
            return found
        timed = [place for place, spec in enumerate(self.specs) if place and is_at_rate(spec)]
        memories: set[int] = set()
        # A memory and its mask share one axis.
        for count in range(1, len(timed) + 1):
            for group in itertools.combinations(timed, count):
                if memories.isdisjoint(group) and self._have_own_axis(call, group):
                    memories.update(group)
        for place in memories:
            spec = self.specs[place]
            found[self.names[place - 1]] = Memory(spec.shape, spec.dtype)
        return found

    def _have_own_axis(self, call: Callable[..., Any], group: Sequence[int]) -> bool:
        for times in (TIMES - 1, TIMES + 3):
            shapes = [
                shape_at(spec, 1, [times if at in group else TIMES])
                for at, spec in enumerate(self.specs)
            ]
            zeros = [tf.zeros(s, x.dtype) for s, x in zip(shapes, self.specs, strict=True)]
            try:
                outputs = call(*zeros)
            except (ValueError, TypeError, tf.errors.OpError):
                return False
            if not tf.is_tensor(outputs) or outputs.shape[1] != shapes[0][1]:
                return False
        return True


def _elements_first(specs: Sequence[tf.TensorSpec], names: Sequence[str], named: bool) -> list[int]:
    places = list(range(len(specs)))
    grows = [n for n in places if specs[n].shape.rank > 1 and specs[n].shape[1] is None]
    if len(specs) < 2 or (not named and 0 in grows):
        return places
    images = [n for n in places if specs[n].shape.rank == 4]
    alike = images or [
        n for n in grows if specs[n].shape.rank == 2 or list(specs[n].shape[2:]) == [1]
    ]
    if len(alike) > 1 and named:
        which = " or ".join(names[n] for n in alike)
        raise ValueError(
            f"`network` must tell which input is the elements, {which} may be; make the model with"
            " a list of inputs, the elements first."
        )
    first = (alike or grows or places)[0]
    return [first, *(place for place in places if place != first)]
