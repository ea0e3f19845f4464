"""What the shipped models drew, kept so that a change of the code that draws is seen.

Every case of `cases()` draws from a shipped model, a bundle exported from one, or a `.onepass`
file. values.npz holds what they drew; test_golden.py draws again and compares. To write it anew,
after a change that is meant to change samples:

    python -m tests.golden.draws
"""

import contextlib
import functools
import hashlib
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import onepass
from wavenet.data import audio
from wavenet.shipped import recordings_folder

VALUES = Path(__file__).with_name("values.npz")
SEEDS = (1, 2**63 + 5)
TOLERANCE = 2  # levels of 16 bits between the sounds of two processors
FIRST_FRAME, FRAMES, SAMPLES = 60, 2, 320  # of a shipped recording: within a vowel
TEACHER_SAMPLES = 48  # later ones depend on how sums were rounded, since each is read by the next
NAIVE_SAMPLES = 8
GRID = 16  # pixels between those that are stored of a large image
CONDITIONS = {"class": 7, "text": "a red apple"}
BACKENDS = {
    "parallel-wavenet": ("numba", "tensorflow"),
    "wavenet": ("auto", "cached", "fixed-point"),
    "shipped-speech-16k": ("cached",),  # which reads no frames
}
DRAFTED = {"shipped-teacher": "shipped-kathleen"}
BUNDLES = ("shipped-kathleen", "shipped-digits-teacher")
PACKED = "shipped-digits"  # the model of the `.onepass` file
ENLARGER = "shipped-upsample"
# What the quick tests draw: a seed of every student and teacher, a model of each kind of image.
QUICK = ("/0, numba", "/0, auto", "shipped-digits-teacher/0, cached", "shipped-digits/0, cached")


class Case(NamedTuple):
    """A way to draw a sample by its name, and the key of values.npz that all such ways share."""

    name: str
    key: str
    draw: Callable[[], np.ndarray]


@functools.cache
def model(name: str) -> Any:
    """The model of a name of `onepass models`."""
    return onepass.load(name)


@functools.cache
def frames(name: str) -> np.ndarray | None:
    """Frames [frames, channels] of a shipped recording, as a model reads them, or None."""
    if not model(name).front.conditional:
        return None
    recording = sorted(recordings_folder().glob("dev/*.flac"))[0]
    waveform = audio.read(recording, model(name).front.sample_rate_hz)
    found = np.asarray(model(name).front.frames(waveform), np.float32)
    return found[FIRST_FRAME : FIRST_FRAME + FRAMES]


def levels(sound: np.ndarray) -> np.ndarray:
    """The levels of the only sound of [1, samples], int16 [samples]."""
    return np.rint(sound[0] * 32768).astype(np.int16)


def spoken(name: str, seed: int, samples: int = SAMPLES, **options: Any):
    """The levels of a sound of a model."""
    speaker = {"speaker": model(name).front.speakers[-1]} if any(model(name).front.speakers) else {}
    made = model(name).sample(
        condition=frames(name), seed=seed, length=samples, **speaker, **options
    )
    return levels(made)


def drawn(name: str, seed: int, **options: Any) -> np.ndarray:
    """An image of a model, uint8 [size, size, channels]."""
    condition = CONDITIONS[model(name).config.conditioning.kind]
    return model(name).sample(condition=condition, seed=seed, **options)[0]


def enlarged(seed: int) -> np.ndarray:
    """A gradient enlarged to twice its side: its digest and some of its pixels."""
    ramp = np.broadcast_to(np.arange(64, dtype=np.uint8) * 3, [64, 64])
    small = np.stack([ramp, ramp.T, 255 - ramp], -1)
    large = model(ENLARGER).sample(prefix=small, length=128, seed=seed)[0]
    digest = hashlib.sha256(np.ascontiguousarray(large)).digest()
    return np.concatenate([np.frombuffer(digest, np.uint8), large[::GRID, ::GRID].ravel()])


