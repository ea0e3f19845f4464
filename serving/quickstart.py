"""The whole promise in a few minutes: train on shipped speech, speak, measure, report."""

import dataclasses
import time
from pathlib import Path

from replicator.checkpoints import write_text
from replicator.progress import duration
from wavenet import audio, shipped
from wavenet.evaluation import dev_corpus, evaluate
from wavenet.model import SpeechModel, load
from wavenet.pictures import spectrogram_png
from wavenet.presets import PRESETS
from wavenet.training import train

PRESET = "wavenet-quick-16k"
TRAINING_MINUTES = 3.0


@dataclasses.dataclass(frozen=True)
class QuickstartArguments:
    """Train a small WaveNet on shipped speech, speak a sentence it never heard, and report."""

    out: Path = Path("onepass-quickstart")
    """Folder for the run, the sounds, the pictures and report.md; made if missing."""
    seconds: float = 3.0
    """Length of the sounds."""
    seed: int = 0
    """Names the noise."""


def run(arguments: list[str], parse) -> int:
    """Parses `onepass quickstart ...` and does it all."""
    given = parse(QuickstartArguments, arguments, "onepass quickstart")
    start = time.monotonic()
    data = shipped.recordings_folder()
    config = PRESETS[PRESET].config
    # Not every machine is as fast as the one that the number of steps was chosen on.
    loop = dataclasses.replace(config.loop, max_minutes=TRAINING_MINUTES)
    config = dataclasses.replace(config, loop=loop)
    print(f"1. Training {PRESET} on {data}: CC0 speech, {TRAINING_MINUTES:g} minutes at the most")
    train(PRESET, config, data, given.out / "run")
    models = {"just trained": load(given.out / "run")}
    if shipped.teacher_folder().exists():
        models["shipped"] = load(shipped.teacher_folder())
    recording = sorted(data.glob("dev/*.flac"))[0]
    print(f"2. Speaking {recording.name}, which no model here was trained on")
    sounds = {name: _speak(model, recording, given) for name, model in models.items()}
    _write_sounds(models, sounds, recording, given)
    print("3. Measuring")
    figures = {
        name: evaluate(model, dev_corpus(model, data), spoken=2) for name, model in models.items()
    }
    report = _report(figures, given, time.monotonic() - start)
    write_text(given.out / "report.md", report)
    print("\n" + report)
    return 0


def _speak(model: SpeechModel, recording: Path, given: QuickstartArguments):
    waveform = audio.read(recording, model.sample_rate_hz)
    length = min(int(given.seconds * model.sample_rate_hz), len(waveform))
    return model.generate(model.frames(waveform), seed=given.seed, num_samples=length)[0]


def _write_sounds(
    models: dict[str, SpeechModel], sounds: dict, recording: Path, given: QuickstartArguments
) -> None:
    model = next(iter(models.values()))
    recorded = audio.amplify(audio.read(recording, model.sample_rate_hz), model.gain_db)
    sounds = {**sounds, "recorded": recorded[: len(next(iter(sounds.values())))]}
    for name, sound in sounds.items():
        audio.write(given.out / f"{name.replace(' ', '_')}.wav", sound, model.sample_rate_hz)
    spectrogram_png(given.out / "spectrograms.png", sounds, model.sample_rate_hz)


def _report(figures: dict[str, dict], given: QuickstartArguments, seconds: float) -> str:
    rows = "\n".join(
        f"| {name} | {f['bits_per_sample']:.2f} | {f['codec']['flac']:.2f} | "
        f"{f['measures']['log_mel_distance_db']['mean']:.1f} | {f['real_time_factor']:.2f} |"
        for name, f in figures.items()
    )
    out = given.out
    return f"""# onepass quickstart

Done in {duration(seconds)}. Listen to `{out}/just_trained.wav` beside `{out}/recorded.wav`;
look at `{out}/spectrograms.png`.

| model | bits per sample, given the mel | FLAC | log-mel distance, dB | real-time factor |
|---|---|---|---|---|
{rows}

- Bits per sample: what one 16-bit sample of speech it never heard costs the model, which is told
  the mel spectrogram; FLAC is not.
- Log-mel distance: between what it spoke and the recording. Noise is about 20 dB away.
- Real-time factor: seconds of computing for a second of sound; below 1 keeps up.

What to try next:

    onepass train {PRESET} --workdir {out}/run-longer --loop.num-steps 5000 \\
        --data {shipped.recordings_folder()}
    onepass sample {out}/run --out sounds --recording YOUR_RECORDING.wav
    onepass train wavenet-cpu-16k --data YOUR_RECORDINGS --workdir run
    tensorboard --logdir {out}/run
"""
