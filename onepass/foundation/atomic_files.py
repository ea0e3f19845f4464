"""Write files and folders atomically: a reader sees the old ones or the complete new ones."""

import contextlib
import ctypes
import errno
import io
import json
import math
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from onepass.foundation.errors import UserError
from onepass.foundation.folders import beside

MAGIC = np.lib.format.MAGIC_PREFIX
_header_2_0 = np.lib.format.read_array_header_2_0
Arrays = dict[str, np.ndarray]
MAX_EXPANSION = 20  # largest ratio of unpacked to packed size; arrays are stored uncompressed


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path next to `path` and rename it to `path` when the block ends.

    The temporary file exists and is empty when the block begins. If the block raises, `path` is
    unchanged and the temporary file is removed. An error of the file system is a UserError.
    """
    target = Path(path)
    with write_errors(target), beside(target) as temporary:
        yield temporary
        os.replace(temporary, target)


def read_npz(path: Path) -> Arrays:
    """Return the arrays of an npz file by name; raise UserError if it is missing or damaged.

    The sizes declared in the archive's directory are checked before anything is unpacked, and
    zipfile never reads more bytes than they declare.
    """
    try:
        with zipfile.ZipFile(path) as file:
            packed, unpacked = os.path.getsize(path), sum(m.file_size for m in file.infolist())
            if unpacked > MAX_EXPANSION * packed:
                more = f"{unpacked:,}, over {MAX_EXPANSION} times as many."
                raise ValueError(f"its {packed:,} bytes unpack to {more}")
            return {name.removesuffix(".npy"): _member(file, name) for name in file.namelist()}
    except FileNotFoundError as error:
        raise UserError(f"There is no checkpoint {path}.") from error
    except MemoryError:
        raise
    except Exception as error:  # zipfile raises many kinds, depending on which byte is damaged
        raise UserError(f"The checkpoint {path} is damaged: {error}") from error


def read_npy(path: Path) -> np.ndarray:
    """Return the array of an npy file."""
    try:
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                file.seek(0)
                _check_header(file)
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file.") from error
    except (OSError, RecursionError, ValueError, EOFError) as error:
        objects = "it holds Python objects" if "Object arrays" in str(error) else "it is invalid"
        why = getattr(error, "strerror", None) or objects
        raise UserError(f"{path} cannot be read as an npy file: {why}.") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise UserError(f"{path} is an npz archive; write its array to a file by `numpy.save`.")
    if not array.ndim:
        raise UserError(f"{path} must contain one array with at least one axis.")
    return array


def read_json(path: Path, missing: str = "") -> dict[str, Any]:
    """Return the JSON object in a file; `missing` is the message of UserError if there is none."""
    try:
        stored = json.loads(path.read_text("utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        is_missing = missing and isinstance(error, FileNotFoundError)
        raise UserError(missing if is_missing else f"{path} cannot be read: {error}.") from error
    if not isinstance(stored, dict):
        names = {list: "list", str: "string", int: "number", float: "number", bool: "boolean"}
        kind = names.get(type(stored), "null")
        raise UserError(f"{path} must hold one JSON object, got a {kind}.")
    return stored


def write_npz(path: Path, arrays: Arrays) -> None:
    """Write arrays to an npz file atomically and flush it to disk."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")


def _member(file: zipfile.ZipFile, name: str) -> np.ndarray:
    # Read completely first, so that zipfile verifies the checksum before NumPy reads the header.
    data = io.BytesIO(file.read(name))
    _check_header(data)
    return np.lib.format.read_array(data, allow_pickle=False)


def _check_header(file: IO[bytes]) -> None:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else _header_2_0
    shape, _, dtype = read(file)
    start, end = file.tell(), file.seek(0, os.SEEK_END)
    declared = math.prod(shape) * dtype.itemsize
    if declared > end - start and not dtype.hasobject:
        raise ValueError(f"its header declares {declared:,} bytes, and it has {end - start:,}")
    file.seek(0)


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Convert an error of the file system inside the block to a UserError of one line."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"Cannot write {path}: {error.strerror or error}. Earlier files are unchanged."
        ) from error


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
