"""Checks for the optional features of a distribution, beyond the protocol `Distribution`.

Optional methods and attributes are found by name, so a user's distribution need not declare them.
"""

from collections.abc import Callable
from typing import Any

from onepass.likelihoods.distribution import Continuous, Distribution, LocationScale, Normal


def pixel_channels(distribution: Distribution) -> int | None:
    """Return the number of channels of a pixel if symbols are whole pixels, else None."""
    channels: int | None = getattr(distribution, "channels", None)
    return channels


def with_density(distribution: Distribution) -> Continuous | None:
    """Return the distribution if it has a density over the reals, else None."""
    # A class that supports the method only for certain settings defines `has_density`.
    has_density = getattr(distribution, "has_density", True)
    return distribution if isinstance(distribution, Continuous) and has_density else None


def with_scales(distribution: Distribution) -> LocationScale | None:
    """Return the distribution if it is a `LocationScale`, else None."""
    return distribution if isinstance(distribution, LocationScale) else None


def cumulative_of(distribution: Distribution) -> Callable[..., Any] | None:
    """Return the distribution's method `cumulative` if it has one, else None."""
    cumulative: Callable[..., Any] | None = getattr(distribution, "cumulative", None)
    return cumulative


def table_of(distribution: Distribution) -> Callable[..., Any] | None:
    """Return the method `table`, the log-probability of every level, if there is one, else None."""
    table: Callable[..., Any] | None = getattr(distribution, "table", None)
    return table


def is_of_tokens(distribution: Distribution) -> bool:
    """Return whether the symbols are tokens: integers that have no order or scale."""
    return bool(getattr(distribution, "of_tokens", False))


def tempers(distribution: Distribution) -> bool:
    """Return whether the distribution can be sampled at temperatures other than 1."""
    return bool(getattr(distribution, "tempers", True))


def closed_form(distribution: Distribution) -> dict[str, Any]:
    """Return the attributes that `compression.forms` reads, by name; {} without a closed form."""
    names = ("form", "sections", "min_log_scale")
    if getattr(distribution, "form", None) is None:
        return {}
    return {name: getattr(distribution, name, None) for name in names}


def normal_parameters(distribution: Distribution, parameters: Any) -> tuple[Any, Any] | None:
    """Return the mean and log-scale, [...] each, if the distribution is normal, else None."""
    return distribution.normal(parameters) if isinstance(distribution, Normal) else None


def is_normal(distribution: Distribution) -> bool:
    """Return whether the distribution is normal, discretised or not."""
    return isinstance(distribution, Normal)
