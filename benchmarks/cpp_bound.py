"""The C++ bound: autoregressive generation on one core, compiled here with what is found.

The program (`ar_limit.cpp`) reads each weight once per step for all rows of the batch. It has no
condition and only a stand-in for the draw, so it does a little less than a sampler must.
"""

import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from wavenet.config import WaveNetConfig

SOURCE = Path(__file__).with_name("ar_limit.cpp")


class Shape(NamedTuple):
    """Sizes of a network in the order of the program's arguments."""

    layers: int
    stacks: int
    width: int
    residual: int
    gate: int
    skip: int
    outputs: int
    bunch: int = 1
    """Samples per step of the layers."""
    head: int = 0
    """Units of the head that draws each of them; 0: WaveNet's head."""
    recent: int = 0
    """Past numbers that this head reads."""


_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-ffast-math")


def shape_of(config: WaveNetConfig) -> Shape:
    """Return the sizes of a configuration's network."""
    head, recent = 0, 0
    if config.conditioner_units:
        head, recent = config.head_channels, 2 * config.head_width + config.pitch_taps
    return Shape(
        config.layers,
        config.stacks,
        config.filter_width,
        config.residual_channels,
        config.gate_channels,
        config.skip_channels,
        config.make_likelihood().num_parameters,
        config.bunch_samples,
        head,
        recent,
    )


def samples_per_second(config: WaveNetConfig, batch: int, steps: int) -> float:
    """Return the samples per second of the C++ on one core, all rows together.

    Args:
      config: of the network; channel counts must be multiples of 64.
      batch: 1 or a multiple of 4.
      steps: to run.

    Raises:
      ValueError: the C++ does not run such a batch.
      FileNotFoundError: no C++ compiler was found.
      RuntimeError: the compiler failed.
    """
    if batch < 1 or (batch != 1 and batch % 4):
        raise ValueError(f"`batch` must be 1 or a multiple of 4, got {batch}.")
    command = [_program(), *shape_of(config), batch, max(100, steps)]
    answer = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)
    return json.loads(answer.stdout)["samples_per_second"]


def find_compiler() -> str:
    """Return the path of the C++ compiler; raise FileNotFoundError if there is none."""
    names = (os.environ["CXX"],) if os.environ.get("CXX") else _COMPILERS
    for name in names:
        if path := shutil.which(name):
            return path
    raise FileNotFoundError(
        f"no C++ compiler was found (looked for {', '.join(names)}): install g++ or set CXX."
    )


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="onepass-bound-")


@functools.cache
def _program() -> Path:
    """Compile the program; its folder is removed when this process ends."""
    program = Path(_folder().name) / "ar_limit"
    compiler = find_compiler()
    # Not every compiler accepts this processor, or the flag.
    for flags in ((*_FLAGS, "-march=native"), _FLAGS):
        command = [compiler, *flags, str(SOURCE), "-o", str(program)]
        answer = subprocess.run(command, check=False, capture_output=True, text=True)
        if answer.returncode == 0:
            return program
    raise RuntimeError(f"{compiler} could not compile ar_limit.cpp:\n{answer.stderr}")
