"""TF_CONFIG: the tasks of a cluster, their addresses, and this process's task.

Nothing here imports TensorFlow, so that programs that only start processes need not wait for it.
"""

import collections
import dataclasses
import itertools
import json
import os
import socket
from collections.abc import Mapping, Sequence

from replicator.runs.errors import UserError

KINDS = ("chief", "worker", "ps")


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of a cluster.

    Attributes:
      kind: chief, worker or ps.
      index: among the tasks of its kind.
      cluster: the addresses, HOST:PORT, of all tasks of each kind.
    """

    kind: str
    index: int
    cluster: dict[str, list[str]]

    @property
    def name(self) -> str:
        """Name in messages, such as `worker 1`."""
        return "chief" if self.kind == "chief" else f"{self.kind} {self.index}"

    @property
    def address(self) -> str:
        """Address at which it listens, HOST:PORT."""
        return self.cluster[self.kind][self.index]

    @property
    def tf_config(self) -> str:
        """Value of TF_CONFIG in its environment."""
        task = {"type": self.kind, "index": self.index}
        return json.dumps({"cluster": self.cluster, "task": task})

    @property
    def serves(self) -> bool:
        """True if it works for a chief until it is ended."""
        return self.kind == "ps" or (self.kind == "worker" and "ps" in self.cluster)

    @property
    def num_workers(self) -> int:
        """Number of tasks that train: the chief and the workers."""
        return len(self.cluster.get("chief", [])) + len(self.cluster.get("worker", []))

    @property
    def worker_index(self) -> int:
        """Index among the tasks that train, of which the chief is the first."""
        return self.index + (len(self.cluster.get("chief", [])) if self.kind == "worker" else 0)


def tasks_at(counts: Mapping[str, int], addresses: Sequence[str]) -> list[Task]:
    """Return the tasks of a cluster at these addresses, HOST:PORT, in the order of `counts`."""
    remaining = iter(addresses)
    cluster = {kind: [next(remaining) for _ in range(count)] for kind, count in counts.items()}
    return [Task(kind, index, cluster) for kind, n in counts.items() for index in range(n)]


def local_tasks(**counts: int) -> list[Task]:
    """Return the tasks of a cluster on free ports of this machine; for example `worker=2`."""
    ports = free_ports(sum(counts.values()))
    return tasks_at(counts, [f"localhost:{port}" for port in ports])


def free_ports(count: int) -> list[int]:
    """Return free ports of this machine, which other programs may take at any time."""
    listeners = [socket.socket() for _ in range(count)]
    try:
        for listener in listeners:
            listener.bind(("localhost", 0))
        return [listener.getsockname()[1] for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()


def read_tf_config() -> Task | None:
    """Return this process's task according to TF_CONFIG, or None; raise UserError if invalid."""
    text = os.environ.get("TF_CONFIG", "")
    if not text.strip():
        return None
    try:
        config = json.loads(text)
        cluster = {kind: _addresses(tasks) for kind, tasks in config["cluster"].items()}
        task = Task(config["task"]["type"], int(config["task"]["index"]), cluster)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            "TF_CONFIG must look like "
            '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}, '
            f"got {_shortened(text)}"
        ) from None
    _check(task)
    return task


def _addresses(tasks) -> list[str]:
    if not isinstance(tasks, list) or not all(isinstance(task, str) for task in tasks):
        raise TypeError("addresses must be a list of strings")
    return tasks


def _check(task: Task) -> None:
    for kind, addresses in task.cluster.items():
        if kind not in KINDS:
            raise UserError(f"TF_CONFIG may have tasks {', '.join(KINDS)}, got {kind!r}.")
        for address in addresses:
            if not address.rpartition(":")[2].isdecimal():
                raise UserError(f"Addresses in TF_CONFIG must be HOST:PORT, got {address!r}.")
    counts = collections.Counter(itertools.chain(*task.cluster.values()))
    repeated = [address for address, count in counts.items() if count > 1]
    if repeated:
        raise UserError(
            f"Every address in TF_CONFIG must belong to one task, got {repeated[0]!r} twice."
        )
    count = len(task.cluster.get(task.kind, []))
    if not 0 <= task.index < count:
        raise UserError(
            f"The task in TF_CONFIG must be in its cluster, got {task.kind} {task.index} "
            f"of {count}."
        )


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) < 200 else f"{text[:200]}..."
