"""Demonstrate shipped models and data in a few minutes: speak, measure, draw and train."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from distill import model as students
from distill.evaluation import evaluate as evaluate_student
from distill.teacher import load_teacher
from onepass.command.quickstart_arguments import QuickstartArguments
from onepass.foundation.atomic_files import write_text
from onepass.foundation.folders import check_new, count_noun, make_folder
from onepass.foundation.progress import Progress, duration
from onepass.replicator.training.recipe import train
from onepass.trained import Trained
from pixelcnn.model import load as load_images
from pixelcnn.sampling.grids import enlarge_pixels, grid, strip, write_gif, write_png
from wavenet import shipped
from wavenet.data import audio
from wavenet.evaluation import dev_corpus, evaluate
from wavenet.model import load
from wavenet.optional_packages import left_out
from wavenet.plots import spectrogram_png
from wavenet.presets import PRESETS
from wavenet.training import SpeechRecipe

SETS = {
    "digits": ("shipped-digits-teacher", "shipped-digits"),
    "digits-64": ("shipped-digits-64-teacher", "shipped-digits-64"),
}
IMAGES = 20


def image_files() -> list[str]:
    """Return the names of the files that `draw_images` writes."""
    kinds = ("pixel-by-pixel.png", "multiscale.png", "scales.png", "growing.gif")
    return [f"{name}-{kind}" for name in SETS for kind in kinds]


def draw_images(out: Path, seed: int) -> str:
    """Draw contact sheets of each set of images with both models; return the report's section."""
    rows = []
    for name, models in SETS.items():
        for model_name in models:
            model = load_images(model_name)
            scales, seconds = _time_images(model, model_name, seed)
            slug = "pixel-by-pixel" if model.network.multiscale is None else "multiscale"
            write_png(out / f"{name}-{slug}.png", grid([s[-1] for s in scales], 5))
            if model.network.multiscale is not None:
                _show_growth(out / name, scales)
            passes = model.front.size**2 if model.network.multiscale is None else _passes(model)
            rows.append(f"| {name}, {slug} | {model.front.size} | {passes} | {seconds:.3f} |")
    table = "\n".join(rows)
    return f"""## Images

| | side, pixels | network passes without a cache | seconds per image |
|---|---|---|---|
{table}

Classes in turn. Compare `{out}/digits-multiscale.png` with `digits-pixel-by-pixel.png`; look at
`digits-growing.gif` and `digits-scales.png`, and the same for `digits-64`."""


def _time_images(model: Trained, name: str, seed: int) -> tuple[list[list[np.ndarray]], float]:
    classes = [i % len(model.front.classes) for i in range(IMAGES)]
    scales, times = [], []
    with Progress(IMAGES, f"drawing with {name}", "image") as progress:
        for image in model.stream(IMAGES, seed=seed, condition=classes, scales=True):
            scales.append([scale[0] for scale in image])
            times.append(time.perf_counter())
            progress.advance()
    return scales, float(np.median(np.diff(times)))


def _show_growth(stem: Path, scales: Sequence[list[np.ndarray]]) -> None:
    strips = np.concatenate([strip(image) for image in scales[:6]])
    write_png(stem.with_name(f"{stem.name}-scales.png"), strips)
    side = scales[0][-1].shape[0]
    sheets = [
        grid([enlarge_pixels(p, side) for p in step], 5) for step in zip(*scales, strict=True)
    ]
    write_gif(stem.with_name(f"{stem.name}-growing.gif"), sheets, 0.8)


def _passes(model: Trained) -> int:
    sizes = model.network.multiscale.sizes
    return sizes[0] ** 2 + 3 * (len(sizes) - 1)


PRESET = "wavenet-quick-16k"
TRAINING_MINUTES = 3.0
FILES = ("teacher.wav", "student.wav", "recorded.wav", "spectrograms.png", "report.md")
MEASURED = (
    *("log_mel_distance_db", "multi_resolution_stft_distance", "pesq", "stoi"),
    *("f0_error_cents", "voicing_error", "level_difference_db"),
)


@dataclasses.dataclass(frozen=True)
class Spoken:
    """A generated sound, float32 [samples], and its generation time without compilation."""

    sound: np.ndarray
    seconds: float

    def real_time_factor(self, rate_hz: int) -> float:
        """Return the seconds of computation per second of sound."""
        return self.seconds * rate_hz / len(self.sound)


def run(given: QuickstartArguments) -> int:
    """Run `onepass quickstart` and return the exit status."""
    start = time.monotonic()
    check_new([given.out / name for name in (*FILES, *image_files())], given.overwrite)
    make_folder(given.out)
    data = shipped.recordings_folder()
    recording = sorted(data.glob("dev/*.flac"))[0]
    student = students.load_student(Path("shipped"))
    teacher = load_teacher(students.teacher_of(student))
    print(f"1. Speaking {recording.name}, a held-out recording, from its mel")
    report = [_speech(teacher, student, recording, given)]
    print("2. Measuring them against the Griffin-Lim algorithm and an untrained student")
    corpus = dev_corpus(teacher, data)
    figures = evaluate_student(student, teacher, corpus, copies=given.spoken, seed=given.seed)
    report.append(_quality(figures))
    print("3. Drawing images, pixel by pixel and scale by scale")
    report.append(draw_images(given.out, given.seed))
    if given.train:
        print(f"4. Training {PRESET} on {data}, at most {TRAINING_MINUTES:g} minutes")
        report.append(_train_section(given, data))
    text = _whole(report, given, time.monotonic() - start)
    write_text(given.out / "report.md", text)
    print("\n" + text)
    return 0


