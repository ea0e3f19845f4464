"""The command `onepass sample URL`: sounds and images from a served model."""

import dataclasses
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from pixelcnn.data.captions import encode_caption
from pixelcnn.sampling.grids import (
    check_new_images,
    image_name,
    remove_older,
    write_png,
    write_sheets,
)
from replicator.runs.atomic_files import read_npy
from replicator.runs.errors import UserError
from replicator.runs.folders import check_new, counted, make_folder
from replicator.runs.progress import Progress
from serving.bundles.condition_inputs import has_named
from serving.bundles.image_inputs import image_inputs
from serving.bundles.signature import fastest
from serving.client.arrays import ArrayClient
from serving.client.client import RETRIES, Client, server_and_name
from serving.client.prompt_options import PromptOptions
from serving.client.streams import scales_of, whole_images
from serving.settings import TOKEN_VARIABLE, is_url
from speech.phonemes import note_on_markup
from wavenet.data import audio
from wavenet.plots import spectrogram_png

PLOTTED_SECONDS = 20.0  # longest part of a sound in its spectrogram
ROWS = 8  # images per request
INTERRUPTED = 130


@dataclasses.dataclass(frozen=True)
class Connection:
    """The options of both kinds of models."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="URL")]
    """Model of `onepass serve`: http://HOST:PORT/NAME, or with https:// or grpc://."""
    out: Path
    """Folder for the files; created if missing."""
    overwrite: bool = False
    """Replace existing files of the same names."""
    seed: int = 0
    """Seed of the noise: the same seed gives the same samples."""
    timeout: float = 600.0
    """Time limit for each sound, or for all images, in seconds."""
    retries: int = RETRIES
    """Retries if the server is busy or not running yet."""


@dataclasses.dataclass(frozen=True)
class SpeakArguments(Connection):
    """Synthesise speech on a server: WAV files and spectrograms. ONEPASS_TOKEN holds the token."""

    num: int = 1
    """Number of sounds, from rows 0, 1, ... of the seed."""
    seconds: float | None = None
    """Duration of a sound; None: that of the input, or the server's default."""
    recording: Path | None = None
    """WAV or FLAC file to resynthesise, at its level; None: the first of the server's examples."""
    mel: Path | None = None
    """npy file of frames [frames, channels] to speak instead."""
    force: bool = False
    """Accept a mel that does not look like the training data."""
    text: str | None = None
    """Text to speak instead, where the server has a text front end."""
    example: str | None = None
    """Name of one of the server's recordings to resynthesise."""
    speaker: str | None = None
    """Name of a speaker, for a model with speakers."""
    temperature: float | None = None
    """1 samples the model; less is closer to its mode. None: the model's default, else 1."""


@dataclasses.dataclass(frozen=True)
class DrawArguments(Connection):
    """Draw images on a server: PNG files, a sheet of them and, if multiscale, of their scales.

    ONEPASS_TOKEN holds the token.
    """

    num: int = 16
    """Number of images, from rows 0, 1, ... of the seed."""
    temperature: tuple[float, ...] = (1.0,)
    """1 samples the model; one number, or one per scale, base first."""
    guidance: float = 0.0
    """Strength of the condition beyond the model's own; 0: none."""
    label: str | None = None
    """Class, by name or index; None: all classes in turn."""
    caption: tuple[str, ...] | None = None
    """Texts to draw, in turn, for a model of captions."""
    map: Path | None = None
    """npy file of labels [side, side], for a model of maps."""


@dataclasses.dataclass(frozen=True)
class ArrayArguments(PromptOptions, Connection):
    """Sample a user's model on a server: sample_SEED.npy, [num, ...].

    ONEPASS_TOKEN holds the token.
    """

    length: tuple[int, ...] = (1000,)
    """Length of a sequence, or the shape that the model was exported for."""
    num: int = 1
    """Number of samples, from rows 0, 1, ... of the seed."""


