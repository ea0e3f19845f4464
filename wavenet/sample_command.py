"""The verb `sample` for sound: WAV files, written chunk by chunk, and their spectrograms."""

import contextlib
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from replicator.runs.atomic_files import read_npy
from replicator.runs.errors import UserError
from replicator.runs.folders import check_new, make_folder
from replicator.runs.progress import Progress
from wavenet import shipped
from wavenet.data import audio
from wavenet.data.recorded_level import at_recorded_level, recorded_frames
from wavenet.data.recording_in_pieces import RecordingInPieces, check_length
from wavenet.data.sound_properties import SoundProperties
from wavenet.features.frame_statistics import unlike
from wavenet.features.frames_in_pieces import FramesInPieces
from wavenet.features.mel import above_silence
from wavenet.plots import spectrogram_png
from wavenet.sample_arguments import SampleArguments

LEAST_SECONDS = 0.1  # of sound, of which a speed says something
PLOTTED_SECONDS = 20.0  # of a sound: a longer one is seen by its beginning
NAMED_WORDS, LONGEST_NAME = 6, 60  # words and characters of a text that name its file
INTERRUPTED = 130


TextReader = Callable[[Any, str, float], np.ndarray]
"""From a model, a text and a speed to frames [frames, channels]."""


def sample(
    given: SampleArguments, load: Callable[[Path], Any], read_text: TextReader | None = None
) -> int:
    """Write the sounds of `onepass sample ...` and return the exit status.

    Ctrl-C keeps what has been synthesised so far. Without `read_text`, texts are refused.
    """
    _check(given)
    model = load(given.model)
    _check_ability(given, model)
    file = _recording_file(given, model)
    name = _words_of(given.text) if given.text else (given.mel or file or Path("sample")).stem
    paths = [given.out / f"{name}_{given.seed}_{row}.wav" for row in range(given.num)]
    check_new([each for path in paths for each in (path, _image(path))], given.overwrite)
    source = _source(given, model, file, read_text)
    total = _length(given, model, source)
    prime = _prime(given, model, source.recording, total)
    make_folder(given.out)
    written = _Written(model.sample_rate_hz, given.num, source.gain_db)
    interrupted = _synthesise(given, model, source, prime, total, paths, written)
    if written.samples:
        _plot_and_report(paths, written, model, source.recording)
    return INTERRUPTED if interrupted else 0


@dataclasses.dataclass(frozen=True)
class _Source:
    """The input of a synthesis; None where there is none.

    Attributes:
      recording: float32 [samples] at the model's rate, as stored; its beginning where the frames
        are in pieces.
      gain_db: brings it to the model's level.
      frames: [frames, channels] at that level.
      samples: of the whole recording.
    """

    recording: np.ndarray | None = None
    gain_db: float = 0.0
    frames: np.ndarray | FramesInPieces | None = None
    samples: int | None = None


class _Written:
    """Records of sounds while they are written: levels, beginnings, time."""

    def __init__(self, rate_hz: int, rows: int, gain_db: float):
        self.rate_hz, self.seconds, self.samples, self.made = rate_hz, 0.0, 0, 0
        self.gain_db, self.limited = gain_db, np.zeros(rows, np.int64)
        self.peaks, self.energies = np.zeros(rows), np.zeros(rows)
        self.beginnings: list[np.ndarray] = []

    def levelled(self, chunk: np.ndarray) -> np.ndarray:
        """Return a chunk [rows, samples] of the model at the recording's level."""
        most = audio.FULL_SCALE * min(1.0, 10.0 ** (self.gain_db / 20.0))
        self.limited += (np.abs(chunk) >= most).sum(1)
        return at_recorded_level(chunk, self.gain_db)

    def add(self, chunk: np.ndarray) -> None:
        """Record a chunk [rows, samples] as it is written."""
        left = int(PLOTTED_SECONDS * self.rate_hz) - self.samples
        if left > 0:
            self.beginnings.append(chunk[:, :left])
        self.samples += chunk.shape[1]
        self.peaks = np.maximum(self.peaks, np.abs(chunk).max(1))
        self.energies += np.square(chunk, dtype=np.float64).sum(1)


def _synthesise(
    given: SampleArguments, model, source: _Source, prime, total, paths, written: _Written
) -> bool:
    """Write the sounds as they are made, and return whether Ctrl-C cut them short."""
    primed = 0 if prime is None else len(prime)
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(audio.writing(p, model.sample_rate_hz)) for p in paths]
        progress = stack.enter_context(Progress(total - primed, "synthesising", "sample"))
        try:
            if prime is not None:
                _take(np.repeat(prime[None], given.num, 0), writers, written)
                prime = audio.amplify(prime, source.gain_db)
            start = time.perf_counter()
            for chunk in _chunks(given, model, source.frames, prime, total - primed):
                _take(written.levelled(chunk), writers, written)
                written.made += chunk.size
                written.seconds = time.perf_counter() - start
                progress.advance(chunk.shape[1])
        except KeyboardInterrupt:
            progress.say(f"interrupted: keeping {written.samples / written.rate_hz:.1f} s")
            return True
    return False


