"""Reading of untrusted files: plain files alone, up to a size.

A link can lead anywhere, and a pipe blocks its reader; both may replace a file between a check and
its opening, so that the opened file is checked.
"""

import io
import os
import stat
from pathlib import Path

from replicator.runs.errors import UserError


def open_plain(path: Path) -> io.BufferedReader:
    """Open a file for reading; raise UserError for a link, a pipe, a device, a socket or a folder.

    Raises:
      OSError: the file is missing, or cannot be read.
    """
    if path.is_symlink():
        raise UserError(f"{path} must be a plain file, not a link.")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} must be a plain file.")
    return open(descriptor, "rb")


def read_plain(path: Path, most_bytes: int) -> bytes:
    """Read a plain file; raise UserError if it is longer than `most_bytes`; see `open_plain`."""
    with open_plain(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UserError(f"{path} must have at most {most_bytes:,} bytes.")
    return content
