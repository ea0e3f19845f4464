"""The verbs `compress` and `decompress`: files of images or sound, and one compressed file."""

import dataclasses
import sys
import time
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import soundfile
from PIL import Image, UnidentifiedImageError

from compression.container import Container, read, read_file
from onepass import array_compression
from onepass.compress_arguments import CompressArguments, DecompressArguments
from onepass.models import load
from pixelcnn.data.colour import in_srgb
from pixelcnn.sampling.grids import write_png
from replicator.runs.atomic_files import read_npy, replacing
from replicator.runs.errors import UserError
from replicator.runs.folders import check_new, make_folder
from serving.bundles.folder_kind import folder_kind
from wavenet.data import audio
from wavenet.data.streams import Source, found_in

LONGEST_NAME = 200  # bytes of a file's name, without a suffix


def compress(given: CompressArguments) -> int:
    """Run `onepass compress` and return the exit status."""
    if folder_kind(given.model) == "saved":
        return _compress_array(given)
    if not given.files:
        raise UserError("`FILES` is empty: pass the files to compress.")
    check_new([given.out], given.overwrite)
    make_folder(given.out.parent)
    model, makes_images = _model(given.model)
    start = time.perf_counter()
    if makes_images:
        images = np.stack([_image(path, model) for path in given.files])
        condition = list(given.condition) or None
        options = {"batch": given.batch, "tolerance": given.tolerance, **_verify(given)}
        data, raw = model.compress(images, condition, **options), images.size
    else:
        if len(given.condition) > 1:
            raise UserError("`--condition` must be one speaker for all recordings.")
        recordings = [_recording(path, model) for path in given.files]
        speaker = given.condition[0] if given.condition else None
        options = {"tolerance": given.tolerance, **_verify(given)}
        data = model.compress(recordings, speaker=speaker, **options)
        raw = sum(recording.nbytes for recording in recordings)
    found = read(data)
    described = {**found.description, "names": [path.name for path in given.files]}
    data = dataclasses.replace(found, description=described).to_bytes()
    with replacing(given.out) as temporary:
        temporary.write_bytes(data)
    seconds = time.perf_counter() - start
    print(
        f"{given.out}: {len(given.files)} files, {raw:,} bytes of pixels or samples in "
        f"{len(data):,}, {8 * len(data) / raw:.3f} bits per byte, in {seconds:.1f} s"
    )
    return 0


def decompress(given: DecompressArguments) -> int:
    """Run `onepass decompress` and return the exit status."""
    data = read_file(given.file)
    if folder_kind(given.model) == "saved":
        return _decompress_array(given, data)
    model, makes_images = _model(given.model)
    paths = _paths(given.out, model.read_compressed(data))
    check_new(paths, given.overwrite)
    start = time.perf_counter()
    elements = model.decompress(data)
    make_folder(given.out)
    for path, each in zip(paths, elements, strict=True):
        if makes_images:
            write_png(path, each)
        else:
            audio.write(path, each, model.sample_rate_hz)
    print(f"{given.out}: {len(elements)} files in {time.perf_counter() - start:.1f} s")
    return 0


def _paths(out: Path, found: Container) -> list[Path]:
    """Return the path of every element's file, named after the compressed file.

    Elements of the same name get different files.
    """
    count = found.shape[0]
    names = found.description.get("names")
    if not isinstance(names, list) or len(names) != count:
        names = [f"{i:05d}" for i in range(count)]
    paths: dict[Path, None] = {}
    for i, name in enumerate(names):
        path = out / _name(name)
        if found.kind == "images":
            path = path.with_suffix(".png")
        elif path.suffix.lower() != ".wav":
            path = path.with_suffix(".flac")
        while path in paths:
            path = path.with_stem(f"{path.stem}-{i}")
        paths[path] = None
    return list(paths)


def _name(name: Any) -> str:
    """Return the last part of a name in a compressed file, which is untrusted.

    Control characters, and what is too long for a file system, are left out.
    """
    last = PurePosixPath(str(name).replace("\\", "/")).name
    clean = "".join(character for character in last[:LONGEST_NAME] if character.isprintable())
    while len(clean.encode()) > LONGEST_NAME:
        clean = clean[:-1]
    return clean if clean.strip(". ") else "unnamed"


