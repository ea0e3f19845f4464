"""The cluster of TF_CONFIG: the addresses of its tasks, and which of them this process is."""

import dataclasses
import json
import os
import socket

from replicator.runs.errors import UserError

TASKS = ("chief", "worker", "ps")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """TF_CONFIG: the addresses of the tasks of each kind, and which task this process is."""

    addresses: dict[str, list[str]]
    task: str
    index: int

    @property
    def num_workers(self) -> int:
        """The tasks that train: the chief and the workers."""
        return len(self.addresses.get("chief", [])) + len(self.addresses.get("worker", []))

    @property
    def worker_index(self) -> int:
        """Which of them this one is; the chief is the first."""
        return self.index + (len(self.addresses.get("chief", [])) if self.task == "worker" else 0)

    def text(self) -> str:
        """The value of TF_CONFIG."""
        task = {"type": self.task, "index": self.index}
        return json.dumps({"cluster": self.addresses, "task": task})


def read_cluster() -> Cluster | None:
    """The cluster of TF_CONFIG, None where it is not set.

    Raises:
      UserError: it is not what TensorFlow reads.
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text.strip():
        return None
    try:
        config = json.loads(text)
        addresses = {kind: _addresses(tasks) for kind, tasks in config["cluster"].items()}
        cluster = Cluster(addresses, config["task"]["type"], int(config["task"]["index"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            "TF_CONFIG must look like "
            '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}, '
            f"got {_shortened(text)}"
        ) from None
    _check(cluster)
    return cluster


def _addresses(tasks) -> list[str]:
    if not isinstance(tasks, list) or not all(isinstance(task, str) for task in tasks):
        raise TypeError("addresses must be a list of words")
    return tasks


def _check(cluster: Cluster) -> None:
    for kind, addresses in cluster.addresses.items():
        if kind not in TASKS:
            raise UserError(f"TF_CONFIG may have tasks {', '.join(TASKS)}, got {kind!r}.")
        for address in addresses:
            if not address.rpartition(":")[2].isdecimal():
                raise UserError(f"Addresses in TF_CONFIG must be HOST:PORT, got {address!r}.")
    count = len(cluster.addresses.get(cluster.task, []))
    if not 0 <= cluster.index < count:
        raise UserError(
            f"The task in TF_CONFIG must be one of its cluster, got {cluster.task} {cluster.index} "
            f"where there are {count}."
        )


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nothing listened on a moment ago."""
    with_sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in with_sockets:
            listener.bind(("localhost", 0))
        return [listener.getsockname()[1] for listener in with_sockets]
    finally:
        for listener in with_sockets:
            listener.close()


def local_cluster(**counts: int) -> list[Cluster]:
    """A cluster on free ports of this machine, as each of its tasks sees it; e.g. worker=2."""
    ports = iter(free_ports(sum(counts.values())))
    addresses = {
        kind: [f"localhost:{next(ports)}" for _ in range(count)] for kind, count in counts.items()
    }
    return [
        Cluster(addresses, kind, index) for kind, count in counts.items() for index in range(count)
    ]


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) < 200 else f"{text[:200]}..."