@functools.cache
def bundle(name: str) -> Any:
    """The bundle of a shipped model, exported for calls of one row."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        out = Path(folder) / name / "1"
        words = ["export", name, "--out", str(out), "--batches", "1", "--no-warm"]
        if onepass.main(words):
            raise RuntimeError(f"{name} could not be exported")
        return onepass.load(out)


def of_bundle(name: str, label: int | None, seed: int) -> np.ndarray:
    """An image of a class of a bundle, or the levels of a sound."""
    if label is None:
        return levels(bundle(name).sample(condition=frames(name), seed=seed))[:SAMPLES]
    return bundle(name).sample(condition=label, seed=seed)[0]


def drafted(name: str, seed: int) -> np.ndarray:
    """The levels of a sound of a teacher for which a student drafts."""
    draft = {"draft": model(DRAFTED[name]), "acceptance": "rejection"}
    return spoken(name, seed, TEACHER_SAMPLES, method="speculative", **draft)


def packed() -> np.ndarray:
    """The bytes of a `.onepass` file of an image, uint8 [bytes]."""
    return np.frombuffer(model(PACKED).compress(drawn(PACKED, SEEDS[0])[None], 7), np.uint8)


def unpacked() -> np.ndarray:
    """The image of the stored `.onepass` file."""
    return model(PACKED).decompress(stored()[f"{PACKED}/file"].tobytes())[0]


def cases() -> Iterator[Case]:
    """Yield every case."""
    for name, makes in ((each.name, each.makes) for each in onepass.list_models()):
        for number, seed in enumerate(SEEDS):
            key, given = f"{name}/{number}", (name, seed)
            if name == ENLARGER:
                yield Case(f"{key}, enlarged", key, functools.partial(enlarged, seed))
            elif makes == "images":
                for sampler in ("cached", "fixed-point"):
                    draw = functools.partial(drawn, *given, method=sampler)
                    yield Case(f"{key}, {sampler}", key, draw)
            else:
                kind = model_kind(name)
                samples = TEACHER_SAMPLES if kind == "wavenet" else SAMPLES
                for backend in BACKENDS.get(name, BACKENDS[kind]):
                    draw = functools.partial(spoken, *given, samples, method=backend)
                    yield Case(f"{key}, {backend}", key, draw)
    yield from of_few_models()


def of_few_models() -> Iterator[Case]:
    """Yield the cases that take long, of one model each, and those of files."""
    partial = functools.partial
    for name in DRAFTED:
        key = f"{name}/drafted"
        yield Case(f"{key}, speculative", key, partial(drafted, name, SEEDS[0]))
        key, options = f"{name}/short", {"samples": NAIVE_SAMPLES, "method": "naive"}
        yield Case(f"{key}, naive", key, partial(spoken, name, SEEDS[0], **options))
    sound, images = BUNDLES
    for number, seed in enumerate(SEEDS):
        key = f"{images}/{number}"
        yield Case(f"{key}, bundle", key, partial(of_bundle, images, 7, seed))
        key = f"{sound}/bundle {number}"
        yield Case(f"{key}, bundle", key, partial(of_bundle, sound, None, seed))
    yield Case(f"{PACKED}/file, packed", f"{PACKED}/file", packed)
    yield Case(f"{PACKED}/0, unpacked", f"{PACKED}/0", unpacked)


def model_kind(name: str) -> str:
    """The architecture of a shipped model."""
    return next(info.kind for info in onepass.list_models() if info.name == name)


@functools.cache
def stored() -> dict[str, np.ndarray]:
    """The content of values.npz."""
    with np.load(VALUES) as values:
        return dict(values)


def differing(case: Case, found: np.ndarray, expected: np.ndarray) -> str:
    """Return what differs between a sample and the stored one beyond rounding, or "".

    Images and bytes are equal to the last one. Processors round the sums of a sound differently;
    their levels may differ by `TOLERANCE`.
    """
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{found.dtype} {found.shape}, stored {expected.dtype} {expected.shape}"
    apart = np.abs(found.astype(int) - expected.astype(int)).ravel()
    bound = TOLERANCE if found.dtype == np.int16 else 0
    if apart.max(initial=0) <= bound:
        return ""
    return (
        f"{(apart > bound).sum()} of {apart.size} levels, by {apart.max()}, first {apart.argmax()}"
    )


def main() -> None:
    """Write values.npz; the ways that draw the same must agree."""
    values: dict[str, np.ndarray] = {}
    for case in cases():
        if case.name.endswith("unpacked"):
            continue
        found = case.draw()
        unequal = differing(case, found, values.setdefault(case.key, found))
        print(case.name, found.shape, unequal or "as stored", flush=True)
        if unequal:
            sys.exit(1)
    np.savez_compressed(VALUES, **values)
    print(f"{VALUES}: {len(values)} samples, {VALUES.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
