"""Registries of samplers: general samplers by name, and samplers for particular networks."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

# (network, distribution, noise, condition, temperature, prompt) -> symbols
Sampler = Callable[..., Any]
Factory = Callable[[Any, Any], Any]

SAMPLERS: dict[str, Sampler] = {}


class Written(NamedTuple):
    """A table entry for a sampler that is written for one kind of network and distribution."""

    network: type
    distribution: type
    factory: Factory  # makes the sampler of network and distribution; None: does not apply
    method: str = ""  # name by which the argument `method` selects it; "": only "auto" selects it


TABLE: list[Written] = []


def method(name: str) -> Callable[[Sampler], Sampler]:
    """Register a sampler for all models, selected by `method=name`.

    Returns:
      A decorator for a function with the arguments of `naive`: the network of symbols, the
      distribution, the noise of all positions, the condition, the temperature, and the known
      symbols or None. The function returns the symbols, or `Settled` ones, and is compiled with
      XLA.
    """

    def add(sampler: Sampler) -> Sampler:
        SAMPLERS[name] = sampler
        return sampler

    return add


def register(
    network_type: type, distribution_type: type, method: str = ""
) -> Callable[[Factory], Factory]:
    """Register a sampler that `method="auto"` uses for a network and a distribution.

    Args:
      network_type: class of the network; subclasses match too.
      distribution_type: class of the distribution; subclasses match too.
      method: name by which the argument `method` selects the sampler, too.

    Returns:
      A decorator for a factory. The factory takes the network, as passed to `Autoregressive`, and
      the distribution. It returns a sampler of whole rows, with the signature of `naive` without a
      prompt, or None if it does not support their settings. In that case, for prompts and for
      streams, a general sampler is used. The factory is called once per model and method, so the
      sampler must read the weights on every call. The sampler is not compiled with XLA.
    """

    def add(factory: Factory) -> Factory:
        TABLE.append(Written(network_type, distribution_type, factory, method))
        return factory

    return add


def find_specialised(network: Any, distribution: Any, method: str = "auto") -> Any:
    """Return the registered sampler of the most specific matching types, or None."""
    for row in _rows_of(network, distribution):
        if method in ("auto", row.method):
            sampler = row.factory(network, distribution)
            if sampler is not None:
                return sampler
    return None


def methods_of(network: Any, distribution: Any) -> tuple[str, ...]:
    """Return the valid values of `method` for given parts of a model, except "speculative"."""
    own = [row.method for row in _rows_of(network, distribution) if row.method]
    return tuple(dict.fromkeys(["auto", *own, *sorted(SAMPLERS)]))


def _rows_of(network: Any, distribution: Any) -> list[Written]:
    """Return matching table entries, the most specific first."""
    pairs = itertools.product(type(network).__mro__, type(distribution).__mro__)
    return [row for pair in pairs for row in TABLE if (row.network, row.distribution) == pair]
