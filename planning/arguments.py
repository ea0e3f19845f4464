"""Arguments of `onepass plan` and their checks."""

import dataclasses
import math
import os
from pathlib import Path
from typing import Annotated, Literal

import tyro

from foundation.errors import UserError

PLOTS = (".png", ".pdf", ".svg")
PORTABLE, SERVERS = "portable", "parameter_server"


def profiles_folder() -> Path:
    """Return the default folder of profiles, in the user's cache."""
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
    """Maximum number of devices."""
    mesh: str | None = None
    """AxB: rows of the batch over A devices, the state cut over B; A times B must equal --devices.
    Without it, meshes that cut the state are tried only if nothing else fits."""
    strategy: Literal["portable", "replicas", "parameter_server"] = "portable"
    """Way to train: run.py of the exported step (portable), `--strategy local` or multi_worker
    (replicas), or asynchronous workers, as many as devices (parameter_server)."""
    servers: int = 1
    """Parameter servers."""
    batch: int | None = None
    """Rows of the global batch; default: as configured."""
    memory: float | None = None
    """Memory of a device in GiB; configurations that need more are not chosen."""
    link: float = 10.0
    """Bandwidth between two devices in Gbit/s."""
    latency_us: float = 50.0
    """Latency of a message in microseconds."""
    message_us: float = 60.0
    """Processor time in microseconds at either end for each variable that a worker reads or adds
    (parameter_server)."""
    bucket_mib: float | None = None
    """Exchange gradients in buckets of at most this many MiB, each as soon as it is ready; default:
    as compiled here, or 30 if an accelerator was profiled."""
    shared_cores: Literal["auto", "yes", "no"] = "auto"
    """Let the devices share this machine's cores; auto: yes if a processor was profiled."""
    profiles: Path = dataclasses.field(default_factory=profiles_folder)
    """Folder of profiles, stored by digest of the program."""
    fresh: bool = False
    """Repeat stored profiles."""
    seconds: float = 1.0
    """Minimum time for which a profile times steps."""
    json: Path | None = None
    """File for the configurations as JSON."""
    trace: Path | None = None
    """File for a Chrome trace of the simulated step on all devices."""
    plot: Path | None = None
    """File for a plot of rows per second and memory against devices (.png, .pdf or .svg)."""

    @property
    def meshes(self) -> list[tuple[int, int]]:
        """Meshes to simulate: only `mesh` if given, else 1, 2, 4, ... and all devices by rows."""
        if self.mesh is not None:
            rows, model = map(int, self.mesh.split("x"))
            return [(1, 1), (rows, model)] if self.devices > 1 else [(1, 1)]
        powers = [2**k for k in range(self.devices.bit_length())]
        return [(n, 1) for n in sorted({*powers, self.devices})]


def check(given: PlanArguments) -> None:
    """Raise UserError for arguments that cannot be planned."""
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
                f"`--mesh` {given.mesh} has {math.prod(map(int, sizes))} devices, but `--devices` "
                f"is {given.devices}."
            )
        if given.strategy != PORTABLE:
            raise UserError("`--mesh` requires `--strategy portable`.")
    if given.plot and given.plot.suffix not in PLOTS:
        raise UserError(f"`--plot` must end in .png, .pdf or .svg, got {given.plot}.")
    for path in (given.json, given.trace, given.plot):
        if path and not path.parent.is_dir():
            raise UserError(f"The folder {path.parent} for {path.name} does not exist.")


def _check_number(given: PlanArguments, name: str, least: float, above: bool = False) -> None:
    value = getattr(given, name)
    if value is None:
        return
    if value < least or (above and value <= least) or not value < math.inf:
        rule = "above" if above else "at least"
        raise UserError(f"`--{name.replace('_', '-')}` must be {rule} {least:g}, got {value:g}.")
