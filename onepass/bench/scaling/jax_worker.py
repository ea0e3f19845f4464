"""One process of JAX: it makes an exported step on its devices and times it.

Started as worker.py is, with as many devices as XLA_FLAGS say.
"""

import os
import sys
from multiprocessing.connection import Connection
from typing import Any

from onepass.bench.worker_process import serve
from replicator.planning.device_program import Compiled, Running


class Worker:
    """The step of an exported folder, its batch divided among so many devices."""

    def __init__(self, folder: str, devices: int):
        self._running = Running(Compiled(folder, devices, 1, True), devices)

    def profile(self, rounds: int, seconds: float) -> dict[str, Any]:
        """The fields of a `Run`, its operations not traced."""
        return self._running.profile(rounds, seconds)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), Worker)
    os._exit(0)
