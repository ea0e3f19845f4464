"""Configurations of students, and presets."""

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from onepass.foundation.rules import (
    Checked,
    Count,
    Natural,
    NonNegative,
    Positive,
    UserError,
    require,
)
from onepass.replicator.training.config import LoopConfig, OptimizerConfig, read_presets
from wavenet.config import DataConfig, WaveNetConfig

if TYPE_CHECKING:
    from onepass.trained import Trained

Noise = Literal["logistic", "normal"]
Domain = Literal["wave", "residual"]
Source = Literal["none", "pulses"]
RECENT = 8  # number of newest samples that a flow's head reads if there are bunches
SOURCE_SIDE = 7  # number of source samples that the flows read on either side


@dataclasses.dataclass(frozen=True)
class DiscriminatorConfig(Checked):
    """Discriminators for a distillation with an adversarial term."""

    spectra: tuple[int, ...] = (256, 512, 1024)
    """FFT sizes, in samples, of the discriminators of log spectrograms."""
    periods: tuple[int, ...] = ()
    """Periods, in samples, of the discriminators of the wave, such as 2 3 5 7 11 (HiFi-GAN's)."""
    channels: Count = 20
    """Channels of the hidden layers."""
    top_share: float = 0.75
    """Share of the frequency bins, from 0 Hz up, that the spectrogram discriminators read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(size >= 64 for size in self.spectra), "spectra", "at least 64", self.spectra)
        require(all(p >= 1 for p in self.periods), "periods", "at least 1", self.periods)
        require(0 < self.top_share <= 1, "top_share", "above 0 and at most 1", self.top_share)
        given = len(self.spectra) + len(self.periods)
        require(given > 0, "spectra", "given where `periods` is not", self.spectra)


@dataclasses.dataclass(frozen=True)
class StudentConfig(Checked):
    """The architecture of a student (van den Oord et al. 2017, arXiv 1711.10433).

    `gate_channels` counts gated units; the convolution before a gate has twice as many outputs. The
    student's condition and frame rate follow from its teacher.
    """

    noise: Noise = "logistic"
    """Distribution that the flows start from: logistic (Parallel WaveNet) or normal (ClariNet)."""
    flows: tuple[int, ...] = (10, 10, 10, 30)
    """Number of layers of each inverse autoregressive flow, first to last."""
    cycle: Count = 10
    """Number of layers in a flow's dilation cycle 1, 2, 4, ..."""
    filter_width: int = 3
    """Number of taps of a dilated convolution, 2 or 3."""
    residual_channels: Count = 64
    """Number of channels between layers."""
    gate_channels: Count = 64
    """Number of gated units in a layer."""
    front_width: Count = 1
    """Number of past samples that the first convolution of a flow reads."""
    bunch_samples: Count = 1
    """Number of samples per pass of a flow's layers; a small head then predicts the location and
    scale of each sample."""
    initial_scale: Positive = 0.05
    """Scale of an untrained student's output, relative to full scale."""
    min_log_scale: float = -7.0
    """Lower bound of each flow's log scale."""
    feature_channels: Natural = 0
    """Number of channels of the conditioning frames; 0: same as the teacher."""
    condition_channels: int = 64
    """Number of channels of the upsampled condition; the first are initialised from the teacher."""
    frame_width: int = 5
    """Number of frames that the convolution before the upsampling reads; set from the teacher."""
    upsample_factors: tuple[int, ...] = ()
    """Factors of the learned upsampling; their product is the hop length in samples. Empty: same as
    the teacher."""
    domain: Domain = "wave"
    """Output of the flows: the wave, or the residual of the linear prediction computed from the
    mel, from which a recursion makes the wave. A residual student has the teacher's dense
    conditioner."""
    source: Source = "none"
    """For the residual: signal added to the location of the noise, none or pulses at the frames' F0
    where they are voiced."""
    prediction_order: Natural = 0
    """For the residual: number of coefficients of the linear prediction; 0: same as the teacher."""
    exact_prediction: bool = True
    """Compute the coefficients of the linear prediction in float64, so that rounding does not
    change them; otherwise in the network's own type."""
    reads_f0: bool = False
    """For the residual: estimate F0 and voicing in the conditioner even if no source needs
    them; set from the teacher."""
    pitch_bins: int = 0
    """For the residual: number of F0 classes of the pitch estimator; 0: same as the teacher."""
    conditioner_units: Natural = 0
    """For the residual: number of units of the first of two dense layers that read the frames; 0:
    same as the teacher."""
    subframes: int = 5
    """Number of parts of a frame for which the dense layers predict separate conditions; set from
    the teacher."""
    sample_rate_hz: int = 24_000
    """Sample rate of the sound."""
    speakers: Natural = 0
    """Number of speakers (or classes) of the global condition; 0: same as the teacher."""
    speaker_channels: int = 16
    """Size of a learned speaker embedding."""
    compute_dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Type of the arithmetic; variables are always float32. float64 is for tests."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.flows) >= 1, "flows", "at least one", self.flows)
        require(min(self.flows, default=0) >= 1, "flows", "at least 1 layer each", self.flows)
        require(self.filter_width in (2, 3), "filter_width", "2 or 3", self.filter_width)
        require(self.frame_width % 2 == 1, "frame_width", "odd", self.frame_width)
        if self.feature_channels:
            require(len(self.upsample_factors) > 0, "upsample_factors", "given", ())
        least = min(self.upsample_factors, default=1)
        require(least >= 1, "upsample_factors", "at least 1 each", self.upsample_factors)
        if self.bunch_samples > 1:
            wide = self.front_width >= RECENT
            require(wide, "front_width", f"at least {RECENT} for bunches", self.front_width)
            whole = self.hop_samples % self.bunch_samples == 0 or not self.feature_channels
            require(whole, "bunch_samples", f"a divisor of {self.hop_samples}", self.bunch_samples)
        wave = self.domain == "wave"
        for name in ("prediction_order", "conditioner_units"):
            require(not (wave and getattr(self, name)), name, "0 for the wave", self.domain)
        require(not wave or self.source == "none", "source", "none for the wave", self.source)

    def dilations(self, layers: int) -> tuple[int, ...]:
        """Return the dilation, in bunches, of each layer of a flow with `layers` layers."""
        return tuple(2 ** (layer % self.cycle) for layer in range(layers))

    @property
    def receptive_field(self) -> int:
        """Number of past noise samples that a sample depends on; approximate with bunches."""
        past = sum(sum(self.dilations(layers)) for layers in self.flows)
        past *= self.bunch_samples * (self.filter_width - 1)
        return past + self.front_width * len(self.flows)

    @property
    def hop_samples(self) -> int:
        """Hop length of the conditioning frames in samples; 1 without a local condition."""
        return math.prod(self.upsample_factors) if self.feature_channels else 1

    @property
    def reads_pitch(self) -> bool:
        """True if the dense conditioner estimates F0 and voicing from the frames."""
        return self.reads_f0 or self.source == "pulses"

    @property
    def row_samples(self) -> int:
        """Number of consecutive samples that share the coefficients of the linear prediction."""
        return self.hop_samples // self.subframes

    @property
    def held_inputs(self) -> int:
        """Number of leading condition channels that stay constant over `row_samples` samples."""
        return self.condition_channels if self.domain == "residual" else 0

    @property
    def gate_inputs(self) -> int:
        """Number of channels of the condition [batch, bunches, gate_inputs] that the gates read."""
        local = self.condition_channels if self.feature_channels else 0
        source = 0 if self.source == "none" else 2 * SOURCE_SIDE + 2  # samples around, and voicing
        return local + source + (self.speaker_channels if self.speakers else 0)


