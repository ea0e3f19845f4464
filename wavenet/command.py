"""The verbs of the command line for a WaveNet: train, evaluate, sample."""

import dataclasses
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from replicator.errors import UserError
from replicator.loop import DONE, FINISHED_BEFORE, Outcome
from replicator.portable import adopt
from replicator.progress import Progress, duration
from replicator.run_directory import RunDirectory
from wavenet import audio, shipped
from wavenet.evaluation import dev_corpus, evaluate
from wavenet.exporting import export_run
from wavenet.model import SpeechModel, load
from wavenet.pictures import spectrogram_png
from wavenet.presets import PRESETS, TrainConfig
from wavenet.training import train

SPOKEN = 4  # dev recordings that a WaveNet speaks again: it is slow


@dataclasses.dataclass(frozen=True)
class TrainArguments:
    """Train a WaveNet on a folder of recordings; resumes where it stopped."""

    data: Path
    """Folder of recordings (wav, flac, ogg, mp3; any rate, any channels), searched to any depth."""
    workdir: Path
    """Run directory; one that holds the same configuration is resumed."""
    config: Annotated[TrainConfig, tyro.conf.arg(name="")]
    portable: Path | None = None
    """Do not train: write step, weights and clips to this folder, for `python DIR/run.py` on a
    machine with JAX and without TensorFlow."""
    adopt: Path | None = None
    """Take the weights that `run.py` made in this folder into the run directory first."""


@dataclasses.dataclass(frozen=True)
class EvaluateArguments:
    """How good a model is on dev recordings: a WaveNet's bits per sample against FLAC's, a
    student beside its teacher and two baselines; what they sound like; speed."""

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """Run directory, model folder, or `shipped`."""
    data: Path | None = None
    """Folder of recordings, whose dev split is used; None: the one it was trained on."""
    spoken: int | None = None
    """Dev recordings (three seconds of each) spoken again; None: 4 by a WaveNet, all by a
    student."""
    seed: int = 0
    """Of the noise."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print one JSON object."""


@dataclasses.dataclass(frozen=True)
class SampleArguments:
    """Speak: WAV files and spectrograms from a trained model."""

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """Run directory, model folder, or `shipped`."""
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
    backend: Literal["auto", "numba", "xla", "tensorflow", "naive"] = "auto"
    """Sampler; all give the same sound. A WaveNet has numba, xla and naive, a student numba and
    tensorflow."""


def run_train(preset: str, arguments: list[str], parse) -> int:
    """Parses the rest of `onepass train PRESET ...` and trains; 128 + a signal that stopped it."""
    default = TrainArguments(tyro.MISSING, tyro.MISSING, PRESETS[preset].config)
    given = parse(
        TrainArguments, arguments, f"onepass train {preset}", default, PRESETS[preset].about
    )
    if given.portable:
        export_run(preset, given.config, given.data, given.portable, given.workdir)
        return 0
    if given.adopt:
        print(f"{given.workdir} is at step {adopt(given.adopt, given.workdir)} now.")
    outcome = train(preset, given.config, given.data, given.workdir)
    print(_ending(outcome, given))
    if outcome.reason in signal.Signals.__members__:
        return 128 + signal.Signals[outcome.reason]
    return 0


def _ending(outcome: Outcome, given: TrainArguments) -> str:
    """How training ended and what to do next, as a line."""
    score = "" if outcome.best_score is None else f", best dev {outcome.best_score:.3f} bits/sample"
    following = f"Next: onepass sample {given.workdir} --out sounds"
    if outcome.reason == FINISHED_BEFORE:
        return (
            f"{given.workdir} has made all its steps ({outcome.step}{score}); a larger "
            f"--loop.num-steps goes on. {following}"
        )
    if outcome.reason != DONE:
        following = "The same command goes on from there."
    return (
        f"Stopped at step {outcome.step} ({outcome.reason}) after {duration(outcome.seconds)}"
        f"{score}. {following}"
    )


def evaluated(given: EvaluateArguments, model: SpeechModel) -> tuple[dict, str]:
    """The figures of a WaveNet as one object, and in words."""
    data = given.data or training_data(given.model)
    corpus = dev_corpus(model, data)
    spoken = SPOKEN if given.spoken is None else given.spoken
    figures = {
        "model": str(given.model),
        "step": model.spec.get("step"),
        "data": str(data),
        **evaluate(model, corpus, spoken, given.seed),
    }
    return figures, _in_words(figures)


def run_sample(arguments: list[str], parse, load: Callable[[Path], Any] = load) -> int:
    """Parses the rest of `onepass sample ...` and writes sounds of what `load` gives."""
    given = parse(SampleArguments, arguments, "onepass sample")
    _check(given)
    model = load(given.model)
    _check_ability(given, model)
    recording = _recording(given, model)
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot make the folder {given.out}: {error.strerror}.") from error
    spoken = speak(model, given, recording)
    for row, sound in enumerate(spoken.sounds):
        path = given.out / f"sample_{given.seed}_{row}.wav"
        _write(path, sound, model, recording)
        print(
            f"{path}: {len(sound) / model.sample_rate_hz:.2f} s, "
            f"peak {audio.peak_db(sound):.1f} dB, RMS {audio.rms_db(sound):.1f} dB"
        )
    made = spoken.sounds[:, spoken.primed_samples :].size
    sound_seconds = made / model.sample_rate_hz
    print(
        f"{sound_seconds:.2f} s of sound in {spoken.seconds:.2f} s: "
        f"{spoken.seconds / sound_seconds:.2f} of real time, "
        f"{made / spoken.seconds:,.0f} samples/s (compilation included)"
    )
    return 0


