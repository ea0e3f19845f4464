"""Configurations of WaveNets, conventions of their frames, and presets; without NumPy."""

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
    Share,
    UserError,
    require,
    stored_config,
)
from onepass.likelihoods import registry
from onepass.likelihoods.registry import LikelihoodName
from onepass.replicator.training.config import LoopConfig, OptimizerConfig, read_presets

if TYPE_CHECKING:
    from onepass.likelihoods import Codec, Distribution

FIXED = {
    "window": "periodic hann",
    "spectrum": "magnitude",
    "frame_centre": "frame * hop + hop / 2",
}


@dataclasses.dataclass(frozen=True)
class MelConvention(Checked):
    """The definition of a log-mel spectrogram.

    Frame f is the Hann-windowed magnitude spectrum centred on sample f * hop + hop / 2, the middle
    of its hop; there are ceil(samples / hop) frames. Given bands + 2 equally spaced points on the
    mel scale, band b is a triangular filter over points b, b + 1 and b + 2. A value is
    log(max(band, floor)). With 22,050 Hz, hop 256, window and FFT size 1024, 80 bands, 0 to
    8,000 Hz and padding "reflect", these are the features of public HiFi-GAN vocoders.

    Attributes:
      sample_rate_hz: sample rate in Hz.
      hop_samples: hop length in samples.
      window_samples: length of the Hann window in samples.
      fft_size: length of the Fourier transform in samples.
      bands: number of mel bands.
      low_hz: lower edge of the lowest filter in Hz.
      high_hz: upper edge of the highest filter in Hz; None: half the sample rate.
      floor: lower bound of a band's magnitude, before the logarithm; a full-scale sine reaches
        about window_samples / 4 times the filter's weight.
      log: the logarithm, "natural" or "log10".
      scale: the mel scale, "slaney" (linear below 1 kHz) or "htk" (2595 log10(1 + f / 700)).
      normalisation: "area" for filters with area one in Hz, or "peak" for height one.
      padding: padding beyond the ends of the waveform, "zeros" or "reflect".

    Raises:
      UserError: If a setting is invalid.
    """

    sample_rate_hz: Count = 24000
    hop_samples: Count = 256
    window_samples: int = 1024
    fft_size: int = 1024
    bands: Count = 80
    low_hz: float = 0.0
    high_hz: float | None = None
    floor: float = 1e-5
    log: Literal["natural", "log10"] = "natural"
    scale: Literal["slaney", "htk"] = "slaney"
    normalisation: Literal["area", "peak"] = "area"
    padding: Literal["zeros", "reflect"] = "zeros"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (
            ("window_samples", self.hop_samples),
            ("fft_size", self.window_samples),
        ):
            require(getattr(self, name) >= least, name, f"at least {least}", getattr(self, name))
        require(0.0 < self.floor < 1.0, "floor", "above 0 and below 1", self.floor)
        if not 0.0 <= self.low_hz < self.top_hz <= self.sample_rate_hz / 2:
            raise UserError(
                f"`low_hz` and `high_hz` must satisfy 0 <= low_hz < high_hz <= "
                f"{self.sample_rate_hz / 2}, got {self.low_hz} and {self.top_hz}."
            )

    @property
    def top_hz(self) -> float:
        """The upper edge of the highest filter in Hz."""
        return self.sample_rate_hz / 2 if self.high_hz is None else self.high_hz

    @property
    def silence(self) -> float:
        """The value of every band in digital silence: the logarithm of the floor."""
        import numpy as np  # configurations are read without it

        return float((np.log if self.log == "natural" else np.log10)(np.array(self.floor)))

    def to_dict(self) -> dict[str, Any]:
        """Return all settings, including fixed ones, for a JSON file."""
        return {**dataclasses.asdict(self), "high_hz": self.top_hz, **FIXED}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "MelConvention":
        """Return the convention from a result of `to_dict`.

        Raises:
          UserError: If this version does not support a setting.
        """
        fields = {field.name for field in dataclasses.fields(cls)}
        for name in values:
            if name not in fields and name not in FIXED:
                raise UserError(f"`{name}` is not part of a mel convention.")
        for name, rule in FIXED.items():
            if values.get(name, rule) != rule:
                raise UserError(f'`{name}` must be "{rule}", got "{values[name]}".')
        return cls(**{name: value for name, value in values.items() if name in fields})


