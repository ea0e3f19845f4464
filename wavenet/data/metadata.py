"""Tables beside recordings: their texts, speakers and splits."""

import collections
import csv
import dataclasses
from collections.abc import Mapping
from pathlib import Path

from replicator.runs.folders import shown, some

SPLITS = ("train", "dev")
LJ_SPEECH = "metadata.csv"  # the table of LJ Speech and of many sets after it


@dataclasses.dataclass(frozen=True)
class Row:
    """What a table says of one recording. split: "train" or "dev" after the table's name, or ""."""

    table: str
    file: str
    text: str
    speaker: str
    split: str


@dataclasses.dataclass(frozen=True)
class Tables:
    """All rows of a folder's tables, the split tables among them, and what could not be read."""

    rows: tuple[Row, ...]
    splits: frozenset[str]
    notes: tuple[str, ...]


def _row(path: Path, values: Mapping[str, str | None]) -> Row:
    split = path.stem if path.stem in SPLITS else ""
    text, speaker = values.get("text") or "", values.get("speaker") or ""
    return Row(path.name, values["file"] or "", text, speaker, split)


def _rows(path: Path) -> list[Row] | None:
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as lines:
        reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        if "file" not in (reader.fieldnames or ()):
            return None
        return [_row(path, values) for values in reader if values["file"]]


def _lj_speech_rows(path: Path) -> list[Row] | None:
    """The rows `NAME|text|normalised text` of a table without a header; None for another table."""
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as lines:
        cells = list(csv.reader(lines, delimiter="|", quoting=csv.QUOTE_NONE))
    cells = [row for row in cells if row]
    if not cells or any(len(row) < 2 for row in cells):
        return None
    return [Row(path.name, row[0], row[2] if len(row) > 2 else row[1], "", "") for row in cells]


def read_tables(folder: Path) -> Tables:
    """The rows of every `*.tsv` in the folder that has a `file` column, and of `metadata.csv`.

    The first line of a `*.tsv` is the header; `text` and `speaker` columns are optional, others are
    ignored. `train.tsv` and `dev.tsv` also say the split. `metadata.csv` is that of LJ Speech: in a
    line the file's name without its ending, the text and, if there is one, the normalised text. A
    table that cannot be read becomes a note, and so do rows for the same file.
    """
    rows: list[Row] = []
    splits, notes = set(), []
    for path in [*sorted(folder.glob("*.tsv")), *folder.glob(LJ_SPEECH)]:
        is_lj_speech = path.name == LJ_SPEECH
        try:
            found = _lj_speech_rows(path) if is_lj_speech else _rows(path)
        except (OSError, csv.Error) as error:
            notes.append(f"{shown(path.name)} cannot be read ({error}) and is ignored")
            continue
        if found is None:
            missing = "no lines `NAME|text`" if is_lj_speech else "no column `file`"
            notes.append(f"{shown(path.name)} has {missing} and is ignored")
            continue
        repeated = [
            n for n, count in collections.Counter(r.file for r in found).items() if count > 1
        ]
        if repeated:
            again = some([shown(name) for name in repeated])
            notes.append(
                f"{shown(path.name)} has several rows, of which the last counts, for {again}"
            )
        rows += found
        splits |= {path.stem} & set(SPLITS)
    return Tables(tuple(rows), frozenset(splits), tuple(notes))


def match(tables: Tables, names: set[str]) -> tuple[dict[str, Row], list[Row]]:
    """The row of each recording by its name, and the rows whose recording is not there.

    Args:
      tables: as `read_tables` gives them.
      names: relative to the folder, with forward slashes. A row of `train.tsv` may name a file
        under `train/` without saying so, one of `dev.tsv` likewise; one of `metadata.csv` names a
        file anywhere, without its ending.
    """
    matched: dict[str, Row] = {}
    missing = []
    stems = {Path(name).stem: name for name in sorted(names, reverse=True)}
    for row in tables.rows:
        candidates = [f"{row.split}/{row.file}"] if row.split else []
        if row.table == LJ_SPEECH:
            candidates = [stems.get(row.file, "")]
        name = next((name for name in [*candidates, row.file] if name in names), None)
        if name is None:
            missing.append(row)
        else:
            _keep(matched, name, row)
    return matched, missing


def _keep(matched: dict[str, Row], name: str, row: Row) -> None:
    earlier: Mapping[str, str] = dataclasses.asdict(matched[name]) if name in matched else {}
    text, speaker = row.text or earlier.get("text", ""), row.speaker or earlier.get("speaker", "")
    # A file in both tables is for evaluation: it must not be trained on.
    either = (row.split, earlier.get("split", ""))
    split = "dev" if "dev" in either else row.split or either[1]
    matched[name] = dataclasses.replace(row, text=text, speaker=speaker, split=split)
