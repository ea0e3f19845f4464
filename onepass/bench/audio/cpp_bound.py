"""The C++ bound: autoregressive generation on one core, compiled here with what is found.

The program (`ar_limit.cpp`) reads each weight once a step for all rows of the batch. It has no
condition and only a stand-in for the draw, so it does a little less than a sampler must.
"""

import functools
import json
import os
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import NamedTuple


class Shape(NamedTuple):
    """The sizes of a network, in the order in which the program takes them."""

    layers: int
    stacks: int
    width: int
    residual: int
    gate: int
    skip: int
    outputs: int
    bunch: int = 1
    """Samples that a step of the layers stands for."""
    head: int = 0
    """Units of the head that draws each of them; 0: WaveNet's head."""
    recent: int = 0
    """Past numbers that this head reads."""


SHAPES = {
    "a": Shape(30, 3, 2, 64, 64, 128, 30),
    "b": Shape(24, 4, 3, 128, 128, 128, 2),
    "p": Shape(30, 3, 3, 64, 64, 128, 30),
    "v": Shape(8, 1, 2, 128, 128, 128, 15, 4, 64, 26),
}
"""The networks of onepass/bench/audio/command.py."""

_STEPS = {"a": 4000, "b": 1000, "p": 3000, "v": 4000}  # for a row alone; about a sixth of a second
_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++17", "-O3", "-ffast-math")


def samples_per_second(name: str, batch: int) -> float:
    """Samples a second of the C++ on one core, all rows together.

    Args:
      name: a key of SHAPES.
      batch: 1 or a multiple of 4.
    Raises:
      ValueError: there is no such network, or the C++ does not run such a batch.
      FileNotFoundError: no C++ compiler was found.
      RuntimeError: the compiler failed.
    """
    if name not in SHAPES:
        raise ValueError(f"`name` must be one of {', '.join(SHAPES)}, got {name}.")
    if batch < 1 or (batch != 1 and batch % 4):
        raise ValueError(f"`batch` must be 1 or a multiple of 4, got {batch}.")
    command = [_program(), *SHAPES[name], batch, max(100, _STEPS[name] // batch)]
    answer = subprocess.run([*map(str, command)], check=True, capture_output=True, text=True)
    return json.loads(answer.stdout)["samples_per_second"]


def find_compiler() -> str:
    """The path of the C++ compiler; raises FileNotFoundError if there is none."""
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
    """The compiled program; its folder goes when this process ends."""
    program = Path(_folder().name) / "ar_limit"
    source = resources.files("onepass.bench.audio") / "ar_limit.cpp"
    compiler = find_compiler()
    with resources.as_file(source) as path:
        # Not every compiler knows this processor, or the flag.
        for flags in ((*_FLAGS, "-march=native"), _FLAGS):
            command = [compiler, *flags, str(path), "-o", str(program)]
            answer = subprocess.run(command, check=False, capture_output=True, text=True)
            if answer.returncode == 0:
                return program
    raise RuntimeError(f"{compiler} could not compile ar_limit.cpp:\n{answer.stderr}")
