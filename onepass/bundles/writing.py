"""Writes bundles, with warm-up requests for TensorFlow Serving."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from onepass.bundles.comparison import Live, check_draw, of_functions
from onepass.bundles.declared_program import LOWERED, check_program
from onepass.bundles.functions import Exported
from onepass.bundles.manifest import sign, write_manifest
from onepass.bundles.signature import PLAIN, Signature, example
from onepass.foundation.allowed_operations import PROGRAM
from onepass.foundation.errors import UserError
from onepass.foundation.model_spec import SPEC_FILE
from onepass.foundation.tensorflow_paths import named_for_tensorflow
from onepass.storage.program import variables_of

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
