"""Arguments of `onepass launch` and their checks."""

import dataclasses
from pathlib import Path

from onepass.foundation.errors import UserError


@dataclasses.dataclass(frozen=True)
class LaunchArguments:
    """The number of processes and their machines."""

    workers: int | None = None
    """Number of processes that train; None: 2, or as many as --hosts implies."""
    servers: int = 0
    """Number of parameter servers; if above 0, a chief is added, and workers run steps without
    waiting for each other."""
    restarts: int = 0
    """Maximum number of restarts after a signal ends a process or a process hangs: of all
    processes, or only of the worker if there are servers."""
    grace_seconds: float = 30.0
    """Seconds between asking a process to end and killing it."""
    log_dir: Path | None = None
    """Folder for a copy of each task's output, such as worker-1.log."""
    hosts: str = ""
    """HOST:PORT,... of other machines, one per task: the task that writes to disk, then workers,
    then servers. Print the command for each machine instead of starting anything."""

    @property
    def addresses(self) -> list[str]:
        """Addresses in `hosts`, HOST:PORT each."""
        return [host.strip() for host in self.hosts.split(",") if host.strip()]


def check(given: LaunchArguments) -> None:
    """Raise UserError if an argument is invalid; `tf_config.Shape` checks the numbers of tasks."""
    if not given.grace_seconds > 0:
        raise UserError(f"`--grace-seconds` must be above 0, got {given.grace_seconds:g}.")
    if given.restarts < 0:
        raise UserError(f"`--restarts` must be 0 or more, got {given.restarts}.")
    for host in given.addresses:
        name, _, port = host.rpartition(":")
        if not name or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UserError(f"`--hosts` must be HOST:PORT, separated by commas, got {host!r}.")