def _take(chunk: np.ndarray, writers, written: _Written) -> None:
    for write, row in zip(writers, chunk, strict=True):
        write(row)
    written.add(chunk)


def _chunks(given: SampleArguments, model, frames, prime, samples: int) -> Iterator[np.ndarray]:
    return model.stream(
        frames,
        seed=given.seed,
        num=given.num,
        num_samples=samples,
        speaker=given.speaker,
        temperature=given.temperature,
        backend=given.backend,
        **({} if prime is None else {"prime": prime}),
        **({"refine": given.refine} if model.refinable else {}),
    )


def _plot_and_report(paths, written: _Written, model, recording: np.ndarray | None) -> None:
    rate_hz, beginnings = written.rate_hz, np.concatenate(written.beginnings, 1)
    for row, path in enumerate(paths):
        plotted = {"sampled": beginnings[row]}
        if recording is not None:
            plotted["recorded"] = recording[: beginnings.shape[1]]
        spectrogram_png(_image(path), plotted, rate_hz)
        rms = math.sqrt(written.energies[row] / written.samples)
        print(
            f"{path}: {_duration(written.samples, rate_hz)}, "
            f"peak {audio.decibel(written.peaks[row]):.1f} dB, RMS {audio.decibel(rms):.1f} dB"
        )
        if written.limited[row]:
            print(f"{path}: {written.limited[row]:,} samples reached full scale and were limited")
    if written.made:
        print(_speed(written))
    passes = getattr(model, "passes", None)
    if passes is not None and passes.passes:
        print(passes.format_report())


def _speed(written: _Written) -> str:
    """Return a line on the time of the sounds; of very short ones without a real-time factor."""
    seconds = written.made / written.rate_hz
    took = f"{_duration(written.made, written.rate_hz)} of sound in {written.seconds:.2f} s"
    if seconds < LEAST_SECONDS:
        return f"{took} (compilation included)"
    factor, rate = written.seconds / seconds, written.made / written.seconds
    return f"{took}: {factor:.2f} of real time, {rate:,.0f} samples/s (compilation included)"


def _duration(samples: int, rate_hz: int) -> str:
    """Return a length in seconds, and of a very short sound in samples."""
    short = samples < LEAST_SECONDS * rate_hz
    return f"{samples:,} samples" if short else f"{samples / rate_hz:.2f} s"


def _image(path: Path) -> Path:
    return path.with_suffix(".png")


def _check(given: SampleArguments) -> None:
    if given.num < 1:
        raise UserError(f"`--num` must be at least 1, got {given.num}.")
    if given.seconds is not None and not 0 < given.seconds < math.inf:
        raise UserError(f"`--seconds` must be positive and finite, got {given.seconds:g}.")
    for name in ("prime_seconds", "temperature"):
        if not 0 <= (getattr(given, name) or 0.0) < math.inf:
            raise UserError(
                f"`--{name.replace('_', '-')}` must be 0 or more and finite, "
                f"got {getattr(given, name):g}."
            )
    given_sources = [name for name in ("recording", "mel", "text") if getattr(given, name)]
    if len(given_sources) > 1:
        raise UserError(f"`--{given_sources[0]}` and `--{given_sources[1]}` exclude each other.")
    if given.prime_seconds and (given.mel or given.text):
        raise UserError("`--prime-seconds` needs a recording.")
    if given.refine is not None and given.refine < 0:
        raise UserError(f"`--refine` must be at least 0, got {given.refine}.")


def _check_ability(given: SampleArguments, model) -> None:
    """Raise UserError for an option that a model of this kind does not support."""
    kind = model.spec["kind"]
    if given.backend not in model.backends:
        names = ", ".join(model.backends)
        raise UserError(f"`--backend` must be one of {names} for a {kind}, got {given.backend}.")
    if given.prime_seconds and not model.primable:
        raise UserError(f"`--prime-seconds` must be 0: a {kind} cannot continue a recording.")
    if given.refine and not model.refinable:
        raise UserError(f"`--refine` must be 0: only students can be refined, not a {kind}.")
    if given.mel and model.data.features != ("mel",):
        raise UserError(f"`--mel` is for models that read mel frames alone, {given.model} is none.")


def _recording_file(given: SampleArguments, model) -> Path | None:
    if given.mel or given.text or not (given.recording or model.conditional or given.prime_seconds):
        return None
    return given.recording or sorted(shipped.recordings_folder().glob("dev/*.flac"))[0]


def _words_of(text: str) -> str:
    """Return a file name of the first words of a text."""
    words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    return "_".join(words[:NAMED_WORDS])[:LONGEST_NAME] or "text"


