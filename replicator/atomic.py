"""Files that are there whole or not at all."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside `path`; what was written there becomes `path` when the block ends.

    A block that raises leaves `path` as it was and no temporary file behind. The folder must exist.

    Raises:
      OSError: the folder cannot be written, or the disk is full.
    """
    target = Path(path)
    temporary = target.with_name(f".{secrets.token_hex(8)}{target.suffix}")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
