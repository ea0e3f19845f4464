"""Models are served by confined processes wherever the packages lie, and import nothing there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import image_bundles
import made_once
import own_models
import pytest
import sound_bundles
from processes import ROOT

import onepass
from onepass.foundation.model_folders import SHIPPED

pytestmark = pytest.mark.integration

SCRIPT = ROOT / "tests" / "confined_models.py"
TINY = {
    "student": lambda: sound_bundles.bundle_folder("plain"),
    "student of frames": lambda: sound_bundles.bundle_folder("residual"),
    "teacher": lambda: sound_bundles.bundle_folder("softmax, frames"),
    "images": lambda: image_bundles.bundle_folder("pixelcnn"),
    "multiscale images": lambda: image_bundles.bundle_folder("multiscale"),
    "network of one's own": lambda: own_models.bundle_folder("own"),
}


def plain():
    """A folder with the packages as an installed wheel has them, and nothing of the checkout."""

    def make(path):
        words = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(path)]
        subprocess.run(words, cwd=ROOT, check=True)
        (path / "onepass-0.dist-info").mkdir()

    return made_once.once("plain_installation", make)


def served(installation, tmp_path, folders, backend="auto"):
    """Return what the bundles' processes did in a Python that knows only that installation."""
    # Without the folder of tests, where `serving` would be a package of its own.
    script = shutil.copy(SCRIPT, tmp_path)
    known = [str(tmp_path)] + [str(plain())] * (installation == "plain")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(known)}
    words = [sys.executable, script, backend, *map(str, folders)]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    home = plain() if installation == "plain" else ROOT
    assert [Path(each["home"]) for each in found.values()] == [home.resolve()] * len(folders)
    return found


@pytest.mark.parametrize("installation", ["editable", "plain"])
def test_confined_processes_of_every_kind_read_only_what_they_may_and_import_nothing(
    installation, tmp_path
):
    folders = {name: Path(make()) for name, make in TINY.items()}
    found = served(installation, tmp_path, folders.values())
    for name, folder in folders.items():
        seen = found[str(folder)]
        assert seen["engine"] == ("numba" if name.startswith("student") else "tensorflow")
        assert (seen["imported"], seen["outside"]) == ([], []), name


def test_the_engine_of_a_teacher_is_imported_before_its_process_is_confined(tmp_path):
    folder = sound_bundles.bundle_folder("softmax, frames")
    (seen,) = served("editable", tmp_path, [folder], "numba").values()
    assert (seen["engine"], seen["imported"], seen["outside"]) == ("numba", [], [])


# Models that no bundle has a program for, and the words with which `export` says so: the first is
# for `compress` and `evaluate`, the second enlarges photographs of any shape in tiles.
NOT_EXPORTED = {
    "shipped-speech-16k": "A bundle streams the sound of",
    "shipped-upsample": "which no bundle has a program for",
}


@pytest.mark.slow
@pytest.mark.parametrize("installation", ["editable", "plain"])
@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in NOT_EXPORTED])
def test_shipped_models_are_served_by_confined_processes(name, installation, tmp_path):
    def make(path):
        assert onepass.main(["export", name, "--out", str(path)]) == 0

    folder = made_once.once(f"shipped/{name}/1", make)
    (seen,) = served(installation, tmp_path, [folder]).values()
    assert (seen["imported"], seen["outside"]) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_EXPORTED)
def test_a_model_without_a_program_for_bundles_is_refused_and_writes_nothing(
    name, tmp_path, capsys
):
    assert onepass.main(["export", name, "--out", str(tmp_path / "1")]) == 2
    assert NOT_EXPORTED[name] in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_student_is_loaded_without_planning_and_training(tmp_path):
    code = "import sys; from distill.model import load; load(sys.argv[1]); print(*sys.modules)"
    words = [sys.executable, "-c", code, str(sound_bundles.model_folder("residual"))]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    names = done.stdout.split()
    strangers = ("onepass.planning", "onepass.replicator.strategies", "distill.training")
    assert "distill.student" in names
    assert not [name for name in names if name.startswith((*strangers, "wavenet.training"))]
    training = "onepass.replicator.training."
    known = {name.removeprefix(training) for name in names if name.startswith(training)}
    assert known == {"config"}
