"""A function of a model as a TensorFlow Lite program, NAME.tflite, which LiteRT runs.

Where the runtime has no operation of its own, the program calls one of TensorFlow's, for which the
runtime needs its Flex library: `select` in the manifest names them.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from onepass.bundles.function import Function
from onepass.foundation.errors import UserError
from onepass.replicator.portable.export import describe_tensors

SELECT = re.compile(rb"Flex([A-Z][A-Za-z0-9]+)")
LACKING = re.compile(r"'tf\.(\w+)' op is neither a custom op nor a flex op")


def write(
    folder: Path, name: str, function: Function, variables: Mapping[str, tf.Variable]
) -> dict[str, Any]:
    """Write a function of one size to a folder, and return its entry in the manifest.

    Raises:
      UserError: the converter refuses the function.
    """
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
