"""Demonstrate the library in a few minutes: derive steps, speak, draw, train and distil."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distill import model as students
from distill.config import PRESETS as STUDENTS
from distill.teacher import load_teacher
from distill.training import StudentRecipe
from onepass.command.arguments import QuickstartArguments
from onepass.command.unseen_networks import measure_keras, measure_torch, report_steps
from onepass.foundation.files import check_new, make_folder, write_text
from onepass.foundation.progress import Progress, duration, during
from onepass.replicator.training.loop import Outcome
from onepass.replicator.training.training_run import train
from onepass.trained import Trained
from pixelcnn.model import load as load_images
from pixelcnn.sampling.grids import enlarge_pixels, grid, strip, write_gif, write_png
from wavenet import shipped
from wavenet.config import PRESETS, MelConvention
from wavenet.copy_synthesis import System, compare, model_system
from wavenet.data import audio
from wavenet.dev_recordings import dev_recordings
from wavenet.evaluation import dev_corpus
from wavenet.measures import multi_resolution_stft_distance
from wavenet.plots import spectrogram_png
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
            slug, passes, side = "pixel-by-pixel", model.front.size**2, model.front.size
            if model.network.multiscale is not None:
                sizes, slug = model.network.multiscale.sizes, "multiscale"
                passes = sizes[0] ** 2 + 3 * (len(sizes) - 1)
                _show_growth(out / name, scales)
            write_png(out / f"{name}-{slug}.png", grid([s[-1] for s in scales], 5))
            rows.append(f"| {name}, {slug} | {side} | {passes} | {seconds:.3f} |")
    table = "\n".join(rows)
    return f"""## Images

| | side, pixels | network passes without a cache | seconds per image |
|---|---|---|---|
{table}

- The side is that of an image. A network pass computes the whole image once; scale by scale few are
  needed, since many pixels are drawn in each.
- Seconds per image are those that you wait; both samplers keep what they have computed.

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


PRESET = "wavenet-quick-16k"
STUDENT_PRESET = "student-quick-16k"
TRAINING_MINUTES, DISTILLING_MINUTES = 1.75, 0.5
FILES = (
    *("teacher.wav", "student.wav", "untrained.wav", "recorded.wav"),
    *("spectrograms.png", "report.md"),
)
TRAINED_FILES = ("new-teacher.wav", "new-student.wav")
RECORDING = "the recording"
COLUMNS = 2  # measures that the report shows, the first that are installed
# By the measure: the head of its column, what it says, and what adds it to a plain installation.
# Each puts the systems in the order in which they are heard; docs/measures.md has the others.
MEASURED = {
    "dnsmos_p808": (
        "opinion, 1 to 5",
        "Opinion is what listeners would say of the sound alone, as the network DNSMOS predicts; "
        "the recording's own is the goal.",
        "`pip install 'onepass[listening]'` adds an opinion of each sound, without a compiler.",
    ),
    "pesq": (
        "likeness, 1 to 4.6",
        "Likeness is PESQ, which compares with the recording as telephone listeners would; it "
        "favours the student, whose last passes fit the mel that it reads.",
        "`pip install 'onepass[quality]'` adds the likeness to the recording, with a C++ compiler.",
    ),
    "multi_resolution_stft_distance": (
        "distance of spectrograms",
        "The distance is that of the fine spectrograms from the recording's, whose own is 0: less "
        "is better.",
        "",
    ),
}


def run(given: QuickstartArguments) -> int:
    """Run `onepass quickstart` and return the exit status."""
    start = time.monotonic()
    written = (*FILES, *(TRAINED_FILES if given.train else ()), *image_files())
    check_new([given.out / name for name in written], given.overwrite)
    make_folder(given.out)
    data = shipped.recordings_folder()
    recording = sorted(data.glob("dev/*.flac"))[0]
    student = students.load_student(Path("shipped"))
    teacher = load_teacher(students.teacher_of(student))
    speaking = {"student": student, "teacher": teacher}
    speaking["untrained"] = students.random_student(student)
    print("1. Drawing tokens with networks that onepass has never seen")
    with during("deriving and comparing the steps"):
        report = [report_steps([measure_keras(), measure_torch()])]
    print(f"2. Speaking {recording.name}, a held-out recording, from its mel")
    _write_speech(speaking, recording, given)
    print("3. Measuring them, a student that learnt nothing and the recordings")
    report.append(_report_speech(_measure_speech(speaking, data, given), given.out))
    print("4. Drawing images, pixel by pixel and scale by scale")
    report.append(draw_images(given.out, given.seed))
    if given.train:
        new = {"teacher": _train_teacher(given.out, data)}
        new["student"] = _distil_student(given.out, data)
        report.append(_report_training(new, recording, given))
    text = _whole(report, given, time.monotonic() - start)
    write_text(given.out / "report.md", text)
    print("\n" + text)
    return 0


def _write_speech(
    speaking: Mapping[str, Trained], recording: Path, given: QuickstartArguments
) -> None:
    """Write what each model says, the recording and all spectrograms; the teacher is brief."""
    rate_hz = speaking["student"].front.sample_rate_hz
    waveform = audio.read(recording, rate_hz)
    frames = speaking["student"].front.frames(waveform)
    lengths = {"teacher": min(int(given.seconds * rate_hz), len(waveform))}
    sounds = {
        name: model.sample(1, lengths.get(name, len(waveform)), given.seed, frames)[0]
        for name, model in speaking.items()
    }
    sounds["recorded"] = waveform
    for name, sound in sounds.items():
        audio.write(given.out / f"{name}.wav", sound, rate_hz)
    length = min(len(sound) for sound in sounds.values())
    plotted = {name: sound[:length] for name, sound in sounds.items()}
    spectrogram_png(given.out / "spectrograms.png", plotted, rate_hz)


