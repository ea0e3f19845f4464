"""Make folder names usable by TensorFlow, which encodes every name as UTF-8."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def named_for_tensorflow(folder: Path) -> Iterator[str]:
    """Yield a name by which TensorFlow finds an existing folder, valid inside the block.

    Python encodes a path in the locale's encoding, or keeps bytes that are not valid text. If its
    UTF-8 bytes differ, TensorFlow would use a different folder, so it gets the folder as a file
    descriptor of this process instead.
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
