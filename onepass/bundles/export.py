"""`export` writes a model for use without its code: a bundle, or functions of one size.

A bundle has a SavedModel, warm-up requests of TensorFlow Serving, a manifest and a signature. What
it draws is compared with a user's model by one pass of the network, which draws each element again
from its noise and the bundle's elements before it: one that rounding moves to another level has no
effect on those after it. Where many move, the model's passes may not have converged.
"""

import functools
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf

from distill.flow_student import FlowStudent
from onepass.bundles.bundle import MODEL_FOLDER, Program
from onepass.bundles.formats import BUNDLE, FORMATS, FormatName
from onepass.bundles.function import Function, Functions, name_variables
from onepass.bundles.functions import Entries, Length, functions
from onepass.bundles.manifest import check_folder, read_key, sign, write_manifest
from onepass.bundles.sampling import only_output
from onepass.bundles.signature import (
    LENGTHS,
    LOWERED,
    PLAIN,
    Arrays,
    Signature,
    check_program,
    example,
)
from onepass.families import of_kind
from onepass.foundation.allowed_operations import PROGRAM
from onepass.foundation.files import replacing_folder, write_npz
from onepass.foundation.model_folders import SPEC_FILE
from onepass.foundation.rules import UserError, must_be, whole_number
from onepass.foundation.runtime import check_compiler, name_for_tensorflow
from onepass.model import Autoregressive
from onepass.networks.conditions import given_once
from onepass.samplers.fixed_point import MOVED, has_moved, sample_symbols
from onepass.step import UnsupportedNetworkError
from onepass.storage.models import (
    TOLERANCES,
    check_values,
    has_halves,
    named_reasons,
    rate_of,
    save,
)

ROWS, LENGTH = 2, 8  # of the draw; arrays of one shape have it, and one row

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
        if "num_samples" in outputs:
            elements = elements[:, : outputs["num_samples"].max()]
        if "log_prob" in signatures:
            elements = elements.astype(signatures["log_prob"].inputs["elements"].dtype)
        try:
            expected = live(inputs, elements)
            break
        except UnsupportedNetworkError as error:
            raise UserError(f"The model cannot be exported: {error}") from error
        except ValueError as error:
            fault = str(error)
    else:
        given = (info for info in signatures[PLAIN].inputs.values() if info.default is None)
        if not any(info.dtype.kind == "f" for info in given):
            reason = f"read back, its draw is refused: {fault}"
            raise UserError(f"The model cannot be exported: {reason}")
        compared = "The bundle's draw was not compared with the model's"
        warnings.warn(f"{compared}, which refuses conditions: {fault}", stacklevel=6)
        return
    found = {"draw": elements}
    if "log_prob" in signatures:
        known, values = signatures["log_prob"].inputs, {**inputs, "elements": elements}
        try:
            made = program("log_prob", {name: values[name] for name in known})
        except tf.errors.OpError as error:
            raise UserError(
                "The model cannot be exported: traced for any length, its log-probability fails:"
                f" {' '.join(str(error.message).split())[:200]}"
            ) from error
        found["log-probability"] = made["log_prob"]
    pairs = {name: (x, found[name]) for name, x in zip(found, expected, strict=False)}
    check_values("exported", pairs, TOLERANCES[2 if has_halves(graph.graph_def) else 4])


