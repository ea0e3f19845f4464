"""Search of a folder for usable recordings, with a report of files that are left out and why."""

import collections
import csv
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from onepass.foundation.files import (
    count_noun,
    endings,
    list_files,
    make_folder,
    show_path,
    some,
    split_by_hash,
    unread,
    write_text,
)
from onepass.foundation.rules import Checked, NonNegative, Share, UserError
from onepass.foundation.runtime import in_threads
from wavenet.data import audio
from wavenet.data.audio import SUFFIXES, AudioError

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


def _rows(path: Path) -> list[Row] | None:
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as lines:
        reader = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        if "file" not in (reader.fieldnames or ()):
            return None
        split = path.stem if path.stem in SPLITS else ""
        return [
            Row(path.name, row["file"], row.get("text") or "", row.get("speaker") or "", split)
            for row in reader
            if row["file"]
        ]


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


def read_tables(folder: Path) -> tuple[list[Row], set[str], list[str]]:
    """Return the rows of a folder's tables, the splits with a table, and notes on unusable tables.

    These are every `*.tsv` with a column `file`, and `metadata.csv` as in LJ Speech.

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
    return rows, splits, notes


def match(rows: Iterable[Row], names: set[str]) -> tuple[dict[str, Row], list[Row], list[str]]:
    """Return each recording's row by name, the rows without a recording, and notes.

    Of several rows the last one's texts and speakers count, with a note where they differ. Names
    are relative to the folder. `train.tsv` may omit the folder `train/` in its rows, and `dev.tsv`
    the folder `dev/`; `metadata.csv` may omit folder and suffix.
    """
    matched: dict[str, Row] = {}
    missing: list[Row] = []
    contradicted: list[str] = []
    stems: dict[str, str] = {}
    for path in sorted(names):
        stems.setdefault(PurePosixPath(path).stem, path)
    for row in rows:
        candidates = [f"{row.split}/{row.file}"] if row.split else []
        if row.table == LJ_SPEECH:
            candidates += [stems.get(row.file, ""), stems.get(PurePosixPath(row.file).stem, "")]
        found = next((name for name in [*candidates, row.file] if name in names), None)
        if found is None:
            missing.append(row)
            continue
        earlier = matched.get(found, row)
        pairs = ((earlier.text, row.text), (earlier.speaker, row.speaker))
        contradicted += [found] if any(a and b and a != b for a, b in pairs) else []
        # A file in both splits is assigned to dev, so that dev recordings are not trained on.
        split = "dev" if "dev" in (row.split, earlier.split) else row.split or earlier.split
        text, speaker = row.text or earlier.text, row.speaker or earlier.speaker
        matched[found] = dataclasses.replace(row, text=text, speaker=speaker, split=split)
    notes = []
    if contradicted:
        files = some([show_path(name) for name in dict.fromkeys(contradicted)])
        notes.append(f"listed again with another text or speaker, the last row counts: {files}")
    return matched, missing, notes


FILE = "measurements.json"
VERSION = 4


@dataclasses.dataclass(frozen=True)
class FileInfo:
    """Properties of a decoded audio file; those of `SoundProperties` have the same meaning.

    Levels are of the mono mix, in dB of full scale; `digest` is `digest_of` the file.
    """

    sample_rate_hz: int
    channels: int
    samples: int
    peak_db: float
    rms_db: float
    clipped_share: float
    digest: str
    cancelled: bool = False
    missing_samples: int = 0
    unread_bytes: int = 0
    endless: bool = False
    offset: float = 0.0

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.samples / self.sample_rate_hz


def read_info(path: Path) -> FileInfo:
    """Decode an audio file and return its properties."""
    sound = audio.read_sound(path)
    fields = (field.name for field in dataclasses.fields(FileInfo))
    return FileInfo(
        **{name: getattr(sound, name) for name in fields if hasattr(sound, name)},
        peak_db=audio.peak_db(sound.waveform),
        rms_db=audio.rms_db(sound.waveform),
        digest=digest_of(sound),
    )


def digest_of(sound: audio.Sound) -> str:
    """Return a hash of the sample rate and the mono mix of a sound."""
    digest = hashlib.blake2b(np.int64(sound.sample_rate_hz).tobytes(), digest_size=16)
    digest.update(np.ascontiguousarray(sound.waveform).data)
    return digest.hexdigest()


def cache_key(path: Path) -> str:
    """Return a hash of a file's path, size and modification time; "" if the file is missing."""
    try:
        status = path.stat()
    except OSError:
        return ""
    identity = f"{VERSION} {path.absolute()} {status.st_size} {status.st_mtime_ns}"
    return hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def load_infos(cache_folder: Path) -> dict[str, FileInfo]:
    """Return the cached properties by cache key; {} if the cache is missing or damaged."""
    try:
        stored = json.loads((cache_folder / FILE).read_text("utf-8"))
        return {name: FileInfo(**values) for name, values in stored.items()}
    except (OSError, RecursionError, ValueError, TypeError, AttributeError):
        return {}


