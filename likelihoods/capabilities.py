"""What a distribution offers beyond `Distribution`: the one place that looks for it.

A distribution of a user declares nothing: its optional methods and attributes are found by their
names, and every caller asks here.
"""

from typing import Any

from likelihoods.distribution import Continuous, Distribution, LocationScale, Normal


def pixel_channels(distribution: Distribution) -> int | None:
    """Return the channels of the pixel that a symbol is; None where a symbol is one number."""
    channels: int | None = getattr(distribution, "channels", None)
    return channels


def with_density(distribution: Distribution) -> Continuous | None:
    """Return the distribution where it has a density over the reals, else None."""
    return distribution if isinstance(distribution, Continuous) else None


def with_scales(distribution: Distribution) -> LocationScale | None:
    """Return the distribution where its parameters are means and scales, else None."""
    return distribution if isinstance(distribution, LocationScale) else None


def normal_parameters(distribution: Distribution, parameters: Any) -> tuple[Any, Any] | None:
    """Return mean and log-scale [...] where the distribution is normal, else None.

    parameters: [..., num_parameters].
    """
    return distribution.normal(parameters) if isinstance(distribution, Normal) else None


def is_normal(distribution: Distribution) -> bool:
    """Return whether the distribution is normal, cut into levels or not."""
    return isinstance(distribution, Normal)
