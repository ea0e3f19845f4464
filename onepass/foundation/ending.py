"""Bound the work on data that may have no end, such as held-out data of `fit`."""

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, TypeVar

from onepass.foundation.errors import UserError

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
