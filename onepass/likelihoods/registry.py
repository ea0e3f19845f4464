"""The likelihoods that a configuration can name; `register` adds one.

Importing this module does not import TensorFlow; its factory functions do when called.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from onepass import likelihoods
from onepass.foundation.rules import (
    MAX_COMPANDED_LEVELS,
    MAX_LEVELS,
    check_components,
    check_levels,
    choices,
    must_be,
)

if TYPE_CHECKING:
    from onepass.likelihoods.codec import Codec
    from onepass.likelihoods.distribution import Distribution


class Entry(NamedTuple):
    """A likelihood that a configuration can name."""

    # Function of levels, components and minimum log-scale, which returns the distribution and
    # ignores the arguments that it does not need.
    make: Callable[[int, int, float], Any]
    # Whether the distribution is a `onepass.likelihoods.mixture.Mixture`, which has `components`
    # and is a likelihood of pixels, too.
    is_mixture: bool = False
    # Whether levels are mu-law companded and read by the network as one-hot vectors; otherwise they
    # are equally spaced numbers, and the likelihood has a density.
    is_companded: bool = False


LIKELIHOODS: dict[str, Entry] = {
    "logistic": Entry(
        lambda levels, components, least: likelihoods.LogisticMixture(levels, components, least),
        is_mixture=True,
    ),
    "gaussian": Entry(lambda levels, _, least: likelihoods.Gaussian(levels, least)),
    "gaussian-mixture": Entry(
        lambda levels, components, least: likelihoods.GaussianMixture(levels, components, least),
        is_mixture=True,
    ),
    "categorical": Entry(lambda levels, *_: likelihoods.Categorical(levels), is_companded=True),
}


def register(name: str, make: Callable[..., Any], **facts: bool) -> None:
    """Add a likelihood, or replace the one with this name; `facts` are fields of `Entry`."""
    LIKELIHOODS[name] = Entry(make, **facts)


def mixtures() -> tuple[str, ...]:
    """Return the names of the mixtures."""
    return tuple(name for name, entry in LIKELIHOODS.items() if entry.is_mixture)


LikelihoodName = Annotated[str, choices(lambda: LIKELIHOODS)]


def check(name: str, levels: int, components: int) -> None:
    """Raise ValueError unless `name` is known and supports these levels and components."""
    if name not in LIKELIHOODS:
        raise ValueError(must_be("likelihood", f"one of {', '.join(LIKELIHOODS)}", repr(name)))
    check_levels(levels, MAX_COMPANDED_LEVELS if LIKELIHOODS[name].is_companded else MAX_LEVELS)
    if LIKELIHOODS[name].is_mixture:
        check_components(components)


def make_distribution(
    name: str, levels: int, components: int, min_log_scale: float
) -> "Distribution":
    """Return the named distribution; arguments that it does not need are ignored."""
    return LIKELIHOODS[name].make(levels, components, min_log_scale)


def make_codec(name: str, levels: int) -> "Codec":
    """Return the codec for audio samples that belongs to the named likelihood."""
    kind = likelihoods.MuLaw if LIKELIHOODS[name].is_companded else likelihoods.Linear
    return kind(levels)
