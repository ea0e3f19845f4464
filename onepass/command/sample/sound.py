"""Draw sounds with a local or served model from a recording, mel frames, text, or nothing."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from onepass.command.sample.sound_files import Chunk, SoundDrawing, say_markup
from onepass.command.sample.sound_source import Source, source_of
from onepass.foundation.atomic_files import read_npy
from onepass.foundation.errors import UserError
from onepass.foundation.folders import safe_name
from wavenet import shipped
from wavenet.data import audio
from wavenet.data.recorded_level import at_recorded_level

NAMED_WORDS, LONGEST_NAME = 6, 60  # maximum words and characters of a text in its file name


class SoundHere(SoundDrawing):
    """Sounds of a local WaveNet or student, all rows drawn as one batch."""

    title, unit = "synthesising", "sample"
    remark = " (compilation included)"

    def __init__(self, given: Any, model: Any, arguments: dict[str, Any]):
        _check_sources(given)
        _check_ability(given, model)
        self._file = _recording_file(given, model)
        name = _words_of(given.text) if given.text else None
        name = name or (given.mel or self._file or Path("sample")).stem
        super().__init__(given, model, arguments, name, model.front.sample_rate_hz)

    def start(self) -> Iterator[Chunk]:
        """Return the chunks: the beginning of a recording to continue, if any, then new samples."""
        given, model = self.given, self.model
        source = source_of(given, model, self._file)
        whole = _length(given, model, source)
        prime = _prime(given, model, source.recording, whole)
        self.recording = source.recording
        self.total = whole - (0 if prime is None else len(prime))
        arguments = dict(self.arguments)
        if prime is not None:
            arguments["prefix"] = audio.amplify(prime, source.gain_db)
        if "refine" in model.options:
            arguments["refine"] = given.refine
        if given.draft is not None:
            from distill.model import load_student

            draft = load_student(given.draft)
            arguments |= {"method": "speculative", "draft": draft, "acceptance": "rejection"}
        drawn = model.stream(len(self.paths), whole, given.seed, source.frames, **arguments)
        begun = 0 if prime is None else len(prime)
        return self._chunks(without_beginning(drawn, begun), prime, source.gain_db)

    def _chunks(
        self, drawn: Iterator[np.ndarray], prime: np.ndarray | None, gain_db: float
    ) -> Iterator[Chunk]:
        rows = range(len(self.paths))
        most = audio.FULL_SCALE * min(1.0, 10.0 ** (gain_db / 20.0))
        if prime is not None:
            yield Chunk(rows, np.repeat(prime[None], len(rows), 0), made=False)
        for chunk in drawn:
            limited = (np.abs(chunk) >= most).sum(1)
            yield Chunk(rows, at_recorded_level(chunk, gain_db), limited)
            self.advance(chunk.shape[1])

    def finish(self) -> None:
        """Finish the files; if the sampler counts its network passes, print their number."""
        super().finish()
        passes = getattr(self.model.model, "passes", None)
        if passes is not None and passes.passes:
            print(passes.format_report())


class ServedSound(SoundDrawing):
    """Sounds of a served model, generated row by row."""

    title, unit = "speaking", "sound"

    def __init__(self, given: Any, model: Any, arguments: dict[str, Any]):
        source, rate_hz = _source(given, model), model.spec["sample_rate_hz"]
        self._condition = {"force": given.force, **source}
        self._length = None if given.seconds is None else max(1, round(given.seconds * rate_hz))
        file, other = given.recording or given.mel, "text" if given.text else "sample"
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


def without_beginning(chunks: Iterator[np.ndarray], samples: int) -> Iterator[np.ndarray]:
    """Yield chunks [rows, n] without the first samples."""
    for chunk in chunks:
        rest, samples = chunk[:, samples:], max(0, samples - chunk.shape[1])
        if rest.shape[1]:
            yield rest


def _check_sources(given: Any) -> None:
    sources = [f"`--{name}`" for name in ("recording", "mel", "text") if getattr(given, name)]
    if len(sources) > 1:
        raise UserError(f"{sources[0]} and {sources[1]} exclude each other.")
    if given.prime_seconds and (given.mel or given.text):
        raise UserError("`--prime-seconds` needs a recording.")


def _check_ability(given: Any, model: Any) -> None:
    kind = model.spec["kind"]
    if given.method not in model.methods:
        names = ", ".join(model.methods)
        raise UserError(f"`--method` must be one of {names} for a {kind}, got {given.method}.")
    if given.draft and given.method != "auto":
        raise UserError(f"`method` must be auto for a model with a draft, got {given.method}.")
    if given.prime_seconds and ("prefix" not in model.options or given.draft):
        raise UserError(f"`--prime-seconds` must be 0: a {kind} cannot continue a recording.")
    if given.refine and "refine" not in model.options:
        raise UserError(f"`--refine` must be 0: only students can be refined, not a {kind}.")
    if given.mel and model.front.data.features != ("mel",):
        rule = "must not be given for a model that reads other frames than mel"
        raise UserError(f"`--mel` {rule}, got {given.model}.")


def _recording_file(given: Any, model: Any) -> Path | None:
    has_other = given.mel or given.text
    if has_other or not (given.recording or model.front.conditional or given.prime_seconds):
        return None
    return given.recording or sorted(shipped.recordings_folder().glob("dev/*.flac"))[0]


def _words_of(text: str) -> str:
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


def _prime(given: Any, model: Any, recording: np.ndarray | None, total: int) -> np.ndarray | None:
    if recording is None or not given.prime_seconds:
        return None
    wanted = min(round(given.prime_seconds * model.front.sample_rate_hz), len(recording))
    if wanted >= total:
        raise UserError(
            f"`--prime-seconds` must be less than the length of the sound, "
            f"{total / model.front.sample_rate_hz:.2f}, got {given.prime_seconds:g}."
        )
    network = model.config.network
    block = network.context_block_samples if network.context_layers else 1
    samples = wanted - wanted % block
    return recording[:samples] if samples else None


def _source(given: Any, model: Any) -> dict[str, Any]:
    sources = {
        "recording": given.recording,
        "frames": _numbers(given.mel) if given.mel else None,
        "text": given.text,
        "example": given.example,
    }
    chosen = {key: value for key, value in sources.items() if value is not None}
    if given.text:
        say_markup(given.text)
    if len(chosen) > 1:
        raise UserError("Give one of `--recording`, `--mel`, `--text` and `--example`.")
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
