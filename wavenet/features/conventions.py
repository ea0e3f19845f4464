"""The conventions that determine every number in a frame; read without NumPy by configurations."""

import dataclasses
from typing import Any

from foundation.errors import UserError

FIXED = {
    "window": "periodic hann",
    "spectrum": "magnitude",
    "frame_centre": "frame * hop + hop / 2",
}
CHOICES = {
    "scale": ("slaney", "htk"),
    "normalisation": ("area", "peak"),
    "padding": ("zeros", "reflect"),
    "log": ("natural", "log10"),
}
METHODS = ("dio", "harvest")


@dataclasses.dataclass(frozen=True)
class MelConvention:
    """The definition of a mel frame.

    Frame f is the Hann-windowed magnitude spectrum around sample f * hop + hop / 2, the middle of
    the hop_samples samples that it describes; there are ceil(samples / hop) frames. Band b is a
    triangle over the spectrum's bins between mel points b, b + 1, b + 2 of bands + 2 equally spaced
    ones. A value is log(max(band, floor)). With "reflect", 22,050 Hz, hop 256, window and FFT 1024,
    80 bands and 0 to 8,000 Hz these are the features of public HiFi-GAN vocoders.

    Attributes:
      sample_rate_hz: sample rate of the sound.
      hop_samples: distance between two frames, in samples.
      window_samples: length of the Hann window, in samples.
      fft_size: length of the Fourier transform, in samples.
      bands: number of bands.
      low_hz: the lower end of the lowest triangle.
      high_hz: the upper end of the highest triangle; None: half the sample rate.
      floor: least band magnitude; a full-scale sine reaches about window_samples / 4 times the
        filter's weight.
      log: logarithm of a value, "natural" or "log10".
      scale: the mel scale, "slaney" (linear below 1 kHz) or "htk" (2595 log10(1 + f / 700)).
      normalisation: "area" for triangles of area one in Hz, or "peak" for height one.
      padding: samples beyond the ends of the sound, "zeros" or "reflect".
    """

    sample_rate_hz: int = 24000
    hop_samples: int = 256
    window_samples: int = 1024
    fft_size: int = 1024
    bands: int = 80
    low_hz: float = 0.0
    high_hz: float | None = None
    floor: float = 1e-5
    log: str = "natural"
    scale: str = "slaney"
    normalisation: str = "area"
    padding: str = "zeros"

    def __post_init__(self) -> None:
        for name in ("sample_rate_hz", "hop_samples", "bands"):
            _at_least(name, getattr(self, name), 1)
        _at_least("window_samples", self.window_samples, self.hop_samples)
        _at_least("fft_size", self.fft_size, self.window_samples)
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise UserError(f'`{name}` must be one of {choices}, got "{getattr(self, name)}".')
        if not 0.0 < self.floor < 1.0:
            raise UserError(f"`floor` must be above 0 and below 1, got {self.floor}.")
        if not 0.0 <= self.low_hz < self.top_hz <= self.sample_rate_hz / 2:
            raise UserError(
                f"`low_hz` and `high_hz` must satisfy 0 <= low_hz < high_hz <= "
                f"{self.sample_rate_hz / 2}, got {self.low_hz} and {self.top_hz}."
            )

    @property
    def top_hz(self) -> float:
        """The upper end of the highest band in Hz."""
        return self.sample_rate_hz / 2 if self.high_hz is None else self.high_hz

    @property
    def silence(self) -> float:
        """The value of every band in digital silence: the logarithm of the floor."""
        import numpy as np  # to the last bit what the frames of silence are

        return float((np.log if self.log == "natural" else np.log10)(np.array(self.floor)))

    def to_dict(self) -> dict[str, Any]:
        """Return every number and rule of the convention, for a JSON file."""
        return {**dataclasses.asdict(self), "high_hz": self.top_hz, **FIXED}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "MelConvention":
        """Return the convention that `to_dict` wrote.

        Raises:
          ValueError: this version does not compute the convention.
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
class PitchConvention:
    """The definition of a pitch frame: [log2(f0 / reference_hz), voiced as 0 or 1].

    Frame f is centred on sample f * hop + hop / 2. The first channel is interpolated through
    unvoiced frames and constant before the first and after the last voiced one; it is 0 in a
    recording without a voiced frame. It needs no statistics of the corpus.

    Attributes:
      sample_rate_hz: sample rate of the sound.
      hop_samples: distance between two frames, in samples.
      low_hz: lowest F0 searched.
      high_hz: highest F0 searched.
      method: "dio" (with StoneMask, 120 times real time) or "harvest" (more reliable, 6 times real
        time).
      reference_hz: the F0 whose value is 0.
    """

    sample_rate_hz: int = 24000
    hop_samples: int = 256
    low_hz: float = 60.0
    high_hz: float = 600.0
    method: str = "dio"
    reference_hz: float = 200.0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(f'`method` must be one of {METHODS}, got "{self.method}".')
        if not 0.0 < self.low_hz < self.high_hz < self.sample_rate_hz / 2:
            raise UserError(
                f"`low_hz` and `high_hz` must satisfy 0 < low_hz < high_hz < "
                f"{self.sample_rate_hz / 2}, got {self.low_hz} and {self.high_hz}."
            )
        if self.hop_samples < 1 or not self.reference_hz > 0.0:
            raise UserError(
                f"`hop_samples` must be at least 1 and `reference_hz` above 0, "
                f"got {self.hop_samples} and {self.reference_hz}."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return every number of the convention, for a JSON file and `PitchConvention(**d)`."""
        return dataclasses.asdict(self)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UserError(f"`{name}` must be at least {least}, got {value}.")
