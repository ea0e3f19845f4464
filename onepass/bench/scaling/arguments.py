"""What `onepass bench scaling`, and what it refuses."""

import dataclasses
import math
from pathlib import Path

from replicator.runs.errors import UserError
from wavenet.presets import PRESETS

WRAPPER, KERAS, REPLICAS, COLLECTIVE = PARTS = ("wrapper", "keras", "replicas", "collective")
MOST_LOCAL = 4  # replicas that share the clips of a batch


@dataclasses.dataclass(frozen=True)
class BenchArguments:
    """Steps on one replica and on several, in one run.

    wrapper: milliseconds of a step that a replicator of one device compiles, against a plain
    tf.function of the same body. keras: several steps a call, against the fit of Keras. replicas:
    steps a second and bytes a step on one replica, on 2 and 4 logical CPUs of one process and on 2
    processes, the same clips in all (strong) and the same clips a replica (weak). collective:
    milliseconds of an all_sum between 2 processes, and the latency and bandwidth that fit. From
    these, up to 1024 replicas in a ring are simulated; such rows say so. Everything but wrapper and
    keras runs in processes of its own, on CPUs.
    """

    json: Path | None = None
    """File for the rows as JSON."""
    plot: Path | None = None
    """File for a plot of clips a second against replicas (.png, .pdf or .svg)."""
    parts: tuple[str, ...] = PARTS
    """What to measure, any of: wrapper, keras, replicas, collective."""
    preset: str = "wavenet-quick-16k"
    """The WaveNet that is trained."""
    clip_samples: int = 1024
    """Length of a clip, a multiple of the preset's hop."""
    clips: int = 8
    """Clips in a batch: in all (strong), of a replica (weak); a multiple of 4."""
    compute_clips: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Batches, in clips, that one device is measured on for the simulation; 1 is always there."""
    simulated_clips: int = 1024
    """Clips in all that the replicas of a simulated strong scaling share."""
    steps_per_call: tuple[int, ...] = (1, 10)
    """Steps of one call, of the replicator and of Keras."""
    fit_steps: int = 1000
    """Steps of one fit of Keras, rounded up to whole calls; more than those of a call."""
    all_sum_kib: tuple[int, ...] = tuple(4**k for k in range(1, 9))
    """Sizes of the all_sums, in KiB."""
    latency_us: float | None = None
    """Microseconds before a message arrives, for the simulation; None: as fitted here."""
    bandwidth_gbit: float | None = None
    """Gbit/s between two replicas, for the simulation; None: as fitted here."""
    least_seconds: float = 0.7
    """Time that a measurement takes at least, by repeating; the wrapper's take four times that."""
    limit_seconds: float = 180.0
    """Time that an answer of another process may take, compiling included."""
    rounds: int = 3
    """Times that everything is measured; medians are shown."""

    @property
    def compute_rows(self) -> tuple[int, ...]:
        """The batches, in clips, that one device is measured on."""
        return tuple(sorted({1, self.clips, *self.compute_clips}))

    @property
    def is_network_known(self) -> bool:
        """Whether there is a latency and a bandwidth to simulate with."""
        given = self.latency_us is not None and self.bandwidth_gbit is not None
        return given or COLLECTIVE in self.parts


def check(given: BenchArguments) -> None:
    """Returns nothing; raises UserError for what cannot be measured."""
    _check_names(given)
    _check_numbers(given)
    if given.clips % MOST_LOCAL:
        raise UserError(f"`--clips` must be a multiple of {MOST_LOCAL}, got {given.clips}.")
    hop = PRESETS[given.preset].config.resolved(1).network.hop_samples
    if given.clip_samples % hop:
        raise UserError(
            f"`--clip-samples` must be a multiple of the hop, {hop}, got {given.clip_samples}."
        )
    if COLLECTIVE in given.parts and len(set(given.all_sum_kib)) < 2:
        raise UserError("`--all-sum-kib` must name at least two sizes, or nothing can be fitted.")
    if given.plot and given.plot.suffix not in (".png", ".pdf", ".svg"):
        raise UserError(f"`--plot` must end in .png, .pdf or .svg, got {given.plot}.")
    if given.plot and REPLICAS not in given.parts:
        raise UserError("`--plot` shows replicas, which `--parts` leaves out.")
    for path in (given.json, given.plot):
        if path and not path.parent.is_dir():  # said now, not after minutes of measuring
            raise UserError(f"there is no folder {path.parent} to write {path.name} to.")


def _check_names(given: BenchArguments) -> None:
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        raise UserError(f"there is no part `{unknown[0]}`; there are {', '.join(PARTS)}.")
    if not given.parts:
        raise UserError("`--parts` must leave something to measure.")
    if given.preset not in PRESETS:
        raise UserError(f"there is no preset `{given.preset}`; there are {', '.join(PRESETS)}.")


def _check_numbers(given: BenchArguments) -> None:
    for name in ("rounds", "clips", "clip_samples", "simulated_clips", "fit_steps"):
        _check_number(name, getattr(given, name), 1)
    for name in ("compute_clips", "steps_per_call", "all_sum_kib"):
        for value in getattr(given, name):
            _check_number(name, value, 1)
    if KERAS in given.parts and not given.steps_per_call:
        raise UserError("`--steps-per-call` must name at least one number.")
    most = max(given.steps_per_call, default=0)
    if given.fit_steps <= most:
        raise UserError(f"`--fit-steps` must be above {most}, got {given.fit_steps}.")
    if given.latency_us is not None:
        _check_number("latency_us", given.latency_us, 0)
    for name in ("bandwidth_gbit", "least_seconds", "limit_seconds"):
        value = getattr(given, name)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"`{_option(name)}` must be above 0, got {value:g}.")


def _check_number(name: str, value: float, least: int) -> None:
    if not least <= value < math.inf:
        raise UserError(f"`{_option(name)}` must be at least {least}, got {value:g}.")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
