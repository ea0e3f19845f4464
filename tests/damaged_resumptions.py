"""Resumptions from damaged checkpoints: `python damaged_resumptions.py RUN FIRST COUNT`.

RUN is of `onepass train multiscale-smoke` and has two checkpoints; `words.json` next to it is its
command. COUNT copies, numbered from FIRST, have the newest cut short or partly zeroed, each in
another way, and are trained to step 3. The exit status is 0 where all did as they should.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np

import onepass
from onepass.foundation.run_directory import RunDirectory

STEPS = 3  # that a copy ends at


def damage(path: Path, number: int) -> None:
    """Cuts a file short where the number is even, else zeroes a part of it."""
    draws = np.random.default_rng(number)
    content = bytearray(path.read_bytes())
    first, last = sorted(int(edge) for edge in draws.integers(0, len(content), 2))
    if number % 2 == 0:
        content = content[:first]
    else:
        content[first : last + 1] = bytes(last + 1 - first)
    path.write_bytes(content)


def resume(run: Path, copy: Path, number: int) -> None:
    """Trains a copy of a run on, whose newest checkpoint is damaged; AssertionError if it fails."""
    shutil.copytree(run, copy)
    older, newest = RunDirectory.open(copy).checkpoints().steps()
    path = RunDirectory.open(copy).checkpoints().path(newest)
    whole = path.read_bytes()
    damage(path, number)
    is_damaged = path.read_bytes() != whole  # zeros may have been there
    words = json.loads((run.parent / "words.json").read_text())
    assert onepass.main([*words, "--workdir", str(copy), "--loop.num-steps", str(STEPS)]) == 0
    assert RunDirectory.open(copy).checkpoints().steps()[-1] == STEPS
    assert path.with_suffix(".damaged").exists() is is_damaged, (number, older)
    shutil.rmtree(copy)


if __name__ == "__main__":
    base, first, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for each in range(first, first + count):
        resume(base, base.parent / f"copy-{each}", each)
        print(f"resumed {each}", flush=True)