def run_sample(arguments: list[str], parse: Callable) -> int:
    """Run `onepass sample URL ...`; return the exit status.

    The model's kind decides on the options. Ctrl-C keeps the samples received so far.
    """
    logging.getLogger("stamina").setLevel(logging.ERROR)  # only the final error is reported
    address, name = server_and_name(next(filter(is_url, arguments)))
    with Client(address, token=os.environ.get(TOKEN_VARIABLE) or None) as client:
        spec = client.spec(name)
    kind = "array" if has_named(spec) else str(spec.get("kind"))
    if kind not in RUNS:
        states = " and ".join(str(version.get("state")) for version in spec.get("versions", ()))
        state = states.lower() or "not served"
        raise UserError(f"The model `{name}` cannot be sampled now; it is {state}.")
    options, run = RUNS[kind]
    given = parse(options, arguments, "onepass sample")
    if given.num < 1:
        raise UserError(f"`--num` must be at least 1, got {given.num}.")
    make_folder(given.out)
    token = os.environ.get(TOKEN_VARIABLE) or None
    limits: dict[str, Any] = {"timeout_seconds": given.timeout, "retries": given.retries}
    with Client(address, token=token, **limits) as client:
        return run(client, name, spec, given)


def _sample_arrays(client: Client, name: str, spec: dict[str, Any], given: ArrayArguments) -> int:
    path = given.out / f"sample_{given.seed}.npy"
    paths = [path, *given.log_prob_path(given.out, given.seed)]
    check_new(paths, given.overwrite)
    length: Any = given.length[0] if len(given.length) == 1 else given.length
    model = ArrayClient(client, name, spec)
    found = model.sample(given.num, length, given.seed, **given.arguments())
    for each, array in zip(paths, found if given.log_prob else (found,), strict=True):
        np.save(each, array)
    print(f"{path}: {given.num} samples {list(given.length)}")
    return 0


def _speak(client: Client, name: str, spec: dict[str, Any], given: SpeakArguments) -> int:
    arguments = _speak_arguments(client, name, spec, given)
    prefix = f"{_name_of(given, arguments)}_{given.seed}"
    paths = [given.out / f"{prefix}_{row}.wav" for row in range(given.num)]
    check_new([each for path in paths for each in (path, _image(path))], given.overwrite)
    interrupted = False
    with Progress(given.num, "speaking", "sound") as progress:
        for row, path in enumerate(paths):
            interrupted = _write_sound(client, name, path, {**arguments, "row": row})
            if interrupted:
                break
            progress.advance()
    return INTERRUPTED if interrupted else 0


def _name_of(given: SpeakArguments, arguments: dict[str, Any]) -> str:
    file = given.recording or given.mel
    if file is not None:
        return file.stem
    return str(arguments.get("example") or ("text" if given.text else "sample"))


def _image(path: Path) -> Path:
    return path.with_suffix(".png")


def _write_sound(client: Client, name: str, path: Path, arguments: dict[str, Any]) -> bool:
    """Write a WAV file as it arrives, and its spectrogram; return whether Ctrl-C cut it short."""
    start, first_seconds, samples, interrupted = time.perf_counter(), 0.0, 0, False
    beginning: list[np.ndarray] = []
    with client.speak(name, **arguments) as speech:
        rate_hz = speech.sample_rate_hz
        with audio.writing(path, rate_hz) as write:
            try:
                for chunk in speech:
                    first_seconds = first_seconds or time.perf_counter() - start
                    write(chunk)
                    if samples < PLOTTED_SECONDS * rate_hz:
                        beginning.append(chunk)
                    samples += len(chunk)
            except KeyboardInterrupt:
                interrupted = True
    if not samples and not interrupted:
        raise UserError(f"The model `{name}` returned no sound.")
    if samples:
        seconds = time.perf_counter() - start
        plotted = np.concatenate(beginning)[: int(PLOTTED_SECONDS * rate_hz)]
        spectrogram_png(_image(path), {"sampled": plotted}, rate_hz)
        took = f"in {seconds:.2f} s, the first of it after {first_seconds:.2f} s"
        print(f"{path}: {samples / rate_hz:.2f} s {took}")
    return interrupted


