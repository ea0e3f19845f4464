"""The signatures that a model offers: concrete functions, and their entry in model.json."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from onepass.bundles.bundle import FORMAT
from onepass.bundles.signature import Signature, TensorInfo

ROWS_AT_ONCE = 4
Tensors = dict[str, Any]


@dataclasses.dataclass
class Exported:
    """The signatures of a model: functions, with the untracked variables that they read.

    `lowered` are those other than `serving_default` as StableHLO, if they have a portable form.
    """

    functions: dict[str, Any]
    serving: dict[str, Any]
    variables: Sequence[tf.Variable] = ()
    lowered: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def offer(self, name: str, signature: Signature, function: Any) -> None:
        """Add a signature with its concrete function."""
        self.functions[name] = function
        self.serving["signatures"][name] = signature.to_dict()


def specs_of(inputs: dict[str, TensorInfo]) -> list[tf.TensorSpec]:
    """Return the input signature of a function, one TensorSpec per input."""
    return [tf.TensorSpec(info.shape, info.dtype, name=name) for name, info in inputs.items()]


def concrete_function(signature: Signature, make: Callable[[Tensors], Tensors]) -> Any:
    """Return the concrete function of a signature; `make` maps inputs to outputs, by name."""

    @tf.function(autograph=False, input_signature=specs_of(signature.inputs))
    def function(*tensors: tf.Tensor) -> Tensors:
        outputs = make(dict(zip(signature.inputs, tensors, strict=True)))
        return {n: tf.ensure_shape(outputs[n], info.shape) for n, info in signature.outputs.items()}

    return function.get_concrete_function()


def serving_spec(
    signatures: Mapping[str, Signature], batches: Sequence[int], **limits: int
) -> dict[str, Any]:
    """Return the entry `serving` of model.json, with the keys that bundles of all kinds have."""
    return {
        "format": FORMAT,
        "signatures": {name: signature.to_dict() for name, signature in signatures.items()},
        "allowed_batches": list(batches),
        "limits": {**limits, "max_batch": max(batches)},
    }


def row_function(signature: Signature, row: Callable[[Tensors], Tensors]) -> Any:
    """Return the concrete function of `by_rows(signature, row)`."""
    return concrete_function(signature, by_rows(signature, row))


def by_rows(
    signature: Signature, row: Callable[[Tensors], Tensors]
) -> Callable[[Tensors], Tensors]:
    """Return a function of batches; `row` maps a batch of one to outputs without that axis."""
    specs = {n: tf.TensorSpec(info.shape[1:], info.dtype) for n, info in signature.outputs.items()}
    options = {"fn_output_signature": specs, "parallel_iterations": ROWS_AT_ONCE}

    def rows(given: Tensors) -> Tensors:
        return tf.map_fn(row, {n: tensor[:, tf.newaxis] for n, tensor in given.items()}, **options)

    return rows
