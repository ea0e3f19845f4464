"""The interface of the terms of a loss: their input, their result and their sum."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from onepass.likelihoods.affine import FlowOutput


class Weighted(NamedTuple):
    """The value of a term, a scalar, and its weight in the loss."""

    weight: float | tf.Tensor
    value: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Draw:
    """The inputs of a loss term.

    Attributes:
      output: the student's output, float32 [batch, time].
      recorded: the data, scaled by the codec, float32 [batch, time].
      noise_kind: the student's noise, "logistic" or "normal".
      seed: the seed of this step, uint32 [2].
      rows: int32 [batch], the index of each row in the seed's sequence of rows.
      teach: function that returns the teacher's conditionals given the output: for False, under
        each row's own condition; for True, under the preceding row's, or None without a condition.
      batch: the batch itself.
    """

    output: FlowOutput
    recorded: tf.Tensor
    noise_kind: str
    seed: tf.Tensor
    rows: tf.Tensor
    teach: Callable[[bool], Any]
    batch: Mapping[str, tf.Tensor] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def teacher(self) -> Any:
        """The teacher's conditionals given the output; computed only if a term reads them."""
        return self.teach(False)

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        """Return the mean of values [batch, time] over the elements that count, a scalar."""
        return mean_of(values, self.batch.get("mask"), self.batch.get("counted"))


# A function from a `Draw` to a scalar, or to several values with their weights, by name. It may
# have `global_inputs(batch, replicator)`, which returns its inputs from the whole batch, by name.
Term = Callable[[Any], tf.Tensor | dict[str, Weighted]]


class Listed(NamedTuple):
    """A term of an objective; the name and the weight apply if it returns a scalar."""

    name: str
    weight: float
    term: Term


def sum_terms(terms: Iterable[Listed], draw: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Return the weighted sum of the terms, a scalar, and the value of each term by name."""
    found: dict[str, Weighted] = {}
    for name, weight, term in terms:
        value = term(draw)
        found |= value if isinstance(value, dict) else {name: Weighted(weight, value)}
    return sum_weighted(found)


def sum_weighted(found: dict[str, Weighted]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Return the weighted sum of the values, a scalar, and the unweighted values by name."""
    loss = tf.add_n([weight * value for weight, value in found.values()])
    return loss, {name: value for name, (_, value) in found.items()}


def name_of(term: Term) -> str:
    """Return the name under which the value of a term is logged, in lower case."""
    inner = getattr(term, "function", term)
    return str(getattr(inner, "__name__", type(inner).__name__)).lower()


@dataclasses.dataclass(frozen=True)
class Compared:
    """A term that compares the student's samples with the data, such as an error of spectra.

    Attributes:
      function: function from samples and data, each float32 [batch, time], to a scalar or [batch].
      weight: factor of the term.
    """

    function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    weight: float = 1.0

    def __call__(self, draw: Draw) -> tf.Tensor:
        """Return the weighted term, a scalar."""
        return self.weight * tf.reduce_mean(self.function(draw.output.output, draw.recorded))


def mean_of(
    values: tf.Tensor, mask: tf.Tensor | None = None, counted: tf.Tensor | None = None
) -> tf.Tensor:
    """Return the mean of values where the mask is 1, or of all, a scalar.

    `counted` is the divisor: for a share of a batch, the shares' mean count; None: the mask's sum.
    """
    if mask is None:
        return tf.reduce_mean(values)
    counted = tf.reduce_sum(mask) if counted is None else counted
    return tf.reduce_sum(values * mask) / tf.maximum(counted, 1.0)