def _speak_arguments(
    client: Client, name: str, spec: dict[str, Any], given: SpeakArguments
) -> dict[str, Any]:
    sources = {
        "recording": given.recording,
        "frames": _numbers(given.mel) if given.mel else None,
        "text": given.text,
        "example": given.example,
    }
    chosen = {key: value for key, value in sources.items() if value is not None}
    if given.text and (note := note_on_markup(given.text)):
        print(f"--text: {note}", file=sys.stderr)
    if len(chosen) > 1:
        raise UserError("Give one of `--recording`, `--mel`, `--text` and `--example`.")
    if not chosen and spec.get("condition") == "frames":
        known = client.examples(name)
        if not known:
            raise UserError(f"The model `{name}` needs `--recording`, `--mel` or `--text`.")
        chosen = {"example": known[0]["name"]}
    return chosen | {
        "seed": given.seed,
        "seconds": given.seconds,
        "speaker": given.speaker,
        "temperature": given.temperature,
        "force": given.force,
    }


def _numbers(path: Path) -> np.ndarray:
    array = read_npy(path)
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise UserError(f"{path} must hold numbers [frames, channels], got {array.shape}.")
    return array.astype(np.float32)


def _draw(client: Client, name: str, spec: dict[str, Any], given: DrawArguments) -> int:
    labels = [_class_name(spec, given.label, row) for row in range(given.num)]
    names = [image_name(given.seed, row, label) for row, label in enumerate(labels)]
    check_new_images(given.out, names, given.overwrite)
    images: list[list[np.ndarray]] = []
    start = time.perf_counter()
    with Progress(given.num, "drawing", "image") as progress:
        try:
            for scales in _image_scales(client, name, spec, given):
                write_png(given.out / names[len(images)], scales[-1])
                images.append(scales)
                progress.advance()
        except KeyboardInterrupt:
            progress.say(f"interrupted: keeping {len(images)} of {given.num} images")
    if images:
        seconds, side = time.perf_counter() - start, images[0][-1].shape[0]
        files, size = write_sheets(given.out, images, given.caption), f"{side}x{side} pixels"
        files += remove_older(given.out, given.seed, given.num) if given.overwrite else ""
        print(f"{given.out}: {counted(len(images), 'image')} of {size} in {seconds:.1f} s; {files}")
    return 0 if len(images) == given.num else INTERRUPTED


def _class_name(spec: dict[str, Any], label: str | None, row: int) -> str | None:
    """Return the name of an image's class, None for a model without classes."""
    classes = [str(name) for name in spec.get("classes") or ()]
    if not classes:
        return None
    if label is None:
        return classes[row % len(classes)]
    known = label.isdecimal() and label not in classes and int(label) < len(classes)
    return classes[int(label)] if known else label


def _image_scales(
    client: Client, name: str, spec: dict[str, Any], given: DrawArguments
) -> Iterator[list[np.ndarray]]:
    """Yield the scales of each image, with several classes or captions in turn."""
    signatures = client.signatures(name)
    signature = fastest(signatures)
    inputs = signatures.get(signature, {})
    captions = given.caption or (None,)
    # `draw` takes one condition for all images; with several, each row of `predict` has its own.
    if (given.label is None and "label" in inputs) or len(captions) > 1:
        classes = len(spec.get("classes") or [0])
        codes = np.stack([encode_caption(caption) for caption in given.caption or ("",)])
        for start in range(0, given.num, ROWS):
            rows = np.arange(start, min(start + ROWS, given.num), dtype=np.int32)
            condition = {"label": rows % np.int32(classes)}
            if given.caption:
                condition = {"caption": codes[rows % len(codes)]}
            options = (given.temperature, given.guidance, condition, UserError)
            batch = image_inputs(inputs, given.seed, rows, *options)
            outputs = client.predict(name, batch, signature)
            yield from (scales_of(outputs, row) for row in range(len(rows)))
        return
    one = given.temperature[0] if len(given.temperature) == 1 else given.temperature
    labels = read_npy(given.map) if given.map else None
    arguments: dict[str, Any] = {"label": given.label, "caption": captions[0], "map": labels}
    arguments |= {"temperature": one, "guidance": given.guidance}
    with client.draw(name, num=given.num, seed=given.seed, **arguments) as scales:
        yield from whole_images(scales)


# By kind of model, the options of the command and the function that runs it.
RUNS: dict[str, tuple[Any, Callable[..., int]]] = {
    "sound": (SpeakArguments, _speak),
    "picture": (DrawArguments, _draw),
    "array": (ArrayArguments, _sample_arrays),
}
