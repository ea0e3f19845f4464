"""Preparation of recordings for training: sample rate, level and conditioning frames."""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onepass.foundation.files import make_folder, replacing, show_path, some
from onepass.foundation.runtime import in_threads
from wavenet.data import audio
from wavenet.data.audio import below_full_scale_db
from wavenet.data.recordings import SPLITS, Recording, ScanReport, digest_of
from wavenet.features.frames import (
    MelConvention,
    PitchConvention,
    above_silence,
    fundamental_frequency,
    log_f0_features,
    mel_spectrogram,
)

VERSION = 1
DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A recording that was prepared for training.

    Its `waveform` is int16 [samples], after the gain; `mel`, float32 [frames, bands], and `f0_hz`,
    float32 [frames] and 0 if unvoiced, are empty if the corpus has none.
    """

    name: str
    text: str
    speaker: int
    waveform: np.ndarray
    mel: np.ndarray
    f0_hz: np.ndarray


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The prepared recordings, in memory (about 3.3 bytes per sample with 80 bands and hop 256).

    The first `num_train_speakers` of the speakers have recordings in train. `gain_db` was applied
    to each recording, except that a lower gain was applied where the peak would exceed full scale.
    """

    sample_rate_hz: int
    splits: dict[str, tuple[Prepared, ...]]
    speakers: tuple[str, ...]
    num_train_speakers: int
    gain_db: float
    mel: MelConvention | None
    pitch: PitchConvention | None
    notes: tuple[str, ...]

    @property
    def hop_samples(self) -> int:
        """Hop length of the frames in samples; 1 if there are no frames."""
        convention = self.mel or self.pitch
        return convention.hop_samples if convention else 1


def _own_gain_db(recording: Recording, gain_db: float) -> float:
    """Return a recording's gain in dB: the corpus's, or less to keep the peak below full scale."""
    most_db = below_full_scale_db(recording.measured.peak_db)
    return gain_db if gain_db <= most_db else math.floor(100.0 * most_db) / 100.0


@dataclasses.dataclass(frozen=True)
class _Recipe:
    sample_rate_hz: int
    gain_db: float
    mel: MelConvention | None
    pitch: PitchConvention | None
    speed: float = 1.0

    def of(self, recording: Recording) -> "_Recipe":
        return dataclasses.replace(self, gain_db=_own_gain_db(recording, self.gain_db))

    def cache_name(self, recording: Recording) -> str:
        fields = dataclasses.asdict(self)
        if self.speed == 1.0:
            del fields["speed"]  # keeps the names of caches from before this setting existed
        values = [VERSION, recording.measured.digest, fields]
        text = json.dumps(values, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=20).hexdigest() + ".npz"


def _arrays(recording: Recording, recipe: _Recipe) -> dict[str, np.ndarray]:
    sound = audio.read_sound(recording.path)
    if digest_of(sound) != recording.measured.digest:
        raise audio.AudioError(recording.path, "has changed since it was scanned")
    stored = audio.resample(sound.waveform, sound.sample_rate_hz, recipe.sample_rate_hz)
    stored = audio.resample(
        stored, round(recipe.speed * recipe.sample_rate_hz), recipe.sample_rate_hz
    )
    samples = audio.to_int16(audio.amplify(stored, recipe.gain_db))
    waveform = audio.from_int16(samples)
    arrays = {
        "waveform": samples,
        "mel": np.zeros((0, 0), np.float32),
        "f0_hz": np.zeros(0, np.float32),
    }
    if recipe.mel:
        arrays["mel"] = mel_spectrogram(waveform, recipe.mel)
    if recipe.pitch:
        arrays["f0_hz"], _ = fundamental_frequency(waveform, recipe.pitch)
    return arrays


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an npz file atomically."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _prepare_recording(
    recording: Recording, speaker: int, recipe: _Recipe, cache: Path | None
) -> Prepared:
    path = cache / recipe.cache_name(recording) if cache else None
    arrays: dict[str, np.ndarray] = {}
    if path:
        with contextlib.suppress(*DAMAGE), open(path, "rb") as file, np.load(file) as stored:
            arrays = {name: stored[name] for name in ("waveform", "mel", "f0_hz")}
    if not arrays:
        arrays = _arrays(recording, recipe)
        if path:
            write_arrays(path, arrays)
    return Prepared(recording.name, recording.text, speaker, **arrays)


