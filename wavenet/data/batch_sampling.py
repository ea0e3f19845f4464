"""Random batches of clips; batch n of a source is a pure function of the seed and n.

This module uses only NumPy and imports nothing from this project, so it can be copied to another
machine, where `open_batches` draws the same batches.
"""

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Random changes of a clip: up to `gain_db` more or less, in frames too, and its polarity.

    `silence` is the natural logarithm of the bands' floor; frames are results of `above_silence`.
    """

    gain_db: float
    polarity: bool
    bands: int
    silence: float


@dataclasses.dataclass(frozen=True)
class ClipSource:
    """Recordings from which clips are drawn, all starts at multiples of a hop equally likely.

    Attributes:
      frames: conditioning frames of each recording, float32 [frames, channels]; empty for none.
      padding: the frame beyond the ends of a recording, float32 [channels].
      left_samples: number of samples before each clip that are included but masked out.
      side_frames: number of additional frames on either side, as context for a conditioner.
    """

    waveforms: Sequence[np.ndarray]
    speakers: Sequence[int] | np.ndarray
    clip_samples: int
    frames: Sequence[np.ndarray] = ()
    padding: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.float32))
    hop_samples: int = 1
    left_samples: int = 0
    side_frames: int = 0
    augmentation: Augmentation | None = None

    def __post_init__(self) -> None:
        hop, left, clip = self.hop_samples, self.left_samples, self.clip_samples
        if left < 0 or left % hop:
            raise ValueError(
                f"`left_samples` must be a multiple of `hop_samples` {hop}, got {left}."
            )
        if clip < 1 or clip % hop:
            raise ValueError(
                f"`clip_samples` must be a positive multiple of `hop_samples` {hop}, got {clip}."
            )
        if not self.waveforms:
            raise ValueError("`waveforms` must hold at least one recording, got none.")

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """Cumulative number of possible clip starts, int64 [recordings]."""
        starts = [
            max(0, len(w) - self.clip_samples) // self.hop_samples + 1 for w in self.waveforms
        ]
        return np.cumsum(starts, dtype=np.int64)


def clip_places(source: ClipSource, seed: int, step: int, batch_size: int) -> list[tuple[int, int]]:
    """Return (index of the recording, first sample) for each clip of batch `step`.

    Word i of Philox-4x64 (Salmon et al. 2011) with the key (seed, step) selects clip start number
    floor(word * starts / 2^64), where the starts of all recordings are numbered consecutively.
    """
    total = int(source.ends[-1])
    key = np.array([seed % 2**64, step], np.uint64)
    words = np.random.Philox(key=key).random_raw(batch_size)
    picked = np.array([int(word) * total >> 64 for word in words], np.int64)
    which = np.searchsorted(source.ends, picked, side="right")
    before = np.concatenate([[0], source.ends])[which]
    return [
        (int(r), int(n)) for r, n in zip(which, (picked - before) * source.hop_samples, strict=True)
    ]


def _clip(source: ClipSource, recording: int, start: int) -> tuple[np.ndarray, np.ndarray]:
    left = source.left_samples
    first = max(0, start - left)
    cut = source.waveforms[recording][first : start + source.clip_samples]
    waveform, mask = np.zeros((2, left + source.clip_samples), np.float32)
    place = first - (start - left)
    waveform[place : place + len(cut)] = (2.0 * cut.astype(np.float64) + 1.0) / 65535.0
    mask[left : place + len(cut)] = 1.0
    return waveform, mask


def _clip_frames(source: ClipSource, recording: int, start: int) -> np.ndarray:
    hop, side = source.hop_samples, source.side_frames
    first = (start - source.left_samples) // hop - side
    length = (source.left_samples + source.clip_samples) // hop + 2 * side
    frames = np.tile(source.padding, (length, 1)).astype(np.float32)
    cut = source.frames[recording][max(0, first) : first + length]
    place = max(0, -first)
    frames[place : place + len(cut)] = cut
    return frames


def _augment_batch(
    source: ClipSource, result: dict[str, np.ndarray], seed: int, step: int, rows: slice
) -> dict[str, np.ndarray]:
    wanted = source.augmentation
    if wanted is None:
        return result
    key = np.array([(seed + 0x9E3779B97F4A7C15) % 2**64, step], np.uint64)
    words = np.random.Philox(key=key).random_raw(2 * rows.stop).reshape(-1, 2)[rows]
    gain_db = wanted.gain_db * (2.0 * (words[:, 0] / 2.0**64) - 1.0)
    # Limit the gain so that no clip exceeds full scale.
    peaks = np.maximum(np.abs(result["waveform"]).max(1), 1e-4)
    gain = np.minimum(10.0 ** (gain_db / 20.0), 0.99 / peaks)
    sign = np.where(wanted.polarity & (words[:, 1] >> np.uint64(63) == 1), -1.0, 1.0)
    waveform = result["waveform"] * (sign * gain)[:, None].astype(np.float32)
    result = {**result, "waveform": waveform.astype(np.float32)}
    if source.frames and wanted.bands:
        frames = result["frames"].copy()
        mel = frames[..., : wanted.bands]
        louder = np.maximum(mel - (np.log(gain) / wanted.silence)[:, None, None], 0.0)
        frames[..., : wanted.bands] = np.where(mel > 0.0, louder, 0.0)
        result["frames"] = frames.astype(np.float32)
    return result


def batch(
    source: ClipSource,
    seed: int,
    step: int,
    batch_size: int,
    *,
    shard_index: int = 0,
    num_shards: int = 1,
) -> dict[str, np.ndarray]:
    """Return batch `step` of a seed's endless sequence, or one of `num_shards` equal parts of it.

    A batch has `batch_size` clips, each part an equal number of them: "waveform" and "mask" (1 in
    the clip, 0 in padding and in the preceding samples), float32 [rows, left_samples +
    clip_samples]; "speaker", int32 [rows]; with frames also "frames", float32 [rows, (left_samples
    + clip_samples) / hop_samples + 2 side_frames, channels].
    """
    if batch_size < 1 or batch_size % num_shards or not 0 <= shard_index < num_shards:
        raise ValueError(
            f"`batch_size` must be a positive multiple of `num_shards` {num_shards} and "
            f"`shard_index` below it, got {batch_size} and {shard_index}."
        )
    count = batch_size // num_shards
    rows = slice(shard_index * count, (shard_index + 1) * count)
    places = clip_places(source, seed, step, batch_size)[rows]
    clips = [_clip(source, recording, start) for recording, start in places]
    result = {
        "waveform": np.stack([waveform for waveform, _ in clips]),
        "mask": np.stack([mask for _, mask in clips]),
        "speaker": np.array([source.speakers[recording] for recording, _ in places], np.int32),
    }
    if source.frames:
        frames = [_clip_frames(source, recording, start) for recording, start in places]
        result["frames"] = np.stack(frames)
    return _augment_batch(source, result, seed, step, rows)


def open_batches(folder: Path, settings: Mapping) -> Callable[[int], dict[str, np.ndarray]]:
    """Return a function from a step to its batch, for a file from `corpus.export_npz`.

    It also takes the arguments `shard_index` and `num_shards` of `batch`. The settings are "file",
    its name; "split", "clip_samples", "batch_size" and "seed"; and optionally "left_samples",
    "side_frames" and "augmentation", a dict of `Augmentation`.
    """
    split, augmentation = settings["split"], settings.get("augmentation")
    with np.load(Path(folder) / settings["file"], allow_pickle=False) as file:
        stored = dict(file)
    framed: dict[str, Any] = {}
    if f"{split}_frames" in stored:
        ends = stored[f"{split}_frame_offsets"][1:-1]
        framed = {"frames": np.split(stored[f"{split}_frames"], ends)}
        framed["padding"] = stored["silent_frame"]
    framed |= {name: settings.get(name, 0) for name in ("left_samples", "side_frames")}
    framed["hop_samples"] = json.loads(str(stored["description"]))["hop_samples"]
    framed["augmentation"] = None if augmentation is None else Augmentation(**augmentation)
    waveforms = np.split(stored[f"{split}_waveform"], stored[f"{split}_offsets"][1:-1])
    speakers, clip_samples = stored[f"{split}_speaker"], settings["clip_samples"]
    source = ClipSource(waveforms, speakers, clip_samples, **framed)
    return functools.partial(batch, source, settings["seed"], batch_size=settings["batch_size"])
