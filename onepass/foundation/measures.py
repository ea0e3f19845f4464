"""Measures of models on data that ends: code lengths, means and their 95% intervals."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, TypeVar

import numpy as np
from scipy import special

from onepass.foundation.rules import UserError

# Rows that are read of data whose end is not known; enough for a mean, and few enough to be held.
MOST_ROWS = 2**14
INFINITE = -1  # the cardinality of a `tf.data.Dataset` that repeats; that of an unknown one is -2

Part = TypeVar("Part")


def ends(data: Any, name: str) -> bool:
    """Return whether data is known to end; False for a generator, which may do so."""
    cardinality = getattr(data, "cardinality", None)
    if cardinality is None:
        return isinstance(data, Sized) or hasattr(data, "shape")
    count = int(cardinality())
    if count == INFINITE:
        raise UserError(
            f"`{name}` must be data that ends, got a dataset that repeats without end; leave out"
            " `repeat()`, or use `take(n)`."
        )
    return count >= 0


def limit_rows(
    parts: Iterable[Part],
    rows: Callable[[Part], int],
    name: str,
    say: Callable[[str], object],
    most: int | None = None,
) -> Iterator[Part]:
    """Yield parts until they have enough rows; if there are more, say so and stop."""
    count, most = 0, MOST_ROWS if most is None else most
    for part in parts:
        if count >= most:
            say(
                f"`{name}` may have no end: only its first {count:,} rows are read; to use more,"
                " pass arrays, a list or a dataset of known length."
            )
            return
        count += rows(part)
        yield part


@dataclasses.dataclass(frozen=True)
class CodeLengths:
    """The negative log-likelihood of each of some examples under a model."""

    parts: Mapping[str, np.ndarray]  # nats, float64 [examples], by the model's part; "": its only
    sizes: np.ndarray  # numbers of elements, float64 [examples]

    @property
    def nats(self) -> np.ndarray:
        """Nats of each example, in all parts, float64 [examples]."""
        return np.sum(list(self.parts.values()), axis=0)

    @property
    def nats_per_element(self) -> np.ndarray:
        """Nats per element of each example, in all parts, float64 [examples]."""
        return self.nats / np.maximum(self.sizes, 1.0)

    @property
    def mean_bits(self) -> float:
        """Bits per element of all examples together."""
        return float(self.nats.sum() / self.sizes.sum() / math.log(2.0))

    @property
    def bits_per_element(self) -> np.ndarray:
        """Bits per element of each example, in all parts, float64 [examples]."""
        return self.nats_per_element / math.log(2.0)


def measure_code_lengths(
    batches: Iterable[Any], log_prob: Callable[[Any], Any], sizes: Callable[[Any], Any]
) -> CodeLengths:
    """Measure the code lengths of examples under a model; UserError: there are none.

    `log_prob` returns log-probabilities of a batch in nats, [rows, ...], whose sum over a row is
    that of the example, or a dict of such arrays by the name of the model's part; `sizes` the
    number of elements of each row, [rows].
    """
    found: dict[str, list[np.ndarray]] = {}
    counts: list[np.ndarray] = []
    for batch in batches:
        values = log_prob(batch)
        for part, each in (values if isinstance(values, Mapping) else {"": values}).items():
            nats = -np.asarray(each, np.float64)
            found.setdefault(part, []).append(nats.sum(axis=tuple(range(1, nats.ndim))))
        counts.append(np.asarray(sizes(batch), np.float64))
    if not counts:
        raise UserError("`data` must contain an example.")
    parts = {part: np.concatenate(each) for part, each in found.items()}
    return CodeLengths(parts, np.concatenate(counts))


CONFIDENCE = 0.95
FEW = 10  # with fewer values, an interval relies on the assumption of a normal distribution
EXPLAINED = "95% intervals: Student's t for means, Wilson's for proportions"


@dataclasses.dataclass(frozen=True)
class Measure:
    """A mean or a proportion with its 95% interval and the number of values."""

    mean: float
    low: float | None  # None if the values do not determine an interval
    high: float | None
    n: int
    undefined: int = 0  # NaN and infinite values that were left out


def weighted_mean(values: np.ndarray, weights: np.ndarray | None = None) -> Measure:
    """Return a weighted mean of independent values, float [n], with Student's t interval.

    The variance of the mean is `sum p_i^2 (x_i - mean)^2` for weights p that sum to 1, corrected
    for its bias; the degrees of freedom are `1 / sum p_i^2 - 1` (Kish 1965, "Survey Sampling",
    section 8.2). With equal weights this is the textbook interval.
    """
    values = np.asarray(values, np.float64)
    share = np.ones(len(values)) if weights is None else np.asarray(weights, np.float64)
    if not len(values) or not share.sum() > 0.0:
        return Measure(math.nan, None, None, len(values))
    share = share / share.sum()
    with np.errstate(invalid="ignore"):  # infinities of both signs have no mean
        mean = float(share @ values)
    squares = float(share @ share)
    freedom = 1.0 / squares - 1.0
    if not math.isfinite(mean) or freedom < 1e-9:
        return Measure(mean, None, None, len(values))
    expected = 1.0 + squares - 2.0 * float(np.sum(share**3)) / squares
    error = math.sqrt(float(share**2 @ (values - mean) ** 2) / expected)
    half = float(special.stdtrit(freedom, 0.5 + CONFIDENCE / 2.0)) * error
    return Measure(mean, mean - half, mean + half, len(values))


def finite_mean(values: Sequence[float]) -> Measure:
    """Return the mean of the finite values with its interval; `undefined` counts the others."""
    given = np.asarray(values, np.float64)
    finite = given[np.isfinite(given)]
    return dataclasses.replace(weighted_mean(finite), undefined=len(given) - len(finite))


def share_of(found: np.ndarray) -> Measure:
    """Return the share of true values, with Wilson's score interval (Wilson 1927)."""
    n = len(found)
    if not n:
        return Measure(math.nan, None, None, 0)
    share = float(np.mean(np.asarray(found, np.float64)))
    z = float(special.ndtri(0.5 + CONFIDENCE / 2.0))
    spread = z * math.sqrt(share * (1.0 - share) / n + z**2 / (4.0 * n**2))
    low, high = ((share + z**2 / (2.0 * n) + s) / (1.0 + z**2 / n) for s in (-spread, spread))
    return Measure(share, max(low, 0.0), min(high, 1.0), n)


def format_interval(measured: Mapping[str, Any], scale: float = 1.0, digits: int = 3) -> str:
    """Return the scaled interval of a stored `Measure` and its count: "0.1 to 0.3, n 12"."""
    low, high, n = measured["low"], measured["high"], measured.get("n")
    if n is not None and n < 1:
        parts = ["no value"]
    elif low is None or high is None:
        parts = ["no interval"]
    else:
        parts = [f"{scale * low:.{digits}f} to {scale * high:.{digits}f}"]
    if n:
        parts.append(f"n {n}" + (", few" if 1 < n < FEW else ""))
    if undefined := measured.get("undefined"):
        parts.append(f"{undefined} undefined")
    return ", ".join(parts)


def format_measure(
    measured: Mapping[str, Any], scale: float = 1.0, digits: int = 3, unit: str = ""
) -> str:
    """Return a stored `Measure` as "0.2 (95%: 0.1 to 0.3, n 12)"; `unit` follows the mean."""
    before = "" if measured["low"] is None else "95%: "
    mean = f"{scale * measured['mean']:.{digits}f}{unit}"
    return f"{mean} ({before}{format_interval(measured, scale, digits)})"
