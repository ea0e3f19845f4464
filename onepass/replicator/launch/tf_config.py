"""TF_CONFIG: the tasks of a cluster and this process's own; without TensorFlow, to start soon."""

import collections
import contextlib
import dataclasses
import itertools
import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from onepass.foundation.rules import UserError, require

KINDS = ("chief", "worker", "ps")
OWN_PROGRAM, TRAINING_VERBS = "onepass", ("train", "distill")


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of a cluster: a chief, worker or ps; `cluster` has all addresses, HOST:PORT."""

    kind: str
    index: int
    cluster: dict[str, list[str]]

    @property
    def name(self) -> str:
        """Name for messages, such as `worker 1`."""
        return "chief" if self.kind == "chief" else f"{self.kind} {self.index}"

    @property
    def address(self) -> str:
        """Address at which the task listens, HOST:PORT."""
        return self.cluster[self.kind][self.index]

    @property
    def tf_config(self) -> str:
        """Value of TF_CONFIG in the task's environment."""
        task = {"type": self.kind, "index": self.index}
        return json.dumps({"cluster": self.cluster, "task": task})

    @property
    def serves(self) -> bool:
        """True if the task serves a chief until it is ended."""
        return self.kind == "ps" or (self.kind == "worker" and "ps" in self.cluster)

    @property
    def num_workers(self) -> int:
        """Number of tasks that train: the chief and the workers."""
        return len(self.cluster.get("chief", [])) + len(self.cluster.get("worker", []))

    @property
    def worker_index(self) -> int:
        """Index of the task among the tasks that train; the chief comes first."""
        return self.index + (len(self.cluster.get("chief", [])) if self.kind == "worker" else 0)


def tasks_at(counts: Mapping[str, int], addresses: Sequence[str]) -> list[Task]:
    """Return the tasks of a cluster at these addresses, HOST:PORT, in the order of `counts`."""
    remaining = iter(addresses)
    cluster = {kind: [next(remaining) for _ in range(count)] for kind, count in counts.items()}
    return [Task(kind, index, cluster) for kind, n in counts.items() for index in range(n)]


def local_tasks(**counts: int) -> list[Task]:
    """Return tasks on free ports of this machine, given their number by kind (`worker=2`)."""
    ports = free_ports(sum(counts.values()))
    return tasks_at(counts, [f"localhost:{port}" for port in ports])


def free_ports(count: int) -> list[int]:
    """Return free ports of this machine, which other programs may take at any time."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("localhost", 0))
        return [listener.getsockname()[1] for listener in listeners]


def read_tf_config() -> Task | None:
    """Return this process's task from TF_CONFIG, or None without one."""
    text = os.environ.get("TF_CONFIG", "")
    if not text.strip():
        return None
    try:
        config = json.loads(text)
        cluster = dict(config["cluster"])
        for addresses in cluster.values():
            if type(addresses) is not list or any(type(each) is not str for each in addresses):
                raise TypeError("addresses must be lists of strings")
        task = Task(config["task"]["type"], int(config["task"]["index"]), cluster)
    except (ValueError, KeyError, TypeError, AttributeError):
        text = " ".join(text.split())
        raise UserError(
            "TF_CONFIG must look like "
            '{"cluster": {"worker": ["HOST:PORT", ...]}, "task": {"type": "worker", "index": 0}}, '
            f"got {text if len(text) < 200 else f'{text[:200]}...'}"
        ) from None
    _check(task)
    return task


def _check(task: Task) -> None:
    for kind, addresses in task.cluster.items():
        if kind not in KINDS:
            raise UserError(f"TF_CONFIG may have tasks {', '.join(KINDS)}, got {kind!r}.")
        for address in addresses:
            if not address.rpartition(":")[2].isdecimal():
                raise UserError(f"Addresses in TF_CONFIG must be HOST:PORT, got {address!r}.")
    counts = collections.Counter(itertools.chain.from_iterable(task.cluster.values()))
    repeated = [address for address, count in counts.items() if count > 1]
    if repeated:
        rule = "Every address in TF_CONFIG must belong to one task"
        raise UserError(f"{rule}, got {repeated[0]!r} twice.")
    count = len(task.cluster.get(task.kind, []))
    if not 0 <= task.index < count:
        rule = "The task in TF_CONFIG must be in its cluster"
        raise UserError(f"{rule}, got {task.kind} {task.index} of {count}.")


def task_counts(workers: int, servers: int = 0) -> dict[str, int]:
    """Return the number of tasks of each kind in a cluster, in the order of their addresses."""
    require(workers >= 1, "--workers", "at least 1", workers)
    require(servers >= 0, "--servers", "at least 0", servers)
    return {"chief": 1, "worker": workers, "ps": servers} if servers else {"worker": workers}


def with_strategy(command: Sequence[str], counts: Mapping[str, int]) -> list[str]:
    """Return the command, with `--strategy` added if it is an onepass training without it."""
    strategy = "parameter_server" if "ps" in counts else "multi_worker"
    words = list(command)
    named = any(word == "--strategy" or word.startswith("--strategy=") for word in words)
    pairs = itertools.pairwise(words[:4])  # also finds `python -m onepass train`
    is_own_training = any(
        Path(word).name == OWN_PROGRAM and verb in TRAINING_VERBS for word, verb in pairs
    )
    return [*words, "--strategy", strategy] if is_own_training and not named else words


def gpu_shares(tasks: Sequence[Task]) -> list[dict[str, str]]:
    """Return each task's variables that share this machine's GPUs equally, or give it none."""
    gpus = visible_gpus()
    if not gpus:
        return [{} for _ in tasks]
    count = len(gpus) // sum(task.kind == "worker" for task in tasks)
    starts = [count * task.index if task.kind == "worker" else len(gpus) for task in tasks]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(gpus[start : start + count])} for start in starts]


def visible_gpus() -> list[str]:
    """Return the names, as in CUDA_VISIBLE_DEVICES, of the GPUs that a new program could use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    numbers = [re.fullmatch(r"nvidia(\d+)", path.name) for path in Path("/dev").glob("nvidia*")]
    return sorted((match.group(1) for match in numbers if match), key=int)