KIND = "parallel-wavenet"  # in config.json and model.json
RESIDUAL = ("prediction_order", "pitch_bins", "conditioner_units")  # for residuals, the teacher's
_DISCRIMINATORS = DiscriminatorConfig()
SPECTRAL = ("squared", "magnitude", "multi", "feature", "style")  # terms that compare spectra


@dataclasses.dataclass(frozen=True)
class LossConfig(Checked):
    """The terms of the loss and their weights; 0 disables a term. Each term is logged."""

    kl: NonNegative = 1.0
    """Weight of KL(P_S || P_T), in nats per sample."""
    draws: Count = 16
    """Number of draws per sample for estimating the cross-entropy."""
    regularisation: NonNegative = 4.0
    """Lambda, the weight of ClariNet's regularisation of the KL between Gaussians."""
    squared: NonNegative = 0.0
    """Weight of the power loss on |STFT|^2 averaged over time (Parallel WaveNet's)."""
    magnitude: NonNegative = 0.0
    """Weight of the power loss on |STFT|."""
    multi: NonNegative = 1.0
    """Weight of the power loss at three resolutions."""
    feature: NonNegative = 0.0
    """Weight of the perceptual loss on the features of a classifier of speech units."""
    style: NonNegative = 0.0
    """Weight of the perceptual loss on the Gram matrices of these features."""
    contrastive: NonNegative = 0.0
    """Gamma, the weight of the contrastive term; 0.3 in the paper."""
    adversarial: NonNegative = 0.0
    """Weight of the least-squares loss against discriminators of sounds (Yamamoto et al. 2019)."""
    matching: NonNegative = 0.0
    """Weight of the distance between discriminators' hidden features of sound and recording."""
    adversarial_after: Natural = 0
    """Number of updates before the adversarial and matching terms count; discriminators are trained
    from the start."""
    others: tuple[str, ...] = ()
    """Weights of terms that another package registered (`distill.losses.objective.register`), each
    NAME=WEIGHT."""

    def __post_init__(self) -> None:
        super().__post_init__()
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
            require(found[-1][1] >= 0, "others", "NAME=WEIGHT of at least 0 each", repr(each))
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
class ClipConfig(Checked):
    """Number and length of the clips in a batch."""

    clip_samples: Count = 7680
    """Length of a clip in samples, a multiple of the hop length."""
    left_samples: int = 0
    """For the residual: number of recorded samples before each clip that the KL does not count, a
    multiple of the hop length. Clips then include neighbouring frames on both sides."""
    batch_size: Count = 4
    """Number of clips per batch."""


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
            samples, option = getattr(self.clips, name), f"clips.{name.replace('_', '-')}"
            rule = f"a multiple of the teacher's hop, {student.hop_samples}"
            require(samples % student.hop_samples == 0, option, rule, samples)
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
    names = ("feature_channels", "speakers", "frame_width")
    followed: dict[str, Any] = {name: getattr(teacher_config, name) for name in names}
    if student.domain == "residual":
        if not teacher_config.prediction_order:
            raise UserError(
                f"`student.domain` must be wave: the teacher {path} has no linear prediction from "
                "the mel; wavenet-vocoder-* have."
            )
        reads_pitch = teacher_config.reads_pitch
        if student.source == "pulses" and not reads_pitch:
            raise UserError(
                f"`student.source` must be none: the teacher {path} reads no F0 (its pitch taps "
                "are 0)."
            )
        for name in ("condition_channels", "subframes", *RESIDUAL):
            followed[name] = getattr(teacher_config, name)
        followed["reads_f0"] = reads_pitch and student.source == "none"
    try:
        return dataclasses.replace(student, **followed, upsample_factors=factors)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


PRESETS = read_presets(Path(__file__).with_name("presets.toml"), DistillConfig)
