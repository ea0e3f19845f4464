"""What `onepass plan` is given, and what it refuses before it measures anything."""

import dataclasses
import math
import os
from pathlib import Path
from typing import Annotated, Literal

import tyro

from replicator.runs.errors import UserError

PLOTS = (".png", ".pdf", ".svg")
PORTABLE, SERVERS = "portable", "parameter_server"


def profiles_folder() -> Path:
    """Where profiles are kept: a folder of the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "onepass" / "profiles"


@dataclasses.dataclass(frozen=True)
class PlanArguments:
    """Step time, memory and traffic of training on N devices, from a profile of one.

    The step is compiled and its operations are profiled on one device of this machine, once; then
    its dataflow on 1, 2, 4 ... N devices is simulated. See docs/planning.md.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|PRESET")]
    """A run directory, a preset of `onepass train`, or a folder of its `--portable`."""
    devices: int
    """Devices, at most."""
    mesh: str | None = None
    """AxB: rows of the batch over A devices, the state cut over B; A times B are the devices.
    Without it, meshes that cut the state are tried only where nothing else fits."""
    strategy: Literal["portable", "replicas", "parameter_server"] = "portable"
    """Who trains: run.py of the exported step (portable), `--strategy local` or multi_worker
    (replicas), or asynchronous workers, as many as devices (parameter_server)."""
    servers: int = 1
    """Parameter servers."""
    batch: int | None = None
    """Rows of the global batch; default: as configured."""
    memory: float | None = None
    """GiB of a device; what needs more is no choice."""
    link: float = 10.0
    """Gbit/s between two devices."""
    latency_us: float = 50.0
    """Microseconds before a message arrives."""
    message_us: float = 60.0
    """Microseconds of the processor at either end for each variable that a worker reads or adds
    (parameter_server)."""
    bucket_mib: float | None = None
    """Exchange gradients in buckets of at most so many MiB, each as soon as it is there; default:
    as compiled here, or 30 where an accelerator was profiled."""
    shared_cores: Literal["auto", "yes", "no"] = "auto"
    """Whether the devices share this machine's cores; auto: yes where a processor was profiled."""
    profiles: Path = dataclasses.field(default_factory=profiles_folder)
    """Folder of profiles, kept by digest of the program."""
    fresh: bool = False
    """Profile again."""
    seconds: float = 1.0
    """For which a profile times steps, at least."""
    json: Path | None = None
    """File for the configurations as JSON."""
    trace: Path | None = None
    """File for the simulated step of the configuration with all devices, for chrome://tracing."""
    plot: Path | None = None
    """File for a plot of steps a second and memory against devices (.png, .pdf or .svg)."""

    @property
    def meshes(self) -> list[tuple[int, int]]:
        """Those to be simulated: that of `mesh`, or 1, 2, 4, ... and all devices with rows only."""
        if self.mesh is not None:
            rows, model = map(int, self.mesh.split("x"))
            return [(1, 1), (rows, model)] if self.devices > 1 else [(1, 1)]
        powers = [2**k for k in range(self.devices.bit_length())]
        return [(n, 1) for n in sorted({*powers, self.devices})]


def check(given: PlanArguments) -> None:
    """Returns nothing; raises UserError for what cannot be planned."""
    for name in ("devices", "servers", "batch"):
        _check_number(given, name, 1)
    for name in ("latency_us", "message_us"):
        _check_number(given, name, 0)
    for name in ("memory", "link", "bucket_mib", "seconds"):
        _check_number(given, name, 0, above=True)
    if given.mesh is not None:
        sizes = given.mesh.split("x")
        if len(sizes) != 2 or not all(size.isdecimal() and int(size) for size in sizes):
            raise UserError(f"`--mesh` needs two sizes, rows x model, as in 4x2; got {given.mesh}.")
        if math.prod(map(int, sizes)) != given.devices:
            raise UserError(
                f"`--mesh` {given.mesh} is of {math.prod(map(int, sizes))} devices, `--devices` "
                f"says {given.devices}."
            )
        if given.strategy != PORTABLE:
            raise UserError("`--mesh` is for `--strategy portable` only.")
    if given.plot and given.plot.suffix not in PLOTS:
        raise UserError(f"`--plot` must end in .png, .pdf or .svg, got {given.plot}.")
    for path in (given.json, given.trace, given.plot):
        if path and not path.parent.is_dir():
            raise UserError(f"there is no folder {path.parent} to write {path.name} to.")


def _check_number(given: PlanArguments, name: str, least: float, above: bool = False) -> None:
    value = getattr(given, name)
    if value is None:
        return
    if value < least or (above and value <= least) or not value < math.inf:
        rule = "above" if above else "at least"
        raise UserError(f"`--{name.replace('_', '-')}` must be {rule} {least:g}, got {value:g}.")
