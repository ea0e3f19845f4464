"""A process that has bundles without a server: it loads them, and calls them.

Started as `python -m onepass.bench.serving.in_process DESCRIPTOR`, see bench/worker_process.py.
"""

import sys
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from onepass.bench.worker_process import median_seconds, serve
from serving.bundles import loading
from serving.bundles.bundle import Backend
from serving.bundles.signature import COMPILED, Arrays


class Bare:
    """Bundles by their folders."""

    def __init__(self):
        import tensorflow  # noqa: F401 - which is no part of loading a bundle

        self._bundles: dict[str, Any] = {}

    def load(self, path: str, backend: Backend) -> dict[str, float]:
        """Loads a bundle, which is then warm."""
        self._bundles[path] = loading.load(path, backend)
        self._bundles[path].warm()
        return {}

    def call(self, path: str, inputs: str, count: int) -> dict[str, float]:
        """Seconds of a call of a bundle that was loaded, the median of `count` after one more."""
        loaded = self._bundles[path]
        arrays = loaded.check(COMPILED, arrays_of(inputs))
        loaded.call(COMPILED, arrays)
        return {"seconds": median_seconds(lambda: loaded.call(COMPILED, arrays), count)}


def arrays_of(path: str) -> Arrays:
    """The arrays of an .npz file."""
    with np.load(path, allow_pickle=False) as stored:
        return dict(stored)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), Bare)
