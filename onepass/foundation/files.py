"""Files and folders: written at once, read with care, temporary ones, their names and digests.

A reader sees an old file or folder or the complete new one. What an uncatchable signal leaves of a
temporary one has no lock, and the next process that writes into the folder removes it. NumPy is
imported only to read and write arrays: help texts need this module, and not NumPy.
"""

import collections
import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
import unicodedata
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

from onepass.foundation.rules import UserError

if TYPE_CHECKING:
    import numpy as np

Arrays = dict[str, "np.ndarray"]
MAX_EXPANSION = 20  # largest ratio of unpacked to packed size; arrays are stored uncompressed


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty file next to `path` that becomes `path` when the block ends without error."""
    target = Path(path)
    with write_errors(target), beside(target) as temporary:
        yield temporary
        os.replace(temporary, target)


def read_npz(path: Path) -> Arrays:
    """Return the arrays of an npz file by name; raise UserError if it is missing or damaged."""
    try:
        with zipfile.ZipFile(path) as file:
            # zipfile never reads more bytes than its directory declares.
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


def read_npy(path: Path) -> "np.ndarray":
    """Return the array of an npy file."""
    import numpy as np

    try:
        with open(path, "rb") as file:
            if file.read(len(magic := np.lib.format.MAGIC_PREFIX)) == magic:
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
    import numpy as np

    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, "utf-8")


def _member(file: zipfile.ZipFile, name: str) -> "np.ndarray":
    import numpy as np

    # Read completely first, so that zipfile verifies the checksum before NumPy reads the header.
    data = io.BytesIO(file.read(name))
    _check_header(data)
    return np.lib.format.read_array(data, allow_pickle=False)


def _check_header(file: IO[bytes]) -> None:
    from numpy.lib import format as npy

    is_first = npy.read_magic(file) == (1, 0)
    read = npy.read_array_header_1_0 if is_first else npy.read_array_header_2_0
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
    """Yield a folder next to `path` that becomes `path` when the block ends without error.

    Files and folders of an existing folder that the block did not write are kept.
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


NAME = re.compile(r"\.onepass-[0-9a-f]{16}(\.\w+)?")


@contextlib.contextmanager
def beside(target: Path, is_folder: bool = False) -> Iterator[Path]:
    """Yield a new empty file or folder next to `target`, and remove it when the block ends."""
    _sweep_once(Path(os.path.realpath(target.parent)))
    path, descriptor = _make_locked(target, is_folder)
    try:
        yield path
    finally:
        _remove(path)
        os.close(descriptor)


def sweep(folder: Path) -> list[Path]:
    """Remove what ended processes have left in a folder, and return the paths that were removed."""
    removed = []
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir()):
            if NAME.fullmatch(path.name) and _is_left(path):
                _remove(path)
                removed.append(path)
    return removed


_sweep_once = functools.cache(sweep)  # a folder may contain thousands of files


def _make_locked(target: Path, is_folder: bool) -> tuple[Path, int]:
    while True:
        suffix = "" if is_folder else target.suffix
        path = target.with_name(f".onepass-{secrets.token_hex(8)}{suffix}")
        if is_folder:
            path.mkdir()
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        else:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        with contextlib.suppress(OSError):  # without locks, nothing is ever swept
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.exists():
            return path, descriptor
        os.close(descriptor)  # it was swept before it was locked


