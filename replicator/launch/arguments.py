"""Arguments of `onepass launch` and their checks."""

import dataclasses
from pathlib import Path

from foundation.errors import UserError


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
    hosts: str = ""
    """HOST:PORT,... of other machines, one per task: the one that writes to disk, then workers,
    then servers. Start nothing, and print the command for each."""

    @property
    def addresses(self) -> list[str]:
        """Addresses in `hosts`, HOST:PORT each."""
        return [host.strip() for host in self.hosts.split(",") if host.strip()]


def check(given: LaunchArguments) -> None:
    """Raise UserError for values that the launcher would reject."""
    if not given.grace_seconds > 0:
        raise UserError(f"`--grace-seconds` must be above 0, got {given.grace_seconds:g}.")
    if given.restarts < 0:
        raise UserError(f"`--restarts` must be 0 or more, got {given.restarts}.")
    for host in given.addresses:
        name, _, port = host.rpartition(":")
        if not name or not port.isdecimal() or not 0 < int(port) < 65536:
            raise UserError(f"`--hosts` must be HOST:PORT, separated by commas, got {host!r}.")