def _speech(teacher: Trained, student: Trained, recording: Path, given: QuickstartArguments) -> str:
    rate_hz = student.front.sample_rate_hz
    waveform = audio.read(recording, rate_hz)
    frames, short = student.front.frames(waveform), int(given.seconds * rate_hz)
    spoken = {
        "teacher": _time_speech(teacher, frames, min(short, len(waveform)), given.seed),
        "student": _time_speech(student, frames, len(waveform), given.seed),
    }
    factors = {name: s.real_time_factor(rate_hz) for name, s in spoken.items()}
    sounds = {name: s.sound for name, s in spoken.items()}
    sounds["recorded"] = waveform
    for name, sound in sounds.items():
        audio.write(given.out / f"{name}.wav", sound, rate_hz)
    length = min(len(sound) for sound in sounds.values())
    plotted = {name: sound[:length] for name, sound in sounds.items()}
    spectrogram_png(given.out / "spectrograms.png", plotted, rate_hz)
    made = "\n".join(
        f"| {name} | {len(s.sound) / rate_hz:.1f} | {s.seconds:.2f} | {factors[name]:.3f} |"
        for name, s in spoken.items()
    )
    return f"""## One sentence, spoken from its mel spectrogram

| | seconds of sound | seconds of computing | real-time factor |
|---|---|---|---|
{made}

The student is {factors["teacher"] / factors["student"]:.1f} times as fast as its small teacher's
cached sampler; docs/benchmarks.md has teachers of the papers' width. Listen to
`{given.out}/teacher.wav`, `student.wav` and `recorded.wav`; look at
`spectrograms.png`."""


def _time_speech(model: Trained, frames: np.ndarray, length: int, seed: int) -> Spoken:
    model.sample(1, min(length, model.front.sample_rate_hz // 10), seed, frames)
    start = time.perf_counter()
    sound = model.sample(1, length, seed, frames)[0]
    return Spoken(sound, time.perf_counter() - start)


def _quality(figures: dict) -> str:
    systems = {"student": figures, **figures["against"]}
    rows = "\n".join(
        f"| {name.replace('_', ' ')} | "
        + " | ".join(f"{s['measures'][name]['mean']:.2f}" for s in systems.values())
        + " |"
        for name in MEASURED
        if name in figures["measures"]  # the extra `quality` is not needed
    )
    return f"""## Distance from {count_noun(figures["dev"]["recordings"], "recording")}

| | {" | ".join(name.replace("_", " ") for name in systems)} |
|---{"|---" * len(systems)}|
{rows}

PESQ is from 1 to 4.6 and STOI from 0 to 1, higher is better; the other measures are distances from
the recording. `onepass evaluate shipped` adds intervals.{_extra_line()}"""


def _extra_line() -> str:
    added = [name.replace("_", " ") for name in left_out().get("quality", ()) if name in MEASURED]
    return f"\n`pip install 'onepass[quality]'` adds {', '.join(added)}." if added else ""


def _train_section(given: QuickstartArguments, data: Path) -> str:
    config = PRESETS[PRESET].config
    # The number of steps was chosen on a fast machine.
    loop = dataclasses.replace(config.loop, max_minutes=TRAINING_MINUTES)
    run_folder = given.out / "run"
    outcome = train(SpeechRecipe(PRESET, dataclasses.replace(config, loop=loop), data), run_folder)
    model = load(run_folder)
    figures = evaluate(model, dev_corpus(model, data), copies=2)
    return f"""## A newly trained WaveNet

{outcome.step} steps in {duration(outcome.seconds)}: {figures["bits_per_sample"]:.2f} bits per
sample, given the mel, on held-out recordings; FLAC, which does not use the mel, needs
{figures["codec"]["flac"]:.2f} for the same 16-bit samples."""


def _whole(report: list[str], given: QuickstartArguments, seconds: float) -> str:
    parts = "\n\n".join(report)
    return f"""# onepass quickstart

Done in {duration(seconds)}.

{parts}

## What to try next

    onepass sample shipped --out sounds --recording YOUR_RECORDING.wav
    onepass train wavenet-vocoder-16k --data YOUR_RECORDINGS --workdir teacher
    onepass distill student-residual-16k --teacher teacher --workdir student
    onepass evaluate student
    onepass sample shipped-digits --out images --label 7
    onepass train multiscale-cpu-64 --data YOUR_IMAGES --workdir images-run
    onepass export shipped --out models/voice/1 && onepass serve models
    tensorboard --logdir {given.out}
"""
