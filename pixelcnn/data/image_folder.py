"""Reading of a folder of images, with notes on the files that are left out and why."""

import collections
import dataclasses
import functools
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from onepass.foundation.cores import in_threads
from onepass.foundation.folders import endings, list_files, show_path, some, unread
from pixelcnn.data.image_file import (
    DataError,
    DecodedImage,
    ImageError,
    ImageRules,
    at_depth,
    depth_of,
    formats,
    read_stored,
    suffixes,
)
from pixelcnn.data.raw_corpus import SPLITS, RawCorpus, Row, extremes, match, read_tables

MOST_WORKERS = 4  # limits memory, since each thread may hold a large photograph
OTHER_DEV_NAMES = ("val", "valid", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Entry:
    """An image file, by its path relative to the folder; `split` is "train", "dev" or ""."""

    name: str
    split: str
    class_name: str | None
    caption: str | None


def _has_split_folders(folder: Path) -> bool:
    has_dev = (folder / "dev").is_dir()
    if not (folder / "train").is_dir() or has_dev:
        return has_dev and (folder / "train").is_dir()
    for other in OTHER_DEV_NAMES:
        if (folder / other).is_dir():
            raise DataError(
                f"{show_path(folder)}: has train/ and {other}/ but no dev/; "
                f"call the folder of held-out images dev/."
            )
    return False


def _entry(name: str, row: Row | None, split_folders: bool, outer_folders: int) -> Entry:
    split = name.split("/")[0] if split_folders else row.split if row else ""
    folders = name.split("/")[outer_folders:-1]
    class_name = row.class_name if row else None
    if class_name is None and folders:
        class_name = folders[0]
    return Entry(name, split, class_name, row.caption if row else None)


def _all_or_none(folder: Path, entries: Sequence[Entry], field: str, lack: str) -> None:
    bare = [entry for entry in entries if not getattr(entry, field)]
    if bare and len(bare) < len(entries):
        raise DataError(f"{show_path(folder)}: {show_path(bare[0].name)} {lack}.")


def _complete_classes(entries: Sequence[Entry]) -> tuple[list[Entry], list[str]]:
    bare = [show_path(entry.name) for entry in entries if entry.class_name is None]
    if not bare or len(bare) == len(entries):
        return list(entries), []
    note = f"no classes, for some images are in no sub-folder: {some(bare)}"
    return [dataclasses.replace(entry, class_name=None) for entry in entries], [note]


def _list_images(
    folder: Path, names: Sequence[str], split_folders: bool, notes: Sequence[str]
) -> tuple[dict[str, Row | None], list[str]]:
    rows = read_tables(folder)
    matched: dict[str, Row | None] = dict(match(rows, set(names)))
    images = [name for name in names if Path(name).suffix.lower() in suffixes()]
    if not matched and not images:
        raise DataError(
            f"{show_path(folder)}: no image file (found {'; '.join([endings(names), *notes])})."
        )
    unlisted = [show_path(name) for name in images if rows and name not in matched]
    notes = [*notes, *unread(names, suffixes())]
    notes += [f"left out, in no table: {some(unlisted)}"] if unlisted else []
    if not rows:
        matched = dict.fromkeys(images)
    outside = [n for n in matched if split_folders and n.split("/")[0] not in SPLITS]
    if outside:
        notes.append(
            f"left out, neither in train/ nor in dev/: {some([show_path(n) for n in outside])}"
        )
    return {n: row for n, row in matched.items() if n not in set(outside)}, notes


def find_entries(folder: Path) -> tuple[list[Entry], list[str]]:
    """Return the image files to read, sorted by name, and notes on skipped files.

    The split is defined by top-level folders `train/` and `dev/`, or else by tables. If there are
    tables, only images in tables are read. Classes are defined by tables or by the names of the
    top-level sub-folders (in `train/` and `dev/`).
    """
    names, notes = list_files(folder)
    split_folders = _has_split_folders(folder)
    rows, notes = _list_images(folder, names, split_folders, notes)
    outer_folders = 1 if split_folders or all(name.startswith("train/") for name in rows) else 0
    entries = [_entry(n, rows[n], split_folders, outer_folders) for n in sorted(rows)]
    _all_or_none(folder, entries, "split", "is in no split, although other images are")
    _all_or_none(folder, entries, "caption", "has no caption, although other images have")
    return entries, notes


def _decode_or_error(make: Callable[[], DecodedImage]) -> DecodedImage | ImageError:
    try:
        return make()
    except ImageError as error:
        return error


def _read_all(
    paths: Sequence[Path], rules: ImageRules, workers: int | None
) -> list[DecodedImage | ImageError]:
    def read(path: Path) -> DecodedImage | ImageError:
        return _decode_or_error(functools.partial(read_stored, path, rules))

    formats()  # loads pillow's plugins before threads start
    with warnings.catch_warnings():
        # Pillow's warnings would disturb the progress bar; notes report what matters.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        workers = workers or min(MOST_WORKERS, os.cpu_count() or 1)
        return in_threads(read, paths, "reading", "image", workers)


def _at_depth(
    results: Sequence[DecodedImage | ImageError], bits: int
) -> list[DecodedImage | ImageError]:
    """Convert all images to one depth; the highest level in 16-bit images defines their depth."""
    highest = max((i.highest for i in results if isinstance(i, DecodedImage) and i.deep), default=0)

    depth = depth_of(highest)
    return [
        _decode_or_error(functools.partial(at_depth, result, depth, bits))
        if isinstance(result, DecodedImage)
        else result
        for result in results
    ]


def _remark_notes(read: Mapping[Entry, DecodedImage]) -> list[str]:
    remarked = collections.defaultdict(list)
    for entry, image in read.items():
        for remark in image.remarks:
            remarked[remark].append(show_path(entry.name))
    return [f"{remark}: {some(names)}" for remark, names in sorted(remarked.items())]


def _left_out_notes(errors: Mapping[Entry, ImageError]) -> list[str]:
    kinds = collections.defaultdict(list)
    for entry, error in errors.items():
        kinds[error.kind].append(f"{show_path(entry.name)} ({error.detail})")
    return [f"left out, {kind}: {some(names)}" for kind, names in sorted(kinds.items())]


def _fill_texts(values: Sequence[str | None]) -> tuple[str, ...] | None:
    return tuple(value or "" for value in values) if values and values[0] is not None else None


def separate(images: Sequence[np.ndarray]) -> np.ndarray:
    """Return images with different shapes as an array of objects, [n]."""
    held = np.empty(len(images), object)
    for i, image in enumerate(images):
        held[i] = image
    return held


def read_folder(folder: Path, rules: ImageRules, workers: int | None = None) -> RawCorpus:
    """Read the usable images in a folder, recursively; hidden files are skipped."""
    entries, notes = find_entries(folder)
    stored = _read_all([folder / entry.name for entry in entries], rules, workers)
    results = _at_depth(stored, rules.bits)
    pairs = list(zip(entries, results, strict=True))
    read = {entry: result for entry, result in pairs if isinstance(result, DecodedImage)}
    errors = {entry: result for entry, result in pairs if isinstance(result, ImageError)}
    left_out = _left_out_notes(errors)
    classed, on_classes = _complete_classes(list(read))  # without unusable images
    notes += on_classes
    if not read:
        raise DataError(f"{show_path(folder)}: no usable image ({'; '.join([*left_out, *notes])}).")
    splits = tuple(entry.split for entry in read)
    levels = [image.levels for image in read.values()]
    return RawCorpus(
        images=separate(levels) if rules.crop else np.stack(levels),
        names=tuple(entry.name for entry in read),
        splits=splits if splits[0] else None,
        class_names=_fill_texts([entry.class_name for entry in classed]),
        captions=_fill_texts([entry.caption for entry in read]),
        stored_sizes=extremes([image.stored_size for image in read.values()]),
        notes=(*left_out, *_remark_notes(read), *notes),
    )
