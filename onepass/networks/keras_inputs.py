"""Find the elements and the conditions among the inputs of a Keras model."""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from onepass.networks.condition_specs import Memory, Specs, default_names, is_at_rate, shape_at
from onepass.networks.trainable import attribute_of

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
        self._keys = _keys(structure, inputs) if isinstance(structure, Mapping) else None
        names = [str(x.name) for x in inputs] if self._keys is None else self._keys
        self._order = _elements_first(specs, names, self._keys is not None)
        self.specs = [specs[place] for place in self._order]
        self.names = [names[place] for place in self._order][1:]
        if any(_UNNAMED.fullmatch(name) for name in self.names):
            self.names = default_names(len(self.names))

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


def _keys(structure: Mapping, inputs: Sequence[Any]) -> list[str]:
    by_tensor = {id(tensor): str(name) for name, tensor in structure.items()}
    return [by_tensor[id(tensor)] for tensor in inputs]


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
