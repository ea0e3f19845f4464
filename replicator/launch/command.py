"""`onepass launch`: a cluster of processes on this machine, or files for other machines."""

import dataclasses
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import tyro

from replicator.launch.cluster_files import Job, commands, kubernetes, slurm
from replicator.launch.cluster_shape import (
    OWN_PROGRAMS,
    Shape,
    visible_gpus,
    with_strategy,
)
from replicator.launch.supervisor import LaunchSettings, Supervisor
from replicator.runs.errors import UserError

WORKERS = 2
DESCRIPTION = """Run a command as a cluster of processes, each with its TF_CONFIG. The command, any
program, follows ` -- `. `--strategy` is added to an onepass training without one.

  onepass launch --workers 2 -- onepass train wavenet-cpu-16k --data speech --workdir run
  onepass launch --workers 2 --servers 1 --restarts 20 -- onepass train ...
  onepass launch --print commands --hosts a:2222,b:2222 -- onepass train ...
  onepass launch --workers 4 --gpus 1 --print kubernetes --image IMAGE -- onepass train ...
  onepass launch --workers 4 --gpus 1 --print slurm --hours 12 -- onepass train ... > job.sh

Every line of output starts with the task's name. The first failure ends all tasks and gives the
exit status. Ctrl-C, SIGTERM and SIGHUP are forwarded, so that a training saves and exits."""


@dataclasses.dataclass(frozen=True)
class LaunchArguments:
    """The number of processes and their machines."""

    workers: int | None = None
    """Processes that train; None: 2, or the number of --hosts."""
    servers: int = 0
    """Parameter servers; if any, a chief is added, and the workers run steps without waiting for
    each other."""
    restarts: int = 0
    """Maximum restarts after a signal ends a process or one hangs: of all processes, or of the
    worker alone if there are servers."""
    grace_seconds: float = 30.0
    """Seconds between asking a process to end and killing it."""
    log_dir: Path | None = None
    """Folder for a copy of each task's output, such as worker-1.log."""
    to_print: Annotated[
        Literal["commands", "kubernetes", "slurm"] | None, tyro.conf.arg(name="print")
    ] = None
    """Start nothing, and print commands or a job file for the same cluster on other machines."""
    hosts: str = ""
    """HOST:PORT,... of the tasks: the one that writes to disk, then workers, then servers (--print
    commands)."""
    name: str = "onepass"
    """Name of the job (--print kubernetes or slurm)."""
    gpus: int = 0
    """GPUs of each process (--print kubernetes or slurm)."""
    image: str = "onepass"
    """Container image with onepass in it (--print kubernetes)."""
    volume: str = "onepass:/runs"
    """CLAIM:/FOLDER, a persistent volume that all pods share, and its mount point (--print
    kubernetes)."""
    hours: float = 24.0
    """Time limit in hours (--print slurm)."""


def run(arguments: list[str], parse, own_program: Sequence[str]) -> int:
    """Run `onepass launch ARGUMENTS` and return the exit status.

    `own_program` are the words that run this installation of onepass.
    """
    own, command = _split(arguments)
    given = parse(LaunchArguments, own, "onepass launch", description=DESCRIPTION)
    if not command:
        raise UserError(
            "The command must follow ` -- `, as in onepass launch --workers 2 -- onepass train ... "
            "(see onepass launch --help)."
        )
    shape = _shape(given)
    command = with_strategy(command, shape)
    if given.to_print:
        print(_printed(given, shape, command))
        return 0
    settings = LaunchSettings(
        _runnable(command, own_program), given.grace_seconds, given.restarts, given.log_dir
    )
    if given.log_dir is not None:
        given.log_dir.mkdir(parents=True, exist_ok=True)
    gpus = visible_gpus()
    if 0 < len(gpus) < shape.workers:
        print(
            f"onepass launch: {len(gpus)} GPU(s) for {shape.workers} workers: all workers run on "
            "the CPU.",
            file=sys.stderr,
        )
    return Supervisor(shape.local_tasks, settings).run()


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in arguments:
        return arguments, []
    middle = arguments.index("--")
    return arguments[:middle], arguments[middle + 1 :]


def _shape(given: LaunchArguments) -> Shape:
    hosts = _hosts(given)
    if hosts and given.to_print != "commands":
        raise UserError("`--hosts` requires `--print commands`.")
    workers = given.workers
    if workers is None and hosts:
        workers = len(hosts) - (given.servers + 1 if given.servers else 0)
    shape = Shape(WORKERS if workers is None else workers, given.servers)
    if given.to_print == "commands" and len(hosts) != shape.size:
        kinds = ", ".join(f"{count} {kind}" for kind, count in shape.counts.items())
        raise UserError(
            f"`--print commands` requires --hosts with {shape.size} addresses HOST:PORT ({kinds}), "
            f"got {len(hosts)}."
        )
    return shape


def _hosts(given: LaunchArguments) -> list[str]:
    hosts = [host.strip() for host in given.hosts.split(",") if host.strip()]
    for host in hosts:
        name, _, port = host.rpartition(":")
        if not name or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UserError(f"`--hosts` must be HOST:PORT, separated by commas, got {host!r}.")
    return hosts


def _printed(given: LaunchArguments, shape: Shape, command: Sequence[str]) -> str:
    if given.to_print == "commands":
        return commands(shape, command, _hosts(given))
    job = Job(
        shape,
        command,
        name=given.name,
        gpus=given.gpus,
        grace_seconds=given.grace_seconds,
        restarts=given.restarts,
        image=given.image,
        volume=given.volume,
        hours=given.hours,
    )
    return kubernetes(job) if given.to_print == "kubernetes" else slurm(job)


def _runnable(command: Sequence[str], own_program: Sequence[str]) -> list[str]:
    """Return the command, with the word onepass replaced by this installation's."""
    if not sys.platform.startswith("linux"):
        raise UserError("`onepass launch` runs processes on Linux only; --print works everywhere.")
    if command[0] in OWN_PROGRAMS[:1]:
        return [*own_program, *command[1:]]
    if shutil.which(command[0]) is None:
        raise UserError(f"There is no program `{command[0]}`.")
    return list(command)