def _is_left(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


NAMES_SHOWN = 5
_FILE_SUFFIXES = (".flac", ".gif", ".jpeg", ".jpg", ".npy", ".png", ".tif", ".tiff", ".wav")
TEXTS = ("", ".md", ".tsv")  # suffixes of files that accompany the data
ARCHIVED = "__MACOSX"  # folder of resources that archives of macOS hold next to the files
LONGEST_NAME = 200  # bytes of a file's name, without what makes it unique
PORTS = {f"{port}{i}" for port in ("com", "lpt") for i in range(10)}
RESERVED = PORTS | {"aux", "con", "nul", "prn"}  # names of devices on Windows, with any suffix


def make_folder(folder: Path) -> Path:
    """Return the folder, made with its parents if missing, unless it is named like a data file."""
    folder = Path(folder)
    if folder.suffix.lower() in _FILE_SUFFIXES and not folder.exists():
        raise UserError(f"{folder} must name a folder, not a {folder.suffix} file.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot create the folder {folder}: {error.strerror}.") from error
    return folder


def list_files(folder: Path) -> tuple[list[str], list[str]]:
    """Return the paths of all files in a folder and its subfolders, and notes about ignored ones.

    Paths are relative, with `/`, sorted within each subfolder, and without hidden files. Links are
    followed, and each real folder is visited once. A pipe would block its reader.
    """
    names: list[str] = []
    others: list[str] = []
    notes: list[str] = []
    hidden: list[str] = []
    seen: set[str] = set()

    def unreadable(error: OSError) -> None:
        path = show_path(error.filename)
        notes.append(f"{path} cannot be read ({error.strerror}) and is ignored")

    for here, folders, files in os.walk(folder, followlinks=True, onerror=unreadable):
        real = os.path.realpath(here)
        inside = [] if real in seen else sorted(folders)
        folders[:] = [name for name in inside if not is_ignored(name)]
        for ignored in [Path(here, name) for name in inside if is_ignored(name)]:
            if count := sum(len(files) for _, _, files in os.walk(ignored)):
                name = show_path(ignored.relative_to(folder).as_posix())
                hidden.append(f"{name} ({count_noun(count, 'file')})")
        if real not in seen:
            for path in [Path(here, f) for f in sorted(files) if not f.startswith(".")]:
                found = names if path.is_file() else others
                found.append(path.relative_to(folder).as_posix())
        seen.add(real)
    if others:
        left = some([show_path(name) for name in others])
        notes.append(f"no files but links to nothing, pipes or devices, ignored: {left}")
    if hidden:
        notes.append(f"folders that begin with a dot or are {ARCHIVED}, ignored: {some(hidden)}")
    return names, notes


def is_ignored(folder: str) -> bool:
    """Return whether a folder of this name holds no data: it is hidden or left by an archiver."""
    return folder.startswith(".") or folder == ARCHIVED


def safe_name(name: object) -> str:
    """Return a file name for an untrusted one: of its last part, printable, and not too long.

    One that would be hidden, read as an option, or be a device on Windows gets the prefix `_`.
    """
    last = PurePosixPath(str(name).replace("\\", "/")).name
    clean = "".join(character for character in last[:LONGEST_NAME] if character.isprintable())
    while len(clean.encode()) > LONGEST_NAME:
        clean = clean[:-1]
    clean = clean.strip().rstrip(". ")
    if not clean:
        return "unnamed"
    is_unsafe = clean[0] in ".-~" or clean.split(".")[0].rstrip().lower() in RESERVED
    return f"_{clean}" if is_unsafe else clean


def fold_name(name: str) -> str:
    """Return a form of a file name, equal for names that a file system may not tell apart."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def show_path(path: object) -> str:
    """Return a path as one line of printable text, with other characters replaced by `?`."""
    text = str(path).encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() else "?" for c in text)


def first_of(names: Sequence[str]) -> str:
    """Return the first few names, followed by dots if there are more: `a, b, c, d, e, ...`."""
    return ", ".join(names[:NAMES_SHOWN]) + (", ..." if len(names) > NAMES_SHOWN else "")


def some(names: Sequence[str]) -> str:
    """Return the number of names and the first few of them: `7: a, b, c, d, e, ...`."""
    return f"{len(names)}: {first_of(names)}"


def count_noun(count: int, thing: str) -> str:
    """Return a count with its noun in the right number: `1 image`, `2 images`, `2 batches`."""
    return f"{count} {thing if count == 1 else plural(thing)}"


def plural(thing: str) -> str:
    """Return the plural of a noun: `images` for `image`, `batches` for `batch`."""
    return f"{thing}es" if thing.endswith("ch") else f"{thing}s"


def endings(names: Iterable[str]) -> str:
    """Return the most frequent suffixes of file names and their counts: `7 .txt, 1 no ending`."""
    counts = collections.Counter(Path(name).suffix or "no ending" for name in names)
    found = ", ".join(f"{count} {ending}" for ending, count in counts.most_common(NAMES_SHOWN))
    return show_path(found) or "no file at all"


def unread(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return one note on files whose suffixes are neither `known` nor TEXTS, or an empty list."""
    others = [n for n in names if Path(n).suffix.lower() not in (*known, *TEXTS)]
    return [f"skipped, of an unknown kind: {endings(others)}"] if others else []


def check_new(paths: Iterable[Path], overwrite: bool) -> None:
    """Raise UserError if one of the files exists and `overwrite` is false."""
    there = [] if overwrite else [path for path in paths if path.exists()]
    if there:
        raise UserError(f"{there[0]} already exists; --overwrite replaces it.")


def hash_name(name: str) -> float:
    """Return a hash in [0, 1), uniform over names and the same on every machine."""
    data = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(data, "big") / 2.0**64


def split_by_hash(names: Sequence[str], dev_share: float) -> list[str]:
    """Return "train" or, for names with a hash below `dev_share`, "dev"; both, if possible."""
    hashes = [hash_name(name) for name in names]
    num_dev = sum(each < dev_share for each in hashes)
    if dev_share > 0.0 and len(names) > 1:
        num_dev = min(max(num_dev, 1), len(names) - 1)
    dev = set(sorted(range(len(names)), key=hashes.__getitem__)[:num_dev])
    return ["dev" if i in dev else "train" for i in range(len(names))]


def open_plain(path: Path) -> io.BufferedReader:
    """Open a file for reading; raise UserError unless it is plain, OSError if it is missing."""
    if path.is_symlink():
        raise UserError(f"{path} must be a plain file, not a link.")
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    # The opened file is checked, since a link or a pipe may have replaced another one.
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
