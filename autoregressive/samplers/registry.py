"""Samplers by name: those of every model, and the table of those written for one kind."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

# (network, distribution, noise, condition, temperature, prompt) -> symbols
Sampler = Callable[..., Any]
Factory = Callable[[Any, Any], Any]

SAMPLERS: dict[str, Sampler] = {}


class Written(NamedTuple):
    """A sampler that is written for one kind of network and distribution.

    Attributes:
      network: class of the network; subclasses match too.
      distribution: class of the distribution; subclasses match too.
      factory: function of network and distribution that returns the sampler, or None.
      method: name by which `method` takes it; "": only "auto" does.
      ratio: times as fast as what the core derives at batch 1; None: nothing is derived, or a
        user's that nobody measured.
      measured: what the ratio was measured on; from 1.2 on a sampler is worth its lines.
      on_processors: "auto" leaves it out where there is a GPU.
    """

    network: type
    distribution: type
    factory: Factory
    method: str = ""
    ratio: float | None = None
    measured: str = ""
    on_processors: bool = False


TABLE: list[Written] = []


def method(name: str) -> Callable[[Sampler], Sampler]:
    """Register a sampler of every model, which `method=name` takes.

    Args:
      name: the name; a sampler of the same name is replaced.

    Returns:
      A decorator of a function with the arguments of `naive`: the network of symbols, the
      distribution, the noise of all positions, the condition, the temperature, and the symbols that
      are given or None. It returns the symbols, and XLA compiles it.
    """

    def add(sampler: Sampler) -> Sampler:
        SAMPLERS[name] = sampler
        return sampler

    return add


def register(
    network_type: type, distribution_type: type, **fields: Any
) -> Callable[[Factory], Factory]:
    """Register a sampler that `method="auto"` uses for a network and a distribution.

    Args:
      network_type: class of the network; subclasses match too.
      distribution_type: class of the distribution; subclasses match too.
      **fields: further fields of its row in the table, such as `method`, a name of its own.

    Returns:
      A decorator of a factory. The factory takes the network, as the caller passed it to
      `Autoregressive`, and the distribution. It returns a sampler with the signature of `naive`, or
      a `ChunkSampler`, or None if it does not support their settings; the general samplers are then
      used, and for sequences with a prompt. The factory is called once for each model, so the
      sampler must read the weights whenever it is called. The sampler is not compiled by XLA.
    """

    def add(factory: Factory) -> Factory:
        TABLE.append(Written(network_type, distribution_type, factory, **fields))
        return factory

    return add


def specialised(network: Any, distribution: Any, method: str = "auto") -> Any:
    """Return the registered sampler of the most specific matching types, or None.

    Args:
      network: the network, as the caller passed it.
      distribution: the distribution of a symbol.
      method: name of the sampler; "auto": any that is for this machine.
    """
    has_gpu = method == "auto" and bool(tf.config.list_physical_devices("GPU"))
    for row in _rows_of(network, distribution):
        if method in ("auto", row.method) and not (has_gpu and row.on_processors):
            sampler = row.factory(network, distribution)
            if sampler is not None:
                return sampler
    return None


def methods_of(network: Any, distribution: Any) -> tuple[str, ...]:
    """Return the names that `method` takes for a network and a distribution, without drafts."""
    own = [row.method for row in _rows_of(network, distribution) if row.method]
    return tuple(dict.fromkeys(["auto", *own, *SAMPLERS]))


def _rows_of(network: Any, distribution: Any) -> list[Written]:
    """Return the rows of the table for a network and a distribution.

    The most specific are first, and of those the fastest.
    """
    table = sorted(TABLE, key=lambda row: -(row.ratio or 0.0))
    pairs = itertools.product(type(network).__mro__, type(distribution).__mro__)
    return [row for pair in pairs for row in table if (row.network, row.distribution) == pair]
