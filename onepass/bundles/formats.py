"""The formats of an export, and what writes each; a format is a function and a row here.

A bundle has functions for rows of any length. The other formats have those of one size: a writer
takes a folder, the name of a function, the function, and the variables that it reads, by name; it
returns what manifest.json says of it, and raises a UserError if the format cannot express it.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from onepass.foundation.rules import UserError

if TYPE_CHECKING:
    from onepass.bundles.function import Function

FormatName = Literal["bundle", "stablehlo", "tflite"]
BUNDLE = "bundle"
Write = Callable[[Path, str, "Function", Mapping[str, Any]], dict[str, Any]]
SELECT = re.compile(rb"Flex([A-Z][A-Za-z0-9]+)")
LACKING = re.compile(r"'tf\.(\w+)' op is neither a custom op nor a flex op")


def write_stablehlo(
    folder: Path, name: str, function: "Function", variables: Mapping[str, Any]
) -> dict[str, Any]:
    """Write NAME.stablehlo, which JAX compiles, and NAME.npz with its weights.

    `load` of run.py, next to them, returns the function.
    """
    import tensorflow as tf

    from onepass.replicator.portable.export import export_function
    from onepass.replicator.portable.manifest import copy_runner, read_manifest

    try:
        export_function(function.fn, function.specs, folder, name, variables=variables)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        raise UserError(" ".join(str(error).split())[:200]) from error
    if not (folder / "run.py").exists():
        copy_runner(folder)
    entry: dict[str, Any] = read_manifest(folder)["functions"][name]
    return entry


def write_tflite(
    folder: Path, name: str, function: "Function", variables: Mapping[str, Any]
) -> dict[str, Any]:
    """Write NAME.tflite, which LiteRT runs.

    Where the runtime has no operation of its own, the program calls one of TensorFlow's, for which
    the runtime needs its Flex library: `select` in the manifest names them.
    """
    import tensorflow as tf

    from onepass.replicator.portable.export import describe_tensors

    module, traced = tf.Module(name="model"), function.trace()
    module.weights = list(variables.values())
    converter = tf.lite.TFLiteConverter.from_concrete_functions([traced], module)
    kinds = tf.lite.OpsSet
    converter.target_spec.supported_ops = [kinds.TFLITE_BUILTINS, kinds.SELECT_TF_OPS]
    try:
        content = converter.convert()
    except Exception as error:  # the converter raises an error of its own, without a public name
        lacking = sorted({*LACKING.findall(str(error))})
        reason = f"LiteRT has no {', '.join(lacking)}" if lacking else str(error)
        raise UserError(" ".join(reason.split())[:200]) from error
    (folder / f"{name}.tflite").write_bytes(content)
    return {
        "artifact": f"{name}.tflite",
        "inputs": describe_tensors(function.specs),
        "select": sorted({each.decode() for each in SELECT.findall(content)}),
    }


FORMATS: dict[str, Write] = {"stablehlo": write_stablehlo, "tflite": write_tflite}
