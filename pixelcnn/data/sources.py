"""The contents of a source of images: a folder of files, npz files, or a data set of TensorFlow's.

Each lists its images with their splits, classes, captions and maps; `gather` reads them.
"""

import collections
import csv
import dataclasses
import functools
import importlib
import os
import posixpath
import warnings
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from onepass.foundation.files import endings, list_files, show_path, some, unread
from onepass.foundation.rules import UserError
from onepass.foundation.runtime import in_threads
from pixelcnn.data.captions import encode_caption
from pixelcnn.data.image_file import (
    DecodedImage,
    ImageError,
    ImageRules,
    at_depth,
    depth_of,
    formats,
    read_stored,
    suffixes,
)

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

    The `kind` is "text", "whole numbers", "floats", or dtypes, such as "uint8 or uint16". Of the
    lengths of the axes in `shape`, None matches any length, a tuple those that it holds.
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


TABLES = ("pictures.tsv", "train.tsv", "dev.tsv")
OTHER_DEV_NAMES = ("val", "valid", "validation", "test")
KEYS = ("images", "labels", "classes", "names", "captions", "maps")
MOST_CLASSES = 100_000
PREFIX = "tfds:"
MOST_WORKERS = 4  # limits memory, since each thread may hold a large photograph


@dataclasses.dataclass(frozen=True)
class Entry:
    """An image of a source: a file, stored levels, or what they were decoded to.

    Without a split, "train" or "dev", a hash of the name decides. The map has a label for each
    pixel of the stored image, integers [height, width].
    """

    name: str
    image: Any
    split: str | None = None
    class_name: str | None = None
    caption: str | None = None
    map: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Listing:
    """The images of a source; `classes` are in the order of their labels, or empty if unknown."""

    entries: list[Entry]
    classes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


# A folder of image files, and its tables.


@dataclasses.dataclass(frozen=True)
class _Row:
    """An image's row in a table; class and caption are None if there is no such column."""

    table: str = ""
    file: str = ""
    class_name: str | None = None
    caption: str | None = None
    split: str | None = None

    @property
    def place(self) -> str:
        return f"{self.file} in {self.table}"


