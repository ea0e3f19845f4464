"""Restore variables from a checkpoint, in one process or in all processes of a run."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from onepass.foundation.checkpoints import Checkpoints
from onepass.foundation.errors import UserError
from onepass.replicator.strategies.base import Replicator
from onepass.replicator.strategies.coordination import broadcast_initial_state


def assign_arrays(variables: Mapping[str, tf.Variable], arrays: Mapping[str, np.ndarray]) -> None:
    """Assign each variable the array with its name; raise before any if one does not fit."""
    for name, variable in variables.items():
        shape, dtype = tuple(variable.shape), variable.dtype.as_numpy_dtype
        array = arrays.get(name)
        if array is None or tuple(array.shape) != shape or array.dtype != dtype:
            found = "none" if array is None else f"{array.dtype} {tuple(array.shape)}"
            raise UserError(
                f"The checkpoint does not fit this network: `{name}` must have shape {shape} and "
                f"type {np.dtype(dtype)}, got {found}."
            )
    for name, variable in variables.items():
        variable.assign(arrays[name])


def resume_variables(
    replicator: Replicator,
    checkpoints: Checkpoints,
    variables: Mapping[str, tf.Variable],
    identity: dict | None = None,
) -> None:
    """Set the variables of every process from the newest checkpoint that the chief can read.

    Other processes need not share the chief's disk. Without a checkpoint, all get the values of the
    chief's variables. `identity` contains JSON values, such as the configuration, that must be
    equal in all processes.
    """
    arrays = checkpoints.newest()[0] if replicator.is_chief else None
    if arrays is not None:
        assign_arrays(variables, arrays)
    broadcast_initial_state(replicator, variables, identity or {})
