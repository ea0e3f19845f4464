"""What a server costs from its start: processor time until it is ready, and memory.

Processor time, not time on the clock, since it is nearly the same on a busy machine.
"""

import functools
import os
from collections.abc import Mapping
from pathlib import Path

from onepass.bench.report import Measures, Row
from onepass.bench.serving.server_process import Server

READY, MODELS, MEMORY = "ready", "ready, models", "memory"
BOTH = "both"  # models in one server
CPU_SECONDS, MB = "cpu s", "MB"
TICKS = os.sysconf("SC_CLK_TCK")


class Cold:
    """A server that is started each time it is asked.

    models: processor seconds of all its processes but the first, a tick at least. memory: of all
    its processes, in MB, what they share counted once. Of the last measurement.

    Args:
      root: of the models. options: of the command. limit_seconds: that it may take.
    """

    def __init__(self, root: Path, options: tuple[str, ...], limit_seconds: float):
        self._root, self._options, self._limit_seconds = root, options, limit_seconds
        self.models = self.memory = 0.0

    def seconds(self) -> float:
        """Processor seconds of all its processes until it is ready."""
        server = Server(self._root, self._limit_seconds, self._options)
        try:
            pids = server.processes()
            seconds = sum(map(cpu_seconds, pids))
            self.memory = sum(map(memory_bytes, pids)) / 1e6
            self.models = max(1 / TICKS, sum(map(cpu_seconds, pids[1:])))
            return seconds
        finally:
            server.stop()


def measures_of(roots: Mapping[str, tuple[Path, str]], limit_seconds: float) -> Measures:
    """Rows of each folder of models, by the name they show, with its backend."""
    measures: Measures = []
    for name, (root, backend) in roots.items():
        cold = Cold(root, ("--backend", backend), limit_seconds)
        measures += [
            (Row(READY, name, 1, CPU_SECONDS), cold.seconds),
            (Row(MODELS, name, 1, CPU_SECONDS, READY), functools.partial(getattr, cold, "models")),
            (Row(MEMORY, name, 1, MB), functools.partial(getattr, cold, "memory")),
        ]
    return measures


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process, of shared pages its share (Pss)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
