"""What several processes of the tests read is made by one of them, whole."""

import contextlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import made_once
import pytest


@pytest.fixture(autouse=True)
def shared(tmp_path, monkeypatch):
    monkeypatch.setenv(made_once.VARIABLE, str(tmp_path))
    return tmp_path


def test_who_asks_at_once_gets_what_one_has_made(shared):
    made = []

    def make(path):
        path.mkdir()
        made.append(path)
        (path / "file").write_text("whole")

    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: made_once.once("a/b", make), range(8)))
    assert paths == [shared / "a" / "b"] * 8 and made == [shared / "a" / "b"]
    assert (paths[0] / "file").read_text() == "whole"


def test_what_was_not_finished_is_made_anew():
    def fails(path):
        path.mkdir()
        (path / "half").touch()
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        made_once.once("a", fails)
    assert list(made_once.once("a", lambda path: path.mkdir()).iterdir()) == []


def test_a_copy_is_ones_own(shared, monkeypatch):
    monkeypatch.setattr(made_once, "own_folder", lambda: shared / "own")
    copy = made_once.copied_once("a", lambda path: path.mkdir() or (path / "file").touch())
    (copy / "file").unlink()
    assert copy == shared / "own" / "a" and (shared / "a" / "file").exists()


KERNEL = """
import numba

@numba.njit(cache=True)
def kernel(x):
    return x + 1
"""
# Each process says how often it compiled; all begin when their standard input is closed.
COMPILES = """
import sys
import made_once, kernel
made_once.compile_in_turn()
print("ready", flush=True)
sys.stdin.read()
kernel.kernel(2.0)
print(sum(kernel.kernel.stats.cache_misses.values()))
"""


@pytest.mark.integration
def test_what_numba_keeps_is_compiled_by_one_process(shared):
    (shared / "kernel.py").write_text(KERNEL)
    path = [str(shared), str(Path(made_once.__file__).parent)]
    script = f"import sys\nsys.path[:0] = {path}\n{COMPILES}"
    words = [sys.executable, "-c", script]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as ended:
        started = [ended.enter_context(subprocess.Popen(words, **pipes)) for _ in range(3)]
        for process in started:
            assert process.stdout.readline() == "ready\n"
        for process in started:
            process.stdin.close()
        counts = [int(process.stdout.read()) for process in started]
    assert sorted(counts) == [0, 0, 1]
