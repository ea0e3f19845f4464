"""Which models can draft for which, in speculative sampling."""

from typing import Any

from autoregressive.samplers import Draft, SteppedDraft


def stepped_draft(draft: Any, model: Any) -> Draft:
    """Return an `Autoregressive` as a draft of another one.

    Args:
      draft: proposes.
      model: whose samples it proposes.

    Raises:
      ValueError: the draft has other symbols, noise or condition, or no steps of one symbol.
    """
    own, other = draft.distribution, model.distribution
    if (own.levels, own.noise_channels) != (other.levels, other.noise_channels):
        raise ValueError(
            f"`draft` must have {other.levels} levels and {other.noise_channels} noise "
            f"channels, got {own.levels} and {own.noise_channels}."
        )
    if draft.condition_channels not in (0, model.condition_channels):
        raise ValueError(
            f"`draft` must read no condition or one of {model.condition_channels} channels, "
            f"got {draft.condition_channels}."
        )
    if draft.layout != model.layout:
        raise ValueError(f"`draft` must have elements {model.layout}, got {draft.layout}.")
    network = draft.symbol_network
    if not network.has_step or network.block != 1:
        raise ValueError("`draft` must have steps of one symbol.")
    return SteppedDraft(network, own)


def check_speculative(model: Any) -> None:
    """Raise ValueError unless a model has levels in time order and steps of one symbol."""
    if model.order != "time" or model.distribution.levels is None:
        raise ValueError('`method="speculative"` needs levels in time order.')
    if model.layout.event:
        raise ValueError(
            f'`method="speculative"` needs one channel per time, got {model.layout.channels}.'
        )
    if model.symbol_network.block != 1:
        raise ValueError('`method="speculative"` needs a model with steps of one symbol.')
