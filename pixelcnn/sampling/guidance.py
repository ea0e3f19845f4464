"""Guided sampling: a batch is sampled together with a copy under the null condition.

Both halves read the same pixels, and `outputs.sample_guided` moves samples away from the null
condition. Samplers need no change, since the copy consists of additional rows of the batch.
"""

from typing import Any

import tensorflow as tf

from pixelcnn.networks.conditioning import Conditioner


def pair_for_guidance(
    conditioner: Conditioner, batch: dict, guidance: float | tf.Tensor | None, *arguments: Any
) -> tuple:
    """Return the encoded condition and the arguments, with the batch doubled for guidance.

    The second half of the condition is the null condition. If `guidance` is None, nothing is
    doubled. The arguments are tensors [batch, ...], tuples of tensors, None, or scalars, which are
    unchanged.
    """
    condition = conditioner(batch)
    if guidance is None:
        return condition, *arguments
    return conditioner.with_null(condition), *tf.nest.map_structure(_twice, arguments)


def drop_guidance_pair(guidance: float | tf.Tensor | None, sampled: Any) -> Any:
    """Return sampled tensors without the half of the batch that `pair_for_guidance` added."""
    if guidance is None:
        return sampled
    return tf.nest.map_structure(lambda x: tf.split(x, 2)[0] if x.shape.rank else x, sampled)


def _twice(x: tf.Tensor | None) -> tf.Tensor | None:
    return x if x is None or not x.shape.rank else tf.concat([x, x], 0)