@dataclasses.dataclass(frozen=True)
class PitchConvention(Checked):
    """The definition of a pitch frame: [log2(f0 / reference_hz), voiced as 0 or 1].

    Frame f is centred on sample f * hop + hop / 2. The first channel is interpolated linearly over
    unvoiced frames and constant before the first and after the last voiced frame; it is 0 if no
    frame is voiced. No corpus statistics are needed.

    Attributes:
      sample_rate_hz: sample rate in Hz.
      hop_samples: hop length in samples.
      low_hz: lower bound of F0 in Hz.
      high_hz: upper bound of F0 in Hz.
      method: "dio" (with StoneMask, 120 times faster than real time) or "harvest" (more reliable, 6
        times faster than real time).
      reference_hz: the F0 in Hz for which the first channel is 0.

    Raises:
      UserError: If a setting is invalid.
    """

    sample_rate_hz: int = 24000
    hop_samples: Count = 256
    low_hz: float = 60.0
    high_hz: float = 600.0
    method: Literal["dio", "harvest"] = "dio"
    reference_hz: Positive = 200.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.low_hz < self.high_hz < self.sample_rate_hz / 2:
            raise UserError(
                f"`low_hz` and `high_hz` must satisfy 0 < low_hz < high_hz < "
                f"{self.sample_rate_hz / 2}, got {self.low_hz} and {self.high_hz}."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return all settings for a JSON file; `PitchConvention(**settings)` is the inverse."""
        return dataclasses.asdict(self)


ComputeDtype = Literal["float32", "bfloat16", "float64"]


@dataclasses.dataclass(frozen=True)
class WaveNetConfig(Checked):
    """The architecture of a WaveNet (van den Oord et al. 2016, sections 2.1 to 2.6).

    Gate channels count the gated units; the convolution before the gate has twice as many outputs.
    """

    likelihood: LikelihoodName = "logistic"
    """Output distribution: a mixture of logistics or Gaussians, a single Gaussian, or a softmax
    over mu-law levels."""
    levels: int = 65536
    """Number of amplitude levels: 65536 for 16-bit linear PCM, 256 for 8-bit mu-law."""
    components: int = 10
    """Number of logistics or Gaussians in the mixture."""
    min_log_scale: float = -16.0
    """Lower bound of the natural log of a scale, relative to full scale."""
    layers: Count = 30
    """Total number of residual layers."""
    stacks: Count = 3
    """Number of dilation cycles; each has dilations 1, 2, 4, ... over layers / stacks layers."""
    filter_width: int = 3
    """Number of taps of a dilated convolution: 2 or 3."""
    residual_channels: Count = 64
    """Channels of the residual path."""
    gate_channels: Count = 64
    """Gated units per layer."""
    skip_channels: Count = 128
    """Channels of the skip connections and of the two output layers."""
    front_width: Count = 1
    """Number of past samples that the first convolution reads (1 for a softmax)."""
    linear_prediction: bool = False
    """Add a learned linear prediction from the `front_width` past samples to every mean."""
    input_gain: Positive = 1.0
    """Gain applied to the waveform inside the network, for quiet recordings that are not
    normalised."""
    feature_channels: Natural = 0
    """Channels of the conditioning frames (mel bands, F0 and voicing); 0: no local condition."""
    condition_channels: int = 64
    """Channels of the upsampled condition that every gate reads."""
    frame_width: int = 5
    """Width in frames of the centred convolution before the upsampling."""
    upsample_factors: tuple[int, ...] = ()
    """Factors of the learned upsampling; their product is the hop length in samples."""
    speakers: Natural = 0
    """Number of speakers (or classes) for the global condition; 0: none."""
    speaker_channels: Natural = 16
    """Size of the learned speaker embedding; 0: one-hot vectors."""
    context_layers: Natural = 0
    """Layers of the context stack, which reads whole blocks of past samples; 0: no stack."""
    context_block_samples: int = 64
    """Samples per block of the context stack."""
    context_channels: int = 32
    """Channels of the context stack and of the condition that it computes."""
    bunch_samples: int = 1
    """Samples that one step of the layers generates: 1, 2 or 4; a small head draws each of them."""
    conditioner_units: Natural = 0
    """Units of the first of two layers that compute the condition from the frames; 0: use the
    learned upsampling instead."""
    subframes: Count = 5
    """Sub-frames per frame, for `conditioner_units`; the condition is constant within each."""
    prediction_order: Natural = 0
    """Order of the linear prediction that is computed from the mel frames, or from past samples
    with `prediction_windows`; 0: no prediction."""
    prediction_windows: tuple[int, ...] = ()
    """Lengths of the windows of past samples from which linear predictors are computed; empty: no
    predictors."""
    prediction_block: Count = 16
    """Number of samples for which the coefficients of these predictors are constant."""
    exact_prediction: bool = True
    """Compute the linear prediction from mel frames in float64, which makes it robust to rounding;
    False: in the frames' type."""
    pitch_taps: Natural = 0
    """Number of residuals, around the sample one pitch period ago, that layers and head read; 0: no
    such residuals, and F0 is not used."""
    pitch_bins: Natural = 0
    """Number of classes, from 60 to 600 Hz, of the F0 classifier; 0: F0 is regressed instead."""
    head_width: Count = 8
    """Number of past samples that the head reads, for `conditioner_units`."""
    head_channels: int = 64
    """Gated units of the head, for `conditioner_units`."""
    compute_dtype: ComputeDtype = "float32"
    """Type of the arithmetic inside the network; variables stay float32. float64 is for tests: with
    it, samplers that sum in a different order still draw the same levels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.layers % self.stacks == 0, "layers", "a multiple of `stacks`", self.layers)
        require(self.filter_width in (2, 3), "filter_width", "2 or 3", self.filter_width)
        require(self.frame_width % 2 == 1, "frame_width", "odd", self.frame_width)
        if self.feature_channels:
            require(len(self.upsample_factors) > 0, "upsample_factors", "given", ())
        least = min(self.upsample_factors, default=1)
        require(least >= 1, "upsample_factors", "at least 1 each", self.upsample_factors)
        self._check_bunches()
        registry.check(self.likelihood, self.levels, self.components)
        if self.reads_levels:
            require(self.front_width == 1, "front_width", "1 for a softmax", self.front_width)
            require(not self.linear_prediction, "linear_prediction", "off for a softmax", True)

    def _check_bunches(self) -> None:
        bunch = self.bunch_samples
        require(bunch in (1, 2, 4), "bunch_samples", "1, 2 or 4", bunch)
        if not self.conditioner_units:
            for name, off in (("bunch_samples", 1), ("pitch_taps", 0)):
                value = getattr(self, name)
                require(value == off, name, f"{off} without `conditioner_units`", value)
            return self._check_windows()
        require(not self.prediction_windows, "prediction_windows", "none with frames", True)
        require(not self.reads_levels, "likelihood", "a density with frames", self.likelihood)
        require(not self.linear_prediction, "linear_prediction", "off with frames", True)
        require(self.context_layers == 0, "context_layers", "0", self.context_layers)
        require(self.front_width >= bunch, "front_width", f"at least {bunch}", self.front_width)
        whole = self.subframes * bunch
        hop = math.prod(self.upsample_factors)
        require(hop % whole == 0, "upsample_factors", f"a multiple of {whole} in all", hop)

    def _check_windows(self) -> None:
        windows, order = self.prediction_windows, self.prediction_order
        rule = "given together with `prediction_order`"
        require(bool(windows) == bool(order), "prediction_windows", rule, windows)
        if not windows:
            return
        rule = f"longer than `prediction_order`, {order}"
        require(min(windows) > order, "prediction_windows", rule, windows)
        longest = max(windows) - order
        require(self.front_width <= longest, "front_width", f"at most {longest}", self.front_width)
        plain = {"linear_prediction": False, "context_layers": 0, "input_gain": 1}
        for name, only in plain.items():
            value = getattr(self, name)
            require(value == only, name, f"{only} with `prediction_windows`", value)
        needs = "without frames and speakers, and with means and scales"
        bare = not (self.reads_levels or self.feature_channels or self.speakers)
        require(bare, "prediction_windows", needs, windows)

    @property
    def front_inputs(self) -> int:
        """Number of inputs of the first matrix product of a network without `conditioner_units`."""
        if self.reads_levels:
            return self.levels
        windows = len(self.prediction_windows)
        return 2 * self.front_width + 2 * windows if windows else self.front_width

    @property
    def reads_blocks(self) -> bool:
        """Return whether a context stack or `prediction_windows` reads whole past blocks."""
        return bool(self.context_layers or self.prediction_windows)

    @property
    def corrections(self) -> int:
        """Number of outputs that correct the prediction from `prediction_windows`."""
        windows = len(self.prediction_windows)
        return self.front_width + windows - 1 if windows else 0

    @property
    def reads_levels(self) -> bool:
        """Return whether the network reads past levels by an embedding, not as a waveform."""
        return registry.LIKELIHOODS[self.likelihood].is_companded

    @property
    def reads_pitch(self) -> bool:
        """Return whether the network uses F0 and voicing, in the frames or estimated from them."""
        return self.pitch_taps > 0

    @property
    def dilations(self) -> tuple[int, ...]:
        """The dilation of each layer, in samples."""
        cycle = self.layers // self.stacks
        return tuple(2 ** (layer % cycle) for layer in range(self.layers))

    @property
    def receptive_field(self) -> int:
        """Number of past samples that a conditional depends on, without the context stack."""
        layers = (self.filter_width - 1) * sum(self.dilations)
        if self.prediction_windows:
            return layers + max(self.prediction_windows) + self.prediction_block - 1
        if not self.conditioner_units:
            return layers + self.front_width
        return self.bunch_samples * (layers + 1) + self.history_samples + self.prediction_order

    @property
    def longest_period(self) -> int:
        """Longest pitch period that `pitch_taps` can reach, in samples; 0 without pitch taps."""
        return 512 if self.pitch_taps else 0

    @property
    def history_samples(self) -> int:
        """Number of past samples or residuals that the first layer and the head read directly."""
        return max(self.front_width, self.head_width, self.longest_period + self.pitch_taps)

    @property
    def hop_samples(self) -> int:
        """Hop length of the conditioning frames in samples; 1 without a local condition."""
        return math.prod(self.upsample_factors) if self.feature_channels else 1

    @property
    def gate_inputs(self) -> int:
        """Number of channels of the complete condition, [batch, time, gate_inputs]."""
        local = self.condition_channels if self.feature_channels else 0
        if self.conditioner_units:
            local += self.prediction_order + 3
        speaker = (self.speaker_channels or self.speakers) if self.speakers else 0
        return local + speaker + (self.context_channels if self.context_layers else 0)

    @property
    def block_samples(self) -> int:
        """Number of samples read or drawn together; windows and chunks start at its multiples."""
        if self.prediction_windows:
            return self.prediction_block
        return self.context_block_samples if self.context_layers else self.bunch_samples

    @property
    def context_blocks(self) -> int:
        """Number of past blocks in the receptive field of the context stack."""
        return 2**self.context_layers if self.context_layers else 0

    def make_likelihood(self) -> "Distribution":
        """Return the distribution whose parameters the network computes."""
        return registry.make_distribution(
            self.likelihood, self.levels, self.components, self.min_log_scale
        )

    def make_codec(self) -> "Codec":
        """Return the codec between waveforms and the distribution's levels."""
        return registry.make_codec(self.likelihood, self.levels)


KIND = "wavenet"  # in config.json and model.json
Feature = Literal["mel", "f0"]
Padding = Literal["zeros", "reflect"]


@dataclasses.dataclass(frozen=True)
class DataConfig(Checked):
    """Settings of the training data: features, normalisation, clips and augmentation."""

    sample_rate_hz: Count = 24_000
    """Sample rate in Hz; recordings with a different rate are resampled."""
    features: tuple[Feature, ...] = ()
    """Features of the conditioning frames: mel, f0, both (in this order) or none."""
    by_speaker: bool = False
    """Condition on the speaker, who is named in a table or by the folder of the recording."""
    mel_bands: Count = 80
    """Number of mel bands."""
    mel_low_hz: float = 0.0
    """Lower edge of the lowest mel band in Hz."""
    mel_high_hz: float | None = None
    """Upper edge of the highest mel band in Hz; None: half the sample rate."""
    mel_window_samples: int = 1024
    """Window length of the mel spectrogram in samples."""
    mel_padding: Padding = "zeros"
    """Padding beyond the ends of a recording: zeros or reflect."""
    level_db: float | None = None
    """RMS in dB of full scale to which the median recording is amplified; all recordings get the
    same gain, except that a lower one is used where the peak would clip. None: no gain."""
    clip_samples: Count = 7680
    """Length of a training clip in samples, a multiple of the hop."""
    left_samples: int = 0
    """Number of samples before each clip that the network reads but that are not in the loss; a
    multiple of the hop."""
    batch_size: Count = 4
    """Number of clips per batch."""
    augment_gain_db: float = 0.0
    """Amplify each clip by a random gain between minus and plus this many dB."""
    augment_polarity: bool = False
    """Negate each clip with probability 1/2."""
    augment_speeds: tuple[float, ...] = ()
    """Speeds at which every training recording is added once more, such as 0.97 1.03. Pitch and
    tempo change together; each speed needs as much memory as the recordings."""
    min_seconds: NonNegative = 0.3
    """Minimum length of a recording in seconds; shorter ones are left out."""
    dev_share: Share = 0.05
    """Share of the files that are assigned to dev if the folder has no train/dev split."""

    def __post_init__(self) -> None:
        super().__post_init__()
        speeds = self.augment_speeds
        is_near = all(0.5 <= speed <= 2.0 for speed in speeds)
        require(is_near, "augment_speeds", "between 0.5 and 2", speeds)
        known = self.features in ((), ("mel",), ("f0",), ("mel", "f0"))
        rule = "mel, f0, mel f0 (in this order) or nothing"
        require(known, "features", rule, " ".join(self.features))

    def mel(self, hop_samples: int) -> MelConvention | None:
        """Return the convention of the mel frames, or None without mel frames."""
        if "mel" not in self.features:
            return None
        return MelConvention(
            self.sample_rate_hz,
            hop_samples,
            self.mel_window_samples,
            self.mel_window_samples,
            self.mel_bands,
            self.mel_low_hz,
            self.mel_high_hz,
            padding=self.mel_padding,
        )

    def pitch(self, hop_samples: int) -> PitchConvention | None:
        """Return the convention of the F0 frames, or None without F0 frames."""
        if "f0" not in self.features:
            return None
        return PitchConvention(self.sample_rate_hz, hop_samples)

    @property
    def feature_channels(self) -> int:
        """Number of channels of a conditioning frame."""
        return ("mel" in self.features) * self.mel_bands + ("f0" in self.features) * 2


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """The complete configuration of a training run."""

    network: WaveNetConfig = dataclasses.field(default_factory=WaveNetConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    loop: LoopConfig = dataclasses.field(default_factory=LoopConfig)
    pitch_steps: int = 2_000
    """Number of training steps of the network that estimates F0 from mel frames, which is trained
    first and then fixed; used for `pitch_taps` without F0 frames."""
    start_from: str | None = None
    """Run directory, model folder or shipped model (`shipped-teacher`) of the same architecture,
    whose weights initialise the run. None: random weights."""
    seed: int = 0
    """Random seed of the initial weights and the choice of clips."""

    def resolve_settings(self, num_speakers: int) -> "TrainConfig":
        """Return the configuration with `feature_channels` and `speakers` set to match the data.

        Raises:
          ValueError: If the network is configured for different inputs, the clip length is not a
            multiple of the hop, or the settings of the frames are invalid.
        """
        features = self.data.feature_channels
        speakers = num_speakers if self.data.by_speaker else 0
        for name, value in (("feature_channels", features), ("speakers", speakers)):
            given, rule = getattr(self.network, name), f"that of the data, {value} (or 0)"
            require(given in (0, value), f"network.{name}", rule, given)
        network = dataclasses.replace(self.network, feature_channels=features, speakers=speakers)
        hop = network.hop_samples
        for name in ("clip_samples", "left_samples"):
            samples = getattr(self.data, name)
            require(samples % hop == 0, name, f"a multiple of the hop, {hop}", samples)
        self.data.mel(network.hop_samples)
        self.data.pitch(network.hop_samples)
        return dataclasses.replace(self, network=network)


PRESETS = read_presets(Path(__file__).with_name("presets.toml"), TrainConfig)


def config_from(stored: dict) -> TrainConfig:
    """Return the configuration stored in a config.json."""
    return stored_config(TrainConfig, stored)
