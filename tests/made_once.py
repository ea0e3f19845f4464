"""What several files of tests read or run: the first process that asks makes it for all."""

import atexit
import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

VARIABLE = "ONEPASS_TESTS_FOLDER"  # set by the process that starts the others


def open_folder() -> Path:
    """Make the folder that this process and those that it starts share, and return it."""
    path = Path(tempfile.mkdtemp(prefix="onepass_tests_"))
    os.environ[VARIABLE] = str(path)
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a fork of it
        shutil.rmtree(path, ignore_errors=True)


def shared_folder() -> Path:
    """Return the folder that is there until the tests end; what lies there is never changed."""
    return Path(os.environ[VARIABLE]) if VARIABLE in os.environ else open_folder()


@functools.cache
def own_folder() -> Path:
    """Return a folder of this process that is there until it ends."""
    path = Path(tempfile.mkdtemp(prefix="own_", dir=shared_folder()))
    atexit.register(_remove, path, os.getpid())
    return path


def once(name: str, make: Callable[[Path], object]) -> Path:
    """Return SHARED/NAME, which `make` has filled in one of the processes; others wait for it.

    Args:
      name: of the folder.
      make: a function of the path, which does not exist yet.
    """
    path = shared_folder() / name
    with _alone(name) as mark:
        if not mark.exists():
            shutil.rmtree(path, ignore_errors=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            make(path)
            mark.touch()
    return path


@contextlib.contextmanager
def _alone(name: str) -> Iterator[Path]:
    """Yield the mark of what has this name, in one process at a time."""
    marks = shared_folder() / ".made"
    marks.mkdir(exist_ok=True)
    mark = marks / name.replace("/", ",")
    with mark.with_name(f"{mark.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield mark


def copied_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return a copy of `once(name, make)` in the folder of this process."""
    return Path(shutil.copytree(once(name, make), own_folder() / name))


def compile_in_turn() -> None:
    """Let one process compile what Numba keeps on disk, while others wait and then read it."""
    from numba.core.caching import NullCache  # loads slowly
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.dispatcher import Dispatcher

    compile_one = Dispatcher.compile

    def compile_or_read(dispatcher, signature):
        if isinstance(dispatcher._cache, NullCache):
            return compile_one(dispatcher, signature)
        function = dispatcher.py_func
        # Numba's own lock first, which every thread that compiles takes.
        with global_compiler_lock, _alone(f"{function.__module__}.{function.__qualname__}"):
            return compile_one(dispatcher, signature)

    Dispatcher.compile = compile_or_read
