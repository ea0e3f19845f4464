"""Draw sounds with a local or served model, and write WAV files and spectrograms chunk by chunk."""

import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from onepass.command.sample.drawing import Drawing
from onepass.foundation.files import read_npy, safe_name
from onepass.foundation.rules import UserError, require
from onepass.speech.markup import Ssml, is_ssml, note_on_markup
from wavenet import shipped
from wavenet.data import audio
from wavenet.data.audio import (
    RecordingInPieces,
    SoundProperties,
    at_recorded_level,
    check_length,
    recorded_frames,
)
from wavenet.features.frames import FramesInPieces, above_silence, unlike
from wavenet.plots import spectrogram_png

LEAST_SECONDS = 0.1  # shorter sounds have no meaningful generation speed
PLOTTED_SECONDS = 20.0  # only the beginning of a longer sound is plotted


class Chunk(NamedTuple):
    """Consecutive samples of one or more sounds; one with different rows ends the previous ones."""

    rows: range  # indices of the sounds
    samples: np.ndarray  # float32 [rows, samples]
    limited: np.ndarray | int = 0  # samples of each row that reached full scale, int [rows]
    made: bool = True  # drawn, rather than copied from a recording


class SoundDrawing(Drawing):
    """Sounds written while generated, kept at Ctrl-C, and plotted above `recording` [samples]."""

    remark = ""  # appended to the printed time

    def __init__(self, given: Any, model: Any, arguments: dict[str, Any], name: str, rate_hz: int):
        super().__init__(given, model, arguments)
        self.total, self.rate_hz = given.num or 1, rate_hz
        self.paths = [given.out / f"{name}_{given.seed}_{row}.wav" for row in range(self.total)]
        self.files = [each for path in self.paths for each in (path, path.with_suffix(".png"))]
        self.recording: np.ndarray | None = None
        self._rows, self._record = range(0), Record(0)
        self._writers: list[Callable[[np.ndarray], None]] = []

    def __enter__(self) -> Self:
        self._record = Record(0)
        return super().__enter__()

    def write(self, part: Chunk) -> int:
        """Append a chunk to the files of its rows."""
        if part.rows != self._rows:
            self.end_rows()
            self._rows, self._record = part.rows, Record(len(part.rows), self._record.started)
            places = [self.paths[row] for row in part.rows]
            self._writers = [self.enter_context(audio.writing(p, self.rate_hz)) for p in places]
        for append, row in zip(self._writers, part.samples, strict=True):
            append(row)
        self._record.add(part, int(PLOTTED_SECONDS * self.rate_hz))
        return 0  # the drawing itself counts the units

    def describe_progress(self) -> str:
        """Return the length of the current sounds so far, as text."""
        return f"{self._record.samples / self.rate_hz:.1f} s"

    def finish(self) -> None:
        """Finish the files of the last rows."""
        self.end_rows()

    def end_rows(self) -> bool:
        """Complete the rows' files, plot and report them; return whether they have samples."""
        self.close()
        record, rows, self._rows = self._record, self._rows, range(0)
        if not record.samples:
            return False
        beginnings = np.concatenate(record.beginnings, 1)
        for number, row in enumerate(rows):
            path, plotted = self.paths[row], {"sampled": beginnings[number]}
            if self.recording is not None:
                plotted["recorded"] = self.recording[: beginnings.shape[1]]
            spectrogram_png(path.with_suffix(".png"), plotted, self.rate_hz)
            print(record.line(path, number, self.rate_hz))
            if record.limited[number]:
                count = f"{record.limited[number]:,} samples"
                print(f"{path}: {count} reached full scale and were limited")
        if record.made:
            print(record.speed(self.rate_hz) + self.remark)
        self._record = Record(0)
        return True


