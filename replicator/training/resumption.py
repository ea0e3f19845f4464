"""Variables from arrays of a checkpoint, in one process and in all processes of a run."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from replicator.runs.checkpoints import Checkpoints
from replicator.runs.errors import UserError
from replicator.strategies.base import Replicator
from replicator.strategies.coordination import broadcast_initial_state


def assign_arrays(variables: Mapping[str, tf.Variable], arrays: Mapping[str, np.ndarray]) -> None:
    """Sets every variable from the array of its name.

    Raises UserError, before anything is set, where an array is missing or of another shape or type.
    """
    for name, variable in variables.items():
        shape, dtype = tuple(variable.shape), variable.dtype.as_numpy_dtype
        array = arrays.get(name)
        if array is None or tuple(array.shape) != shape or array.dtype != dtype:
            found = "is not there" if array is None else f"is {array.dtype} {tuple(array.shape)}"
            raise UserError(
                f"The checkpoint does not fit this network: `{name}` must have shape {shape} and "
                f"type {np.dtype(dtype)}, and {found}."
            )
    for name, variable in variables.items():
        variable.assign(arrays[name])


def resume_variables(
    replicator: Replicator,
    checkpoints: Checkpoints,
    variables: Mapping[str, tf.Variable],
    identity: dict | None = None,
) -> None:
    """Sets the variables of every process from the newest checkpoint that the chief can read.

    Other processes need no disk in common with it. Without a checkpoint, all have the values that
    the chief's variables have.

    Args:
      replicator: in whose scope the variables were made.
      checkpoints: of arrays by the names of `variables`.
      variables: by name.
      identity: JSON values that must be the same in every process, such as the configuration.

    Raises:
      UserError: the checkpoint does not fit, or the identities differ; PeerLostError: a process has
        ended.
    """
    arrays = checkpoints.newest()[0] if replicator.is_chief else None
    if arrays is not None:
        assign_arrays(variables, arrays)
    broadcast_initial_state(replicator, variables, identity or {})
