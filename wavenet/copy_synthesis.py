"""Copy synthesis: a model and baselines resynthesise recordings from the recordings' features."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onepass.foundation.measures import EXPLAINED, finite_mean
from onepass.foundation.progress import Progress
from onepass.foundation.rules import UserError
from wavenet.data import audio
from wavenet.data.audio import recorded_frames
from wavenet.features.frames import MelConvention, griffin_lim, mel_spectrogram
from wavenet.measures import measure
from wavenet.optional_packages import is_installed

COLUMNS = 3  # systems side by side in a table
SECONDS = 3  # length of the beginning of each recording that is synthesised
System = Callable[[dict, int], np.ndarray]
"""A function that takes a dev recording (an item of `dev_recordings`) and a number of samples, and
returns a waveform [samples]. The item's "row" selects the noise, which makes the waveforms of
different recordings independent, as the confidence intervals assume."""
SoundsCallback = Callable[
    [str, Sequence[np.ndarray], Sequence[dict], Sequence[Mapping[str, float]]], None
]
"""A function called with a system's name, its waveforms, the dev recordings that they imitate, and
the measures {name: value} of each waveform."""


def model_system(model: Any, seed: int, temperature: float = 1.0) -> System:
    """Return a system in which a speech model gets each recording's frames and speaker."""

    def synthesise(item: dict, length: int) -> np.ndarray:
        known, asked = model.front.speakers, dict[str, Any]()
        if model.front.conditional:
            frames = item["frames"][: -(-length // model.front.hop_samples)]
            asked["condition"] = recorded_frames(frames, 0.0)
        if known:
            asked["speaker"] = known[item["speaker"]]
        row_seed = seed + row_of(item)
        return model.sample(length=length, seed=row_seed, temperature=temperature, **asked)[0]

    return synthesise


def has_sounds(folder: Path) -> bool:
    """Return whether a folder directly contains audio files, unlike a model folder or a run."""
    return folder.is_dir() and any(path.suffix in audio.SUFFIXES for path in folder.iterdir())


def read_sounds(folder: Path, sample_rate_hz: int) -> System:
    """Return a system that reads another vocoder's waveforms, named like the recordings' files.

    They are resampled to `sample_rate_hz` and scaled to the recording's RMS.
    """

    def synthesise(item: dict, length: int) -> np.ndarray:
        stem = Path(item["name"]).stem
        candidates = (folder / f"{stem}{suffix}" for suffix in audio.SUFFIXES)
        path = next((path for path in candidates if path.is_file()), None)
        if path is None:
            raise UserError(f"{folder} has no sound named {stem}, the name of a recording.")
        sound = audio.read(path, sample_rate_hz)[:length]
        gain_db = audio.rms_db(item["waveform"][:length]) - audio.rms_db(sound)
        return np.pad(audio.amplify(sound, gain_db), (0, length - len(sound)))

    return synthesise


def row_of(item: dict) -> int:
    """Return the index of a recording among the synthesised ones, starting at 0."""
    return int(item.get("row", 0))


def extra_temperatures(model: Any, temperatures: Sequence[float]) -> tuple[float, ...]:
    """Return the model's default temperature and the given ones, without 1 and duplicates."""
    return tuple(t for t in dict.fromkeys((model.front.temperature, *temperatures)) if t != 1.0)


def at_temperatures(
    model: Any, seed: int, temperatures: Sequence[float], name: str = "model"
) -> dict[str, System]:
    """Return a `model_system` for each temperature, named such as "model_at_0.8"."""
    return {f"{name}_at_{t:g}": model_system(model, seed, t) for t in temperatures}


def baselines(mel: MelConvention, seed: int) -> dict[str, System]:
    """Return the systems that need no training, by name.

    "griffin_lim_mel_consistent" is clearly better than "griffin_lim"; "world", if pyworld is
    installed, uses more than the mel; "recording" serves measures that need no reference.
    """
    with_world = is_installed("pyworld")
    return {
        "griffin_lim": functools.partial(_griffin_lim, mel, seed, False),
        "griffin_lim_mel_consistent": functools.partial(_griffin_lim, mel, seed, True),
        **({"world": functools.partial(_world, mel.sample_rate_hz)} if with_world else {}),
        "recording": lambda item, length: item["waveform"][:length],
    }


def _griffin_lim(mel: MelConvention, seed: int, refit: bool, item: dict, length: int) -> np.ndarray:
    frames = mel_spectrogram(item["waveform"][:length], mel)
    return griffin_lim(frames, mel, length, seed=seed + row_of(item), refit=refit)


def _world(rate_hz: int, item: dict, length: int) -> np.ndarray:
    import pyworld  # optional, and slow to import

    recorded = np.ascontiguousarray(item["waveform"][:length], np.float64)
    f0_hz, envelope, aperiodicity = pyworld.wav2world(recorded, rate_hz)
    sound = pyworld.synthesize(f0_hz, envelope, aperiodicity, rate_hz)[:length]
    return np.pad(sound, (0, length - len(sound))).astype(np.float32)


def compare(
    systems: Mapping[str, System],
    items: Sequence[dict],
    mel: MelConvention,
    on_sounds: SoundsCallback | None = None,
) -> dict[str, dict]:
    """Return a dict {system: {"real_time_factor", "measures": {name: a `Measure` as a dict}}}."""
    found, rate_hz = {}, mel.sample_rate_hz
    for name, system in systems.items():
        sounds, factor = _synthesise_items(name, system, items, rate_hz)
        values = [
            measure(sound, item["waveform"][: len(sound)], rate_hz, mel)
            for sound, item in zip(sounds, items, strict=True)
        ]
        if on_sounds is not None:
            on_sounds(name, sounds, items, values)
        means = {key: finite_mean([value[key] for value in values]) for key in values[0]}
        measures = {key: dataclasses.asdict(mean) for key, mean in means.items()}
        found[name] = {"real_time_factor": factor, "measures": measures}
    return found


def real_time_factor(system: System, items: Sequence[dict], sample_rate_hz: int) -> float:
    """Return the seconds of computing time per second of audio, at batch size 1."""
    return _synthesise_items("model", system, items, sample_rate_hz)[1]


def _synthesise_items(
    name: str, system: System, items: Sequence[dict], sample_rate_hz: int
) -> tuple[list[np.ndarray], float]:
    system(items[0], min(sample_rate_hz // 2, len(items[0]["waveform"])))  # compile beforehand
    sounds, seconds = [], 0.0
    with Progress(len(items), name.replace("_", " "), "recording") as progress:
        for row, item in enumerate(items):
            length = synthesised_samples(item, sample_rate_hz)
            start = time.perf_counter()
            sounds.append(system({**item, "row": row}, length))
            seconds += time.perf_counter() - start
            progress.advance()
    return sounds, seconds * sample_rate_hz / sum(len(sound) for sound in sounds)


def synthesised_samples(item: dict, sample_rate_hz: int) -> int:
    """Return the number of samples to synthesise for a recording, at most `SECONDS` seconds."""
    return min(SECONDS * sample_rate_hz, len(item["waveform"]))


def table(systems: Mapping[str, dict]) -> list[str]:
    """Return the result of `compare` as lines of text: tables of up to `COLUMNS` systems."""
    names = list(systems)
    lines: list[str] = []
    for first in range(0, len(names), COLUMNS):
        some = {name: systems[name] for name in names[first : first + COLUMNS]}
        lines += [*([""] if first else []), *_columns(some)]
    measures = [m for each in systems.values() for m in each["measures"].values()]
    counts = [measured.get("n", 0) + measured.get("undefined", 0) for measured in measures]
    return [*lines, "", f"Over {max(counts, default=0) or 'all'} recordings, {EXPLAINED}."]


def _columns(systems: Mapping[str, dict]) -> list[str]:
    lines = [_row("", [name.replace("_", " ") for name in systems])]
    for name in next(iter(systems.values()))["measures"]:
        cells = [_cell(system["measures"][name]) for system in systems.values()]
        lines.append(_row(name.replace("_", " "), cells))
    factors = [f"{system['real_time_factor']:.3f}" for system in systems.values()]
    lines.append(_row("real-time factor", factors))
    if any("density" in system for system in systems.values()):
        known = ["exact" if system.get("density") else "unknown" for system in systems.values()]
        lines.append(_row("density", known))
    return lines


def _row(label: str, cells: Sequence[str]) -> str:
    return f"{label:31s}" + "".join(f"{cell:>29s}" for cell in cells)


def _cell(measured: dict) -> str:
    said = f"{measured['mean']:.3f}"
    if measured["low"] is not None:
        said += f" [{measured['low']:.3f}, {measured['high']:.3f}]"
    return f"{said} n {measured['n']}" if measured.get("undefined") else said