class Record:
    """Statistics of sounds, collected while they are written: levels, beginnings, and speed."""

    def __init__(self, rows: int, started: float | None = None):
        self.samples = self.made = 0
        self.started = self.ended = time.perf_counter() if started is None else started
        self.first_seconds = 0.0
        self.limited = np.zeros(rows, np.int64)
        self.peaks, self.energies = np.zeros(rows), np.zeros(rows)
        self.beginnings: list[np.ndarray] = []

    def add(self, part: Chunk, plotted: int) -> None:
        """Record a chunk; `plotted` is the number of samples that the spectrogram shows."""
        chunk = part.samples
        if self.samples < plotted:
            self.beginnings.append(chunk[:, : plotted - self.samples])
        self.samples += chunk.shape[1]
        self.peaks = np.maximum(self.peaks, np.abs(chunk).max(1, initial=0.0))
        self.energies += np.square(chunk, dtype=np.float64).sum(1)
        self.limited += part.limited
        if part.made:
            self.made += chunk.size
            self.ended = time.perf_counter()
            self.first_seconds = self.first_seconds or self.ended - self.started

    def line(self, path: Path, number: int, rate_hz: int) -> str:
        """Return a line with the length and levels of the sound in row `number`."""
        rms = math.sqrt(self.energies[number] / self.samples)
        return (
            f"{path}: {_duration(self.samples, rate_hz)}, "
            f"peak {audio.decibel(self.peaks[number]):.1f} dB, RMS {audio.decibel(rms):.1f} dB"
        )

    def speed(self, rate_hz: int) -> str:
        """Return a line with the time taken and, unless sounds are short, the real-time factor."""
        seconds, took = self.made / rate_hz, self.ended - self.started
        said = (
            f"{_duration(self.made, rate_hz)} of sound in {took:.2f} s, "
            f"the first of it after {self.first_seconds:.2f} s"
        )
        if seconds < LEAST_SECONDS:
            return said
        return f"{said}: {took / seconds:.2f} of real time, {self.made / took:,.0f} samples/s"


def _duration(samples: int, rate_hz: int) -> str:
    short = samples < LEAST_SECONDS * rate_hz
    return f"{samples:,} samples" if short else f"{samples / rate_hz:.2f} s"


@dataclasses.dataclass(frozen=True)
class Source:
    """The input of a synthesis; missing attributes are None."""

    # float32 [samples] at the model's rate and the original level; its beginning, for pieces
    recording: np.ndarray | None = None
    gain_db: float = 0.0  # what brings the recording to the model's level
    frames: np.ndarray | FramesInPieces | None = None  # [frames, channels] at the model's level
    samples: int | None = None  # of the whole recording


def source_of(given: Any, model: Any, path: Path | None) -> Source:
    """Return the input of a synthesis; print notes about the recording or text on stderr."""
    if given.text is not None or given.phonemes is not None:
        from onepass.speech import text_frames

        words = _words(given)  # which says what there is to say
        return Source(frames=text_frames(model, **words, speed=given.speed, note=None))
    if given.mel:
        return Source(frames=_mel_frames(given.mel, model, given.force))
    return Source() if path is None else _of_recording(given, model, path)


def _words(given: Any) -> dict[str, Any]:
    """Return what `_dictionary` does; print a note on stderr on tags that are not obeyed."""
    if given.pronunciations is not None and given.text is None:
        raise UserError("`--pronunciations` needs `--text`.")
    if given.text is not None and (note := note_on_markup(given.text)):
        print(f"--text: {note}", file=sys.stderr)
    return _dictionary(given)


def _dictionary(given: Any) -> dict[str, Any]:
    """Return the text or phonemes with its dictionary, by the names that `text_frames` has."""
    if given.phonemes is not None:
        return {"phonemes": given.phonemes}
    if given.pronunciations is None:
        return {"text": given.text}
    from onepass.speech import read_pronunciations

    return {"text": given.text, "pronunciations": read_pronunciations(given.pronunciations)}


def _of_recording(given: Any, model: Any, path: Path) -> Source:
    front = model.front
    rate_hz = front.sample_rate_hz
    if model.model.takes_pieces and front.data.features == ("mel",):
        pieces = RecordingInPieces(path, rate_hz)
        _say_notes(given, path, pieces.file, rate_hz)
        frames = front.frames_in_pieces(pieces)
        beginning = pieces.beginning(int(PLOTTED_SECONDS * rate_hz))
        return Source(beginning, front.level_gain_of(pieces), frames, pieces.samples)
    sound = audio.read_sound(path)
    _say_notes(given, path, sound, rate_hz)
    recording = audio.resample(sound.waveform, sound.sample_rate_hz, rate_hz)
    check_length(path, len(recording))
    whole = recorded_frames(front.frames(recording), 0.0) if front.conditional else None
    return Source(recording, front.level_gain_db(recording), whole, len(recording))


def _say_notes(given: Any, path: Path, file: SoundProperties, rate_hz: int) -> None:
    for note in file.notes(rate_hz if given.recording else None):
        print(f"{path}: {note}", file=sys.stderr)


