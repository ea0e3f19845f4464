"""A hundred resumptions from damaged checkpoints, each process under faulthandler."""

import json
import os
import subprocess
import sys

import image_runs
import numpy as np
import pytest
from processes import ROOT, SETTINGS

import onepass

COUNT, A_PROCESS = 100, 10
PROGRAM = ROOT / "tests" / "damaged_resumptions.py"
SMALL = (
    *("--conditioning.kind", "class", "--data.batch-size", "4"),
    *("--loop.evaluate-every-steps", "1000000", "--loop.save-every-minutes", "1000"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two checkpoints, at steps 1 and 2."""
    folder = tmp_path_factory.mktemp("damaged")
    (data := folder / "data").mkdir()
    for seed, split in enumerate(("train", "dev")):
        np.savez(data / f"toy_{split}.npz", **image_runs.toys(8, seed))
    words = ["train", "multiscale-smoke", "--data", str(data), *SMALL]
    (folder / "words.json").write_text(json.dumps(words))
    for steps in ("1", "2"):
        more = ["--workdir", str(folder / "run"), "--loop.num-steps", steps]
        assert onepass.main([*words, *more]) == 0
    return folder / "run"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, COUNT, A_PROCESS))
def test_no_process_dies_of_damaged_checkpoints(run, first):
    words = [sys.executable, "-X", "faulthandler", PROGRAM, run, str(first), str(A_PROCESS)]
    done = subprocess.run(words, env={**os.environ, **SETTINGS}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    assert f"resumed {first + A_PROCESS - 1}\n" in done.stdout
