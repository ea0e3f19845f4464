"""Writes bundles, with warm-up requests, and compares what they draw with their model."""

import dataclasses
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.bundles.bundle import FORMAT, Program
from onepass.bundles.condition_inputs import COUNT, ELEMENTS
from onepass.bundles.manifest import sign, write_manifest
from onepass.bundles.sampling import only_output
from onepass.bundles.signature import (
    LOG_PROB,
    LOWERED,
    PLAIN,
    Arrays,
    Signature,
    TensorInfo,
    check_program,
    example,
)
from onepass.foundation.allowed_operations import PROGRAM
from onepass.foundation.errors import UserError
from onepass.foundation.model_spec import SPEC_FILE
from onepass.foundation.tensorflow_state import named_for_tensorflow
from onepass.samplers.fixed_point import MOVED
from onepass.step import UnsupportedNetworkError
from onepass.storage.program import TOLERANCES, difference, has_halves, variables_of

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


ROWS, LENGTH = 2, 8  # of the draw; arrays of one shape have it, and one row
COUNTS = (COUNT, "num_frames")

# Function of the inputs of `serving_default` and of the elements that the program draws for them.
# It returns what the model draws after those elements and, if the bundle has the signature
# `log_prob`, their log probabilities.
Live = Callable[[Arrays, np.ndarray], tuple[Any, Any]]


def check_draw(folder: Path, graph: Any, signatures: Mapping[str, Signature], live: Live) -> None:
    """Raise UserError unless a program, as it is read back, draws what its model draws."""
    program = Program(folder, graph)
    for scale in (1.0, 0.0):  # of conditions; what a network does not take makes no elements
        inputs = _inputs(signatures[PLAIN], scale)
        outputs = program(PLAIN, inputs)
        elements = only_output(outputs)
        if COUNT in outputs:
            elements = elements[:, : outputs[COUNT].max()]
        if LOG_PROB in signatures:
            elements = elements.astype(signatures[LOG_PROB].inputs[ELEMENTS].dtype)
        try:
            expected = live(inputs, elements)
        except UnsupportedNetworkError as error:
            raise UserError(f"The model cannot be exported: {error}") from error
        except ValueError as error:
            fault = str(error)
            continue
        tolerance = TOLERANCES[2 if has_halves(graph.graph_def) else 4]
        _compare(program, signatures, inputs, elements, expected, tolerance)
        return
    if not any(
        i.dtype.kind == "f" and i.default is None for i in signatures[PLAIN].inputs.values()
    ):
        raise UserError(f"The model cannot be exported: read back, its draw is refused: {fault}")
    warnings.warn(
        f"The bundle's draw was not compared with the model's, which refuses conditions: {fault}",
        stacklevel=6,
    )


def _compare(
    program: Program,
    signatures: Mapping[str, Signature],
    inputs: Arrays,
    elements: np.ndarray,
    expected: tuple[Any, Any],
    tolerance: Any,
) -> None:
    found = {"draw": elements}
    if LOG_PROB in signatures:
        known, given = signatures[LOG_PROB].inputs, {**inputs, ELEMENTS: elements}
        try:
            made = program(LOG_PROB, {name: given[name] for name in known})
        except tf.errors.OpError as error:
            raise UserError(
                "The model cannot be exported: traced for any length, its log-probability fails:"
                f" {' '.join(str(error.message).split())[:200]}"
            ) from error
        found["log-probability"] = made[LOG_PROB]
    for (name, value), right in zip(found.items(), expected, strict=False):
        fault = difference(right, value, tolerance, MOVED if name == "draw" else 0.0)
        if fault:
            raise UserError(f"The model cannot be exported: read back, its {name} {fault}.")


def of_functions(functions: Mapping[str, Any]) -> Live:
    """Return the function that compares a program with the functions that it was written from."""

    def live(inputs: Arrays, elements: np.ndarray) -> tuple[Any, Any]:
        del elements
        outputs = functions[PLAIN](**{name: tf.constant(x) for name, x in inputs.items()})
        return only_output(outputs), None

    return live


