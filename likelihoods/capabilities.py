"""Optional features of a distribution in addition to `Distribution`, all checked here.

A user's distribution declares nothing: its optional methods and attributes are found by name.
"""

from typing import Any

from likelihoods.distribution import Continuous, Distribution, LocationScale, Normal


def pixel_channels(distribution: Distribution) -> int | None:
    """Return the channels of a pixel if a symbol is one, else None."""
    channels: int | None = getattr(distribution, "channels", None)
    return channels


def with_density(distribution: Distribution) -> Continuous | None:
    """Return the distribution if it has a density over the reals, else None."""
    return distribution if isinstance(distribution, Continuous) else None


def with_scales(distribution: Distribution) -> LocationScale | None:
    """Return the distribution if its parameters are means and scales, else None."""
    return distribution if isinstance(distribution, LocationScale) else None


def normal_parameters(distribution: Distribution, parameters: Any) -> tuple[Any, Any] | None:
    """Return mean and log-scale [...] if the distribution is normal, else None.

    Args:
      distribution: of symbols.
      parameters: [..., num_parameters].
    """
    return distribution.normal(parameters) if isinstance(distribution, Normal) else None


def is_normal(distribution: Distribution) -> bool:
    """Return whether the distribution is normal, discretised or not."""
    return isinstance(distribution, Normal)
