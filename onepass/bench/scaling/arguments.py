"""What `onepass bench scaling`, and what it refuses."""

import dataclasses
from pathlib import Path

from onepass.bench.options import BenchOptions, check_names, check_some
from pixelcnn.presets import PRESETS as IMAGE_PRESETS
from replicator.runs.errors import UserError
from wavenet.presets import PRESETS

WRAPPER, KERAS, REPLICAS, COLLECTIVE, PLAN = PARTS = (
    *("wrapper", "keras", "replicas", "collective", "plan"),
)
MOST_LOCAL = 4  # replicas that share the clips of a batch


@dataclasses.dataclass(frozen=True)
class BenchArguments(BenchOptions):
    """Steps on one replica and on several, in one run.

    wrapper: milliseconds of a step that a replicator of one device compiles, against a plain
    tf.function of the same body. keras: several steps a call, against the fit of Keras. replicas:
    steps a second and bytes a step on one replica, on 2 and 4 logical CPUs of one process and on 2
    processes, the same clips in all (strong) and the same clips a replica (weak). collective:
    milliseconds of an all_sum between 2 processes, and the latency and bandwidth that fit. plan:
    time and memory of a step of each model, of as many rows as clips, on 2 and 4 logical CPUs, 2
    processes, 1 and 2 workers of a parameter server, and 1, 2 and 4 devices of JAX, beside what
    `onepass plan` predicts from one device. Everything but wrapper and keras runs in processes of
    its own, on CPUs.
    """

    plot: Path | None = None
    """File for a plot of predicted against measured steps (.png, .pdf or .svg)."""
    parts: tuple[str, ...] = PARTS
    """What to measure, any of: wrapper, keras, replicas, collective, plan."""
    preset: str = "wavenet-quick-16k"
    """The WaveNet that is trained."""
    models: tuple[str, ...] = (
        "wavenet-quick-16k",
        "pixelcnn-cpu-32",
        "multiscale-cpu-32",
        "examples.resnet50:trainable",
    )
    """Models that are planned: presets of `onepass train`, or MODULE:FUNCTION of a `Trainable`."""
    clip_samples: int = 1024
    """Length of a clip, a multiple of the preset's hop."""
    clips: int = 8
    """Clips in a batch: in all (strong), of a replica (weak); a multiple of 4."""
    compute_clips: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    """Batches, in clips, that one device is measured on; 1 is always there."""
    steps_per_call: tuple[int, ...] = (1, 10)
    """Steps of one call, of the replicator and of Keras."""
    fit_steps: int = 1000
    """Steps of one fit of Keras, rounded up to whole calls; more than those of a call."""
    all_sum_kib: tuple[int, ...] = tuple(4**k for k in range(1, 9))
    """Sizes of the all_sums, in KiB."""
    least_seconds: float = 0.7
    """Time that a measurement takes at least, by repeating; the wrapper's take four times that."""
    limit_seconds: float = 180.0
    """Time that an answer of another process may take, compiling included."""

    @property
    def compute_rows(self) -> tuple[int, ...]:
        """The batches, in clips, that one device is measured on."""
        return tuple(sorted({1, self.clips, *self.compute_clips}))


def check(given: BenchArguments) -> None:
    """Returns nothing; raises UserError for what cannot be measured."""
    check_names("part", given.parts, PARTS)
    check_some("parts", given.parts)
    check_names("preset", [given.preset], list(PRESETS))
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
    given.check_files(given.plot)
    if given.plot and PLAN not in given.parts:
        raise UserError("`--plot` shows the plan, which `--parts` leaves out.")
    if PLAN in given.parts:
        check_some("models", given.models)
        check_names("model", [m for m in given.models if ":" not in m], [*PRESETS, *IMAGE_PRESETS])


def _check_numbers(given: BenchArguments) -> None:
    given.check_numbers("rounds", "clips", "clip_samples", "fit_steps")
    given.check_numbers("compute_clips", "steps_per_call", "all_sum_kib")
    if KERAS in given.parts and not given.steps_per_call:
        raise UserError("`--steps-per-call` must name at least one number.")
    most = max(given.steps_per_call, default=0)
    if given.fit_steps <= most:
        raise UserError(f"`--fit-steps` must be above {most}, got {given.fit_steps}.")
    given.check_numbers("least_seconds", "limit_seconds", least=0, above=True)
