"""Arguments of `onepass plan` and their checks."""

import dataclasses
import math
import os
from pathlib import Path
from typing import Annotated, Literal

import tyro

from onepass.foundation.rules import UserError, require

PLOTS = (".png", ".pdf", ".svg")
PORTABLE, SERVERS = "portable", "parameter_server"


def profiles_folder() -> Path:
    """Return the default folder of profiles, in the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "onepass" / "profiles"


@dataclasses.dataclass(frozen=True)
class PlanArguments:
    """Predict step time, memory and traffic of training on N devices from a profile of one.

    The step is compiled and measured on one device of this machine, for each share of the batch
    that a device gets; then training on 1, 2, 4 ... N devices, or on `--mesh`, is simulated.
    See docs/planning.md.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|PRESET")]
    """A run directory, a preset of `onepass train`, or a folder that its `--portable` wrote."""
    devices: int
    """Maximum number of devices."""
    mesh: str | None = None
    """AxB: batch rows divided over A devices, the state over B; A times B must equal --devices. By
    default, meshes that divide the state are tried only if nothing else fits."""
    strategy: Literal["portable", "replicas", "parameter_server"] = "portable"
    """Way of training: with run.py of the exported step (portable), with `--strategy local` or
    multi_worker (replicas), or with one asynchronous worker per device (parameter_server)."""
    servers: int = 1
    """Number of parameter servers."""
    batch: int | None = None
    """Number of rows in the global batch; default: as configured."""
    memory: float | None = None
    """Memory of a device in GiB; configurations that need more are not chosen."""
    link: float = 10.0
    """Bandwidth between devices in Gbit/s."""
    latency_us: float = 50.0
    """Latency of a message in microseconds."""
    message_us: float = 60.0
    """Processor time in microseconds, on both sides, for each variable that a worker reads or
    updates (parameter_server)."""
    bucket_mib: float | None = None
    """Largest size of gradient buckets in MiB, each of which is exchanged as soon as it is ready;
    default: as compiled here, or 30 if an accelerator was profiled."""
    shared_cores: Literal["auto", "yes", "no"] = "auto"
    """Let the devices share this machine's cores; auto: yes if a CPU was profiled."""
    profiles: Path = dataclasses.field(default_factory=profiles_folder)
    """Folder in which profiles are stored, named by a digest of the program."""
    fresh: bool = False
    """Repeat profiles that are already stored."""
    seconds: float = 1.0
    """Minimum time in seconds for which a profile runs steps."""
    json: Path | None = None
    """File to write the configurations to, as JSON."""
    trace: Path | None = None
    """File to write a Chrome trace of the simulated step to, for the largest number of devices."""
    plot: Path | None = None
    """File to plot rows per second and memory against devices in (.png, .pdf or .svg)."""

    @property
    def meshes(self) -> list[tuple[int, int]]:
        """Sizes (rows, model) to simulate: one device and `mesh`, else 1, 2, 4 ... of rows."""
        if self.mesh is not None:
            rows, model = map(int, self.mesh.split("x"))
            return [(1, 1), (rows, model)] if self.devices > 1 else [(1, 1)]
        powers = [2**k for k in range(self.devices.bit_length())]
        return [(n, 1) for n in sorted({*powers, self.devices})]


def check(given: PlanArguments) -> None:
    """Raise UserError if an argument is invalid."""
    least = {"devices": 1, "servers": 1, "batch": 1, "latency_us": 0, "message_us": 0}
    above = {"memory": 0, "link": 0, "bucket_mib": 0, "seconds": 0}
    for name, limit in {**least, **above}.items():
        value = getattr(given, name)
        if value is not None:
            holds = limit < value < math.inf or (name in least and value == limit)
            rule = f"{'at least' if name in least else 'above'} {limit}"
            require(holds, f"--{name.replace('_', '-')}", rule, f"{value:g}")
    if given.mesh is not None:
        sizes = given.mesh.split("x")
        if len(sizes) != 2 or not all(size.isdecimal() and int(size) for size in sizes):
            raise UserError(f"`--mesh` needs two sizes, rows x model, as in 4x2; got {given.mesh}.")
        if (count := math.prod(map(int, sizes))) != given.devices:
            has = f"{given.mesh} has {count} devices"
            raise UserError(f"`--mesh` {has}, but `--devices` is {given.devices}.")
        if given.strategy != PORTABLE:
            raise UserError("`--mesh` requires `--strategy portable`.")
    if given.plot and given.plot.suffix not in PLOTS:
        raise UserError(f"`--plot` must end in .png, .pdf or .svg, got {given.plot}.")
    for path in (given.json, given.trace, given.plot):
        if path and not path.parent.is_dir():
            raise UserError(f"The folder {path.parent} for {path.name} does not exist.")