def _mel_frames(path: Path, model: Any, force: bool) -> np.ndarray:
    mel = _stored_mel(path, model.front.data.mel_bands)
    convention, trained = model.front.mel, model.front.statistics
    frames = above_silence(mel, convention)
    if trained is not None and not force:
        why = unlike(frames, trained, convention)
        if why:
            raise UserError(f"{path} is of another convention: {why}. --force takes it anyway.")
    return frames


def _stored_mel(path: Path, bands: int) -> np.ndarray:
    """Read log-mel frames float32 [frames, bands] from an npy file, also in HiFi-GAN's layouts."""
    mel = read_npy(path)
    shape = mel.shape
    if is_batch := len(shape) == 3 and shape[0] == 1:
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


NAMED_WORDS, LONGEST_NAME = 6, 60  # maximum words and characters of a text in its file name


class SoundHere(SoundDrawing):
    """Sounds of a local WaveNet or student, all rows drawn as one batch."""

    title, unit = "synthesising", "sample"
    remark = " (compilation included)"

    def __init__(self, given: Any, model: Any, arguments: dict[str, Any]):
        _check_sources(given)
        _check_ability(given, model)
        _check_times(given)
        self._file = _recording_file(given, model)
        spoken = given.text or given.phonemes
        name = _words_of(spoken) if spoken else (given.mel or self._file or Path("sample")).stem
        super().__init__(given, model, arguments, name, model.front.sample_rate_hz)
        self.files += [given.times] if given.times else []

    def start(self) -> Iterator[Chunk]:
        """Return the chunks: the beginning of a recording to continue, if any, then new samples."""
        given, model = self.given, self.model
        source = source_of(given, model, self._file)
        whole = _length(given, model, source)
        prime = _prime(given, model, source.recording, whole)
        self.recording = source.recording
        self.total = whole - len(prime)
        arguments = dict(self.arguments)
        if len(prime):
            arguments["prefix"] = audio.amplify(prime, source.gain_db)
        if "refine" in model.options:
            arguments["refine"] = given.refine
        if given.draft is not None:
            from distill.model import load_student

            draft = load_student(given.draft)
            arguments |= {"method": "speculative", "draft": draft, "acceptance": "rejection"}
        drawn = model.stream(len(self.paths), whole, given.seed, source.frames, **arguments)
        return self._chunks(drawn, prime, source.gain_db)

    def _chunks(
        self, drawn: Iterator[np.ndarray], prime: np.ndarray, gain_db: float
    ) -> Iterator[Chunk]:
        rows, begun = range(len(self.paths)), len(prime)
        most = audio.FULL_SCALE * min(1.0, 10.0 ** (gain_db / 20.0))
        if begun:
            yield Chunk(rows, np.repeat(prime[None], len(rows), 0), made=False)
        for whole in drawn:
            chunk, begun = whole[:, begun:], max(0, begun - whole.shape[1])
            if chunk.shape[1]:
                limited = (np.abs(chunk) >= most).sum(1)
                yield Chunk(rows, at_recorded_level(chunk, gain_db), limited)
                self.advance(chunk.shape[1])

    def finish(self) -> None:
        """Finish the files, and print the number of network passes if the sampler counts them."""
        super().finish()
        if self.given.times is not None:
            self._write_times(self.given.times)
        passes = getattr(self.model.model, "passes", None)
        if passes is not None and passes.passes:
            print(passes.format_report())

    def _write_times(self, path: Path) -> None:
        from onepass.speech import text_times, write_times

        words = text_times(self.model, **_dictionary(self.given), speed=self.given.speed)
        count = write_times(path, words, self.total / self.rate_hz)
        print(f"{path}: times of {count:,} {'word' if count == 1 else 'words'}")


class ServedSound(SoundDrawing):
    """Sounds of a served model, generated row by row."""

    title, unit = "speaking", "sound"

    def __init__(self, given: Any, model: Any, arguments: dict[str, Any]):
        source, rate_hz = _source(given, model), model.spec["sample_rate_hz"]
        self._condition = {"force": given.force, **source}
        self._length = None if given.seconds is None else max(1, round(given.seconds * rate_hz))
        file = given.recording or given.mel
        other = "text" if given.text else "phonemes" if given.phonemes else "sample"
        name = file.stem if file else safe_name(source.get("example") or other)
        super().__init__(given, model, arguments, name, rate_hz)

    def start(self) -> Iterator[Chunk]:
        """Yield the chunks of each row as they arrive; raise UserError if a row has none."""
        for row in range(self.total):
            rows, seed = range(row, row + 1), self.given.seed
            for chunk in self.model.stream(
                1, self._length, seed, self._condition, row=row, **self.arguments
            ):
                yield Chunk(rows, chunk)
            if not self.end_rows():  # this row's files are complete even if the next fails
                raise UserError(f"The model `{self.model.name}` returned no sound.")
            self.advance(1)


