"""The shape of a cluster: processes of each kind, their strategy and their GPUs."""

import dataclasses
import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path

from replicator.launch.tf_config import Task, local_tasks, tasks_at
from replicator.runs.errors import UserError

OWN_PROGRAMS, TRAINING_VERBS = ("onepass",), ("train", "distill")


@dataclasses.dataclass(frozen=True)
class Shape:
    """The number of processes of each kind in a cluster.

    Without servers all workers run every step together, and worker 0 writes to disk. With servers
    a chief schedules steps on the workers, and the servers store the variables.
    """

    workers: int
    servers: int = 0

    def __post_init__(self):
        """Raise UserError for a number out of range."""
        if self.workers < 1:
            raise UserError(f"`--workers` must be at least 1, got {self.workers}.")
        if self.servers < 0:
            raise UserError(f"`--servers` must be 0 or more, got {self.servers}.")

    @property
    def counts(self) -> dict[str, int]:
        """Number of tasks of each kind, in the order in which they are numbered."""
        if not self.servers:
            return {"worker": self.workers}
        return {"chief": 1, "worker": self.workers, "ps": self.servers}

    @property
    def size(self) -> int:
        """Number of processes."""
        return sum(self.counts.values())

    @property
    def strategy(self) -> str:
        """Value of `--strategy`."""
        return "parameter_server" if self.servers else "multi_worker"

    def tasks(self, addresses: Sequence[str]) -> list[Task]:
        """Return the tasks at these addresses, HOST:PORT, the one that writes to disk first."""
        return tasks_at(self.counts, addresses)

    def local_tasks(self) -> list[Task]:
        """Return the tasks on free ports of this machine."""
        return local_tasks(**self.counts)


def with_strategy(command: Sequence[str], shape: Shape) -> list[str]:
    """Return the command, with `--strategy` added if it is an onepass training without one."""
    words = list(command)
    named = any(word == "--strategy" or word.startswith("--strategy=") for word in words)
    pairs = itertools.pairwise(words[:4])  # `python -m onepass train` as well
    is_own_training = any(
        Path(word).name in OWN_PROGRAMS and verb in TRAINING_VERBS for word, verb in pairs
    )
    return [*words, "--strategy", shape.strategy] if is_own_training and not named else words


def gpu_shares(tasks: Sequence[Task]) -> list[dict[str, str]]:
    """Return, for each task, the environment variables that assign it some of this machine's GPUs.

    Workers get equal numbers; if there are fewer GPUs than workers, none gets any. The dicts are
    empty on a machine without GPUs.
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
    """Return the GPUs that a new program could use, by their names in CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    numbers = [re.fullmatch(r"nvidia(\d+)", path.name) for path in Path("/dev").glob("nvidia*")]
    return sorted((match.group(1) for match in numbers if match), key=int)
