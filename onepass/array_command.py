"""The verbs `sample` and `evaluate` for models of users.

Their implementation is imported once their options are read.
"""

import dataclasses
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

import tyro

from serving.client.prompt_options import ConditionWords, PromptOptions

MODEL = tyro.conf.arg(metavar="MODEL")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleArguments(PromptOptions):
    """Sample a model that `onepass.save` or `onepass.export` wrote.

    A model of sound gives WAV files, one of grey or colour images PNG files (16 bits beyond 256
    levels), any other one npy file.
    """

    model: Annotated[tyro.conf.Positional[Path], MODEL]
    """Folder of the model, or a bundle NAME/VERSION."""
    out: Path
    """Folder for the files, sample_SEED_ROW or sample_SEED.npy; created if missing."""
    length: tuple[int, ...]
    """Elements of a sequence; or height, width and channels of an image."""
    num: int = 1
    """Number of samples: rows 0, 1, ... of the seed."""
    seed: int = 0
    """Seed of the noise: the same seed gives the same samples."""
    method: Literal["auto", "cached", "fixed-point", "naive"] = "auto"
    """Sampler of a saved model; all return the same samples."""
    npy: bool = False
    """Always write an npy file."""
    overwrite: bool = False
    """Replace existing files of these names."""
    trust: bool = False
    """Run the program in a folder of `onepass.save` without the scan, with your rights."""


@dataclasses.dataclass(frozen=True)
class EvaluateArguments:
    """Measure the bits per element that a model needs for data, with a 95% interval over rows."""

    model: Annotated[tyro.conf.Positional[Path], MODEL]
    """Folder of the model, or a bundle NAME/VERSION."""
    data: Path
    """npy file [num, time] or [num, height, width, channels]; or a folder of WAV or FLAC files, for
    a model of sound, or of PNG or TIFF files of one size, for a model of images."""
    condition: ConditionWords = ()
    """FILE.npy [num, ...], or NUMBER for all rows, for a model with a condition; with several,
    NAME=FILE.npy or NAME=NUMBER for each, the option repeated."""
    batch: int = 16
    """Rows computed together."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print the figures as JSON."""
    trust: bool = False
    """Run the program in a folder of `onepass.save` without the scan, with your rights."""


def run_sample(arguments: list[str], parse: Callable) -> int:
    """Parse the rest of `onepass sample MODEL ...` and write samples; return the exit status."""
    given = parse(SampleArguments, arguments, "onepass sample")
    return importlib.import_module("onepass.array_runs").sample(given)


def run_evaluate(arguments: list[str], parse: Callable) -> int:
    """Parse the rest of `onepass evaluate MODEL ...` and print figures; return the exit status."""
    given = parse(EvaluateArguments, arguments, "onepass evaluate")
    return importlib.import_module("onepass.array_runs").evaluate(given)
