"""What a server costs from its start: processor time until it is ready, and memory.

Processor time, not time on the clock, since it is nearly the same on a busy machine.
"""

import functools
from collections.abc import Mapping
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from onepass.bench.report import Measures, Row
from onepass.bench.serving.server_process import Server
from serving.observability.processes import TICKS, cpu_seconds, memory_bytes

READY, MODELS, MEMORY = "ready", "ready, models", "memory"
BOTH = "both"  # models in one server
CPU_SECONDS, MB = "cpu s", "MB"
MODEL_SECONDS = "onepass_model_cpu_seconds"


class Cold:
    """A server that is started each time it is asked.

    models: processor seconds of the processes of its models alone, a tick at least. memory: of all
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
            families = text_string_to_metric_families(server.metrics())
            samples = [s for f in families if f.name == MODEL_SECONDS for s in f.samples]
            self.models = max(1 / TICKS, sum(sample.value for sample in samples))
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
