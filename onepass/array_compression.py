"""Lossless compression by the exact conditionals of any model."""

from typing import Any

import numpy as np

from autoregressive.model import Autoregressive
from compression import files
from compression.arrays import Arrays
from foundation.errors import UserError


def compress(
    model: Any,
    elements: Any,
    condition: Any = None,
    *,
    tolerance: float = files.TOLERANCE,
    verify: bool | None = None,
) -> bytes:
    """Compress elements losslessly, by the exact conditionals of a model.

    The file takes little more than the bits of `log_prob`. Integers are stored exactly, real
    elements as the nearest of the model's levels.

    Args:
      model: an `Autoregressive` with at most 65,536 levels; or a shipped or trained model with its
        own `compress`, which is then called. A distribution that has neither a closed form nor
        `cumulative` takes a table of all levels per element.
      elements: [num, time] or [num, height, width, channels].
      condition: what the model reads besides the elements, as its `log_prob` takes it; it is not
        stored in the file, and `decompress` needs it.
      tolerance: relative difference of the network's outputs that is allowed on the decoding
        processor. Within it, decoding is exact; beyond it, decoding fails with an error.
      verify: decode the file again, with outputs off by half the tolerance, and refuse to
        return one that does not give the elements back; None: if it is cheap, for images of a model
        with its own `compress`, and for up to 20,000 steps of a network in time order.

    Returns:
      The bytes of the file.

    Raises:
      UserError: the model has no levels, has too many, or has a distribution over whole pixels; the
        package constriction is missing; or the file failed `verify`.
    """
    kind = kind_of(model)
    return files.compress(kind, elements, condition, tolerance=tolerance, verify=verify)


def decompress(model: Any, data: bytes, condition: Any = None) -> np.ndarray:
    """Decompress the elements in a file of `compress`.

    Args:
      model: the model that compressed the file, in memory or loaded.
      data: the file.
      condition: the condition that it was compressed with.

    Returns:
      [num, time] or [num, height, width, channels].

    Raises:
      UserError: the file is damaged, truncated, or was made by a different model.
    """
    return files.decompress(kind_of(model), data, condition)


def kind_of(model: Any, name: str = "`model`") -> files.Kind:
    """Return what compressed files of a model hold.

    Raises:
      UserError: the model cannot compress; the message calls it `name`.
    """
    if getattr(model, "kind", None) == Autoregressive.kind:
        return Arrays(model)
    if not getattr(model, "compresses", False):
        raise UserError(
            f"{name} must have exact conditionals to compress, got {type(model).__name__}."
        )
    kind: files.Kind = model.compressed
    return kind
