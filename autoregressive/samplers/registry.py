"""Samplers by name, and those for one kind of network and distribution."""

from collections.abc import Callable
from typing import Any

from autoregressive.samplers.cached import cached
from autoregressive.samplers.fixed_point import fixed_point
from autoregressive.samplers.naive import naive

# (network, distribution, noise, condition, temperature, prompt) -> symbols
Sampler = Callable[..., Any]
Factory = Callable[[Any, Any], Sampler | None]

SAMPLERS: dict[str, Sampler] = {"cached": cached, "fixed-point": fixed_point, "naive": naive}
_SPECIALISED: dict[tuple[type, type], Factory] = {}


def register(network_type: type, distribution_type: type) -> Callable[[Factory], Factory]:
    """Register a sampler that `method="auto"` uses for a network and a distribution.

    Args:
      network_type: class of the network; subclasses match too.
      distribution_type: class of the distribution; subclasses match too.

    Returns:
      A decorator of a factory. The factory takes the network, as the caller passed it to
      `Autoregressive`, and the distribution. It returns a sampler with the signature of `naive`, or
      None if it does not support their settings; the general samplers are then used, and for
      sequences with a prompt. The factory is
      called once for each model, so the sampler must read the weights whenever it is called. The
      sampler is not compiled by XLA.
    """

    def add(factory: Factory) -> Factory:
        _SPECIALISED[network_type, distribution_type] = factory
        return factory

    return add


def specialised(network: Any, distribution: Any) -> Sampler | None:
    """Return the registered sampler of the most specific matching types, or None."""
    for network_type in type(network).__mro__:
        for distribution_type in type(distribution).__mro__:
            factory = _SPECIALISED.get((network_type, distribution_type))
            sampler = factory(network, distribution) if factory else None
            if sampler is not None:
                return sampler
    return None