def _inputs(signature: Signature, scale: float) -> Arrays:
    random, inputs = np.random.default_rng(0), {}
    lengths = [int(info.high or LENGTH) for n, info in signature.inputs.items() if n in COUNTS]
    rows, length = ROWS if lengths else 1, min([LENGTH, *lengths])
    for name, info in signature.inputs.items():
        shape = (rows, *(length if size is None else size for size in info.shape[1:]))
        if name == "row":
            value: Any = np.arange(rows)
        elif name in COUNTS:
            value = length
        elif info.default is not None:
            value = info.default
        elif info.dtype.kind == "f":
            low = -np.inf if info.low is None else info.low
            high = np.inf if info.high is None else info.high
            value = np.clip(scale * np.abs(random.normal(size=shape)), low, high)
        else:
            value = random.integers(int(info.low or 0), int(info.high or 0) + 1, shape)
        inputs[name] = np.broadcast_to(value, shape).astype(info.dtype)
    return inputs


WARMUP = Path("assets.extra") / "tf_serving_warmup_requests"


def check_new(out: Path) -> None:
    """Raise UserError unless a path does not exist or is an empty folder."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} already exists; write a new version to another folder.")


def write_spec(folder: Path, spec: Mapping[str, Any]) -> None:
    """Write `spec` to model.json in a bundle's folder."""
    (folder / SPEC_FILE).write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")


def write_program(
    folder: Path,
    spec: Mapping[str, Any],
    exported: Exported,
    live: Live | None = None,
) -> list[str]:
    """Write program and model.json, compare its draw with `live`'s; return signature names."""
    module = tf.Module(name="model")
    # A SavedModel stores what its module tracks, so the module gets all variables, each once.
    known = [*variables_of(exported.functions.values()), *exported.variables]
    module.weights = list({variable.ref(): variable for variable in known}.values())
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with named_for_tensorflow(folder) as name:
        tf.saved_model.save(module, name, exported.functions, options)
    write_spec(folder, {**spec, "serving": exported.serving})
    declared = {name: Signature.from_dict(s) for name, s in exported.serving["signatures"].items()}
    graph = check_program(folder, declared)
    check_draw(folder, graph, declared, live or of_functions(exported.functions))
    if exported.lowered:
        with tempfile.TemporaryDirectory(dir=folder) as place:  # `save` also writes the variables
            with named_for_tensorflow(Path(place)) as name:
                tf.saved_model.save(module, name, exported.lowered, options)
            os.replace(Path(place) / PROGRAM, folder / LOWERED)
        check_program(folder, declared)
    return list(declared)


def seal(folder: Path, out: Path, warm: bool, key: Any, serving: Mapping[str, Any]) -> bool:
    """Write a bundle's warm-up requests, manifest and signature; return whether all could be."""
    warmed = not warm or _write_warmup(folder, out.parent.name, serving)
    write_manifest(folder)
    if key is not None:
        sign(folder, out.parent.name, int(out.name), key)
    return warmed


def _write_warmup(folder: Path, name: str, serving: Mapping[str, Any]) -> bool:
    """Write the warm-up requests; return False if tensorflow-serving-api is not installed.

    They call only `serving_default`: TensorFlow Serving is distributed without XLA, and rejects a
    version whose warm-up fails. `Bundle.warm` does not use them.
    """
    try:
        from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
    except ImportError:
        return False
    signature = Signature.from_dict(serving["signatures"][PLAIN])
    padded = serving.get("padded", {})
    bucket = min((b for pad in padded.values() for b in pad["buckets"]), default=1)
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = name, PLAIN
    for key, array in example(signature, 1, padded, bucket).items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(array))
    log = prediction_log_pb2.PredictLog(request=request)
    record = prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString()
    path = Path(folder) / WARMUP
    path.parent.mkdir()
    with (
        named_for_tensorflow(path.parent) as folder_name,
        tf.io.TFRecordWriter(f"{folder_name}/{path.name}") as writer,
    ):
        writer.write(record)
    return True