def _source(
    given: SampleArguments, model, path: Path | None, read_text: TextReader | None
) -> _Source:
    """Return what to make a sound from; note on stderr what is special about a recording."""
    if given.text is not None:
        if read_text is None:
            raise UserError("`--text` is not available here: there is no reader of texts.")
        return _Source(frames=read_text(model, given.text, given.speed))
    if given.mel:
        return _Source(frames=_mel_frames(given.mel, model, given.force))
    if path is None:
        return _Source()
    return _of_recording(given, model, path)


def _of_recording(given: SampleArguments, model, path: Path) -> _Source:
    """Return the source of a recording, in pieces where the model takes them."""
    rate_hz = model.sample_rate_hz
    if model.takes_pieces and model.conditional and model.data.features == ("mel",):
        pieces = RecordingInPieces(path, rate_hz)
        _say_notes(given, path, pieces.file, rate_hz)
        frames = model.frames_in_pieces(pieces)
        beginning = pieces.beginning(int(PLOTTED_SECONDS * rate_hz))
        return _Source(beginning, model.level_gain_of(pieces), frames, pieces.samples)
    sound = audio.read_sound(path)
    _say_notes(given, path, sound, rate_hz)
    recording = audio.resample(sound.waveform, sound.sample_rate_hz, rate_hz)
    check_length(path, len(recording))
    whole = recorded_frames(np.asarray(model.frames(recording)), 0.0) if model.conditional else None
    return _Source(recording, model.level_gain_db(recording), whole, len(recording))


def _say_notes(given: SampleArguments, path: Path, file: SoundProperties, rate_hz: int) -> None:
    """Print what is special about a recording on stderr; resampling of the user's own alone."""
    for note in file.notes(rate_hz if given.recording else None):
        print(f"{path}: {note}", file=sys.stderr)


def _length(given: SampleArguments, model, source: _Source) -> int:
    """Return the samples of a sound, including the prime."""
    seconds = 3.0 if given.seconds is None else given.seconds
    wanted = max(1, round(seconds * model.sample_rate_hz))
    if source.frames is None:
        return wanted
    covered = len(source.frames) * model.hop_samples
    there = covered if source.samples is None else source.samples
    return there if given.seconds is None else min(wanted, there)


def _prime(
    given: SampleArguments, model, recording: np.ndarray | None, total: int
) -> np.ndarray | None:
    """Return the beginning of the recording, shorter than the sound; None: none."""
    if recording is None or not given.prime_seconds:
        return None
    wanted = min(round(given.prime_seconds * model.sample_rate_hz), len(recording))
    if wanted >= total:
        raise UserError(
            f"`--prime-seconds` must be less than the length of the sound, "
            f"{total / model.sample_rate_hz:.2f}, got {given.prime_seconds:g}."
        )
    samples = _whole_blocks(model, wanted)
    return recording[:samples] if samples else None


def _whole_blocks(model, samples: int) -> int:
    network = model.config.network
    return samples - samples % (network.context_block_samples if network.context_layers else 1)


def _mel_frames(path: Path, model, force: bool) -> np.ndarray:
    """Return the frames of an npy file as the model reads them, float32 [frames, bands]."""
    mel = _stored_mel(path, model.data.mel_bands)
    convention, trained = model.data.mel(model.hop_samples), model.frame_statistics
    frames = above_silence(mel, convention)
    if trained is not None and not force:
        why = unlike(frames, trained, convention)
        if why:
            raise UserError(f"{path} is of another convention: {why}. --force takes it anyway.")
    return frames


def _stored_mel(path: Path, bands: int) -> np.ndarray:
    """Return the logarithms of an npy file, float32 [frames, bands].

    It holds them so, or as HiFi-GAN stores them, [bands, frames] or [1, bands, frames].
    """
    mel = read_npy(path)
    shape = mel.shape
    is_batch = len(shape) == 3 and shape[0] == 1
    if is_batch:
        mel = mel[0]
    if mel.ndim == 2 and mel.shape[0] == bands and (is_batch or mel.shape[1] != bands):
        mel = mel.T
    elif mel.shape == (bands, bands):
        print(
            f"{path}: {bands} x {bands} numbers are taken as [frames, bands]; pass [1, {bands}, "
            f"{bands}] if they are [bands, frames]",
            file=sys.stderr,
        )
    if mel.ndim != 2 or mel.shape[1] != bands or mel.dtype.kind not in "fiu":
        raise UserError(
            f"{path} must hold numbers [frames, {bands}], [{bands}, frames] or [1, {bands}, "
            f"frames], got {shape}."
        )
    if not len(mel):
        raise UserError(f"{path} has no frames.")
    bad = ~np.isfinite(mel).all(axis=1)
    if bad.any():
        raise UserError(f"{path} contains NaN or infinity, first in frame {bad.argmax()}.")
    return mel.astype(np.float32)
