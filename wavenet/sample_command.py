"""The verb `sample` for sound: WAV files, written chunk by chunk, and their spectrograms."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from replicator.runs.errors import UserError
from replicator.runs.folders import make_folder
from replicator.runs.progress import Progress
from wavenet import shipped
from wavenet.data import audio
from wavenet.features.mel import above_silence
from wavenet.plots import spectrogram_png
from wavenet.sample_arguments import SampleArguments

PLOTTED_SECONDS = 20.0  # of a sound: a longer one is seen by its beginning
INTERRUPTED = 130


def sample(given: SampleArguments, load: Callable[[Path], Any]) -> int:
    """The exit status of `onepass sample ...`: writes sounds of what `load` gives.

    Ctrl-C keeps what has been synthesised so far.
    """
    _check(given)
    model = load(given.model)
    _check_ability(given, model)
    recording = _recording(given, model)
    frames = _frames(given, model, recording)
    total = _length(given, model, recording, frames)
    prime = _prime(given, model, recording, total)
    make_folder(given.out)
    paths = [given.out / f"sample_{given.seed}_{row}.wav" for row in range(given.num)]
    written = _Written(model.sample_rate_hz, given.num)
    interrupted = _synthesise(given, model, frames, prime, total, paths, written)
    if written.samples:
        _plot_and_report(paths, written, model, recording)
    return INTERRUPTED if interrupted else 0


class _Written:
    """What is kept of sounds while they are written: levels, beginnings, time."""

    def __init__(self, rate_hz: int, rows: int):
        self.rate_hz, self.seconds, self.samples, self.made = rate_hz, 0.0, 0, 0
        self.peaks, self.energies = np.zeros(rows), np.zeros(rows)
        self.beginnings: list[np.ndarray] = []

    def add(self, chunk: np.ndarray) -> None:
        """Takes note of a chunk [rows, samples]."""
        left = int(PLOTTED_SECONDS * self.rate_hz) - self.samples
        if left > 0:
            self.beginnings.append(chunk[:, :left])
        self.samples += chunk.shape[1]
        self.peaks = np.maximum(self.peaks, np.abs(chunk).max(1))
        self.energies += np.square(chunk, dtype=np.float64).sum(1)


def _synthesise(
    given: SampleArguments, model, frames, prime, total, paths, written: _Written
) -> bool:
    """Writes the sounds as they are made; whether they were cut short by Ctrl-C."""
    primed = 0 if prime is None else len(prime)
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(audio.writing(p, model.sample_rate_hz)) for p in paths]
        progress = stack.enter_context(Progress(total - primed, "synthesising", "sample"))
        try:
            if prime is not None:
                _take(np.repeat(prime[None], given.num, 0), writers, written)
            start = time.perf_counter()
            for chunk in _chunks(given, model, frames, prime, total - primed):
                _take(chunk, writers, written)
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
    )


def _plot_and_report(paths, written: _Written, model, recording: np.ndarray | None) -> None:
    """Draws the sounds beside the recording and prints what they are."""
    rate_hz, beginnings = written.rate_hz, np.concatenate(written.beginnings, 1)
    for row, path in enumerate(paths):
        plotted = {"sampled": beginnings[row]}
        if recording is not None:
            recorded = audio.amplify(recording[: beginnings.shape[1]], model.gain_db)
            plotted["recorded"] = recorded
        spectrogram_png(path.with_suffix(".png"), plotted, rate_hz)
        rms = math.sqrt(written.energies[row] / written.samples)
        print(
            f"{path}: {written.samples / rate_hz:.2f} s, "
            f"peak {audio.decibel(written.peaks[row]):.1f} dB, RMS {audio.decibel(rms):.1f} dB"
        )
    if written.made:
        seconds = written.made / rate_hz
        print(
            f"{seconds:.2f} s of sound in {written.seconds:.2f} s: "
            f"{written.seconds / seconds:.2f} of real time, "
            f"{written.made / written.seconds:,.0f} samples/s (compilation included)"
        )
    passes = getattr(model, "passes", None)
    if passes is not None and passes.passes:
        print(passes.in_words())


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
    if given.mel and (given.recording or given.prime_seconds):
        raise UserError("`--mel` stands in for a recording: give one of them.")


def _check_ability(given: SampleArguments, model) -> None:
    """Raises UserError for what a model of this kind cannot do."""
    kind = model.spec["kind"]
    if given.backend not in model.backends:
        names = ", ".join(model.backends)
        raise UserError(f"`--backend` must be one of {names} for a {kind}, got {given.backend}.")
    if given.prime_seconds and not model.primable:
        raise UserError(f"`--prime-seconds` must be 0: a {kind} cannot go on from a recording.")
    if given.mel and model.data.features != ("mel",):
        raise UserError(f"`--mel` is for models that read mel frames alone, {given.model} is none.")


def _recording(given: SampleArguments, model) -> np.ndarray | None:
    """The recording to resynthesise or to continue, at the model's rate; None for neither."""
    if given.mel:
        return None
    if given.recording is None and not model.conditional and not given.prime_seconds:
        return None
    path = given.recording or next(iter(sorted(shipped.recordings_folder().glob("dev/*.flac"))))
    return audio.read(path, model.sample_rate_hz)


def _frames(given: SampleArguments, model, recording: np.ndarray | None) -> np.ndarray | None:
    """The conditioning frames, [frames, channels], or None for a model without."""
    if given.mel:
        return above_silence(read_mel(given.mel, model), model.data.mel(model.hop_samples))
    return model.frames(recording) if model.conditional and recording is not None else None


def read_mel(path: Path, model) -> np.ndarray:
    """The mel frames in an npy file, float32 [frames, bands], fit for the model.

    Raises UserError, naming the file, if it is no such file or not of the model's convention.
    """
    try:
        mel = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path} cannot be read as an npy file.") from error
    bands, shape = model.data.mel_bands, getattr(mel, "shape", None)
    if shape is None or mel.dtype.kind not in "fiu" or len(shape) != 2 or shape[1] != bands:
        raise UserError(f"{path} must hold numbers [frames, {bands}], got {shape}.")
    if not len(mel):
        raise UserError(f"{path} holds no frame.")
    bad = ~np.isfinite(mel).all(axis=1)
    if bad.any():
        raise UserError(f"{path} holds a value that is no number (NaN), first in {bad.argmax()}.")
    return mel.astype(np.float32)


def _length(given: SampleArguments, model, recording, frames) -> int:
    """Samples of a sound, the prime among them."""
    seconds = 3.0 if given.seconds is None else given.seconds
    wanted = max(1, round(seconds * model.sample_rate_hz))
    if frames is None:
        return wanted
    there = len(frames) * model.hop_samples if recording is None else len(recording)
    return there if given.seconds is None else min(wanted, there)


def _prime(
    given: SampleArguments, model, recording: np.ndarray | None, total: int
) -> np.ndarray | None:
    """The beginning of the recording at the model's level, shorter than the sound; None: none."""
    if recording is None or not given.prime_seconds:
        return None
    wanted = min(round(given.prime_seconds * model.sample_rate_hz), len(recording))
    if wanted >= total:
        raise UserError(
            f"`--prime-seconds` must be less than the sound lasts, "
            f"{total / model.sample_rate_hz:.2f}, got {given.prime_seconds:g}."
        )
    samples = _whole_blocks(model, wanted)
    return audio.amplify(recording[:samples], model.gain_db) if samples else None


def _whole_blocks(model, samples: int) -> int:
    network = model.config.network
    return samples - samples % (network.context_block_samples if network.context_layers else 1)
