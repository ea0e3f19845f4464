"""Arguments of `onepass launch` and their checks."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Annotated, Literal

import tyro

from replicator.runs.errors import UserError

NAME = r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?"


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

    @property
    def grace(self) -> int:
        """`grace_seconds` as a whole number."""
        return math.ceil(self.grace_seconds)

    @property
    def addresses(self) -> list[str]:
        """The addresses in `hosts`."""
        return [host.strip() for host in self.hosts.split(",") if host.strip()]


def check(given: LaunchArguments) -> None:
    """Raise UserError for values that the launcher or a scheduler would reject."""
    if not given.grace_seconds > 0:
        raise UserError(f"`--grace-seconds` must be above 0, got {given.grace_seconds:g}.")
    for name in ("restarts", "gpus"):
        if getattr(given, name) < 0:
            raise UserError(f"`--{name}` must be 0 or more, got {getattr(given, name)}.")
    if not re.fullmatch(NAME, given.name):
        raise UserError(
            "`--name` must be lower-case letters, digits and hyphens, a letter first and at "
            f"most 52, got {given.name!r}."
        )
    if not re.fullmatch(rf"{NAME}:/\S*", given.volume):
        raise UserError(f"`--volume` must look like CLAIM:/FOLDER, got {given.volume!r}.")
    if not given.image or re.search(r"\s", given.image):
        raise UserError(f"`--image` must name a container image, got {given.image!r}.")
    if not 0 < given.hours < 10_000:
        raise UserError(f"`--hours` must be above 0 and below 10000, got {given.hours:g}.")
    for host in given.addresses:
        name, _, port = host.rpartition(":")
        if not name or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UserError(f"`--hosts` must be HOST:PORT, separated by commas, got {host!r}.")
    if given.addresses and given.to_print != "commands":
        raise UserError("`--hosts` requires `--print commands`.")
