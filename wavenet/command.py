"""The verbs of the command line for a WaveNet: train, evaluate, sample."""

import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro

from replicator.errors import UserError
from replicator.progress import Progress, duration
from wavenet import audio, shipped
from wavenet.evaluation import evaluate
from wavenet.model import SpeechModel, load
from wavenet.pictures import spectrogram_png
from wavenet.presets import PRESETS, TrainConfig
from wavenet.training import prepare_corpus, scan_folder, train


@dataclasses.dataclass(frozen=True)
class TrainArguments:
    """Train a WaveNet on a folder of recordings; resumes where it stopped."""

    data: Path
    """Folder of recordings (wav, flac, ogg, mp3; any rate, any channels), searched to any depth."""
    workdir: Path
    """Run directory; one that holds the same configuration is resumed."""
    config: Annotated[TrainConfig, tyro.conf.arg(name="")]


@dataclasses.dataclass(frozen=True)
class EvaluateArguments:
    """Bits per sample on dev, against FLAC on the same samples, and speed."""

    model: tyro.conf.Positional[Path]
    """Run directory or model folder."""
    data: Path | None = None
    """Folder of recordings, whose dev split is used; None: the one it was trained on."""
    spoken: int = 4
    """Dev recordings (three seconds of each) spoken again."""
    seed: int = 0
    """Of the noise."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON object."""


@dataclasses.dataclass(frozen=True)
class SampleArguments:
    """Speak: WAV files and spectrograms from a trained model."""

    model: tyro.conf.Positional[Path]
    """Run directory or model folder."""
    out: Path
    """Folder for the WAV and PNG files; made if missing."""
    num: int = 1
    """Sounds, from the rows 0, 1, ... of the seed."""
    seed: int = 0
    """Names the noise: the same seed gives the same sounds."""
    seconds: float | None = None
    """Length of a sound; None: that of the recording, or 3 s for a model without frames."""
    recording: Path | None = None
    """Recording whose frames (mel, F0) are spoken; None: a shipped one it was not trained on."""
    prime_seconds: float = 0.0
    """Let the sound begin with so much of the recording and go on from there."""
    speaker: str | None = None
    """Name of a speaker, for a model that has them."""
    temperature: float = 1.0
    """1 samples the model; less comes closer to its mode."""
    backend: Literal["auto", "numba", "xla", "naive"] = "auto"
    """Sampler; all give the same sound."""


def run_train(preset: str, arguments: list[str], parse) -> int:
    """Parses the rest of `onepass train PRESET ...` and trains."""
    default = TrainArguments(tyro.MISSING, tyro.MISSING, PRESETS[preset].config)
    given = parse(
        TrainArguments, arguments, f"onepass train {preset}", default, PRESETS[preset].about
    )
    outcome = train(preset, given.config, given.data, given.workdir)
    score = "" if outcome.best_score is None else f", dev {outcome.best_score:.3f} bits per sample"
    print(
        f"Stopped at step {outcome.step} ({outcome.reason}) after {duration(outcome.seconds)}"
        f"{score}. Next: onepass sample {given.workdir} --out sounds"
    )
    return 0


def run_evaluate(arguments: list[str], parse) -> int:
    """Parses the rest of `onepass evaluate ...` and prints the figures."""
    given = parse(EvaluateArguments, arguments, "onepass evaluate")
    model = load(given.model)
    data = given.data or _training_data(given.model)
    report = scan_folder(data, model.config)
    corpus = prepare_corpus(report, model.config, None, gain_db=model.gain_db)
    figures = {
        "model": str(given.model),
        "data": str(data),
        **evaluate(model, corpus, given.spoken, given.seed),
    }
    print(json.dumps(figures, indent=2) if given.as_json else _in_words(figures))
    return 0


