"""What the processes of models take, for Prometheus; of the server's own, see ProcessCollector."""

import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

LABELS = ("model", "version")
TICKS = os.sysconf("SC_CLK_TCK")


class ModelProcesses:
    """A collector of the processes that serve versions of models; nothing of what has ended."""

    def __init__(self):
        self._pids: dict[tuple[str, str], int] = {}

    def serve(self, model: str, version: int, pid: int | None) -> None:
        """Notes the process of a version; None: it is served by the server's own."""
        if pid is not None:
            self._pids[model, str(version)] = pid

    def collect(self) -> Iterator[Metric]:
        """Processor time and memory, by model and version."""
        seconds = CounterMetricFamily(
            "onepass_model_cpu_seconds", "Processor time of its process.", labels=LABELS
        )
        memory = GaugeMetricFamily(
            "onepass_model_memory_bytes",
            "Resident memory of its process, what it shares counted by its share.",
            labels=LABELS,
        )
        for labels, pid in list(self._pids.items()):
            try:
                values = cpu_seconds(pid), memory_bytes(pid)
            except (OSError, ValueError, StopIteration):  # it has ended, or this is no Linux
                self._pids.pop(labels, None)
                continue
            seconds.add_metric(labels, values[0])
            memory.add_metric(labels, values[1])
        yield seconds
        yield memory


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has taken; OSError if there is none."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_bytes(pid: int) -> int:
    """Resident memory, of shared pages a share (Pss); OSError if there is no such process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