def _inputs(signature: Signature, scale: float) -> Arrays:
    random, known = np.random.default_rng(0), signature.inputs
    counts = [name for name in LENGTHS if name in known]
    length = min([LENGTH, *(int(known[name].high or LENGTH) for name in counts)])
    inputs = example(signature, ROWS if counts else 1, length)
    inputs["row"] += np.arange(len(inputs["row"]), dtype=inputs["row"].dtype)
    for name, array in inputs.items():
        low, high = known[name].low, known[name].high
        if name in counts:
            array[:] = length
        elif known[name].default is None and array.dtype.kind == "f":
            array[:] = np.clip(scale * np.abs(random.normal(size=array.shape)), low, high)
        elif known[name].default is None:
            array[:] = random.integers(int(low or 0), int(high or 0) + 1, array.shape)
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
    functions: Functions,
    spec: Mapping[str, Any] = MappingProxyType({}),
    live: Live | None = None,
) -> None:
    """Write program and model.json, and compare its draw with `live`'s or that of `functions`."""
    module = tf.Module(name="model")
    traced = {name: each.trace() for name, each in functions.calls.items()}

    def draw(inputs: Arrays, elements: np.ndarray) -> tuple[Any, Any]:
        del elements
        return only_output(traced[PLAIN](**_tensors(inputs))), None

    # A SavedModel stores what its module tracks.
    module.weights = list(name_variables(traced.values(), functions.variables).values())
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    with name_for_tensorflow(folder) as name:
        tf.saved_model.save(module, name, traced, options)
    write_spec(folder, {**spec, **functions.spec, "serving": functions.description})
    declared = {name: each.signature for name, each in functions.calls.items()}
    graph = check_program(folder, declared)
    check_draw(folder, graph, declared, live or draw)
    try:
        lowered = {name: each.trace() for name, each in functions.lowered().items()}
    except ValueError:  # an operation without a portable form
        lowered = {}
    if lowered:
        with tempfile.TemporaryDirectory(dir=folder) as place:  # `save` also writes the variables
            with name_for_tensorflow(Path(place)) as name:
                tf.saved_model.save(module, name, lowered, options)
            os.replace(Path(place) / PROGRAM, folder / LOWERED)
        check_program(folder, declared)


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
    version whose warm-up fails.
    """
    try:
        from tensorflow_serving.apis import predict_pb2, prediction_log_pb2
    except ImportError:
        return False
    signature = Signature.from_dict(serving["signatures"][PLAIN])
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = name, PLAIN
    for key, array in example(signature, 1, min(serving.get("buckets", [1]))).items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(array))
    log = prediction_log_pb2.PredictLog(request=request)
    record = prediction_log_pb2.PredictionLog(predict_log=log).SerializeToString()
    path = folder / WARMUP
    path.parent.mkdir()
    with (
        name_for_tensorflow(path.parent) as place,
        tf.io.TFRecordWriter(f"{place}/{path.name}") as writer,
    ):
        writer.write(record)
    return True


METHODS = ("cached", "fixed-point")


def drawn_again(
    model: Autoregressive, conditions: Any, inputs: Arrays, elements: np.ndarray
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return what a model draws after a bundle's elements, and their log probabilities.

    UnsupportedNetworkError means that it has no step, and that its passes do not converge.
    """
    given, symbols = conditions.of(_tensors(inputs)), model.symbols(elements)
    parameters = model.conditionals(elements, given)
    seed, num = int(inputs["seed"][0]), len(elements)
    noise = model.layout.noise(model.distribution, seed, num, elements.shape[1:])
    drawn = sample_symbols(parameters, model.distribution, noise, 1.0, symbols)
    moved = tf.reduce_mean(tf.cast(has_moved(symbols, drawn), tf.float32))
    if moved > MOVED and not getattr(model.symbol_network, "has_step", False):
        once = given_once(model.symbol_network, given, model.order, elements.shape)
        model.samplers.draw("fixed-point", noise, once, tf.constant(1.0))
    return model.codec.decode(drawn), model.log_prob(elements, given)


def drawn_from_noise(
    student: FlowStudent, conditions: Any, inputs: Arrays, elements: np.ndarray
) -> tuple[tf.Tensor, None]:
    """Return what a student draws from the noise of a bundle's elements; the rest as above."""
    num, length = elements.shape
    noise = student.noise(int(inputs["seed"][0]), tf.range(num), length)
    condition = next(iter(conditions.of(_tensors(inputs)).values()), None)
    values = student.draw(noise, condition).output
    return student.elements(values), None


def _tensors(inputs: Arrays) -> dict[str, tf.Tensor]:
    return {name: tf.constant(array) for name, array in inputs.items()}


