"""Length, sample rate, level and digest of audio files, cached between runs."""

import dataclasses
import hashlib
import json
from pathlib import Path

import numpy as np

from onepass.foundation.atomic_files import replacing
from wavenet.data import audio

FILE = "measurements.json"
VERSION = 4


@dataclasses.dataclass(frozen=True)
class FileInfo:
    """Properties of a decoded audio file; those of `SoundProperties` have the same meaning.

    `peak_db` and `rms_db` are of the mono mix, in dB of full scale; `digest` is a hash of the
    sample rate and the mono mix.
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
    return FileInfo(
        sample_rate_hz=sound.sample_rate_hz,
        channels=sound.channels,
        samples=len(sound.waveform),
        peak_db=audio.peak_db(sound.waveform),
        rms_db=audio.rms_db(sound.waveform),
        clipped_share=sound.clipped_share,
        digest=digest_of(sound),
        cancelled=sound.cancelled,
        missing_samples=sound.missing_samples,
        unread_bytes=sound.unread_bytes,
        endless=sound.endless,
        offset=sound.offset,
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


def load_infos(cache_folder: Path | None) -> dict[str, FileInfo]:
    """Return the cached properties by cache key; {} if the cache is missing or damaged."""
    if cache_folder is None:
        return {}
    try:
        stored = json.loads((cache_folder / FILE).read_text("utf-8"))
        return {name: FileInfo(**values) for name, values in stored.items()}
    except (OSError, RecursionError, ValueError, TypeError, AttributeError):
        return {}


def save_infos(cache_folder: Path | None, cached: dict[str, FileInfo]) -> None:
    """Write properties by cache key to the cache, if there is a cache folder."""
    if cache_folder is None:
        return
    cache_folder.mkdir(parents=True, exist_ok=True)
    values = {name: dataclasses.asdict(info) for name, info in cached.items()}
    with replacing(cache_folder / FILE) as temporary:
        temporary.write_text(json.dumps(values, indent=0), "utf-8")
