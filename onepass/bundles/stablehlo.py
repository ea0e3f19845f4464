"""The functions of a model as StableHLO, which JAX compiles where TensorFlow is not installed.

Each function has NAME.stablehlo, NAME.npz with its weights and, if it has a state, NAME_state.npz
with the state before the first call. `load` of run.py, next to them, returns a function by name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from onepass.bundles.function import Function
from onepass.foundation.atomic_files import write_npz
from onepass.foundation.errors import UserError
from onepass.replicator.portable.export import copy_runner, export_function
from onepass.replicator.portable.manifest import read_manifest


def write(
    folder: Path, functions: Mapping[str, Function], variables: Mapping[str, tf.Variable]
) -> dict[str, dict[str, Any]]:
    """Write functions of one size to a folder, and return their entries in the manifest.

    Raises:
      UserError: a function has an operation or a type without a portable form.
    """
    for name, function in functions.items():
        try:
            export_function(function.fn, function.specs, folder, name, variables=variables)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            line = " ".join(str(error).split())[:300]
            raise UserError(
                f"The function `{name}` cannot be written as StableHLO: {line}"
            ) from error
        if function.state:
            write_npz(folder / f"{name}_state.npz", function.first_state())
    copy_runner(folder)
    found: dict[str, dict[str, Any]] = read_manifest(folder)["functions"]
    return found
