"""Create hidden files and folders next to the target that they will replace.

A process locks each file or folder that it creates. If an uncatchable signal ends the process, the
file is left without a lock, and the next process that writes into the folder removes it.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(r"\.onepass-[0-9a-f]{16}(\.\w+)?")
_swept: set[str] = set()
_lock = threading.Lock()


@contextlib.contextmanager
def beside(target: Path, is_folder: bool = False) -> Iterator[Path]:
    """Yield a new empty file or folder next to `target`, and remove it when the block ends."""
    _sweep_once(target.parent)
    path, descriptor = _make_locked(target, is_folder)
    try:
        yield path
    finally:
        _remove(path)
        os.close(descriptor)


def sweep(folder: Path) -> list[Path]:
    """Remove what ended processes have left in a folder, and return the paths that were removed."""
    removed = []
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            if NAME.fullmatch(path.name) and _is_left(path):
                _remove(path)
                removed.append(path)
    return removed


def _sweep_once(folder: Path) -> None:
    """Sweep a folder once per process, because it may contain thousands of files."""
    with _lock:
        known = os.path.realpath(folder) in _swept
        _swept.add(os.path.realpath(folder))
    if not known:
        sweep(folder)


def _make_locked(target: Path, is_folder: bool) -> tuple[Path, int]:
    while True:
        suffix = "" if is_folder else target.suffix
        path = target.with_name(f".onepass-{secrets.token_hex(8)}{suffix}")
        if is_folder:
            path.mkdir()
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        with contextlib.suppress(OSError):  # without locks, nothing is ever swept
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.exists():
            return path, descriptor
        os.close(descriptor)  # it was swept before it was locked


def _is_left(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
