"""Arrays in npz and npy files, with checks of their types and shapes."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from onepass.foundation.errors import UserError
from onepass.foundation.files import show_path

DAMAGE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, MemoryError)
SPLITS = ("train", "dev")
KINDS = {"text": "US", "whole numbers": "iu", "floats": "f"}  # {kind: its kinds of dtypes}


class DataError(UserError):
    """An error in a source of images, with a message of one line that begins with its name."""

    def __init__(self, source: object, problem: str) -> None:
        super().__init__(f"{show_path(source)}: {problem}")


def read_arrays(path: Path, keys: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    """Read the arrays `keys` of an npz file, or all if None, without unpickling objects.

    The array of an npy file is called `images`.
    """
    if not path.is_file():
        raise DataError(path, "no such file.")
    key, arrays = None, {}
    try:
        with open(path, "rb") as file:
            opened = np.load(file, allow_pickle=False)
            if isinstance(opened, np.ndarray):
                return {"images": opened}
            for key in opened.files if keys is None else {*keys} & {*opened.files}:
                arrays[key] = np.asarray(opened[key])
    except DAMAGE as error:
        problem = "is not an npz file" if key is None else f"`{key}` cannot be read ({error})"
        raise DataError(path, f"{getattr(error, 'strerror', None) or problem}.") from error
    return arrays


def check_array(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    key: str,
    kind: str,
    shape: tuple[int | tuple[int, ...] | None, ...],
) -> np.ndarray:
    """Return an array of a file; raise DataError if it is missing, empty or not as described.

    Args:
      kind: "text", "whole numbers", "floats", or dtypes, such as "uint8 or uint16".
      shape: the lengths of the axes; None matches any length, a tuple those that it holds.
    """
    if key not in arrays:
        raise DataError(path, f"has no array `{key}`.")
    array = arrays[key]
    if array.dtype.kind not in KINDS.get(kind, "") and str(array.dtype) not in kind.split(" or "):
        raise DataError(path, f"`{key}` must be {kind}, got {array.dtype}.")
    choices = [length if isinstance(length, tuple) else (length,) for length in shape]
    if len(choices) != array.ndim or not all(
        {None, length} & {*wanted} for wanted, length in zip(choices, array.shape, strict=True)
    ):
        axes = [" or ".join("any" if n is None else str(n) for n in each) for each in choices]
        rule = f"must have the shape [{', '.join(axes)}], got {list(array.shape)}."
        raise DataError(path, f"`{key}` {rule}")
    if not array.size:
        raise DataError(path, f"`{key}` is empty, {list(array.shape)}.")
    return np.char.decode(array, "utf-8", "replace") if array.dtype.kind == "S" else array


def pair(folder: Path) -> tuple[Path, Path] | None:
    """Return the `*_train.npz` and the `*_dev.npz` in a folder, or None if it has neither."""
    found = (filter(Path.is_file, folder.glob(f"*_{split}.npz")) for split in SPLITS)
    train, dev = map(sorted, found)
    if not train and not dev:
        return None
    if len(train) != 1 or len(dev) != 1:
        needed = "needs exactly one *_train.npz and one *_dev.npz"
        raise DataError(folder, f"{needed}, found {len(train)} and {len(dev)}.")
    return train[0], dev[0]