def save_infos(cache_folder: Path, cached: dict[str, FileInfo]) -> None:
    """Write properties by cache key to the cache."""
    values = {name: dataclasses.asdict(info) for name, info in cached.items()}
    write_text(make_folder(cache_folder) / FILE, json.dumps(values, indent=0))


class DataError(UserError):
    """An error in a folder of recordings, with a one-line message."""


@dataclasses.dataclass(frozen=True)
class ScanRules(Checked):
    """Rules for usable recordings, and for the split if the folder has none.

    Attributes:
      silent_peak_db: recordings with a peak below this, in dB of full scale, are left out.
      max_clipped_share: recordings with a larger share of samples at full scale, in [0, 1], count
        as clipped.
      dev_share: share of the files that are assigned to dev by a hash of the name; may be 0.
      speaker_folders: whether the folder of a recording names the speaker if no table does;
        recordings without a speaker are then left out, unless no recording has one.
    """

    min_seconds: NonNegative = 0.3
    silent_peak_db: float = -60.0
    max_clipped_share: float = 0.001
    keep_clipped: bool = True
    dev_share: Share = 0.05
    speaker_folders: bool = False


@dataclasses.dataclass(frozen=True)
class Recording:
    """A usable recording, named by its path relative to the folder, with forward slashes."""

    name: str
    path: Path
    split: str
    speaker: str
    text: str
    measured: FileInfo


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A file that is not used, with a short reason (`kind`) and a detailed one."""

    name: str
    kind: str
    detail: str


@dataclasses.dataclass(frozen=True)
class ScanReport:
    """The result of scanning a folder: recordings, dev first, each split sorted by name."""

    folder: Path
    sample_rate_hz: int
    recordings: tuple[Recording, ...]
    left_out: tuple[LeftOut, ...]
    clipped: tuple[str, ...]
    notes: tuple[str, ...]

    def of(self, split: str) -> tuple[Recording, ...]:
        """Return the recordings of a split, sorted by name."""
        return tuple(r for r in self.recordings if r.split == split)

    @property
    def dev_digest(self) -> str:
        """A hash of the dev recordings' audio, independent of the files' names and locations."""
        digests = sorted(recording.measured.digest for recording in self.of("dev"))
        return hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()

    def lines(self) -> list[str]:
        """Return the report as lines of text to print."""
        sums = [f"{split} {_amount(self.of(split))}" for split in SPLITS]
        peak_db = np.median([r.measured.peak_db for r in self.recordings])
        rms_db = np.median([r.measured.rms_db for r in self.recordings])
        lines = [
            f"{show_path(self.folder)}: {'; '.join(sums)}; "
            f"median peak {peak_db:.1f} dB, median RMS {rms_db:.1f} dB"
        ]
        for kind, members in _by_kind(self.left_out).items():
            lines.append(f"left out, {kind}: {_some([f'{m.name} ({m.detail})' for m in members])}")
        if self.clipped:
            lines.append(f"clipped, but kept: {_some(self.clipped)}")
        return lines + list(self.notes)


def _amount(recordings: Sequence[Recording]) -> str:
    minutes = sum(r.measured.seconds for r in recordings) / 60
    speakers = len({r.speaker for r in recordings if r.speaker}) or len(recordings[:1])
    count = count_noun(len(recordings), "recording")
    return f"{count}, {minutes:.1f} min, speakers: {speakers}"


def _some(names: Sequence[str]) -> str:
    return some([show_path(name) for name in names])


def _by_kind(left_out: Iterable[LeftOut]) -> dict[str, list[LeftOut]]:
    kinds = collections.defaultdict(list)
    for item in left_out:
        kinds[item.kind].append(item)
    return dict(sorted(kinds.items()))


def _find(folder: Path) -> tuple[list[str], list[str]]:
    if not folder.exists():
        raise DataError(f"{show_path(folder)}: no such folder.")
    if not folder.is_dir():
        raise DataError(f"{show_path(folder)}: is not a folder.")
    names, notes = list_files(folder)
    sounds = [name for name in names if Path(name).suffix.lower() in SUFFIXES]
    if not sounds:
        raise DataError(
            f"{show_path(folder)}: no sound file (looked for {', '.join(SUFFIXES)}; "
            f"found {'; '.join([endings(names), *notes])})."
        )
    return sounds, [*notes, *unread(names, SUFFIXES)]


def _rejection(name: str, measured: FileInfo | AudioError, rules: ScanRules) -> LeftOut | None:
    if isinstance(measured, AudioError):
        return LeftOut(name, "unreadable", measured.reason)
    if measured.seconds < rules.min_seconds:
        wanted = f"{measured.seconds:.2f} s, wanted {rules.min_seconds:g} s"
        return LeftOut(name, "too short", wanted)
    if measured.peak_db < rules.silent_peak_db:
        return LeftOut(name, "silent", f"peak {measured.peak_db:.1f} dB")
    if not rules.keep_clipped and measured.clipped_share > rules.max_clipped_share:
        return LeftOut(name, "clipped", f"{measured.clipped_share:.2%} of the samples")
    return None


def _split_folders(folder: Path) -> bool:
    return all((folder / split).is_dir() for split in SPLITS)


def _check_splits(
    folder: Path, recordings: Sequence[Recording], left_out: Sequence[LeftOut], rules: ScanRules
) -> None:
    reasons = "; ".join(
        f"{len(members)} {kind}, such as {show_path(members[0].name)} ({members[0].detail})"
        for kind, members in _by_kind(left_out).items()
    )
    found = f"(left out: {reasons})" if reasons else "(nothing was left out)"
    if not recordings:
        raise DataError(f"{show_path(folder)}: no usable recording {found}.")
    needed = SPLITS if rules.dev_share > 0.0 or _split_folders(folder) else ("train",)
    for split in needed:
        if not any(r.split == split for r in recordings):
            raise DataError(
                f"{show_path(folder)}: no usable recording for {split}, of {len(recordings)} "
                f"in all {found}; train and dev need at least one each."
            )


def _notes(recordings: Sequence[Recording], sample_rate_hz: int) -> list[str]:
    above = sorted({r.measured.sample_rate_hz for r in recordings})
    hertz = " and ".join(f"{rate:,}" for rate in above if rate > sample_rate_hz)
    facts: dict[str, Callable[[FileInfo], Any]] = {
        f"stored below {sample_rate_hz} Hz and resampled, so without its highest band": (
            lambda info: info.sample_rate_hz < sample_rate_hz
        ),
        f"resampled from {hertz} Hz to {sample_rate_hz:,} Hz": (
            lambda info: info.sample_rate_hz > sample_rate_hz
        ),
        "channels cancel each other, so only the loudest is used": lambda info: info.cancelled,
        "cut off, with less sound than the header promises": lambda info: info.missing_samples,
        "without a length in the header, read up to the end of the file": lambda info: info.endless,
        "with a constant offset, which is taken out": lambda info: info.offset,
        "read up to the end given in the header, not the end of the file": (
            lambda info: info.unread_bytes
        ),
    }
    notes = []
    for fact, applies in facts.items():
        if names := [r.name for r in recordings if applies(r.measured)]:
            notes.append(f"{fact}: {_some(names)}")
    known = {r.speaker for r in recordings if r.split == "train"}
    if new := sorted({r.speaker for r in recordings} - known):
        notes.append(f"speakers of dev that train does not have: {_some(new)}")
    train, dev = (
        sum(r.measured.seconds for r in recordings if r.split == split) / 60 for split in SPLITS
    )
    if dev > train:
        notes.append(
            f"dev is longer than train ({dev:.1f} min, {train:.1f} min): "
            "most recordings are not used for training"
        )
    return notes


def _usable(
    folder: Path, names: Sequence[str], rules: ScanRules, cache_folder: Path | None
) -> tuple[dict[str, FileInfo], list[LeftOut]]:
    known = load_infos(cache_folder) if cache_folder else {}
    keys = {name: cache_key(folder / name) for name in names}  # before reading: files may change

    def measure_file(name: str) -> FileInfo | AudioError:
        try:
            return known.get(keys[name]) or read_info(folder / name)
        except AudioError as error:
            return error

    results = in_threads(measure_file, list(names), "scanning", "recording")
    good, bad, measured = {}, [], dict(known)
    for name, result in zip(names, results, strict=True):
        if isinstance(result, FileInfo):
            measured[keys[name]] = result
        if problem := _rejection(name, result, rules):
            bad.append(problem)
        elif isinstance(result, FileInfo):
            good[name] = result
    if cache_folder and measured.keys() - known.keys():
        save_infos(cache_folder, measured)
    return good, bad


def _recordings(
    folder: Path,
    measured: dict[str, FileInfo],
    table_splits: set[str],
    rows: dict[str, Row],
    rules: ScanRules,
) -> tuple[tuple[Recording, ...], list[LeftOut]]:
    names = list(measured)
    if _split_folders(folder):
        tops = {name: name.split("/")[0] for name in names}
        splits = {name: top for name, top in tops.items() if top in SPLITS}
    elif table_splits == set(SPLITS):
        splits = {name: rows[name].split for name in names if name in rows and rows[name].split}
    else:
        splits = dict(zip(names, split_by_hash(names, rules.dev_share), strict=True))
    lost = [LeftOut(name, "in no split", "") for name in names if name not in splits]
    recordings = []
    for name, split in sorted(splits.items(), key=lambda item: (item[1], item[0])):
        row, folders = rows.get(name), [p for p in Path(name).parts[:-1] if p not in SPLITS]
        speaker, text = (row.speaker, row.text) if row else ("", "")
        if rules.speaker_folders and folders:
            speaker = speaker or folders[-1]
        recordings.append(Recording(name, folder / name, split, speaker, text, measured[name]))
    nameless = [r.name for r in recordings if rules.speaker_folders and not r.speaker]
    if len(nameless) < len(recordings):
        why = "others have one by a table or a folder"
        lost += [LeftOut(name, "without a speaker", why) for name in nameless]
        recordings = [r for r in recordings if r.speaker or not rules.speaker_folders]
    kept: dict[str, Recording] = {}
    for recording in recordings:
        first = kept.setdefault(recording.measured.digest, recording)
        if first is not recording:
            lost.append(LeftOut(recording.name, "a copy", f"the sound of {first.name}"))
    return tuple(kept.values()), lost


def scan(
    folder: str | os.PathLike[str],
    sample_rate_hz: int,
    rules: ScanRules = ScanRules(),
    *,
    cache_folder: str | os.PathLike[str] | None = None,
) -> ScanReport:
    """Search a folder, but no hidden files, for recordings; find split, speaker and text.

    The split is defined by sub-folders `train/` and `dev/`, else by `train.tsv` and `dev.tsv`, else
    by a hash of each relative name. Tables (`*.tsv` with a column `file`, or LJ Speech's
    `metadata.csv`) provide texts and speakers. Of recordings with the same audio, one is used, from
    dev if possible.
    """
    folder = Path(folder)
    names, notes = _find(folder)
    listed, table_splits, table_notes = read_tables(folder)
    rows, missing, contradictions = match(listed, set(names))
    left_out = [LeftOut(row.file, "not there", f"listed in {row.table}") for row in missing]
    cache = None if cache_folder is None else Path(cache_folder)
    measured, unusable = _usable(folder, names, rules, cache)
    recordings, lost = _recordings(folder, measured, table_splits, rows, rules)
    left_out += unusable + lost
    _check_splits(folder, recordings, left_out, rules)
    clipped = [r.name for r in recordings if r.measured.clipped_share > rules.max_clipped_share]
    notes += [*table_notes, *contradictions, *_notes(recordings, sample_rate_hz)]
    return ScanReport(
        folder, sample_rate_hz, recordings, tuple(left_out), tuple(clipped), tuple(notes)
    )
