"""The likelihoods that a WaveNet's configuration can name.

Importing this module does not import TensorFlow; its two factory functions do when called.
"""

from typing import TYPE_CHECKING, Literal, NamedTuple

from likelihoods.limits import MAX_COMPANDED_LEVELS, MAX_LEVELS, check_components, check_levels

if TYPE_CHECKING:
    from likelihoods.codec import Codec
    from likelihoods.distribution import Distribution

LikelihoodName = Literal["logistic", "gaussian", "gaussian-mixture", "categorical"]


class Facts(NamedTuple):
    """Properties of a likelihood that a configuration needs.

    Attributes:
      is_mixture: whether the likelihood is a mixture, which has `components`.
      is_companded: whether levels are mu-law companded and read by the network as one-hot vectors;
        otherwise they are equally spaced numbers, and the likelihood has a density.
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
    """Raise ValueError if the likelihood does not support these numbers of levels or components."""
    check_levels(levels, MAX_COMPANDED_LEVELS if FACTS[name].is_companded else MAX_LEVELS)
    if FACTS[name].is_mixture:
        check_components(components)


def make_distribution(
    name: LikelihoodName, levels: int, components: int, min_log_scale: float
) -> "Distribution":
    """Return the named distribution; arguments that it does not need are ignored."""
    from likelihoods import Categorical, Gaussian, GaussianMixture, LogisticMixture

    if name == "categorical":
        return Categorical(levels)
    if name == "gaussian":
        return Gaussian(levels, min_log_scale)
    kind = LogisticMixture if name == "logistic" else GaussianMixture
    return kind(levels, components, min_log_scale)


def make_codec(name: LikelihoodName, levels: int) -> "Codec":
    """Return the codec for sound samples that belongs to the named likelihood."""
    from likelihoods import Linear, MuLaw

    return MuLaw(levels) if FACTS[name].is_companded else Linear(levels)
