"""Bytes: what a step gives to be reduced, counted while it is traced, and what the loopback saw."""

import dataclasses
import math
import threading
from pathlib import Path
from typing import Any

import tensorflow as tf

from replicator import Replicator

INTERFACES = Path("/proc/net/dev")


@dataclasses.dataclass(frozen=True)
class Reduced:
    """What a replica gives to be reduced in a step: bytes, in so many collectives."""

    size_bytes: float
    collectives: float


class ReducedCounter:
    """Counts the tensors that pass the sum over replicas, on which all primitives rest."""

    def __init__(self, replicator: Replicator):
        self._local = replicator.num_replicas // replicator.num_workers
        self._lock = threading.Lock()
        self._graph: Any = None
        self._bytes = self._sums = 0
        self._engine_sum = replicator._sum
        replicator._sum = self._counted  # type: ignore[method-assign]

    def last(self) -> Reduced:
        """What one replica gives in the step that was traced last."""
        return Reduced(self._bytes / self._local, self._sums / self._local)

    def _counted(self, tensors: list) -> list:
        graph = tf.compat.v1.get_default_graph()
        with self._lock:  # replicas of one process trace in threads of their own
            if graph is not self._graph:
                self._graph, self._bytes, self._sums = graph, 0, 0
            self._bytes += sum(tensor_bytes(tensor) for tensor in tensors)
            self._sums += 1
        return self._engine_sum(tensors)


def tensor_bytes(tensor: tf.Tensor) -> int:
    """Bytes of a tensor of known shape."""
    return math.prod(tensor.shape.as_list()) * tensor.dtype.size


def loopback_bytes() -> int | None:
    """Bytes that this machine has sent to itself since it started; None where nobody counts."""
    try:
        lines = INTERFACES.read_text().splitlines()
    except OSError:
        return None
    fields = [line.split(":", 1)[1].split() for line in lines if line.strip().startswith("lo:")]
    return int(fields[0][0]) if fields else None