def prepare(
    report: ScanReport,
    *,
    mel: MelConvention | None = None,
    pitch: PitchConvention | None = None,
    level_db: float | None = None,
    gain_db: float | None = None,
    speeds: Sequence[float] = (),
    cache_folder: str | os.PathLike[str] | None = None,
) -> Corpus:
    """Read the recordings of a scan, resample and amplify them, and compute their frames."""
    notes: list[str] = []
    if gain_db is None and level_db is not None:
        stored_db = float(np.median([r.measured.rms_db for r in report.of("train")]))
        gain_db = round(level_db - stored_db, 2)
        notes.append(
            f"level: the median RMS of train is {stored_db:.1f} dB; a gain of {gain_db:+.2f} dB "
            f"brings it to {level_db:g} dB"
        )
    gain_db = gain_db or 0.0
    if loud := [show_path(r.name) for r in report.recordings if _own_gain_db(r, gain_db) < gain_db]:
        notes.append(
            f"level: amplified by less, so that their peaks stay below full scale: {some(loud)}"
        )
    recipe = _Recipe(report.sample_rate_hz, gain_db, mel, pitch)
    for name, convention in (("mel", mel), ("pitch", pitch)):
        if convention and convention.sample_rate_hz != report.sample_rate_hz:
            raise ValueError(
                f"`{name}.sample_rate_hz` must be the corpus's {report.sample_rate_hz}, "
                f"got {convention.sample_rate_hz}."
            )
    if mel and pitch and mel.hop_samples != pitch.hop_samples:
        raise ValueError(
            f"`pitch.hop_samples` must be that of mel, {mel.hop_samples}, got {pitch.hop_samples}."
        )
    cache = None if cache_folder is None else make_folder(Path(cache_folder))
    train = sorted({r.speaker for r in report.of("train")})
    speakers = (*train, *sorted({r.speaker for r in report.recordings} - {*train}))
    number = {name: index for index, name in enumerate(speakers)}
    wanted = [(r, recipe.of(r)) for r in report.recordings]
    for speed in speeds:
        other = dataclasses.replace(recipe, speed=speed)
        wanted += [(r, other.of(r)) for r in report.of("train")]

    def prepare_one(pair: tuple[Recording, _Recipe]) -> Prepared:
        recording, own = pair
        return _prepare_recording(recording, number[recording.speaker], own, cache)

    prepared = in_threads(prepare_one, wanted, "preparing", "recording")
    splits = {
        split: tuple(p for p, (r, _) in zip(prepared, wanted, strict=True) if r.split == split)
        for split in SPLITS
    }
    rate_hz = report.sample_rate_hz
    return Corpus(rate_hz, splits, speakers, len(train), gain_db, mel, pitch, tuple(notes))


def recordings_of(corpus: Corpus, split: str) -> tuple[Prepared, ...]:
    """Return the recordings of a split."""
    if not corpus.splits.get(split):
        full = [name for name, members in corpus.splits.items() if members]
        raise ValueError(f'`split` must be one of {full}, got "{split}".')
    return corpus.splits[split]


def _columns(corpus: Corpus, feature: str, prepared: Prepared | None) -> np.ndarray:
    if feature == "mel" and corpus.mel:
        silent = np.full((1, corpus.mel.bands), corpus.mel.silence, np.float32)
        return above_silence(prepared.mel if prepared else silent, corpus.mel)
    if feature == "f0" and corpus.pitch:
        f0_hz = prepared.f0_hz if prepared else np.zeros(1)
        return log_f0_features(f0_hz, f0_hz > 0.0, corpus.pitch.reference_hz)
    ready = [name for name, made in (("mel", corpus.mel), ("f0", corpus.pitch)) if made]
    raise ValueError(f'`features` must be among the prepared {ready}, got "{feature}".')


def frames_of(corpus: Corpus, prepared: Prepared, features: Sequence[str]) -> np.ndarray:
    """Return a recording's features ("mel", "f0") in order, float32 [frames, channels]."""
    return np.concatenate([_columns(corpus, feature, prepared) for feature in features], axis=1)


def silent_frame(corpus: Corpus, features: Sequence[str]) -> np.ndarray:
    """Return a frame of digital silence, which pads recordings, float32 [channels]."""
    columns = [_columns(corpus, feature, None)[0] for feature in features]
    return np.concatenate(columns).astype(np.float32)


def full_recordings(
    corpus: Corpus, split: str, features: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Yield every recording of a split in full, as a dict.

    "waveform" is float32 [samples], "samples" int16, "speaker" a number, "frames" float32 [frames,
    channels], if there are features; "name" and "text" are strings.
    """
    for prepared in recordings_of(corpus, split):
        item: dict[str, Any] = {
            "name": prepared.name,
            "text": prepared.text,
            "waveform": audio.from_int16(prepared.waveform),
            "samples": prepared.waveform,
            "speaker": prepared.speaker,
        }
        if features:
            item["frames"] = frames_of(corpus, prepared, features)
        yield item


def _concatenate_arrays(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    lengths = [len(array) for array in arrays]
    return np.concatenate(arrays), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def export_npz(corpus: Corpus, path: str | os.PathLike[str], features: Sequence[str] = ()) -> None:
    """Write a corpus to one npz file, from which `batch_sampling.open_batches` draws batches.

    Each split with recordings has `SPLIT_waveform` int16 [all samples] and `SPLIT_offsets` int64
    [recordings + 1], where recording i is waveform[offsets[i]:offsets[i + 1]]; `SPLIT_speaker`
    int32 [recordings]; `SPLIT_names`; and, with features, `SPLIT_frames` float32 [all frames,
    channels] and `SPLIT_frame_offsets`. The file also contains `description`, in JSON, and, with
    features, `silent_frame` float32 [channels].
    """
    description = {
        "sample_rate_hz": corpus.sample_rate_hz,
        "hop_samples": corpus.hop_samples if features else 1,
        "gain_db": corpus.gain_db,
        "features": list(features),
        "speakers": list(corpus.speakers),
        "num_train_speakers": corpus.num_train_speakers,
        "mel": corpus.mel.to_dict() if corpus.mel else None,
        "pitch": corpus.pitch.to_dict() if corpus.pitch else None,
    }
    arrays = {"description": np.array(json.dumps(description))}
    if features:
        arrays["silent_frame"] = silent_frame(corpus, features)
    for split, members in corpus.splits.items():
        if not members:
            continue
        joined, offsets = _concatenate_arrays([p.waveform for p in members])
        arrays[f"{split}_waveform"], arrays[f"{split}_offsets"] = joined, offsets
        arrays[f"{split}_speaker"] = np.array([p.speaker for p in members], np.int32)
        arrays[f"{split}_names"] = np.array([show_path(p.name) for p in members])
        if features:
            joined, offsets = _concatenate_arrays([frames_of(corpus, p, features) for p in members])
            arrays[f"{split}_frames"], arrays[f"{split}_frame_offsets"] = joined, offsets
    write_arrays(Path(path), arrays)
