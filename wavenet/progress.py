"""Long work over many items: in threads, with a bar on a terminal and plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import tqdm

Item = TypeVar("Item")
Result = TypeVar("Result")
SECONDS_BETWEEN_LINES = 10.0


def progress(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """The items, one by one, while stderr shows how many of `total` are done.

    Work of less than ten seconds prints nothing where there is no terminal.
    """
    if sys.stderr.isatty():
        yield from tqdm.tqdm(items, total=total, desc=what, leave=False)
        return
    begin = last = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            left_seconds = (now - begin) / done * (total - done)
            print(f"{what}: {done} of {total}, {left_seconds:.0f} s left", file=sys.stderr)
            last = now


def in_threads(
    function: Callable[[Item], Result], items: Sequence[Item], what: str, workers: int | None = None
) -> list[Result]:
    """[function(item) for item in items], computed in `workers` threads (None: one per core).

    The first error is raised, and what has not begun by then never does.
    """
    pool = ThreadPoolExecutor(workers or os.cpu_count() or 1)
    try:
        futures = [pool.submit(function, item) for item in items]
        return list(progress((future.result() for future in futures), len(items), what))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
