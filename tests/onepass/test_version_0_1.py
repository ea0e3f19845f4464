"""Files of version 0.1: runs resume, bundles and weights give the same results.

version_0_1.zip was made by that version (commit e017454): of every trainer of strategy_runs.py a
run after 4 steps, the weights that the same version came to after 8, and bundles of two of these
runs with what they gave.
"""

import io
import os
import subprocess
import sys
import tarfile
import zipfile

import numpy as np
import pytest
import strategy_runs
from processes import ROOT, TensorflowProcess
from runs import newest

import onepass

COMMIT = "e017454"
RECORDED = ROOT / "tests" / "version_0_1.zip"
RUNS = ("wavenet", "pixelcnn", "multiscale", "plain")
CROPPED = "multiscale"
SECONDS = 540
# The same program for both versions: what the weights in FOLDER give, written to FILE.
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from distill.model import load as load_sound
from pixelcnn.model import load as load_images

folder, file = Path(sys.argv[1]), sys.argv[2]
found = {}
for path in sorted(folder.glob("wavenet/shipped/*-16k")):
    model = load_sound(path)
    frames = np.random.default_rng(0).uniform(-9.0, -3.0, [12, 80]).astype(np.float32)
    found[path.name] = model.generate(frames, seed=3, num=2)
for path in sorted(folder.glob("pixelcnn/shipped/*-*-*")):
    found[path.name] = load_images(path).generate([0, 2], seed=3, num=2)
np.savez(file, **found)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder with what version 0.1 wrote, and the data that its runs were made of."""
    folder = tmp_path_factory.mktemp("version_0_1")
    with zipfile.ZipFile(RECORDED) as archive:
        archive.extractall(folder)
    strategy_runs.make_sounds(folder)
    strategy_runs.make_images(folder)
    return folder


@pytest.fixture(scope="module")
def resumed(recorded):
    """The same folder once this version has gone on with every run to its step 8."""
    words = [f'runs/{name}={{"num_steps": 8}}' for name in RUNS]
    script = ROOT / "tests" / "strategy_runs.py"
    process = TensorflowProcess(script, recorded / "log", "single", recorded, *words)
    try:
        assert process.ended(SECONDS) == 0, process.output()[-3000:]
    finally:
        process.kill()
    return recorded


@pytest.mark.integration
def test_a_run_of_random_crops_goes_on_with_finite_weights(resumed):
    found = newest(resumed / "runs" / CROPPED)  # its crops weigh every pixel alike since then
    assert int(found["step"]) == 8
    assert all(np.isfinite(value).all() for value in found.values())


@pytest.mark.integration
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [name for name in RUNS if name != CROPPED])
def test_a_run_goes_on_to_the_weights_it_would_have_had(resumed, name):
    found = newest(resumed / "runs" / name)
    assert int(found["step"]) == 8
    with np.load(resumed / "after" / f"{name}.npz") as expected:
        assert {f"weights/{key}" for key in expected.files} <= found.keys()
        for key in expected.files:
            bound = 1e-4 * np.max(np.abs(expected[key])) + 1e-7
            np.testing.assert_allclose(
                found[f"weights/{key}"], expected[key], rtol=0.0, atol=bound, err_msg=key
            )


def test_a_run_is_refused_in_one_line_that_says_what_to_do(recorded, mistake):
    words = ["train", "wavenet-smoke", "--data", recorded / "sounds", "--data.min-seconds", 0.05]
    line = mistake(*words, "--workdir", recorded / "runs" / "wavenet")
    assert "holds a run of another configuration: data.batch_size is 4 there, 2 here; " in line
    assert line.endswith("Choose another --workdir.")


@pytest.mark.parametrize("name", ["pixelcnn", "plain"])
def test_a_bundle_gives_what_it_gave(recorded, name):
    model = onepass.load(recorded / "models" / name)
    expected = np.load(recorded / "after" / f"{name}_bundle.npy")
    if name == "pixelcnn":
        np.testing.assert_array_equal(model.generate(1, seed=3, num=2), expected)
    else:
        frames = np.random.default_rng(0).uniform(-3.0, 3.0, [4, 8]).astype(np.float32)
        found = model.generate(frames, seed=3, num=2, speaker="bob")
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=2**-15)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_weights_that_were_shipped_give_the_same_to_the_last_bit(tmp_path):
    git = ["git", "-C", str(ROOT), "archive", COMMIT, "likelihoods", "replicator"]
    done = subprocess.run([*git, "wavenet", "pixelcnn", "distill"], capture_output=True)
    if done.returncode:
        pytest.skip("the history of the repository is not here")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(tmp_path / "before", filter="data")
    given = {}
    for place in (tmp_path / "before", ROOT):
        file = tmp_path / f"{place.name}.npz"
        environment = {**os.environ, "PYTHONPATH": str(place), "CUDA_VISIBLE_DEVICES": ""}
        words = [sys.executable, "-c", PROGRAM, tmp_path / "before", file]
        subprocess.run(words, env=environment, cwd=tmp_path, check=True, timeout=SECONDS)
        given[place] = dict(np.load(file))
    before, now = given.values()
    assert len(before) == 5 and before.keys() == now.keys()
    for name, expected in before.items():
        np.testing.assert_array_equal(now[name], expected, err_msg=name)
