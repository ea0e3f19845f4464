"""The options of `onepass sample` for models of sound."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclasses.dataclass(frozen=True)
class SampleArguments:
    """Sounds of a trained model: WAV files and spectrograms."""

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """Run directory, model folder, `shipped` (a student), `shipped-teacher` or
    `shipped-two-voices`."""
    out: Path
    """Folder for the WAV and PNG files, NAME_SEED_ROW, named after the recording, mel or text, else
    `sample`; created if missing."""
    overwrite: bool = False
    """Replace existing files of these names."""
    num: int = 1
    """Sounds, from the rows 0, 1, ... of the seed."""
    seed: int = 0
    """Seed of the noise: the same seed gives the same sounds."""
    seconds: float | None = None
    """Length of a sound; None: that of the recording or mel, or 3 s for a model without frames."""
    recording: Path | None = None
    """Recording to resynthesise from its frames (mel, F0), at its level; None: a shipped dev
    recording."""
    mel: Path | None = None
    """Mel frames to synthesise from instead: an npy file [frames, bands], [bands, frames] or
    [1, bands, frames] of logarithms, by the convention in the model's model.json."""
    text: str | None = None
    """US English text to synthesise instead, for a student that reads the mel frames of the shipped
    text front end; needs espeak-ng."""
    speed: float = 1.0
    """Speed of the text relative to the voice's recordings, 0.25 to 4."""
    refine: int | None = None
    """Passes that bring a student's magnitudes to the mel: better for recordings and for text;
    each adds one window of look-ahead. None: what the model declares, 0 for `--mel`."""
    force: bool = False
    """Synthesise a mel even if it does not look like those of the model's training."""
    prime_seconds: float = 0.0
    """Seconds of the recording to begin with and continue."""
    speaker: str | None = None
    """Name of a speaker, for a model with speakers."""
    temperature: float | None = None
    """1 samples the model; less comes closer to its mode. None: what the model declares, else 1."""
    draft: Path | None = None
    """Student that drafts for a WaveNet with a logistic or Gaussian output, or `shipped`: passes
    over many samples, of exactly the WaveNet's distribution; for an accelerator."""
    backend: Literal["auto", "numba", "xla", "fixed-point", "tensorflow", "naive"] = "auto"
    """Sampler; all give the same sound. A WaveNet has numba, xla, fixed-point (passes over many
    samples, for an accelerator) and naive, a student numba and tensorflow."""
