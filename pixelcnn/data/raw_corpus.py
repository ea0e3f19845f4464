"""Images as read from a source, and the tables that list their classes and captions."""

import csv
import dataclasses
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from onepass.foundation.errors import UserError
from onepass.foundation.folders import show_path
from pixelcnn.data.captions import encode_caption
from pixelcnn.data.image_file import DataError


@dataclasses.dataclass(frozen=True)
class RawCorpus:
    """The images, labels and captions of a folder, an npz file or a TensorFlow data set.

    Attributes:
      images: uint8 [n, size, size, channels], or uint16 for more than 8 bits; for photographs
        (`ImageRules.crop`) objects [n], uint8 [height, width, channels] each.
      splits: split of each image, "train" or "dev"; None: a hash of the name decides.
      classes: all classes, in the order of their labels; None: the classes in train, sorted.
      maps: a label for each pixel, integers [n, size, size], or None.
      stored_sizes: (width, height) of the smallest and the largest stored image, in pixels.
    """

    images: np.ndarray
    names: tuple[str, ...]
    splits: tuple[str, ...] | None
    class_names: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    captions: tuple[str, ...] | None = None
    maps: np.ndarray | None = None
    stored_sizes: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()


def extremes(sizes: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the smallest and the largest of (width, height) pairs, by area."""
    ordered = sorted(sizes, key=lambda size: (size[0] * size[1], size))
    return (ordered[0], ordered[-1]) if ordered else ()


SPLITS = ("train", "dev")
TABLES = ("pictures.tsv", "train.tsv", "dev.tsv")


@dataclasses.dataclass(frozen=True)
class Row:
    """An image's row in a table; class and caption are None if there is no such column."""

    table: str
    file: str
    class_name: str | None
    caption: str | None
    split: str


def _row(path: Path, values: Mapping[str, str | None]) -> Row:
    def cell(column: str) -> str | None:
        return (values[column] or "").strip() if column in values else None

    file = posixpath.normpath(cell("file") or "")
    split = path.stem if path.stem in SPLITS else cell("split") or ""
    row = Row(path.name, file, cell("class"), cell("caption"), split)
    if split not in ("", *SPLITS):
        raise DataError(f'{_place(row)}: split must be train or dev, got "{show_path(split)}".')
    for column, value in {"class": row.class_name, "caption": row.caption}.items():
        if value == "":
            raise DataError(f"{_place(row)}: its {column} is empty.")
    try:
        encode_caption(row.caption or "")
    except UserError as error:
        raise DataError(f"{_place(row)}: {error}") from error
    return row


def _place(row: Row) -> str:
    return show_path(f"{row.file} in {row.table}")


def _rows(path: Path) -> list[Row]:
    with open(path, encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        if "file" not in (reader.fieldnames or ()):
            raise DataError(f"{show_path(path)}: its first line names no column `file`.")
        return [_row(path, values) for values in reader if (values["file"] or "").strip()]


def read_tables(folder: Path) -> list[Row]:
    """Read the tables `pictures.tsv`, `train.tsv` and `dev.tsv` in a folder, if they exist.

    The first line is the header: `file`, and optionally `class`, `caption` and `split`; other
    columns are ignored. The names `train.tsv` and `dev.tsv` define the split.
    """
    rows = []
    for path in [folder / name for name in TABLES if (folder / name).is_file()]:
        try:
            rows += _rows(path)
        except UnicodeDecodeError as error:
            raise DataError(f"{show_path(path)}: is not UTF-8 text.") from error
        except (OSError, csv.Error) as error:
            raise DataError(f"{show_path(path)}: cannot be read ({error}).") from error
    return rows


def match(rows: Sequence[Row], names: set[str]) -> dict[str, Row]:
    """Return {name of an image: its row}, in the order of the rows.

    Names are relative to the folder, with forward slashes. `train.tsv` may omit the folder `train/`
    in its rows, and `dev.tsv` the folder `dev/`.
    """
    matched: dict[str, Row] = {}
    for row in rows:
        candidates = [f"{row.split}/{row.file}"] if row.split else []
        name = next((name for name in [*candidates, row.file] if name in names), None)
        if name is None:
            raise DataError(f"{_place(row)}: no such file.")
        if name in matched:
            earlier = matched[name].table
            raise DataError(f"{_place(row)}: is listed twice (before in {earlier}).")
        matched[name] = row
    return matched