def _check_sources(given: Any) -> None:
    names = ("recording", "mel", "text", "phonemes")
    sources = [f"`--{name}`" for name in names if getattr(given, name)]
    if len(sources) > 1:
        raise UserError(f"{sources[0]} and {sources[1]} exclude each other.")
    if given.prime_seconds and (given.mel or given.text or given.phonemes):
        raise UserError("`--prime-seconds` needs a recording.")


def _check_times(given: Any) -> None:
    if given.times is None:
        return
    from onepass.speech.times import check_times_path

    if given.text is None and given.phonemes is None:
        raise UserError("`--times` needs `--text` or `--phonemes`.")
    check_times_path(given.times)
    folder = given.times.parent
    if not folder.is_dir() and folder.resolve() != given.out.resolve():
        raise UserError(f"there is no folder {folder} to write {given.times.name} to.")


def _check_ability(given: Any, model: Any) -> None:
    kind, is_auto = model.spec["kind"], given.method == "auto"
    rule = f"one of {', '.join(model.methods)} for a {kind}"
    require(given.method in model.methods, "--method", rule, given.method)
    require(is_auto or not given.draft, "method", "auto for a model with a draft", given.method)
    if given.prime_seconds and ("prefix" not in model.options or given.draft):
        raise UserError(f"`--prime-seconds` must be 0: a {kind} cannot continue a recording.")
    if given.refine and "refine" not in model.options:
        raise UserError(f"`--refine` must be 0: only students can be refined, not a {kind}.")
    if given.mel and model.front.data.features != ("mel",):
        rule = "must not be given for a model that reads other frames than mel"
        raise UserError(f"`--mel` {rule}, got {given.model}.")


def _recording_file(given: Any, model: Any) -> Path | None:
    has_other = given.mel or given.text or given.phonemes
    if has_other or not (given.recording or model.front.conditional or given.prime_seconds):
        return None
    return given.recording or sorted(shipped.recordings_folder().glob("dev/*.flac"))[0]


def _words_of(text: str) -> str:
    text = Ssml(text, {}).text if is_ssml(text) else text
    words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
    return "_".join(words[:NAMED_WORDS])[:LONGEST_NAME] or "text"


def _length(given: Any, model: Any, source: Source) -> int:
    seconds = 3.0 if given.seconds is None else given.seconds
    wanted = max(1, round(seconds * model.front.sample_rate_hz))
    if source.frames is None:
        return wanted
    covered = len(source.frames) * model.front.hop_samples
    there = covered if source.samples is None else source.samples
    return there if given.seconds is None else min(wanted, there)


def _prime(given: Any, model: Any, recording: np.ndarray | None, total: int) -> np.ndarray:
    if recording is None or not given.prime_seconds:
        return np.zeros(0, np.float32)
    wanted = min(round(given.prime_seconds * model.front.sample_rate_hz), len(recording))
    most = f"less than the length of the sound, {total / model.front.sample_rate_hz:.2f}"
    require(wanted < total, "--prime-seconds", most, given.prime_seconds)
    network = model.config.network
    block = network.context_block_samples if network.context_layers else 1
    return recording[: wanted - wanted % block]


def _source(given: Any, model: Any) -> dict[str, Any]:
    sources = {
        "recording": given.recording,
        "frames": _numbers(given.mel) if given.mel else None,
        "text": given.text,
        "phonemes": given.phonemes,
        "example": given.example,
    }
    chosen = {key: value for key, value in sources.items() if value is not None}
    if len(chosen) > 1:
        known = "`--recording`, `--mel`, `--text`, `--phonemes` and `--example`"
        raise UserError(f"Give one of {known}.")
    if given.text is not None or given.pronunciations is not None:
        chosen = _words(given)
    if not chosen and model.spec.get("condition") == "frames":
        known = model.examples()
        if not known:
            raise UserError(f"The model `{model.name}` needs `--recording`, `--mel` or `--text`.")
        chosen = {"example": known[0]["name"]}
    return chosen


def _numbers(path: Path) -> np.ndarray:
    array = read_npy(path)
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise UserError(f"{path} must hold numbers [frames, channels], got {array.shape}.")
    return array.astype(np.float32)
