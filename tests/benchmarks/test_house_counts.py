"""The counts of the source are what they say."""

import subprocess

import pytest
from processes import ROOT

from benchmarks import house

pytestmark = pytest.mark.integration

SETUP = """from setuptools import setup
setup(name="a", version="1", packages=["a"], package_data={"a": ["*.txt"]})
"""


@pytest.fixture
def checkout(tmp_path):
    """A repository of one package, one test and a file that git does not track."""
    files = {
        "setup.py": SETUP,
        "a/__init__.py": "x = 1\ny = 2\n",
        "a/note.txt": 'what stands beside it\nBeside, and besides\n`--beside` and "beside"\n',
        "serving/a.py": "z = 1\n",
        "tests/test_a.py": "t = 1\n" * 5,
        "untracked.py": "u = 1\n" * 9,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", *set(files) - {"untracked.py"}], cwd=tmp_path, check=True)
    return tmp_path


def test_lines_are_counted_by_folder_and_only_of_tracked_files(checkout, monkeypatch):
    monkeypatch.setattr(house, "imports", lambda root: {})
    found = {name: value for name, value, _ in house.counts(checkout)}
    assert found["lines of Python outside tests and benchmarks"] == 2 + 2 + 1
    assert found["lines of tests"] == 5 and found["lines of serving"] == 1
    assert found['lines with the word "beside"'] == 2


def test_the_wheel_has_packages_and_their_data(checkout):
    names = {path.split("lib/")[1] for path in house.wheel_files(checkout)}
    assert names == {"a/__init__.py", "a/note.txt"}


def test_the_bytes_of_the_wheel_are_those_of_its_files_deflated(checkout):
    before = house.wheel_bytes(checkout)
    (checkout / "a/note.txt").write_bytes(bytes(100_000))
    assert 0 < before < 200 and before < house.wheel_bytes(checkout) < 500


def test_the_wheel_leaves_the_models_of_the_source_out_and_fits_a_package_index():
    names = [path.split("lib/")[1] for path in house.wheel_files(ROOT)]
    assert not [name for name in names if "objects" in name]
    assert {f"pixelcnn/shipped/{each}" for each in ("trashnet_MIT.txt", "emoji_dev.npz")} < {*names}
    assert house.wheel_bytes(ROOT) < 95_000_000


@pytest.mark.parametrize(
    ("edges", "count"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, 0),
        ({"a": {"b"}, "b": {"a"}}, 1),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": {"d"}}, 2),
    ],
)
def test_a_circle_is_counted_once(edges, count):
    assert house.circle_count(edges) == count
    assert edges["a"] == {"b"}


def test_imports_for_type_checkers_are_counted():
    pytest.importorskip("grimp")
    assert "onepass.shipped" in house.imports(ROOT)["onepass.models"]
