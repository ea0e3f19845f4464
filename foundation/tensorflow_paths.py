"""Names of folders for TensorFlow, which writes every name as UTF-8."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def named_for_tensorflow(folder: Path) -> Iterator[str]:
    """Yield a name by which TensorFlow finds a folder that exists, valid within the block.

    Python encodes a path in the locale's encoding, or with bytes that are not text. If its UTF-8
    bytes differ, TensorFlow would use a different folder, so it gets the folder as a file
    descriptor of this process.
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
