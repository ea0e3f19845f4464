"""Check the conditions of a call and convert them to what the network reads."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.networks.conditions import (
    Condition,
    Frames,
    Memory,
    NamedConditions,
    Specs,
    describe_spec,
    is_at_rate,
    only_rate,
)
from onepass.networks.elements import as_array
from onepass.step.replay import CALLS, entries, inline_calls, operations_for

# Operations that pass on the values of their first input unchanged.
_SAME = ("Cast", "Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient")


def check_conditions(
    network: Any, given: Any, order: str, shape: Sequence[int | None]
) -> Condition:
    """Check a call's conditions and return them as samplers use them; raise ValueError.

    Args:
      network: a `SymbolNetwork`.
      given: None, an array for the only condition, or arrays by name. One without the elements'
        axes may have a single row for all rows.
      shape: shape of the elements, whose sizes may be None.

    Returns:
      None, the tensor of the only condition with a time axis, or `NamedConditions`.
    """
    sizes = shape[: 2 if order == "time" else 3]
    specs, axes = network.conditions, len(sizes) - 1
    values = _by_name(given, specs, axes)
    found = {}
    for name, spec in specs.items():
        label = "condition" if len(specs) == 1 else f'condition["{name}"]'
        tensor = _tensor(values.get(name), spec, label)
        tensor = _shape_condition(tensor, spec, sizes, label)
        found[name] = _as_type(tensor, spec, label, network, name)
    if not found:
        return None
    if axes == 1 and only_rate(specs) is not None:
        return next(iter(found.values()))
    timed = {n for n, spec in specs.items() if axes == 1 and is_at_rate(spec)}
    return NamedConditions(
        {name: x for name, x in found.items() if name in timed},
        {name: x for name, x in found.items() if name not in timed},
    )


def given_once(network: Any, given: Any, order: str, shape: Sequence[int]) -> Any:
    """Return what `check_conditions` returns, with all computed of it that needs no elements."""
    checked, once = check_conditions(network, given, order, shape), getattr(network, "once", None)
    return checked if once is None else once(checked, shape[1])


def _by_name(given: Any, specs: Specs, axes: int) -> Mapping[str, Any]:
    if isinstance(given, NamedConditions):
        given = {**given.timed, **given.fixed}
    if not specs:
        if given is not None and not (isinstance(given, Mapping) and not given):
            raise ValueError("`condition` must be None: the network reads none.")
        return {}
    if not isinstance(given, Mapping):
        if len(specs) > 1:
            raise ValueError(f"`condition` must be a dict with {_list_specs(specs, axes)}.")
        return {next(iter(specs)): given}
    others = [name for name in given if name not in specs]
    if others or len(given) < len(specs):
        raise ValueError(
            f"`condition` must be a dict with {_list_specs(specs, axes)}, got"
            f" {', '.join(map(str, given)) or 'none'}."
        )
    return given


def _list_specs(specs: Specs, axes: int) -> str:
    return ", ".join(f"{name}: {describe_spec(spec, axes)}" for name, spec in specs.items())


def _tensor(given: Any, spec: tf.TensorSpec, label: str) -> tf.Tensor | None:
    if given is None or tf.is_tensor(given):
        return given
    array = as_array(given, label)
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise ValueError(f"`{label}` must be {spec.dtype.name}, got {array.dtype}.")
    return tf.constant(array)


def _shape_condition(
    tensor: tf.Tensor | None, spec: tf.TensorSpec, sizes: Sequence[int | None], label: str
) -> tf.Tensor:
    timed = is_at_rate(spec, len(sizes) - 1)
    known = list(sizes if timed else sizes[:1])
    if isinstance(spec, Frames):
        known.append(None if sizes[1] is None else spec.count(sizes[1]))
    wanted = tf.TensorShape([*known, *spec.shape[len(known) :]]).merge_with(spec.shape)
    if tensor is not None and timed and tensor.shape.rank == wanted.rank + 1:
        tensor = tensor[..., 0] if tensor.shape[-1] == 1 else tensor
    if tensor is not None and not timed:
        tensor = _for_all_rows(tensor, wanted)
    if tensor is None or not wanted.is_compatible_with(tensor.shape):
        given = None if tensor is None else tensor.shape
        rate = f", frames of {spec.hop} time steps" if isinstance(spec, Frames) else ""
        raise ValueError(f"`{label}` must be given, {wanted}{rate}, got {given}.")
    if isinstance(spec, Memory) and 0 in tensor.shape.as_list()[1:]:
        raise ValueError(f"`{label}` must have an entry, got shape {tensor.shape}.")
    return tensor


def _for_all_rows(tensor: tf.Tensor, wanted: tf.TensorShape) -> tf.Tensor:
    if tensor.shape.rank == wanted.rank - 1 and wanted[1:].is_compatible_with(tensor.shape):
        tensor = tensor[tf.newaxis]
    rows = wanted[0]
    if rows is None or tensor.shape.rank != wanted.rank or tensor.shape[0] != 1:
        return tensor
    return tf.repeat(tensor, rows, axis=0)


def _as_type(
    tensor: tf.Tensor, spec: tf.TensorSpec, label: str, network: Any, name: str
) -> tf.Tensor:
    if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool):
        raise ValueError(f"`{label}` must be {spec.dtype.name}, got {tensor.dtype.name}.")
    if not spec.dtype.is_integer or not hasattr(tensor, "numpy"):
        return tf.cast(tensor, spec.dtype)
    values = tensor.numpy().astype(np.float64)
    if not (values == np.round(values)).all():
        raise ValueError(f"`{label}` must be whole numbers, {spec.dtype.name}.")
    count = getattr(network, "class_counts", {}).get(name)
    limits = (0, count - 1) if count else (spec.dtype.min, spec.dtype.max)
    outside = (values < limits[0]) | (values > limits[1])
    if outside.any():
        raise ValueError(
            f"`{label}` must be {limits[0]} to {limits[1]}, the numbers that the network has"
            f" entries for, got {values[outside][0]:.0f}."
        )
    return tf.cast(tensor, spec.dtype)


def class_counts(call: Any, specs: Specs, example: Sequence[tf.Tensor]) -> dict[str, int]:
    """Return how many values integer conditions can have, by name, where an embedding shows it."""
    if not any(spec.dtype.is_integer for spec in specs.values()):
        return {}
    with tf.init_scope():
        traced = tf.function(call, autograph=False).get_concrete_function(*example)
        if any(op.type in CALLS for op in operations_for(traced.graph.outputs)):
            traced = inline_calls(traced, [tf.TensorSpec(x.shape, x.dtype) for x in example])
    graph = traced.graph
    names = {tensor.op: name for name, tensor in zip(specs, graph.inputs[1:], strict=False)}
    found: dict[str, int] = {}
    for op in operations_for(graph.outputs):
        known = op.outputs[0].shape[-1] if op.type == "OneHot" else entries(op)
        count = int(known or 0)
        place = 0 if op.type == "OneHot" else 1
        for source in _sources(op.inputs[place].op) if count else ():
            if source in names:
                found[names[source]] = min(found.get(names[source], count), count)
    return found


def _sources(op: tf.Operation) -> list[tf.Operation]:
    waiting, found = [op], []
    while waiting:
        op = waiting.pop()
        if op.type in _SAME:
            waiting.append(op.inputs[0].op)
        elif op.type == "SelectV2":
            waiting += [op.inputs[1].op, op.inputs[2].op]
        else:
            found.append(op)
    return found
