"""The shape of a cluster: how many processes of which kind, with which strategy and which GPUs."""

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
    """How many processes a cluster has.

    Without servers all workers make every step together, and worker 0 writes to disk. With servers
    a chief schedules steps on the workers, and the servers store the variables.
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

    def tasks(self, addresses: Sequence[str]) -> list[Task]:
        """The tasks at these addresses, HOST:PORT each, the one that writes to disk first."""
        return tasks_at(self.counts, addresses)

    def local_tasks(self) -> list[Task]:
        """The tasks on free ports of this machine."""
        return local_tasks(**self.counts)


def with_strategy(command: Sequence[str], shape: Shape) -> list[str]:
    """The command, with `--strategy` added if it is an onepass training that names none."""
    words = list(command)
    named = any(word == "--strategy" or word.startswith("--strategy=") for word in words)
    pairs = itertools.pairwise(words[:4])  # `python -m onepass train` as well
    is_own_training = any(
        Path(word).name in OWN_PROGRAMS and verb in TRAINING_VERBS for word, verb in pairs
    )
    return [*words, "--strategy", shape.strategy] if is_own_training and not named else words


def gpu_shares(tasks: Sequence[Task]) -> list[dict[str, str]]:
    """For each task the environment variables that assign it some of this machine's GPUs.

    Workers get equally many; where there are fewer GPUs than workers, none gets any. Empty on a
    machine without GPUs.
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
    """The GPUs that a new program could use, by their names in CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    numbers = [re.fullmatch(r"nvidia(\d+)", path.name) for path in Path("/dev").glob("nvidia*")]
    return sorted((match.group(1) for match in numbers if match), key=int)
