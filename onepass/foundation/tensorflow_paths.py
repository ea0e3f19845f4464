"""Make folder names usable by TensorFlow, which encodes every name as UTF-8."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def named_for_tensorflow(folder: Path) -> Iterator[str]:
    """Yield a name by which TensorFlow finds an existing folder, valid inside the block.

    Python encodes a path in the locale's encoding, or keeps bytes that are not valid text. If the
    path's UTF-8 encoding differs, TensorFlow would use a different folder; it then gets the path of
    a file descriptor that this process has open on the folder.
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
