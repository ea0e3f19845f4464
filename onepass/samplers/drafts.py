"""Check whether a model can be the draft of another model in speculative sampling."""

from typing import Any

import tensorflow as tf

from onepass.networks.conditions import Frames, describe_spec, is_at_rate
from onepass.samplers import Draft, SteppedDraft


def stepped_draft(draft: Any, model: Any) -> Draft:
    """Return an `Autoregressive` as a draft for another model."""
    draft.follow()
    own, other = draft.distribution, model.distribution
    if (own.levels, own.noise_channels) != (other.levels, other.noise_channels):
        raise ValueError(
            f"`draft` must have {other.levels} levels and {other.noise_channels} noise "
            f"channels, got {own.levels} and {own.noise_channels}."
        )
    frames = [name for name, spec in draft.conditions.items() if isinstance(spec, Frames)]
    if frames:
        raise ValueError(f"`draft` must read no Frames, got {frames[0]}.")
    channels = draft.condition_channels, model.condition_channels
    is_only = bool(channels[0]) and (bool(channels[1]) or not model.conditions)
    if is_only and channels[0] != channels[1]:
        raise ValueError(
            f"`draft` must read no condition or one of {model.condition_channels} channels, "
            f"got {draft.condition_channels}."
        )
    read = {} if all(channels) else draft.conditions  # a single timed condition may have any name
    for name, spec in read.items():
        if not _is_like(spec, model.conditions.get(name)):
            raise ValueError(
                f"`draft` must read conditions of the model, which has no {name},"
                f" {describe_spec(spec)}."
            )
    if draft.layout != model.layout:
        raise ValueError(f"`draft` must have elements {model.layout}, got {draft.layout}.")
    network = draft.symbol_network
    if not network.has_step or network.block != 1:
        raise ValueError("`draft` must have steps of one symbol.")
    return SteppedDraft(network, own)


def _is_like(spec: tf.TensorSpec, other: tf.TensorSpec | None) -> bool:
    if other is None or is_at_rate(spec) != is_at_rate(other):
        return False
    return spec.shape.is_compatible_with(other.shape)


def check_speculative(model: Any) -> None:
    """Raise ValueError if speculative sampling does not support a model."""
    if model.order != "time" or model.distribution.levels is None:
        raise ValueError('`method="speculative"` needs levels in time order.')
    if model.layout.event:
        raise ValueError(
            f'`method="speculative"` needs one channel per time step, got {model.layout.channels}.'
        )
    network = model.symbol_network
    if network.block != 1 and not hasattr(network, "block_passes"):
        raise ValueError('`method="speculative"` needs a model with steps of one symbol.')
