"""Guidance of a sampler: a batch is sampled together with its twin under the null condition.

Both see the same pixels, and `outputs.sample_guided` moves the samples away from the expectation of
the twin. The samplers themselves do not depend on it: the twins are rows of their batch.
"""

from typing import Any

import tensorflow as tf

from pixelcnn.networks.conditioning import Conditioner


def paired(
    conditioner: Conditioner, batch: dict, guidance: float | tf.Tensor | None, *arguments: Any
) -> tuple:
    """Return the condition of a batch and the arguments, each followed by its twin.

    Args:
      conditioner: encodes the conditions, and has a null condition.
      batch: the conditions by name, as `Conditioner` reads them.
      guidance: the weight away from the null condition; None pairs nothing.
      *arguments: tensors [batch, ...], tuples of them or None; scalars are unchanged.
    """
    condition = conditioner(batch)
    if guidance is None:
        return condition, *arguments
    return conditioner.with_null(condition), *tf.nest.map_structure(_twice, arguments)


def unpaired(guidance: float | tf.Tensor | None, sampled: Any) -> Any:
    """Return a sampled tensor, or several, without the twins."""
    if guidance is None:
        return sampled
    return tf.nest.map_structure(lambda x: tf.split(x, 2)[0] if x.shape.rank else x, sampled)


def _twice(x: tf.Tensor | None) -> tf.Tensor | None:
    return x if x is None or not x.shape.rank else tf.concat([x, x], 0)
