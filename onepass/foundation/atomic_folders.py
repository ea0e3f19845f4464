"""Write folders atomically: whenever a process ends, the folder is the old one or the new one."""

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from onepass.foundation.atomic_files import write_errors
from onepass.foundation.errors import UserError
from onepass.foundation.temporary_files import beside

HERE, EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
# Errors of kernels, C libraries and file systems that cannot exchange two folders.
UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


@contextlib.contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder next to `path` that becomes `path` when the block ends.

    Files and folders of an existing folder that the block did not write are kept. If the block
    raises an exception, `path` is unchanged, and parents that were created are removed.
    """
    target = Path(os.path.realpath(path))
    made = not target.parent.exists()
    try:
        with write_errors(Path(path)):
            target.parent.mkdir(parents=True, exist_ok=True)
            with beside(target, is_folder=True) as folder:
                yield folder
                if target.is_dir() and any(target.iterdir()):
                    _link_others(target, folder)
                    _exchange(folder, target)
                else:
                    os.replace(folder, target)
    finally:
        if made and not target.exists():
            with contextlib.suppress(OSError):  # keeps it if it has other content by now
                target.parent.rmdir()


def _link_others(old: Path, new: Path) -> None:
    for entry in old.iterdir():
        copy = new / entry.name
        if os.path.lexists(copy):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, copy, symlinks=True, copy_function=os.link)
        else:
            os.link(entry, copy, follow_symlinks=False)


def _exchange(new: Path, old: Path) -> None:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    names = os.fsencode(new), os.fsencode(old)
    if rename is not None and not rename(HERE, names[0], HERE, names[1], EXCHANGE):
        return
    code = errno.ENOSYS if rename is None else ctypes.get_errno()
    if code in UNKNOWN:
        raise UserError(f"{old} exists and cannot be replaced at once; write to a new folder.")
    raise OSError(code, os.strerror(code), str(old))
