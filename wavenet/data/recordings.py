"""Search of a folder for usable recordings, with a report of files that are left out and why."""

import collections
import dataclasses
import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from onepass.foundation.errors import UserError
from onepass.foundation.folders import (
    count_noun,
    endings,
    hash_name,
    list_files,
    show_path,
    some,
    unread,
)
from onepass.foundation.threads import in_threads
from wavenet.data import file_info
from wavenet.data.audio import SUFFIXES, AudioError
from wavenet.data.file_info import FileInfo
from wavenet.data.metadata import SPLITS, Row, Tables, match, read_tables


class DataError(UserError):
    """An error in a folder of recordings, with a one-line message."""


@dataclasses.dataclass(frozen=True)
class ScanRules:
    """Rules for usable recordings, and for the split if the folder has none.

    Attributes:
      min_seconds: minimum length of a recording in seconds.
      silent_peak_db: recordings with a peak below this, in dB of full scale, are left out.
      max_clipped_share: recordings with a larger share of samples at full scale, in [0, 1], count
        as clipped.
      keep_clipped: whether to use clipped recordings anyway.
      dev_share: share of the files that are assigned to dev, in [0, 1), by a hash of the name; 0
        leaves dev empty.
      speaker_folders: whether the folder of a recording names the speaker if no table does;
        recordings without a speaker are then left out, unless no recording has one.
    """

    min_seconds: float = 0.3
    silent_peak_db: float = -60.0
    max_clipped_share: float = 0.001
    keep_clipped: bool = True
    dev_share: float = 0.05
    speaker_folders: bool = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.dev_share < 1.0:
            raise UserError(f"`dev_share` must be in [0, 1), got {self.dev_share}.")
        if self.min_seconds < 0.0:
            raise UserError(f"`min_seconds` must be at least 0, got {self.min_seconds}.")


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


def _measure_all(paths: Sequence[Path], cache_folder: Path | None) -> list[FileInfo | AudioError]:
    known = file_info.load_infos(cache_folder)
    keys = [file_info.cache_key(path) for path in paths]  # before reading: files may change

    def measure_file(key: str, path: Path) -> FileInfo | AudioError:
        try:
            return known.get(key) or file_info.read_info(path)
        except AudioError as error:
            return error

    pairs = list(zip(keys, paths, strict=True))
    results = in_threads(lambda pair: measure_file(*pair), pairs, "scanning", "recording")
    good = {k: r for k, r in zip(keys, results, strict=True) if isinstance(r, FileInfo)}
    if good.keys() - known.keys():
        try:
            file_info.save_infos(cache_folder, known | good)
        except OSError as error:
            raise DataError(
                f"{show_path(cache_folder)}: cannot be written ({error.strerror})."
            ) from error
    return results


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


def _by_hash(names: Sequence[str], dev_share: float) -> dict[str, str]:
    ordered = sorted(names, key=hash_name)
    num_dev = sum(hash_name(name) < dev_share for name in names)
    if dev_share > 0.0 and len(names) > 1:
        num_dev = min(max(num_dev, 1), len(names) - 1)
    return {name: "dev" if rank < num_dev else "train" for rank, name in enumerate(ordered)}


def _split_folders(folder: Path) -> bool:
    return all((folder / split).is_dir() for split in SPLITS)


def _splits(
    folder: Path, names: Sequence[str], tables: Tables, rows: dict[str, Row], rules: ScanRules
) -> dict[str, str]:
    if _split_folders(folder):
        tops = {name: name.split("/")[0] for name in names}
        return {name: top for name, top in tops.items() if top in SPLITS}
    if tables.splits == set(SPLITS):
        return {name: rows[name].split for name in names if name in rows and rows[name].split}
    return _by_hash(names, rules.dev_share)


def _speaker(name: str, row: Row | None, rules: ScanRules) -> str:
    if row and row.speaker:
        return row.speaker
    parents = [part for part in Path(name).parts[:-1] if part not in SPLITS]
    return parents[-1] if rules.speaker_folders and parents else ""


def _without_copies(
    recordings: Sequence[Recording],
) -> tuple[tuple[Recording, ...], list[LeftOut]]:
    first: dict[str, Recording] = {}
    copies = []
    for recording in recordings:
        kept = first.setdefault(recording.measured.digest, recording)
        if kept is not recording:
            copies.append(LeftOut(recording.name, "a copy", f"the sound of {kept.name}"))
    return tuple(first.values()), copies


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
                "in all "
                f"{found}; train and dev need at least one each."
            )


