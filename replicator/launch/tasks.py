"""The processes of a cluster: which there are, where they listen, what TF_CONFIG tells each.

Nothing here needs TensorFlow, so that whoever only starts processes need not wait for it.
"""

import dataclasses
import itertools
import json
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from replicator.runs.errors import UserError

OWN_PROGRAMS, TRAINING_VERBS = ("onepass",), ("train", "distill")


@dataclasses.dataclass(frozen=True)
class Shape:
    """How many processes a cluster has.

    Without servers every worker takes the same steps and worker 0 writes; with servers a chief
    hands steps to the workers, and the servers hold the variables.
    """

    workers: int
    servers: int = 0

    def __post_init__(self):
        """Raises UserError for a number out of range."""
        if self.workers < 1:
            raise UserError(f"`--workers` must be at least 1, got {self.workers}.")
        if self.servers < 0:
            raise UserError(f"`--servers` must be 0 or more, got {self.servers}.")

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks of each kind, in the order in which they are numbered."""
        if not self.servers:
            return {"worker": self.workers}
        return {"chief": 1, "worker": self.workers, "ps": self.servers}

    @property
    def size(self) -> int:
        """How many processes."""
        return sum(self.counts.values())

    @property
    def strategy(self) -> str:
        """The word for `--strategy`."""
        return "parameter_server" if self.servers else "multi_worker"

    def tasks(self, addresses: Sequence[str]) -> list["Task"]:
        """The tasks at these addresses, HOST:PORT each, the one that writes first."""
        remaining = iter(addresses)
        cluster = {kind: [next(remaining) for _ in range(n)] for kind, n in self.counts.items()}
        return [Task(kind, i, cluster) for kind, n in self.counts.items() for i in range(n)]


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of a cluster.

    cluster: the addresses of all tasks of each kind.
    """

    kind: str
    index: int
    cluster: dict[str, list[str]]

    @property
    def name(self) -> str:
        """What people call it, such as `worker 1`."""
        return "chief" if self.kind == "chief" else f"{self.kind} {self.index}"

    @property
    def address(self) -> str:
        """Where it listens, HOST:PORT."""
        return self.cluster[self.kind][self.index]

    @property
    def tf_config(self) -> str:
        """Its TF_CONFIG."""
        task = {"type": self.kind, "index": self.index}
        return json.dumps({"cluster": self.cluster, "task": task})

    @property
    def serves(self) -> bool:
        """Whether it works for a chief, without an end of its own."""
        return self.kind == "ps" or (self.kind == "worker" and "ps" in self.cluster)


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nothing listened on a moment ago."""
    listeners = [socket.socket() for _ in range(count)]
    try:
        for listener in listeners:
            listener.bind(("localhost", 0))
        return [listener.getsockname()[1] for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()


def local_tasks(shape: Shape) -> list[Task]:
    """The tasks of a cluster on free ports of this machine."""
    return shape.tasks([f"localhost:{port}" for port in free_ports(shape.size)])


def with_strategy(command: Sequence[str], shape: Shape) -> list[str]:
    """The command with its `--strategy`, if it is a training of ours that does not name one."""
    words = list(command)
    named = any(word == "--strategy" or word.startswith("--strategy=") for word in words)
    pairs = itertools.pairwise(words[:4])  # `python -m onepass train` as well
    is_own_training = any(
        Path(word).name in OWN_PROGRAMS and verb in TRAINING_VERBS for word, verb in pairs
    )
    return [*words, "--strategy", shape.strategy] if is_own_training and not named else words


def gpu_shares(tasks: Sequence[Task]) -> list[dict[str, str]]:
    """For each task the environment that gives it its own share of this machine's GPUs.

    The tasks that compute share them evenly; where there are fewer than these tasks, none gets
    any. Empty on a machine without GPUs.
    """
    gpus = visible_gpus()
    if not gpus:
        return [{} for _ in tasks]
    gpus_per_worker = len(gpus) // sum(task.kind == "worker" for task in tasks)
    return [
        {
            "CUDA_VISIBLE_DEVICES": ",".join(
                gpus[task.index * gpus_per_worker : (task.index + 1) * gpus_per_worker]
                if task.kind == "worker"
                else []
            )
        }
        for task in tasks
    ]


def visible_gpus() -> list[str]:
    """The GPUs that a program started now could use, as CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    numbers = [re.fullmatch(r"nvidia(\d+)", path.name) for path in Path("/dev").glob("nvidia*")]
    return sorted((match.group(1) for match in numbers if match), key=int)
