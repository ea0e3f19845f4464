"""Lossless compression with a model's exact conditional distributions."""

from typing import Any

import numpy as np

from onepass.compression import container
from onepass.compression.arrays import Arrays
from onepass.foundation.errors import UserError
from onepass.model import Autoregressive


def compress(
    model: Any,
    elements: Any,
    condition: Any = None,
    *,
    tolerance: float = container.TOLERANCE,
    verify: bool | None = None,
) -> bytes:
    """Compress elements losslessly with a model's exact conditional distributions.

    The file is slightly larger than the negative `log_prob` in bits. Integers are stored exactly,
    real elements as the nearest of the model's levels.

    Args:
      model: an `Autoregressive` with at most 65,536 levels, or a shipped or trained model that has
        a method `compress`. A distribution that has neither a closed form nor `cumulative` needs a
        table of all levels per element.
      elements: [num, time] or [num, height, width, channels].
      condition: the model's condition, as in its `log_prob`. For an `Autoregressive` it is not
        stored in the file, and `decompress` needs it.
      tolerance: relative difference allowed between the network's outputs in encoding and in
        decoding. Within it, decoding is exact; beyond it, decoding fails with an error.
      verify: whether to decode the file, with outputs perturbed by half the tolerance, and raise an
        error unless the elements are restored; None: only if that is cheap, as for images of a
        shipped or trained model, and for up to 20,000 steps of a network in time order.

    Returns:
      The bytes of the file.

    Raises:
      UserError: the model cannot compress, for example because it has no levels, too many, or a
        distribution over whole pixels; the package constriction is missing; or `verify` failed.
    """
    kind = kind_of(model)
    return container.compress(kind, elements, condition, tolerance=tolerance, verify=verify)


def decompress(
    model: Any, data: bytes, condition: Any = None, *, max_elements: int | None = None
) -> np.ndarray:
    """Decompress the elements in a file that `compress` made.

    Args:
      model: the model that compressed the file.
      data: the bytes of the file.
      condition: the condition that was passed to `compress`, if the file does not contain it.
      max_elements: largest number of elements to decode, each of which may take a step of the
        network; None: 1,024 for each byte of the file.

    Returns:
      The elements, [num, time] or [num, height, width, channels].

    Raises:
      UserError: the file is damaged or truncated, was made with a different model, holds more than
        `max_elements`, or cannot be decoded on this processor, whose network outputs differ by more
        than the file's tolerance.
      ValueError: `condition` is missing or does not fit the model.
    """
    return container.decompress(kind_of(model), data, condition, max_elements=max_elements)


def kind_of(model: Any, name: str = "`model`") -> container.Kind:
    """Return the kind of elements that a model, which errors call `name`, compresses."""
    if getattr(model, "kind", None) == Autoregressive.kind:
        return Arrays(model)
    kind: container.Kind | None = getattr(model, "compressed", None)
    if kind is None:
        raise UserError(
            f"{name} must have exact conditionals to compress, got"
            f" {getattr(model, 'kind', type(model).__name__)}."
        )
    return kind
