"""What a network's output means: distributions over integer levels, and the noise to sample them.

Each likelihood follows `Likelihood`: `log_prob`, `sample`, `mode`, `noise`, `encode`, `decode`.
"""

from likelihoods.categorical import Categorical as Categorical
from likelihoods.gaussian import Gaussian as Gaussian
from likelihoods.logistic import LogisticMixture as LogisticMixture
from likelihoods.pixels import PixelMixture as PixelMixture
from likelihoods.protocol import Likelihood as Likelihood
from likelihoods.protocol import bits_per_sample as bits_per_sample
