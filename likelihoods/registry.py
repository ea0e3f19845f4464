"""The likelihoods that a WaveNet's configuration names: the one place that knows them by name.

It is read without TensorFlow, which the two makers import when they are called.
"""

from typing import TYPE_CHECKING, Literal, NamedTuple

from likelihoods.limits import MAX_COMPANDED_LEVELS, MAX_LEVELS, check_components, check_levels

if TYPE_CHECKING:
    from likelihoods.codec import Codec
    from likelihoods.distribution import Distribution

LikelihoodName = Literal["logistic", "gaussian", "gaussian-mixture", "categorical"]


class Facts(NamedTuple):
    """What a configuration must know of a likelihood.

    is_mixture: it has `components`. is_companded: its levels are those of mu-law, which a network
    reads one by one, not as numbers; else they lie at equal distances, and so do its densities.
    """

    is_mixture: bool
    is_companded: bool


FACTS: dict[LikelihoodName, Facts] = {
    "logistic": Facts(is_mixture=True, is_companded=False),
    "gaussian": Facts(is_mixture=False, is_companded=False),
    "gaussian-mixture": Facts(is_mixture=True, is_companded=False),
    "categorical": Facts(is_mixture=False, is_companded=True),
}


def check(name: LikelihoodName, levels: int, components: int) -> None:
    """Returns nothing; raises ValueError for numbers that the likelihood cannot have."""
    check_levels(levels, MAX_COMPANDED_LEVELS if FACTS[name].is_companded else MAX_LEVELS)
    if FACTS[name].is_mixture:
        check_components(components)


def make_distribution(
    name: LikelihoodName, levels: int, components: int, min_log_scale: float
) -> "Distribution":
    """Return the distribution of a name; arguments that it has no use for are ignored."""
    from likelihoods import Categorical, Gaussian, GaussianMixture, LogisticMixture

    if name == "categorical":
        return Categorical(levels)
    if name == "gaussian":
        return Gaussian(levels, min_log_scale)
    kind = LogisticMixture if name == "logistic" else GaussianMixture
    return kind(levels, components, min_log_scale)


def make_codec(name: LikelihoodName, levels: int) -> "Codec":
    """Return what the levels of a sound's samples are."""
    from likelihoods import Linear, MuLaw

    return MuLaw(levels) if FACTS[name].is_companded else Linear(levels)