def _notes(recordings: Sequence[Recording], sample_rate_hz: int) -> list[str]:
    notes = []
    low = [r.name for r in recordings if r.measured.sample_rate_hz < sample_rate_hz]
    if low:
        notes.append(
            f"stored below {sample_rate_hz} Hz and resampled, so without its highest band: "
            f"{_some(low)}"
        )
    high = [r.name for r in recordings if r.measured.sample_rate_hz > sample_rate_hz]
    if high:
        rates = sorted({r.measured.sample_rate_hz for r in recordings} - {sample_rate_hz})
        hertz = " and ".join(f"{rate:,}" for rate in rates if rate > sample_rate_hz)
        notes.append(f"resampled from {hertz} Hz to {sample_rate_hz:,} Hz: {_some(high)}")
    cancelled = [r.name for r in recordings if r.measured.cancelled]
    if cancelled:
        notes.append(f"channels cancel each other, so only the loudest is used: {_some(cancelled)}")
    cut = [r.name for r in recordings if r.measured.missing_samples]
    if cut:
        notes.append(f"cut off, with less sound than the header promises: {_some(cut)}")
    endless = [r.name for r in recordings if r.measured.endless]
    if endless:
        notes.append(
            f"without a length in the header, read up to the end of the file: {_some(endless)}"
        )
    offset = [r.name for r in recordings if r.measured.offset]
    if offset:
        notes.append(f"with a constant offset, which is taken out: {_some(offset)}")
    unread = [r.name for r in recordings if r.measured.unread_bytes]
    if unread:
        notes.append(
            f"read up to the end given in the header, not the end of the file: {_some(unread)}"
        )
    known = {r.speaker for r in recordings if r.split == "train"}
    new = sorted({r.speaker for r in recordings} - known)
    if new:
        notes.append(f"speakers of dev that train does not have: {_some(new)}")
    minutes = {
        split: sum(r.measured.seconds for r in recordings if r.split == split) / 60
        for split in SPLITS
    }
    if minutes["dev"] > minutes["train"]:
        notes.append(
            f"dev is longer than train ({minutes['dev']:.1f} min, {minutes['train']:.1f} min): "
            "most recordings are not used for training"
        )
    return notes


def _usable(
    folder: Path,
    names: Sequence[str],
    rules: ScanRules,
    cache_folder: str | os.PathLike[str] | None,
) -> tuple[dict[str, FileInfo], list[LeftOut]]:
    cache = None if cache_folder is None else Path(cache_folder)
    good, bad = {}, []
    results = _measure_all([folder / name for name in names], cache)
    for name, result in zip(names, results, strict=True):
        problem = _rejection(name, result, rules)
        if problem:
            bad.append(problem)
        elif isinstance(result, FileInfo):
            good[name] = result
    return good, bad


def _recordings(
    folder: Path,
    measured: dict[str, FileInfo],
    tables: Tables,
    rows: dict[str, Row],
    rules: ScanRules,
) -> tuple[tuple[Recording, ...], list[LeftOut]]:
    splits = _splits(folder, list(measured), tables, rows, rules)
    lost = [LeftOut(name, "in no split", "") for name in measured if name not in splits]
    recordings = []
    for name, split in sorted(splits.items(), key=lambda item: (item[1], item[0])):
        row = rows.get(name)
        speaker, text = _speaker(name, row, rules), row.text if row else ""
        recordings.append(Recording(name, folder / name, split, speaker, text, measured[name]))
    recordings, nameless = _of_known_speakers(recordings, rules)
    kept, copies = _without_copies(recordings)
    return kept, lost + nameless + copies


def _of_known_speakers(
    recordings: Sequence[Recording], rules: ScanRules
) -> tuple[list[Recording], list[LeftOut]]:
    nameless = [r for r in recordings if not r.speaker]
    if not rules.speaker_folders or len(nameless) == len(recordings):
        return list(recordings), []
    why = "others have one by a table or a folder"
    lost = [LeftOut(r.name, "without a speaker", why) for r in nameless]
    return [r for r in recordings if r.speaker], lost


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
    tables = read_tables(folder)
    rows, missing, contradictions = match(tables, set(names))
    left_out = [LeftOut(row.file, "not there", f"listed in {row.table}") for row in missing]
    measured, unusable = _usable(folder, names, rules, cache_folder)
    recordings, lost = _recordings(folder, measured, tables, rows, rules)
    left_out += unusable + lost
    _check_splits(folder, recordings, left_out, rules)
    clipped = [r.name for r in recordings if r.measured.clipped_share > rules.max_clipped_share]
    notes += [*tables.notes, *contradictions, *_notes(recordings, sample_rate_hz)]
    return ScanReport(
        folder, sample_rate_hz, recordings, tuple(left_out), tuple(clipped), tuple(notes)
    )
