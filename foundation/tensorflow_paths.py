"""Names of folders for TensorFlow, which writes every name as UTF-8."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def named_for_tensorflow(folder: Path) -> Iterator[str]:
    """Yield a name by which TensorFlow finds a folder that exists, valid within the block.

    Python writes a path in the encoding of the locale, or with bytes that are no text. Where UTF-8
    gives other bytes, TensorFlow would use another folder; it gets the open folder of this process.
    """
    path = os.fspath(folder)
    if os.fsencode(path) == path.encode("utf-8", "replace"):
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
