"""Tables that list the texts, speakers and splits of recordings."""

import csv
import dataclasses
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from onepass.foundation.folders import show_path, some

SPLITS = ("train", "dev")
LJ_SPEECH = "metadata.csv"  # the table of LJ Speech, and of data sets in its format


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a table; `split` is "train" or "dev" if that is the table's name, else ""."""

    table: str
    file: str
    text: str
    speaker: str
    split: str


@dataclasses.dataclass(frozen=True)
class Tables:
    """The rows of a folder's tables, the splits with a table, and notes about unusable tables."""

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
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines if line.strip()]
    if not cells or any(len(each) < 2 for each in cells):
        return None
    return [
        Row(path.name, each[0], each[2:3][0] if each[2:3] and each[2] else each[1], "", "")
        for each in cells
        if each[0]
    ]


def read_tables(folder: Path) -> Tables:
    """Read every `*.tsv` with a column `file` in a folder, and `metadata.csv` as in LJ Speech.

    The first line of a `*.tsv` is the header; the columns `text` and `speaker` are optional, and
    other columns are ignored. `train.tsv` and `dev.tsv` also define the split. `metadata.csv` has
    no header; its lines are `file|text` or `file|text|normalised text`, and the normalised text is
    preferred. Tables that cannot be read are ignored with a note.
    """
    rows: list[Row] = []
    splits, notes = set(), []
    tables = [*sorted(folder.glob("*.tsv")), *folder.glob(LJ_SPEECH)]
    for path in filter(Path.is_file, tables):
        lj_speech = path.name == LJ_SPEECH
        try:
            found = _lj_speech_rows(path) if lj_speech else _rows(path)
        except (OSError, csv.Error) as error:
            notes.append(f"{show_path(path.name)} cannot be read ({error}) and is ignored")
            continue
        if found is None:
            lacks = "lines file|text" if lj_speech else "column `file`"
            notes.append(f"{show_path(path.name)} has no {lacks} and is ignored")
            continue
        rows += found
        splits |= {path.stem} & set(SPLITS)
    return Tables(tuple(rows), frozenset(splits), tuple(notes))


def match(tables: Tables, names: set[str]) -> tuple[dict[str, Row], list[Row], list[str]]:
    """Return each recording's row by name, the rows without a recording, and notes.

    Multiple rows of a recording are merged. If their texts or speakers differ, the last row wins,
    with a note; a recording in both splits is assigned to dev. Names are relative to the folder.
    `train.tsv` may omit the folder `train/` in its rows, and `dev.tsv` the folder `dev/`;
    `metadata.csv` may omit folder and suffix.
    """
    matched: dict[str, Row] = {}
    missing: list[Row] = []
    contradicted: list[str] = []
    stems: dict[str, str] = {}
    for path in sorted(names):
        stems.setdefault(PurePosixPath(path).stem, path)
    for row in tables.rows:
        candidates = [f"{row.split}/{row.file}"] if row.split else []
        if row.table == LJ_SPEECH:
            candidates += [stems.get(row.file, ""), stems.get(PurePosixPath(row.file).stem, "")]
        found = next((name for name in [*candidates, row.file] if name in names), None)
        if found is None:
            missing.append(row)
        else:
            contradicted += [found] if _contradicts(matched.get(found), row) else []
            _keep(matched, found, row)
    notes = []
    if contradicted:
        files = some([show_path(name) for name in dict.fromkeys(contradicted)])
        notes.append(f"listed again with another text or speaker, the last row counts: {files}")
    return matched, missing, notes


def _contradicts(earlier: Row | None, row: Row) -> bool:
    pairs = [(earlier.text, row.text), (earlier.speaker, row.speaker)] if earlier else []
    return any(one and other and one != other for one, other in pairs)


def _keep(matched: dict[str, Row], name: str, row: Row) -> None:
    earlier: Mapping[str, str] = dataclasses.asdict(matched[name]) if name in matched else {}
    text, speaker = row.text or earlier.get("text", ""), row.speaker or earlier.get("speaker", "")
    # A file in both splits is assigned to dev, so that dev recordings are not trained on.
    either = (row.split, earlier.get("split", ""))
    split = "dev" if "dev" in either else row.split or either[1]
    matched[name] = dataclasses.replace(row, text=text, speaker=speaker, split=split)