def _measure_speech(
    speaking: Mapping[str, Trained], data: Path, given: QuickstartArguments
) -> dict[str, dict]:
    """Return the figures of the recordings and of each model, as `compare` does."""
    teacher = speaking["teacher"]
    corpus = dev_corpus(teacher, data)
    features, front = teacher.config.data.features, teacher.front
    items = dev_recordings(teacher.network, corpus, features, front.speakers, "report")
    systems: dict[str, System] = {RECORDING: lambda item, length: item["waveform"][:length]}
    for name, model in speaking.items():
        systems[name] = model_system(model, given.seed, model.front.temperature)
    convention = corpus.mel or MelConvention(front.sample_rate_hz)
    return compare(systems, items[: given.spoken], convention)


def _report_speech(figures: Mapping[str, dict], out: Path) -> str:
    """Return the section of the report on speech: at most four columns, a sentence on each."""
    shown = {RECORDING: RECORDING} | {
        "student": "student, in one pass",
        "teacher": "teacher, sample by sample",
        "untrained": "student, untrained",
    }
    present = [name for name in MEASURED if name in figures[RECORDING]["measures"]]
    measured = present[:COLUMNS]
    heads = ["", "seconds of computing", *(MEASURED[name][0] for name in measured)]
    rows = []
    for name, label in shown.items():
        factor = "" if name == RECORDING else f"{figures[name]['real_time_factor']:.3f}"
        values = (f"{figures[name]['measures'][each]['mean']:.2f}" for each in measured)
        rows.append(" | ".join((label, factor, *values)))
    table = "\n".join(f"| {row} |" for row in rows)
    sentences = [MEASURED[name][1] for name in measured]
    sentences += [MEASURED[name][2] for name in MEASURED if name not in present]
    times = figures["teacher"]["real_time_factor"] / figures["student"]["real_time_factor"]
    explained = "\n".join(f"- {sentence}" for sentence in sentences)
    return f"""## One sentence, spoken from its mel spectrogram

| {" | ".join(heads)} |
|{"---|" * len(heads)}
{table}

- Seconds of computing are for one second of sound: below 1, it is made sooner than it plays. The
  student is {times:.1f} times as fast as its small teacher.
{explained}

Listen to `{out}/recorded.wav`, `student.wav`, `teacher.wav` and `untrained.wav`, and look at
`spectrograms.png`: the stripes of a voice are sharp where a model learnt them, and smeared where it
did not. More measures, and which of them mislead: `onepass evaluate shipped`, docs/measures.md."""


def _train_teacher(out: Path, data: Path) -> tuple[Trained, Outcome]:
    print(f"5. Training {PRESET} on {data}, at most {60 * TRAINING_MINUTES:g} seconds")
    config = _limit_minutes(PRESETS[PRESET].config, TRAINING_MINUTES)
    outcome = train(SpeechRecipe(PRESET, config, data), out / "run")
    return students.load(out / "run"), outcome


def _distil_student(out: Path, data: Path) -> tuple[Trained, Outcome]:
    print(f"6. Distilling it into {STUDENT_PRESET}, at most {60 * DISTILLING_MINUTES:g} seconds")
    config, run = _limit_minutes(STUDENTS[STUDENT_PRESET].config, DISTILLING_MINUTES), out / "run"
    recipe = StudentRecipe(STUDENT_PRESET, config, data, load_teacher(run), run)
    outcome = train(recipe, out / "student-run")
    return students.load(out / "student-run"), outcome


def _limit_minutes(config: Any, minutes: float) -> Any:
    """Return a preset's configuration; its number of steps was chosen on a fast machine."""
    loop = dataclasses.replace(config.loop, max_minutes=minutes)
    return dataclasses.replace(config, loop=loop)


def _report_training(
    new: Mapping[str, tuple[Trained, Outcome]], recording: Path, given: QuickstartArguments
) -> str:
    """Write what the new models say, and return the section of the report on them."""
    front, rows = new["teacher"][0].front, []
    rate_hz = front.sample_rate_hz
    waveform = audio.read(recording, rate_hz)[: int(given.seconds * rate_hz)]
    frames = front.frames(waveform)
    for name, (model, outcome) in new.items():
        model.sample(1, len(waveform), given.seed, frames)  # compiles it
        start = time.perf_counter()
        sound = model.sample(1, len(waveform), given.seed, frames)[0]
        seconds = (time.perf_counter() - start) * rate_hz / len(waveform)
        audio.write(given.out / f"new-{name}.wav", sound, rate_hz)
        distance = multi_resolution_stft_distance(sound, waveform)
        trained_for = f"{outcome.step} steps in {duration(outcome.seconds)}"
        rows.append(f"| {name} | {trained_for} | {seconds:.3f} | {distance:.2f} |")
    table = "\n".join(rows)
    return f"""## A newly trained WaveNet, and its student

| | training | seconds of computing | distance of spectrograms |
|---|---|---|---|
{table}

- Seconds of computing are for one second of sound: sample by sample, and in one pass.
- The distance is that of the fine spectrograms from the recording's: less is better.

The models that come with onepass trained for hours. After these minutes
`{given.out}/new-teacher.wav` follows the shape of speech under noise; half a minute of
distillation teaches `new-student.wav` the level and the coarse spectrum, hardly a voice. The runs
are in `{given.out}/run` and `{given.out}/student-run`."""


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
