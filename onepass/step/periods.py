"""Networks of several rates of time, such as a causal U-Net or the tiers of SampleRNN.

Such a network takes multiples of a number of time steps, its period: its inputs are padded with
zeros at the end, and its outputs are cut.
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from onepass.networks.any_length import length_of, pad_timed
from onepass.networks.conditions import specs_at
from onepass.networks.network import WHOLE
from onepass.step.tracing import Traces

PRIMES = (61, 13, 5)  # a network that keeps one of these lengths has no period


class WholePeriods:
    """A network for any length, of which `inner` is called on whole periods."""

    fewest = 5  # periods for which it is traced

    def __init__(
        self, call: Callable[..., tf.Tensor], specs: Sequence[tf.TensorSpec], period: int
    ) -> None:
        self.inner, self.period = call, period
        self.hop = period  # lengths that it is traced for are multiples of it
        self._specs = specs

    def __call__(self, *arguments: tf.Tensor) -> tf.Tensor:
        """Return the outputs for arguments of any length."""
        length = length_of(arguments[0])
        whole = length + -length % self.period
        if isinstance(length, int) and whole == length:
            return self.inner(*arguments)
        return self.inner(*pad_timed(arguments, self._specs, whole))[:, :length]


def in_whole_periods(call: Traces, specs: Sequence[tf.TensorSpec]) -> Traces:
    """Return a network for any length if `call` takes only multiples of a number; else `call`."""
    period: int | None = period_of(call)
    if period == 1:
        if specs[0].shape[1] is not None or any(_keeps(call, specs, n) for n in PRIMES):
            return call
        period = _find_period(call, specs)
    return call if period is None else Traces(WholePeriods(call, specs, period))


def _find_period(call: Traces, specs: Sequence[tf.TensorSpec]) -> int | None:
    length = next((n for n in WHOLE if _keeps(call, specs, n)), None)
    for period in () if length is None else range(2, length + 1):
        divides = length is not None and length % period == 0
        if divides and all(_keeps(call, specs, count * period) for count in (1, 2, 3, 5)):
            return period
    return None


def _keeps(call: Traces, specs: Sequence[tf.TensorSpec], length: int) -> bool:
    try:
        graph = call.of(specs_at(specs, 1, [length])).graph
    except (ValueError, TypeError, IndexError, AttributeError, tf.errors.OpError):
        return False
    if len(graph.outputs) != 1:
        return True  # another check refuses it
    shape = graph.outputs[0].shape
    return shape.rank is None or shape.rank < 2 or shape[1] in (None, length)


def period_of(call: Callable) -> int:
    """Return the number of time steps after which a network treats its inputs alike; mostly 1."""
    return getattr(getattr(call, "function", call), "period", 1)
