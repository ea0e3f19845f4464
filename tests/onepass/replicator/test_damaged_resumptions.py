"""A hundred resumptions from damaged checkpoints, which no process may die of."""

import shutil

import image_runs
import numpy as np
import pytest

import onepass
from onepass.foundation.run_directory import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.four_devices("tensorflow"), pytest.mark.timeout(3600)]
STEPS = 3  # that a copy ends at
SMALL = (
    *("--conditioning.kind", "class", "--data.batch-size", "4"),
    *("--loop.evaluate-every-steps", "1000000", "--loop.save-every-minutes", "1000"),
)


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Trains in a folder up to a step."""
    data = tmp_path_factory.mktemp("data")
    for seed, split in enumerate(("train", "dev")):
        np.savez(data / f"toy_{split}.npz", **image_runs.toys(8, seed))

    def train(folder, steps):
        words = ["train", "multiscale-smoke", "--data", str(data), *SMALL]
        assert onepass.main([*words, "--workdir", str(folder), "--loop.num-steps", str(steps)]) == 0
        return RunDirectory.open(folder).checkpoints()

    return train


@pytest.fixture(scope="module")
def run(train, tmp_path_factory):
    """A run of two checkpoints, at steps 1 and 2."""
    folder = tmp_path_factory.mktemp("damaged") / "run"
    for steps in (1, 2):
        train(folder, steps)
    return folder


def damaged(content, number):
    """Return the content cut short where the number is even, else with a part of zeros."""
    draws = np.random.default_rng(number)
    first, last = sorted(int(edge) for edge in draws.integers(0, len(content), 2))
    if number % 2 == 0:
        return content[:first]
    return content[:first] + bytes(last + 1 - first) + content[last + 1 :]


@pytest.mark.parametrize("number", range(100))
def test_a_run_whose_newest_checkpoint_is_damaged_goes_on_from_the_one_before(
    train, run, tmp_path, number
):
    shutil.copytree(run, tmp_path / "copy")
    checkpoints = RunDirectory.open(tmp_path / "copy").checkpoints()
    path = checkpoints.path(checkpoints.steps()[-1])
    whole = path.read_bytes()
    path.write_bytes(damaged(whole, number))
    is_damaged = path.read_bytes() != whole  # zeros may have been there
    assert train(tmp_path / "copy", STEPS).steps()[-1] == STEPS
    assert path.with_suffix(".damaged").exists() is is_damaged
    shutil.rmtree(tmp_path / "copy")