def _verify(given: CompressArguments) -> dict[str, bool]:
    """Return the argument `verify` of a model's `compress`, or none for its default."""
    return {} if given.verify == "cheap" else {"verify": given.verify == "always"}


def _compress_array(given: CompressArguments) -> int:
    """Compress an npy file, by a model that `onepass.save` wrote, and return the exit status."""
    if len(given.files) != 1 or given.condition:
        raise UserError(f"{given.model} needs exactly one npy file, and no `--condition`.")
    check_new([given.out], given.overwrite)
    make_folder(given.out.parent)
    start, elements = time.perf_counter(), read_npy(given.files[0])
    try:
        options: dict[str, Any] = {"tolerance": given.tolerance, **_verify(given)}
        data = array_compression.compress(load(given.model, trust=given.trust), elements, **options)
    except ValueError as error:
        raise UserError(f"{given.files[0]}: {error}") from error
    with replacing(given.out) as temporary:
        temporary.write_bytes(data)
    bits, seconds = 8 * len(data) / elements.size, time.perf_counter() - start
    print(
        f"{given.out}: {elements.size:,} elements in {len(data):,} bytes, {bits:.3f} bits per"
        f" element, in {seconds:.1f} s"
    )
    return 0


def _decompress_array(given: DecompressArguments, data: bytes) -> int:
    """Write the elements of a compressed file as an npy file, and return the exit status."""
    path = given.out / f"{given.file.stem}.npy"
    check_new([path], given.overwrite)
    elements = array_compression.decompress(load(given.model, trust=given.trust), data)
    make_folder(given.out)
    np.save(path, elements)
    print(f"{path}: {list(elements.shape)}")
    return 0


def _model(path: Path) -> tuple[Any, bool]:
    """Return the model, and whether it generates images.

    Raises:
      UserError: the model cannot compress.
    """
    model: Any = load(path)
    if not model.compresses:
        raise UserError(f"{path} cannot compress: it has no exact conditionals.")
    return model, model.makes == "images"


def _image(path: Path, model: Any) -> np.ndarray:
    """Return the pixels of a file, uint8 [size, size, channels], without conversion.

    Raises:
      UserError: the file cannot be read, or has another size or mode than the model.
    """
    try:
        with Image.open(path) as opened:
            mode, size, frames = opened.mode, opened.size, getattr(opened, "n_frames", 1)
            pixels = np.asarray(opened)
            others = in_srgb(opened)[1]
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file.") from error
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} cannot be read as an image.") from error
    wanted = "L" if model.channels == 1 else "RGB"
    if mode != wanted or size != (model.size, model.size):
        raise UserError(
            f"{path} must be {model.size}x{model.size} pixels of mode {wanted}, got "
            f"{size[0]}x{size[1]} of mode {mode}."
        )
    if frames > 1:
        raise UserError(f"{path} must be one image, it holds {frames}.")
    if others:
        print(f"{path}: its pixels are kept, its colour profile is not", file=sys.stderr)
    return pixels.reshape(model.size, model.size, model.channels)


def _recording(path: Path, model: Any) -> np.ndarray:
    """Return the samples of a file, int16 [samples], without conversion.

    Raises:
      UserError: the file cannot be read, or has another format than the model's recordings.
    """
    try:
        with soundfile.SoundFile(path) as file:
            subtype, rate_hz, channels = file.subtype, file.samplerate, file.channels
            samples = file.read(dtype="int16")
        with open(path, "rb") as opened:
            found = found_in(Source(opened))
    except (soundfile.SoundFileError, OSError) as error:
        raise UserError(f"{path} cannot be read as a recording.") from error
    if (subtype, rate_hz, channels) != ("PCM_16", model.sample_rate_hz, 1):
        raise UserError(
            f"{path} must be mono PCM_16 at {model.sample_rate_hz} Hz, got {channels} channels of "
            f"{subtype} at {rate_hz} Hz."
        )
    if found.streams or found.unread_bytes:
        raise UserError(
            f"{path} must be one sound with its own length in its header: it holds more."
        )
    return samples