def run_sample(arguments: list[str], parse) -> int:
    """Parses the rest of `onepass sample ...` and writes sounds."""
    given = parse(SampleArguments, arguments, "onepass sample")
    if given.num < 1:
        raise UserError(f"`--num` must be at least 1, got {given.num}.")
    model = load(given.model)
    recording = _recording(given, model)
    sounds, seconds = speak(model, given, recording)
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot make the folder {given.out}: {error.strerror}.") from error
    for row, sound in enumerate(sounds):
        path = given.out / f"sample_{given.seed}_{row}"
        audio.write(path.with_suffix(".wav"), sound, model.sample_rate_hz)
        shown = {"sampled": sound}
        if recording is not None:
            shown["recorded"] = audio.amplify(recording, model.gain_db)[: len(sound)]
        spectrogram_png(path.with_suffix(".png"), shown, model.sample_rate_hz)
        print(
            f"{path.with_suffix('.wav')}: {len(sound) / model.sample_rate_hz:.2f} s, "
            f"peak {audio.peak_db(sound):.1f} dB, RMS {audio.rms_db(sound):.1f} dB"
        )
    spoken = sounds.size / model.sample_rate_hz
    print(
        f"{spoken:.2f} s of sound in {seconds:.2f} s: {seconds / spoken:.2f} of real time, "
        f"{sounds.size / seconds:,.0f} samples/s (compilation included)"
    )
    return 0


def speak(
    model: SpeechModel, given: SampleArguments, recording: np.ndarray | None
) -> tuple[np.ndarray, float]:
    """The sounds asked for, float32 [num, samples], the prime included, and the seconds they took."""
    rate_hz = model.sample_rate_hz
    total = _length(given, model, recording)
    prime = None
    if given.prime_seconds > 0:
        level = audio.amplify(recording, model.gain_db)
        prime = level[: _whole_blocks(model, min(int(given.prime_seconds * rate_hz), total - 1))]
    primed = 0 if prime is None else len(prime)
    frames = model.frames(recording) if model.conditional else None
    start, chunks = time.perf_counter(), []
    with Progress(total - primed, "speaking", "sample") as progress:
        for chunk in model.stream(
            frames,
            seed=given.seed,
            num=given.num,
            num_samples=total - primed,
            speaker=given.speaker,
            prime=prime,
            temperature=given.temperature,
            backend=given.backend,
        ):
            chunks.append(chunk)
            progress.advance(chunk.shape[1])
    seconds = time.perf_counter() - start
    if prime is not None:
        chunks.insert(0, np.repeat(prime[None], given.num, 0))
    return np.concatenate(chunks, 1), seconds


def _recording(given: SampleArguments, model: SpeechModel) -> np.ndarray | None:
    """The recording to speak again or to go on from, at the model's rate; None for neither."""
    if given.recording is None and not model.conditional and not given.prime_seconds:
        return None
    path = given.recording or next(iter(sorted(shipped.recordings_folder().glob("dev/*.flac"))))
    return audio.read(path, model.sample_rate_hz)


def _length(given: SampleArguments, model: SpeechModel, recording: np.ndarray | None) -> int:
    if given.seconds is not None and given.seconds <= 0:
        raise UserError(f"`--seconds` must be positive, got {given.seconds:g}.")
    wanted = None if given.seconds is None else int(given.seconds * model.sample_rate_hz)
    if not model.conditional:
        return wanted or 3 * model.sample_rate_hz
    return min(wanted or len(recording), len(recording))


def _whole_blocks(model: SpeechModel, samples: int) -> int:
    network = model.config.network
    return samples - samples % (network.context_block_samples if network.context_layers else 1)


def _training_data(path: Path) -> Path:
    if (path / "config.json").exists():
        return Path(json.loads((path / "config.json").read_text())["data_folder"])
    return shipped.recordings_folder()


def _in_words(figures: dict) -> str:
    bits, flac = figures["measures"]["bits_per_sample"], figures["codec"]["flac"]
    lines = [
        f"{figures['model']} on {figures['dev']['recordings']} dev recordings "
        f"({figures['dev']['seconds']:.0f} s) of {figures['data']}",
        f"  bits per sample    {bits['mean']:.3f}   (95%: {bits['low']:.3f} to {bits['high']:.3f})",
        f"  FLAC at its best   {flac:.3f}   on the same 16-bit samples "
        f"({100 * (bits['mean'] / flac - 1):+.1f}%)",
        f"  real-time factor   {figures['real_time_factor']:.2f}   "
        "(seconds of computing for a second of sound, batch 1)",
    ]
    for name, measure in figures["measures"].items():
        if name != "bits_per_sample":
            lines.append(
                f"  {name.replace('_', ' ')}   {measure['mean']:.2f}   "
                f"(95%: {measure['low']:.2f} to {measure['high']:.2f})"
            )
    return "\n".join(lines)