def export(
    model: Any,
    out: str | Path,
    *,
    format: FormatName = "bundle",
    length: Length = None,
    rows: int = 1,
    method: str = "cached",
    sample_rate_hz: int | None = None,
    entries: Entries = None,
    sign_with: Path | None = None,
    warm: bool = True,
) -> Path:
    """Write a model atomically, to be used without its code.

    Args:
      model: the model, which is exported with its current weights and not changed: for a bundle, an
        `Autoregressive` or a `FlowStudent`; else also a model of this library.
      out: the folder to write, new or empty; a bundle's is MODELS/NAME/VERSION, and the version is
        a whole number.
      format: "bundle", which `onepass serve` serves and `onepass.load` loads; "stablehlo", for JAX;
        or "tflite", for LiteRT.
      length: the largest number of elements of a sequence in a request; None: 65,536, or two
        minutes of audio. If the network has no step or reads `Frames`, it is required, and every
        request has exactly this number. For images (height, width, channels); None: the shape of
        the network's input. In other formats, the number of elements of a call.
      rows: number of rows of a call, in formats other than a bundle.
      method: how a WaveNet or a PixelCNN of this library draws there: "cached", or "fixed-point".
      sample_rate_hz: sample rate of an audio model, which is then served as such. None: the rate
        that the model was saved with, if any.
      entries: the size, in a request, of each axis of unknown size that is not an axis of the
        elements, such as the number of entries of a `Memory`: a number for all conditions, or
        numbers by the condition's name. Required for such conditions.
      sign_with: PEM file of a private ed25519 key that signs the bundle, for `onepass serve
        --trust`; None: do not sign it.
      warm: whether to write the warm-up requests that TensorFlow Serving makes, if the package
        tensorflow-serving-api is installed.

    Returns:
      The absolute path of the folder.

    Raises:
      UserError: the model cannot be exported, for the reason in the message, or none of its
        functions in this format (others are left out with a warning); or `out` exists and is
        not empty, or its name is not a version.
      ValueError: the model is of a different kind, or does not fit `length`, `sample_rate_hz` or
        `entries`.
    """
    family = of_kind(getattr(model, "kind", None))
    is_own = family is not None and family.store is not None
    if family is None or not (is_own or format != BUNDLE):
        raise ValueError(
            f"`model` must be an Autoregressive or a FlowStudent, got {type(model).__name__}."
        )
    if format not in (BUNDLE, *FORMATS):
        known = ", ".join((BUNDLE, *FORMATS))
        raise ValueError(f"`format` must be one of {known}, got {format!r}.")
    check_compiler()
    out = Path(out).absolute()
    if format == BUNDLE:
        check_folder(out, "`out`")
    check_new(out)
    if not is_own:
        if method not in METHODS:
            raise ValueError(must_be("method", " or ".join(METHODS), repr(method)))
        return write_fixed(functions(model, method=method), out, format, rows, length)
    before, model.sample_rate_hz = model.sample_rate_hz, rate_of(model, sample_rate_hz)
    try:
        with named_reasons("exported"):
            found = functions(model, length=length, entries=entries)
        if format != BUNDLE:
            return write_fixed(found, out, format, rows, length)
        return _write_bundle(model, found, out, sign_with, warm)
    finally:
        model.sample_rate_hz = before


def write_fixed(
    found: Functions, out: Path, name: str, rows: int = 1, length: Length = None
) -> Path:
    """Write the functions of one size in the format `name`, with their manifest; return `out`."""
    length = length if isinstance(length, int | None) else None  # the shape of an image is known
    with replacing_folder(out) as folder, named_reasons("exported"):
        made = found.of_size(whole_number(rows, "rows"), length)
        entries, reasons = write_functions(folder, name, made, found.variables)
        write_manifest(folder, {"functions": entries, "model": found.spec})
    for reason in reasons:
        warnings.warn(f"{out} lacks {reason}", stacklevel=3)
    return out


def write_functions(
    folder: Path, name: str, made: Mapping[str, Function], known: Mapping[str, tf.Variable]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Write functions in a format; return the entries of the manifest, and what was left out."""
    variables = name_variables((function.trace() for function in made.values()), known)
    entries, reasons = {}, []
    for each, function in made.items():
        try:
            entry = FORMATS[name](folder, each, function, variables)
        except UserError as error:
            reasons.append(f"`{each}`: {error}")
            continue
        entries[each] = {**entry, "state": list(function.state)}
        if function.state:
            write_npz(folder / f"{each}_state.npz", function.first_state())
    if not entries:
        raise UserError(f"The model cannot be exported: {'; '.join(reasons)}")
    return entries, reasons


def _write_bundle(
    model: Any, found: Functions, out: Path, sign_with: Path | None, warm: bool
) -> Path:
    key = None if sign_with is None else read_key(sign_with, "private")
    draws_elements = model.kind == Autoregressive.kind
    draw = drawn_again if draws_elements else drawn_from_noise
    with replacing_folder(out) as folder, named_reasons("exported", folder / PROGRAM):
        write_program(folder, found, live=functools.partial(draw, model, found.conditions))
        try:
            if draws_elements:
                save(model, folder / MODEL_FOLDER)
        except UserError as error:
            shutil.rmtree(folder / MODEL_FOLDER, ignore_errors=True)
            reason = f"The bundle has a sampler, but no `autoregressive`: {error}"
            warnings.warn(reason, stacklevel=3)
        seal(folder, out, warm, key, found.description)
    return out
