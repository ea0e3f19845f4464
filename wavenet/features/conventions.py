"""Conventions that define the conditioning frames; importable without NumPy."""

import dataclasses
from typing import Any, Literal

from onepass.foundation.rules import Checked, Count, Positive, UserError, require

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
