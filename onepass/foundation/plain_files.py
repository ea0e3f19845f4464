"""Read only plain files: a link can lead anywhere, and a pipe blocks its reader.

Either may replace a file between a check and its opening, so the opened file is checked.
"""

import io
import os
import stat
from pathlib import Path

from onepass.foundation.errors import UserError


def open_plain(path: Path) -> io.BufferedReader:
    """Open a file for reading; raise UserError unless it is plain, OSError if it is missing."""
    if path.is_symlink():
        raise UserError(f"{path} must be a plain file, not a link.")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserError(f"{path} must be a plain file.")
    return open(descriptor, "rb")


def read_plain(path: Path, most_bytes: int) -> bytes:
    """Read a file; raise UserError unless it is plain and has at most `most_bytes`."""
    with open_plain(path) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise UserError(f"{path} must have at most {most_bytes:,} bytes.")
    return content