def _write(path: Path, sound: np.ndarray, model: SpeechModel, recording: np.ndarray | None) -> None:
    """Writes a WAV file, and a picture of it and of the recording beside it."""
    audio.write(path, sound, model.sample_rate_hz)
    pictured = {"sampled": sound}
    if recording is not None:
        pictured["recorded"] = audio.amplify(recording, model.gain_db)[: len(sound)]
    spectrogram_png(path.with_suffix(".png"), pictured, model.sample_rate_hz)


@dataclasses.dataclass(frozen=True)
class Spoken:
    """Sounds, float32 [num, samples], of which `primed_samples` were given, and what they took."""

    sounds: np.ndarray
    primed_samples: int
    seconds: float


def speak(model: Any, given: SampleArguments, recording: np.ndarray | None) -> Spoken:
    """The sounds asked for, with the recording they are primed with.

    Args:
      model: to speak.
      given: how many, how long, ...
      recording: float32 [samples] at its stored level; None where neither frames nor prime are
        wanted.
    """
    total = _length(given, model, recording)
    prime = _prime(given, model, recording, total)
    primed = 0 if prime is None else len(prime)
    frames = model.frames(recording) if model.conditional and recording is not None else None
    start, chunks = time.perf_counter(), []
    with Progress(total - primed, "speaking", "sample") as progress:
        for chunk in model.stream(
            frames,
            seed=given.seed,
            num=given.num,
            num_samples=total - primed,
            speaker=given.speaker,
            temperature=given.temperature,
            backend=given.backend,
            **({} if prime is None else {"prime": prime}),
        ):
            chunks.append(chunk)
            progress.advance(chunk.shape[1])
    seconds = time.perf_counter() - start
    if prime is not None:
        chunks.insert(0, np.repeat(prime[None], given.num, 0))
    return Spoken(np.concatenate(chunks, 1), primed, seconds)


def _check(given: SampleArguments) -> None:
    if given.num < 1:
        raise UserError(f"`--num` must be at least 1, got {given.num}.")
    if given.seconds is not None and not 0 < given.seconds < math.inf:
        raise UserError(f"`--seconds` must be positive and finite, got {given.seconds:g}.")
    for name in ("prime_seconds", "temperature"):
        if not 0 <= getattr(given, name) < math.inf:
            raise UserError(
                f"`--{name.replace('_', '-')}` must be 0 or more and finite, "
                f"got {getattr(given, name):g}."
            )


def _check_ability(given: SampleArguments, model) -> None:
    """Raises UserError for what a model of this kind cannot do."""
    kind = model.spec["kind"]
    if given.backend not in model.backends:
        names = ", ".join(model.backends)
        raise UserError(f"`--backend` must be one of {names} for a {kind}, got {given.backend}.")
    if given.prime_seconds and not model.primable:
        raise UserError(f"`--prime-seconds` must be 0: a {kind} cannot go on from a recording.")


def _recording(given: SampleArguments, model: SpeechModel) -> np.ndarray | None:
    """The recording to speak again or to go on from, at the model's rate; None for neither."""
    if given.recording is None and not model.conditional and not given.prime_seconds:
        return None
    path = given.recording or next(iter(sorted(shipped.recordings_folder().glob("dev/*.flac"))))
    return audio.read(path, model.sample_rate_hz)


def _length(given: SampleArguments, model: SpeechModel, recording: np.ndarray | None) -> int:
    seconds = 3.0 if given.seconds is None else given.seconds
    wanted = max(1, round(seconds * model.sample_rate_hz))
    if not model.conditional or recording is None:
        return wanted
    return len(recording) if given.seconds is None else min(wanted, len(recording))


def _prime(
    given: SampleArguments, model: SpeechModel, recording: np.ndarray | None, total: int
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


def _whole_blocks(model: SpeechModel, samples: int) -> int:
    network = model.config.network
    return samples - samples % (network.context_block_samples if network.context_layers else 1)


def training_data(path: Path) -> Path:
    """The folder of recordings that a run was trained on; the shipped ones for a model folder."""
    if not (path / "config.json").exists():
        return shipped.recordings_folder()
    data = Path(str(RunDirectory.open(path).config().get("data_folder")))
    if not data.is_dir():
        raise UserError(f"{path} was trained on {data}, which is gone; name a folder with --data.")
    return data


def _in_words(figures: dict) -> str:
    bits, flac = figures["measures"]["bits_per_sample"], figures["codec"]["flac"]
    lines = [
        f"{figures['model']}, step {figures['step']}, on {figures['dev']['recordings']} dev "
        f"recordings ({figures['dev']['seconds']:.0f} s) of {figures['data']}",
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
