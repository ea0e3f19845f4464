"""An objective is a list of terms: what a term reads, what it returns, and their sum."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from likelihoods.affine import FlowOutput


class Weighted(NamedTuple):
    """The value of a term, [], and its weight in the loss."""

    weight: float | tf.Tensor
    value: tf.Tensor


@dataclasses.dataclass(frozen=True)
class Draw:
    """The inputs of a loss term.

    Attributes:
      output: what the student drew, float32 [batch, time].
      recorded: the data as its codec scales it, float32 [batch, time].
      noise_kind: the student's noise, "logistic" or "normal".
      seed: uint32 [2] of this step.
      rows: int32 [batch], which address noise under the seed.
      teach: returns the teacher's conditionals given the output: under the condition of each row
        for False, under that of the row before it for True, or None where that is not known.
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
        """The teacher's conditionals given the output; computed if a term reads them."""
        return self.teach(False)

    @property
    def counted(self) -> tuple[tf.Tensor | None, tf.Tensor | None]:
        """The mask of the elements that count and their number, as `kl_divergence.mean_of` has."""
        return self.batch.get("mask"), self.batch.get("counted")


# A function of what was drawn: a scalar, or several with their weights by name. It may have
# `global_inputs(batch, replicator)`: what it must know of the whole batch, by name.
Term = Callable[[Any], tf.Tensor | dict[str, Weighted]]


class Listed(NamedTuple):
    """A term of an objective, with name and weight for one that returns a scalar."""

    name: str
    weight: float
    term: Term


def summed(terms: Iterable[Listed], draw: Any) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Return the weighted sum of the terms, [], and the value of each by its name."""
    found: dict[str, Weighted] = {}
    for name, weight, term in terms:
        value = term(draw)
        found |= value if isinstance(value, dict) else {name: Weighted(weight, value)}
    return weighed(found)


def weighed(found: dict[str, Weighted]) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
    """Return the weighted sum of values, [], and the values."""
    loss = tf.add_n([weight * value for weight, value in found.values()])
    return loss, {name: value for name, (_, value) in found.items()}


def name_of(term: Term) -> str:
    """Return the name by which the value of a term is logged."""
    inner = getattr(term, "function", term)
    return str(getattr(inner, "__name__", type(inner).__name__)).lower()


@dataclasses.dataclass(frozen=True)
class Compared:
    """A distance between the student's samples and the data, such as a distance of spectra.

    Attributes:
      function: from samples and data, float32 [batch, time] each, to a scalar or [batch].
      weight: factor on the term.
    """

    function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    weight: float = 1.0

    def __call__(self, draw: Draw) -> tf.Tensor:
        """Return the weighted term, []."""
        return self.weight * tf.reduce_mean(self.function(draw.output.output, draw.recorded))
