"""Apply a function to many items in threads, with progress."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from onepass.foundation.progress import Progress

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    what: str,
    unit: str,
    workers: int | None = None,
) -> list[Result]:
    """Return [function(item) for item in items], computed in threads, and show progress.

    The error of the first item that fails is raised; items that no thread has started by then are
    skipped.
    """
    pool = ThreadPoolExecutor(workers or os.cpu_count() or 1)
    try:
        results = []
        with Progress(len(items), what, unit) as progress:
            for result in pool.map(function, items):
                results.append(result)
                progress.advance()
        return results
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
