"""A quick test starts no process of Python, and a run ends when one of its processes dies."""

import subprocess
import sys

import pytest
import tiers
from processes import ROOT

CONFTEST = """
import pytest, tiers

def pytest_configure(config):
    config.option.markexpr = tiers.refined_selection(config.option.markexpr)
    config.pluginmanager.register(tiers.ProcessWatch())
"""
TESTS = """
import os, subprocess, sys
import pytest

def python():
    subprocess.run([sys.executable, "-c", ""], check=True)

def fork():
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)

@pytest.fixture
def child():
    python()

@pytest.mark.parametrize("start", [python, fork, lambda: sys.audit("tests.forked")])
def test_starts(start):
    start()

def test_has_a_fixture_that_starts(child): ...

def test_starts_another_program():
    subprocess.run(["true"], check=True)

@pytest.mark.integration
def test_may_start(child):
    python()

@pytest.mark.slow
@pytest.mark.integration
def test_is_slow(): ...
"""


def run(folder, *words):
    """Run pytest in a folder with the project's settings; return its exit status and output."""
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p"]
    command += ["no:cacheprovider", "--rootdir", str(folder), *words, str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout


@pytest.mark.integration
def test_a_quick_test_that_starts_python_is_refused_and_the_tiers_share_no_test(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_toy.py").write_text(TESTS)
    status, output = run(tmp_path)
    assert status == 1 and "5 passed, 2 deselected, 4 errors" in output, output
    assert output.count("a quick test starts `") >= 4
    assert "1 passed, 6 deselected" in run(tmp_path, "-m", "integration")[1]
    assert "1 passed, 6 deselected" in run(tmp_path, "-m", "slow")[1]


@pytest.mark.integration
def test_a_process_of_the_run_that_dies_ends_the_run_with_its_name(tmp_path):
    (tmp_path / "test_dies.py").write_text("import os\ndef test_dies(): os.kill(os.getpid(), 9)\n")
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text("def test_passes(): ...\n")
    status, output = run(tmp_path, "-n", "2", "--dist", "loadfile")
    assert status == 1 and "crashed while running 'test_dies.py::test_dies'" in output, output


@pytest.mark.parametrize(
    ("expression", "compiles_quickly", "is_quick"),
    [
        ("not slow and not integration", True, True),
        *(("integration and not slow", True, False), ("not slow", True, False)),
        *(("", False, False), ("slow", False, False), ("slow or not slow", False, False)),
    ],
)
def test_slow_tests_are_compiled_as_users_do_and_quick_ones_alone_have_other_kernels(
    expression, compiles_quickly, is_quick
):
    assert tiers.compiles_quickly(expression) == compiles_quickly
    assert tiers.is_quick(expression) == is_quick


@pytest.mark.parametrize(
    ("marks", "file", "has_none"),
    [
        ("pytest.mark.integration", "onepass/test_a.py", True),
        ("[pytest.mark.slow, pytest.mark.timeout(600)]", "onepass/test_a.py", True),
        ("[\n    pytest.mark.integration,\n]", "onepass/test_a.py", True),
        ('pytest.mark.usefixtures("eager")', "onepass/test_a.py", False),
        ('pytest.mark.usefixtures("eager")', "benchmarks/test_a.py", True),
    ],
)
def test_files_without_quick_tests_are_known_without_importing_them(
    marks, file, has_none, tmp_path
):
    path = tmp_path / "test_a.py"
    path.write_text(f"import pytest\n\npytestmark = {marks}\n\n@pytest.mark.slow\ndef test(): ...")
    assert tiers.has_no_quick_test(path, file) == has_none