def _read_table(path: Path) -> list[_Row]:
    rows = []
    try:
        with open(path, encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
            if "file" not in (reader.fieldnames or ()):
                raise DataError(path, "its first line names no column `file`.")
            for values in reader:
                cells = {column: (text or "").strip() for column, text in values.items() if column}
                if not cells["file"]:
                    continue
                split = path.stem if path.stem in SPLITS else cells.get("split", "")
                file, class_name = posixpath.normpath(cells["file"]), cells.get("class")
                rows.append(_Row(path.name, file, class_name, cells.get("caption"), split or None))
                if split not in ("", *SPLITS):
                    rule = f'split must be train or dev, got "{show_path(split)}".'
                    raise DataError(rows[-1].place, rule)
            return rows
    except UnicodeDecodeError as error:
        raise DataError(path, "is not UTF-8 text.") from error
    except (OSError, csv.Error) as error:
        raise DataError(path, f"cannot be read ({error}).") from error


def _match_tables(folder: Path, names: Collection[str]) -> dict[str, _Row]:
    """Return the rows of a folder's tables by the name of the image, in their order.

    The header has `file`, and optionally `class`, `caption` and `split`. The names `train.tsv` and
    `dev.tsv` define the split; they may omit the folder `train/` or `dev/` in their rows.
    """
    matched: dict[str, _Row] = {}
    tables = [folder / name for name in TABLES if (folder / name).is_file()]
    for row in (row for path in tables for row in _read_table(path)):
        choices = (f"{row.split}/{row.file}", row.file)
        name = next((name for name in choices if name in names), None)
        if name is None:
            raise DataError(row.place, "no such file.")
        if name in matched:
            earlier = matched[name].table
            raise DataError(row.place, f"is listed twice (before in {earlier}).")
        matched[name] = row
    return matched


def _has_split_folders(folder: Path) -> bool:
    train, dev = ((folder / split).is_dir() for split in SPLITS)
    others = [name for name in OTHER_DEV_NAMES if (folder / name).is_dir()]
    if train and not dev and others:
        problem = f"has train/ and {others[0]}/ but no dev/"
        raise DataError(folder, f"{problem}; call the folder of held-out images dev/.")
    return train and dev


def list_folder(folder: Path) -> Listing:
    """List the image files in a folder and its sub-folders; hidden files are skipped.

    The split is defined by top-level folders `train/` and `dev/`, or else by tables, the classes by
    tables or by the top-level sub-folders (in `train/` and `dev/`). If there are tables, only
    images in them are read.
    """
    names, notes = list_files(folder)
    split_folders = _has_split_folders(folder)
    rows = _match_tables(folder, set(names))
    images = [name for name in names if Path(name).suffix.lower() in suffixes()]
    if not rows and not images:
        raise DataError(folder, f"no image file (found {'; '.join([endings(names), *notes])}).")
    unlisted = [show_path(name) for name in images if rows and name not in rows]
    notes += unread(names, suffixes())
    notes += [f"left out, in no table: {some(unlisted)}"] if unlisted else []
    chosen = sorted(rows or images)
    outside = [name for name in chosen if split_folders and name.split("/")[0] not in SPLITS]
    if outside:
        shown = some([show_path(name) for name in outside])
        notes.append(f"left out, neither in train/ nor in dev/: {shown}")
    chosen = [name for name in chosen if name not in set(outside)]
    in_train = all(name.startswith("train/") for name in chosen)
    entries = []
    for name in chosen:
        row, parts = rows.get(name, _Row()), name.split("/")
        folders = parts[1 if split_folders or in_train else 0 : -1]
        class_name = folders[0] if folders and row.class_name is None else row.class_name
        split = parts[0] if split_folders else row.split
        entries.append(Entry(name, folder / name, split, class_name, row.caption))
    return Listing(entries, notes=tuple(notes))


# Arrays in an npz file.


def list_npz(path: Path, split: str | None = None) -> Listing:
    """List the images of an npz file, or of an npy file that holds `images` alone.

    An npz file has `images`, uint8 or uint16 [n, height, width], with 1 or 3 channels if any. It
    may have `labels`, integers [n]; `classes`, text [classes]; `names` and `captions`, text [n];
    and `maps`, integers [n, height, width].
    """
    arrays = read_arrays(path, KEYS)
    if "images" in arrays and arrays["images"].ndim == 3:
        arrays["images"] = arrays["images"][..., np.newaxis]
    shape = (None, None, None, (1, 3))
    images = check_array(path, arrays, "images", "uint8 or uint16", shape)
    count = len(images)
    columns: dict[str, Any] = {"names": [f"{path.stem}[{i}]" for i in range(count)]}
    for key, kind, wanted in (
        ("classes", "text", (None,)),
        ("names", "text", (count,)),
        ("captions", "text", (count,)),
        ("labels", "whole numbers", (count,)),
        ("maps", "whole numbers", images.shape[:3]),
    ):
        if key in arrays:
            columns[key] = check_array(path, arrays, key, kind, wanted)
    classes = tuple(map(str, columns.get("classes", ())))
    if len(set(classes)) < len(classes):
        raise DataError(path, "`classes` has a name twice.")
    for key, limit in {"labels": len(classes) or MOST_CLASSES, "maps": MOST_CLASSES}.items():
        low, high = (columns[key].min(), columns[key].max()) if key in columns else (0, 0)
        if low < 0 or high >= limit:
            raise DataError(path, f"`{key}` must be in [0, {limit}), got {low} to {high}.")
    labels, captions, maps = map(columns.get, ("labels", "captions", "maps"))
    if labels is not None and not classes:
        classes = tuple(map(str, range(int(labels.max()) + 1)))
    entries = []
    for i, name in enumerate(columns["names"]):
        class_name = None if labels is None else classes[labels[i]]
        caption = None if captions is None else str(captions[i]).strip()
        own = None if maps is None else maps[i]
        entries.append(Entry(str(name), images[i], split, class_name, caption, own))
    return Listing(entries, classes)


# TensorFlow Datasets.


def list_tfds(source: str, rules: ImageRules) -> Listing:
    """List the images of a data set, such as "tfds:mnist", with labels if it has any.

    The dev split is validation, or else test; without either, a hash of the name selects dev
    images from train. Images are decoded at once, since all of them may not fit in memory.
    """
    try:
        library = importlib.import_module("tensorflow_datasets")
        builder = library.builder(source.removeprefix(PREFIX))
        builder.download_and_prepare()
    except ImportError as error:
        needed = "needs TensorFlow Datasets: pip install onepass[tfds]"
        raise DataError(source, needed) from error
    except Exception as error:  # downloads and data sets may raise any kind of error
        reason = show_path(str(error).strip().split("\n")[0]) or type(error).__name__
        raise DataError(source, reason) from error
    features, known = builder.info.features, set(builder.info.splits)
    if "image" not in features:
        raise DataError(source, "its examples have no `image`.")
    if "train" not in known:
        raise DataError(source, "has no split train.")
    held_out = [split for split in ("validation", "test") if split in known][:1]
    classes = tuple(getattr(features["label"], "names", ())) if "label" in features else ()
    entries = []
    for split in ["train", *held_out]:
        ours = None if not held_out else "train" if split == "train" else "dev"
        stored = library.as_numpy(builder.as_dataset(split=split, shuffle_files=False))
        for i, example in enumerate(stored):
            label = int(example["label"]) if classes else -1
            class_name = classes[label] if label >= 0 else None
            entry = Entry(f"{split}[{i}]", np.asarray(example["image"]), ours, class_name)
            entries.append(_decode(entry, rules))
    return Listing(entries, classes)


# Reading.


def gather(source: Path | str, rules: ImageRules, workers: int | None = None) -> Listing:
    """Read the images of a source: list those that are usable, each a `DecodedImage` of one depth.

    The notes name the others, and what was changed.
    """
    listing = _list_source(source, rules)
    _check_entries(source, listing.entries)
    entries = []
    left_out, remarked = collections.defaultdict(list), collections.defaultdict(list)
    for entry in _decode_all(listing.entries, rules, workers):
        if isinstance(entry.image, ImageError):
            name, why = show_path(entry.name), entry.image
            left_out[f"left out, {why.kind}"].append(f"{name} ({why.detail})")
            continue
        entries.append(entry)
        for remark in entry.image.remarks:
            remarked[remark].append(show_path(entry.name))
    found, said = (
        [f"{what}: {some(names)}" for what, names in sorted(each.items())]
        for each in (left_out, remarked)
    )
    notes = [*listing.notes]
    nameless = [show_path(entry.name) for entry in entries if entry.class_name is None]
    if 0 < len(nameless) < len(entries):
        notes.append(f"no classes, for some images have none: {some(nameless)}")
        entries = [dataclasses.replace(entry, class_name=None) for entry in entries]
    if not entries:
        raise DataError(source, f"no usable image ({'; '.join([*found, *notes])}).")
    return Listing(entries, listing.classes, (*found, *said, *notes))


def _list_source(source: Path | str, rules: ImageRules) -> Listing:
    if str(source).startswith(PREFIX) and not rules.crop:
        return list_tfds(str(source), rules)
    path = Path(source)
    if not path.exists():
        raise DataError(path, "no such file or folder.")
    if rules.crop and not path.is_dir():
        raise DataError(path, "`data.crop` needs a folder of image files.")
    if not path.is_dir():
        return list_npz(path)
    files = None if rules.crop else pair(path)
    if files is None:
        return list_folder(path)
    first, second = (list_npz(file, split) for file, split in zip(files, SPLITS, strict=True))
    if any(a != b for a, b in zip(first.classes, second.classes, strict=False)):
        raise DataError(f"{files[0]} and {files[1]}", "their `classes` differ.")
    classes = max(first.classes, second.classes, key=len)
    return Listing(first.entries + second.entries, classes)


def _check_entries(source: Path | str, entries: list[Entry]) -> None:
    """Raise DataError for an unusable text, or for what only some of the images have."""
    for entry in entries:
        try:
            for what, text in {"class": entry.class_name, "caption": entry.caption}.items():
                if text == "":
                    raise UserError(f"its {what} is empty.")
            if entry.caption is not None:
                encode_caption(entry.caption)
        except UserError as error:
            raise DataError(source, f"{show_path(entry.name)}: {error}") from error
    for field, lack in {
        "split": "is in no split, although other images are.",
        "caption": "has no caption, although other images have.",
        "map": "has no map, although other images have.",
    }.items():
        values = [getattr(entry, field) for entry in entries]
        bare = [e.name for e, v in zip(entries, values, strict=True) if v is None]
        if 0 < len(bare) < len(entries):
            raise DataError(source, f"{show_path(bare[0])} {lack}")


def _decode_all(entries: list[Entry], rules: ImageRules, workers: int | None) -> list[Entry]:
    """Decode images in threads, and convert all of them to one depth."""
    formats()  # loads pillow's plugins before threads start
    with warnings.catch_warnings():
        # Pillow's warnings would disturb the progress bar; notes report what matters.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        workers = workers or min(MOST_WORKERS, os.cpu_count() or 1)
        read = functools.partial(_decode, rules=rules)
        if entries and isinstance(entries[0].image, Path):
            decoded = in_threads(read, entries, "reading", "image", workers)
        else:  # arrays take less time than threads
            decoded = [read(entry) for entry in entries]
    # The highest level in 16-bit images defines their depth.
    images = [entry.image for entry in decoded if not isinstance(entry.image, ImageError)]
    depth = depth_of(max((image.highest for image in images if image.deep), default=0))
    return [_changed(entry, at_depth, depth, rules.bits) for entry in decoded]


def _decode(entry: Entry, rules: ImageRules) -> Entry:
    return entry if isinstance(entry.image, DecodedImage) else _changed(entry, read_stored, rules)


def _changed(entry: Entry, function: Callable[..., DecodedImage], *arguments: Any) -> Entry:
    """Return an entry with the result of a function of its image, or the error in reading it."""
    if isinstance(entry.image, ImageError):
        return entry
    try:
        image: Any = function(entry.image, *arguments)
    except ImageError as error:
        image = error
    return entry if image is entry.image else dataclasses.replace(entry, image=image)
