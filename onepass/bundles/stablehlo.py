"""A function of a model as StableHLO, which JAX compiles where TensorFlow is not installed.

It has NAME.stablehlo and NAME.npz with its weights; `load` of run.py, next to them, returns it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from onepass.bundles.function import Function
from onepass.foundation.errors import UserError
from onepass.replicator.portable.export import copy_runner, export_function
from onepass.replicator.portable.manifest import read_manifest


def write(
    folder: Path, name: str, function: Function, variables: Mapping[str, tf.Variable]
) -> dict[str, Any]:
    """Write a function of one size to a folder, and return its entry in the manifest.

    Raises:
      UserError: the function has an operation or a type without a portable form.
    """
    try:
        export_function(function.fn, function.specs, folder, name, variables=variables)
    except (TypeError, ValueError, tf.errors.OpError) as error:
        raise UserError(" ".join(str(error).split())[:200]) from error
    if not (folder / "run.py").exists():
        copy_runner(folder)
    entry: dict[str, Any] = read_manifest(folder)["functions"][name]
    return entry
