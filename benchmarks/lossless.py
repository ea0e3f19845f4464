"""Lossless bits: shipped densities next to FLAC, WebP and JPEG XL on dev data that is shipped.

Bits per dimension of images, bits per sample of sound; fewer are better. Files of the other codecs
are one per image or recording. The figures of a model are its own bits: `docs/compress.md` tells
what a file adds (0.6 %).
"""

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np

import onepass
from benchmarks.report import Benchmark, Row
from pixelcnn.measures import jpeg_xl_bits_per_dim, webp_bits_per_dim
from pixelcnn.shipped import dev_images
from wavenet import shipped
from wavenet.data import audio

MODELS = ("shipped-digits-teacher", "shipped-digits", "shipped-emoji", "shipped-objects-teacher")
WEBP, JPEG_XL, FLAC = "WebP", "JPEG XL", "FLAC"
PER_DIM, PER_SAMPLE = "bits/dim", "bits/sample"
NO_DENSITY = "no WaveNet without frames is named by `--density RUN`"


def benchmark(quick: bool = False, density: Path | None = None) -> Benchmark:
    """Return the benchmark of lossless bits.

    Args:
      quick: eight images of one model, one recording.
      density: run of an unconditional WaveNet; None: none is compared with FLAC.
    """
    found = Benchmark("lossless")
    for name in MODELS[:1] if quick else MODELS:
        _add_images(found, name, 8 if quick else None)
    recordings = sorted(shipped.recordings_folder().glob("dev/*.flac"))[: 1 if quick else None]
    model: Any = onepass.load(density) if density else None
    rate_hz = model.front.sample_rate_hz if model else 24_000
    sounds = [audio.read(path, rate_hz) for path in recordings]
    size = f"{len(sounds)} recordings"
    found.add(Row(FLAC, size, len(sounds), PER_SAMPLE), functools.partial(_flac, sounds, rate_hz))
    if model is None:
        found.left_out["WaveNet density"] = NO_DENSITY
    else:
        row = Row("WaveNet density", size, len(sounds), PER_SAMPLE, (FLAC,))
        found.add(row, functools.partial(_sound_bits, model, sounds))
    return found


def _add_images(found: Benchmark, name: str, count: int | None) -> None:
    model: Any = onepass.load(name)
    with np.load(dev_images(name)) as arrays:
        images = arrays["images"][:count]
        conditions = arrays["captions" if "captions" in arrays else "labels"][:count].tolist()
    size = f"{len(images)}x{model.front.size}x{model.front.size}"
    corpus = name.removesuffix("-teacher").removeprefix("shipped-")
    own = Row(name, f"{corpus} {size}", len(images), PER_DIM, (WEBP, JPEG_XL))
    found.add(own, functools.partial(_image_bits, model, images, conditions))
    if any((row.what, row.size) == (WEBP, own.size) for row in found.rows):
        return
    found.add(
        Row(WEBP, own.size, len(images), PER_DIM),
        functools.partial(_codec_bits, webp_bits_per_dim, images),
    )

    def jpeg_xl() -> None:
        jpeg_xl_bits_per_dim(images[0])  # raises ImportError without onepass[jxl]
        found.add(
            Row(JPEG_XL, own.size, len(images), PER_DIM),
            functools.partial(_codec_bits, jpeg_xl_bits_per_dim, images),
        )

    found.peer(JPEG_XL, jpeg_xl)


def _image_bits(model: Any, images: np.ndarray, conditions: list) -> float:
    nats = model.log_prob(images, conditions)
    return -float(np.mean(nats)) / images[0].size / math.log(2.0)


def _codec_bits(bits: Any, images: np.ndarray) -> float:
    return float(np.mean([bits(image) for image in images]))


def _flac(sounds: list[np.ndarray], rate_hz: int) -> float:
    lengths = [len(sound) for sound in sounds]
    bits = [audio.flac_bits_per_sample(audio.to_int16(sound), rate_hz) for sound in sounds]
    return float(np.average(bits, weights=lengths))


def _sound_bits(model: Any, sounds: list[np.ndarray]) -> float:
    nats = sum(float(np.sum(model.log_prob(sound))) for sound in sounds)
    return -nats / sum(map(len, sounds)) / math.log(2.0)
