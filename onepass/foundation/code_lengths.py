"""Code lengths of examples: what any model with log-probabilities is evaluated by."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from onepass.foundation.errors import UserError


@dataclasses.dataclass(frozen=True)
class CodeLengths:
    """What a model needs for each of some examples: its negative log-likelihood.

    Attributes:
      parts: nats of each example, float64 [examples], by the name of the part of the model that
        gives them; a model of one part calls it "".
      sizes: number of elements of each example, float64 [examples].
    """

    parts: Mapping[str, np.ndarray]
    sizes: np.ndarray

    @property
    def nats(self) -> np.ndarray:
        """Nats of each example, in all parts, float64 [examples]."""
        return np.sum(list(self.parts.values()), axis=0)

    @property
    def nats_per_element(self) -> np.ndarray:
        """Nats per element of each example, in all parts, float64 [examples]."""
        return self.nats / np.maximum(self.sizes, 1.0)

    @property
    def mean_bits(self) -> float:
        """Bits per element of all examples together."""
        return float(self.nats.sum() / self.sizes.sum() / math.log(2.0))

    @property
    def bits_per_element(self) -> np.ndarray:
        """Bits per element of each example, in all parts, float64 [examples]."""
        return self.nats_per_element / math.log(2.0)


def measure_code_lengths(
    batches: Iterable[Any],
    log_prob: Callable[[Any], Any],
    sizes: Callable[[Any], Any],
) -> CodeLengths:
    """Measure the code lengths of examples under a model.

    Args:
      log_prob: function from a batch to log-probabilities in nats, [rows, ...], whose sum over a
        row is that of the example; or a dict of such arrays, by the name of the model's part.
      sizes: function from a batch to the number of elements of each row, [rows].

    Raises:
      UserError: there are no examples.
    """
    found: dict[str, list[np.ndarray]] = {}
    counts: list[np.ndarray] = []
    for batch in batches:
        values = log_prob(batch)
        for part, each in (values if isinstance(values, Mapping) else {"": values}).items():
            nats = -np.asarray(each, np.float64)
            found.setdefault(part, []).append(nats.sum(axis=tuple(range(1, nats.ndim))))
        counts.append(np.asarray(sizes(batch), np.float64))
    if not counts:
        raise UserError("`data` must contain an example.")
    parts = {part: np.concatenate(each) for part, each in found.items()}
    return CodeLengths(parts, np.concatenate(counts))
