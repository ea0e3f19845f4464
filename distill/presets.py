"""Presets of students: whole configurations, each with its expected quality and its cost."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from distill.config import DiscriminatorConfig, StudentConfig
from onepass.foundation.errors import UserError
from onepass.foundation.stored_config import at_least
from onepass.replicator.training.config import LoopConfig, OptimizerConfig, Preset
from wavenet.config import WaveNetConfig
from wavenet.presets import DataConfig

if TYPE_CHECKING:  # configurations are read without TensorFlow
    from onepass.trained import Trained

KIND = "parallel-wavenet"  # in config.json and model.json
_DISCRIMINATORS = DiscriminatorConfig()
SPECTRAL = ("squared", "magnitude", "multi", "feature", "style")  # terms that compare spectra


@dataclasses.dataclass(frozen=True)
class LossConfig:
    """The terms of the loss and their weights; 0 disables a term. Each term is logged."""

    kl: float = 1.0
    """Weight of KL(P_S || P_T), in nats per sample."""
    draws: int = 16
    """Number of draws per sample for estimating the cross-entropy."""
    regularisation: float = 4.0
    """Lambda, the weight of ClariNet's regularisation of the KL between Gaussians."""
    squared: float = 0.0
    """Weight of the power loss on |STFT|^2 averaged over time (Parallel WaveNet's)."""
    magnitude: float = 0.0
    """Weight of the power loss on |STFT|."""
    multi: float = 1.0
    """Weight of the power loss at three resolutions."""
    feature: float = 0.0
    """Weight of the perceptual loss on the features of a classifier of speech units."""
    style: float = 0.0
    """Weight of the perceptual loss on the Gram matrices of these features."""
    contrastive: float = 0.0
    """Gamma, the weight of the contrastive term; 0.3 in the paper."""
    adversarial: float = 0.0
    """Weight of the least-squares loss against discriminators of sounds (Yamamoto et al. 2019)."""
    matching: float = 0.0
    """Weight of the distance between discriminators' hidden features of sound and recording."""
    adversarial_after: int = 0
    """Number of updates before the adversarial and matching terms count; discriminators are trained
    from the start."""
    others: tuple[str, ...] = ()
    """Weights of terms that another package registered (`distill.losses.objective.register`), each
    NAME=WEIGHT."""

    def __post_init__(self) -> None:
        """Raise ValueError, naming the field, if a weight is negative or there is no term."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "others"]
        at_least(self, 0, *names)
        at_least(self, 1, "draws")
        if not any(map(self.weight, ("kl", "adversarial", *SPECTRAL, *dict(self.other_weights)))):
            raise UserError("`kl` must be above 0 if no other term is.")

    @property
    def other_weights(self) -> tuple[tuple[str, float], ...]:
        """The names and weights of `others`.

        Raises:
          UserError: an entry is not NAME=WEIGHT with a weight of at least 0.
        """
        found = []
        for each in self.others:
            name, _, weight = each.partition("=")
            try:
                found.append((name, float(weight)))
            except ValueError:
                found.append((name, -1.0))
            if not found[-1][1] >= 0:
                raise UserError(f"`others` must be NAME=WEIGHT of at least 0 each, got {each!r}.")
        return tuple(found)

    def weight(self, term: str) -> float:
        """Return the weight of a term in the loss; 0 if the term is disabled."""
        if term == "contrastive":
            return self.contrastive * self.kl
        if term == "opposition":
            return float(self.has_discriminators)
        return float(getattr(self, term, dict(self.other_weights).get(term, 0.0)))

    @property
    def has_discriminators(self) -> bool:
        """True if a term needs discriminators."""
        return bool(self.adversarial or self.matching)


@dataclasses.dataclass(frozen=True)
class ClipConfig:
    """Number and length of the clips in a batch."""

    clip_samples: int = 7680
    """Length of a clip in samples, a multiple of the hop length."""
    left_samples: int = 0
    """For the residual: number of recorded samples before each clip that the KL does not count, a
    multiple of the hop length. Clips then include neighbouring frames on both sides."""
    batch_size: int = 4
    """Number of clips per batch."""

    def __post_init__(self) -> None:
        """Raise ValueError, naming the field, if a value is out of range."""
        at_least(self, 1, "clip_samples", "batch_size")


@dataclasses.dataclass(frozen=True)
class DistillConfig:
    """The configuration of a distillation; with teacher and data, it determines the result."""

    student: StudentConfig = dataclasses.field(default_factory=StudentConfig)
    loss: LossConfig = dataclasses.field(default_factory=LossConfig)
    clips: ClipConfig = dataclasses.field(default_factory=ClipConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    loop: LoopConfig = dataclasses.field(default_factory=LoopConfig)
    seed: int = 0
    """Seed of the initial weights, the order of clips and the noise."""
    start_from: str | None = None
    """Start from the weights of this trained student of the same architecture (run directory, model
    folder, `shipped`); its frames may differ. None: random weights, except that the teacher's
    conditioner is copied."""
    discriminators: DiscriminatorConfig = _DISCRIMINATORS

    def resolve_settings(self, teacher: "Trained", path: Path) -> "DistillConfig":
        """Return the configuration with the student's inputs taken from its teacher.

        Args:
          teacher: the model to learn from.
          path: the teacher's location, for messages.

        Raises:
          UserError: an input differs from the teacher's, or the inputs do not fit the settings.
        """
        teacher_config = teacher.config.network
        student = _following(self.student, teacher_config, teacher.config.data, path)
        for name in ("clip_samples", "left_samples"):
            if getattr(self.clips, name) % student.hop_samples:
                raise UserError(
                    f"`clips.{name.replace('_', '-')}` must be a multiple of the teacher's hop, "
                    f"{student.hop_samples}, got {getattr(self.clips, name)}."
                )
        if self.loss.contrastive and self.clips.batch_size < 2:
            raise UserError("`loss.contrastive` needs other conditions: a batch of at least 2.")
        return dataclasses.replace(self, student=student)


def _following(
    student: StudentConfig, teacher_config: WaveNetConfig, data: DataConfig, path: Path
) -> StudentConfig:
    if student.sample_rate_hz != data.sample_rate_hz:
        raise UserError(
            f"The teacher {path} speaks at {data.sample_rate_hz} Hz, this student at "
            f"{student.sample_rate_hz} Hz; choose a preset of the teacher's rate."
        )
    factors = teacher_config.upsample_factors if teacher_config.feature_channels else ()
    for name, value in (
        ("feature_channels", teacher_config.feature_channels),
        ("upsample_factors", factors),
        ("speakers", teacher_config.speakers),
    ):
        given = getattr(student, name)
        if given and given != value:
            raise UserError(
                f"`student.{name.replace('_', '-')}` follows from the teacher {path} and must be "
                f"{value}, got {given}."
            )
    if student.domain == "residual":
        student = _in_residual_domain(student, teacher_config, path)
    try:
        return dataclasses.replace(
            student,
            feature_channels=teacher_config.feature_channels,
            upsample_factors=factors,
            speakers=teacher_config.speakers,
            frame_width=teacher_config.frame_width,
        )
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def _in_residual_domain(
    student: StudentConfig, teacher_config: WaveNetConfig, path: Path
) -> StudentConfig:
    if not teacher_config.prediction_order:
        raise UserError(
            f"`student.domain` must be wave: the teacher {path} has no linear prediction from the "
            "mel; wavenet-vocoder-* have."
        )
    if student.source == "pulses" and not teacher_config.reads_pitch:
        raise UserError(
            f"`student.source` must be none: the teacher {path} reads no F0 (its pitch taps are 0)."
        )
    followed = ("prediction_order", "pitch_bins", "conditioner_units")
    names = (*followed, "condition_channels", "subframes")
    return dataclasses.replace(
        student,
        reads_f0=teacher_config.reads_pitch and student.source == "none",
        **{name: getattr(teacher_config, name) for name in names},
    )


_CPU = StudentConfig(filter_width=2, front_width=16, sample_rate_hz=16_000)
_RESIDUAL = DistillConfig(
    dataclasses.replace(
        _CPU,
        flows=(6, 6, 10),
        bunch_samples=4,
        domain="residual",
        source="pulses",
        initial_scale=0.2,
    ),
    LossConfig(draws=8, squared=2.0, multi=1.0, feature=2.0, style=1.0),
    ClipConfig(clip_samples=6_800, left_samples=1_200, batch_size=4),
    OptimizerConfig(
        learning_rate=1e-3,
        warmup_steps=200,
        decay="cooldown",
        cooldown_steps=5_000,
        clip_norm=1.0,
        average_decay=0.999,
    ),
    LoopConfig(num_steps=25_000),
)

_UNIVERSAL = dataclasses.replace(
    _RESIDUAL,
    student=dataclasses.replace(
        _RESIDUAL.student, flows=(4, 8), bunch_samples=8, sample_rate_hz=22_050
    ),
    loss=LossConfig(
        draws=8, squared=2.0, multi=0.5, adversarial=1.0, matching=2.0, adversarial_after=2_500
    ),
    clips=ClipConfig(clip_samples=34 * 256, left_samples=6 * 256, batch_size=16),
    optimizer=dataclasses.replace(_RESIDUAL.optimizer, cooldown_steps=1_500),
    loop=LoopConfig(num_steps=10_500),
)

PRESETS: dict[str, Preset[DistillConfig]] = {
    "student-smoke": Preset(
        "Seconds on one core, to check that everything runs; the sound is noise.",
        DistillConfig(
            dataclasses.replace(_CPU, flows=(2, 3), residual_channels=16, gate_channels=16),
            LossConfig(draws=4),
            ClipConfig(clip_samples=2400, batch_size=2),
            OptimizerConfig(learning_rate=2e-3, warmup_steps=20),
            LoopConfig(num_steps=40, evaluate_every_steps=20, report_every_steps=10),
        ),
    ),
    "student-residual-16k": Preset(
        "The shipped 16 kHz student: flows of 6, 6 and 10 layers, run once every four samples, "
        "make the residual of the mel's linear prediction from pulses and noise, for a teacher of "
        "wavenet-vocoder-16k; 25,000 steps, about four hours on two cores; its card gives its "
        "quality.",
        _RESIDUAL,
    ),
    "student-residual-24k": Preset(
        "The same for a teacher of wavenet-vocoder-24k; not run yet, so its quality is unknown.",
        dataclasses.replace(
            _RESIDUAL,
            student=dataclasses.replace(_RESIDUAL.student, sample_rate_hz=24_000),
            clips=ClipConfig(clip_samples=10_200, left_samples=1_800, batch_size=4),
        ),
    ),
    "student-universal-22k": Preset(
        "The shipped student, one voice for everybody, for a teacher of wavenet-universal-22k: "
        "flows of 4 and 8 layers, run once every eight samples; KL, spectra and, after 2,500 "
        "steps, discriminators. Six minutes on an H100 (--portable).",
        _UNIVERSAL,
    ),
    "student-universal-small-22k": Preset(
        "The student `shipped-small`: the same with one flow of 8 layers and 48 channels, run once "
        "every 16 samples.",
        dataclasses.replace(
            _UNIVERSAL,
            student=dataclasses.replace(
                _UNIVERSAL.student,
                flows=(8,),
                bunch_samples=16,
                residual_channels=48,
                gate_channels=48,
            ),
        ),
    ),
    "student-paper-24k": Preset(
        "The student of Parallel WaveNet (1711.10433): four flows of 10, 10, 10 and 30 layers, "
        "KL, power, style and contrastive terms; weeks on a GPU, never run here; the paper's mean "
        "opinion score is 4.41.",
        DistillConfig(
            StudentConfig(condition_channels=80),
            LossConfig(draws=100, squared=1.0, multi=0.0, style=1.0, contrastive=0.3),
            ClipConfig(clip_samples=7680, batch_size=8),
            OptimizerConfig(learning_rate=2e-4, warmup_steps=1, average_decay=0.9999),
            LoopConfig(num_steps=1_000_000, evaluate_every_steps=5000),
        ),
    ),
    "student-gaussian-24k": Preset(
        "The student of ClariNet (1807.07281): six Gaussian flows of 10 layers, the closed-form KL "
        "with lambda 4 and |STFT|; its teacher has --network.likelihood gaussian. Needs a GPU, "
        "never run here; the paper's mean opinion score is 4.16.",
        DistillConfig(
            StudentConfig(noise="normal", flows=(10,) * 6, condition_channels=80),
            LossConfig(magnitude=1.0, multi=0.0),
            ClipConfig(clip_samples=12_000, batch_size=8),
            OptimizerConfig(learning_rate=1e-3, warmup_steps=1, decay="halve"),
            LoopConfig(num_steps=500_000, evaluate_every_steps=5000),
        ),
    ),
}
