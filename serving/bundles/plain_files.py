"""Reading what others wrote: plain files alone, and no more of them than there may be.

A link can lead anywhere, and a pipe keeps its reader waiting; both may take a file's place between
a look at it and its opening, so that what was opened is looked at.
"""

import io
import os
import stat
from pathlib import Path

from replicator.runs.errors import UserError


def open_plain(path: Path) -> io.BufferedReader:
    """The file, opened for reading; UserError for a link, a pipe, a device, a socket, a folder.

    Raises OSError where it is missing, or the disk is broken.
    """
    if path.is_symlink():
        raise UserError(f"{path} must be a plain file, not a link.")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} must be a plain file.")
    return open(descriptor, "rb")


def read_plain(path: Path, most_bytes: int) -> bytes:
    """The content of a plain file; UserError where it is longer. Else as `open_plain`."""
    with open_plain(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UserError(f"{path} must have at most {most_bytes:,} bytes.")
    return content
