"""The functions of a model as a bundle, a SavedModel that is compared with the model.

Writes also the warm-up requests of TensorFlow Serving, the manifest and the signature.
"""

import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.bundles.bundle import Program
from onepass.bundles.condition_inputs import COUNT, ELEMENTS
from onepass.bundles.function import Function, Functions
from onepass.bundles.manifest import sign, write_manifest
from onepass.bundles.sampling import only_output
from onepass.bundles.signature import (
    LOG_PROB,
    LOWERED,
    PLAIN,
    Arrays,
    Signature,
    check_program,
    example,
)
from onepass.foundation.allowed_operations import PROGRAM
from onepass.foundation.errors import UserError
from onepass.foundation.model_spec import SPEC_FILE
from onepass.foundation.tensorflow_state import name_for_tensorflow
from onepass.samplers.fixed_point import MOVED
from onepass.step import UnsupportedNetworkError
from onepass.storage.program import TOLERANCES, difference, has_halves, variables_of

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
    folder: Path, spec: Mapping[str, Any], functions: Functions, live: Live | None = None
) -> list[str]:
    """Write program and model.json, compare its draw with `live`'s; return signature names."""
    module, traced = tf.Module(name="model"), _trace(functions.calls)
    # A SavedModel stores what its module tracks, so the module gets all variables, each once.
    known = [*variables_of(traced.values()), *functions.variables.values()]
    module.weights = list({variable.ref(): variable for variable in known}.values())
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with name_for_tensorflow(folder) as name:
        tf.saved_model.save(module, name, traced, options)
    write_spec(folder, {**spec, "serving": functions.description})
    declared = {name: each.signature for name, each in functions.calls.items()}
    graph = check_program(folder, declared)
    check_draw(folder, graph, declared, live or of_functions(traced))
    lowered = _lower(functions)
    if lowered:
        with tempfile.TemporaryDirectory(dir=folder) as place:  # `save` also writes the variables
            with name_for_tensorflow(Path(place)) as name:
                tf.saved_model.save(module, name, lowered, options)
            os.replace(Path(place) / PROGRAM, folder / LOWERED)
        check_program(folder, declared)
    return list(declared)


def _trace(functions: Mapping[str, Function]) -> dict[str, Any]:
    return {name: function.trace() for name, function in functions.items()}


def _lower(functions: Functions) -> dict[str, Any]:
    try:
        return _trace(functions.lowered())
    except ValueError:  # an operation without a portable form
        return {}


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
        name_for_tensorflow(path.parent) as folder_name,
        tf.io.TFRecordWriter(f"{folder_name}/{path.name}") as writer,
    ):
        writer.write(record)
    return True
