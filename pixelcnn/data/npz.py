"""Images in npz files: `images`, and optionally labels, classes, names, captions and maps."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from onepass.foundation.errors import UserError
from onepass.foundation.folders import show_path
from pixelcnn.data.captions import encode_caption
from pixelcnn.data.image_file import (
    DataError,
    DecodedImage,
    ImageError,
    ImageRules,
    at_depth,
    centred_square,
    depth_of,
    fit_square,
    subsample_pixels,
    with_channels,
)
from pixelcnn.data.raw_corpus import SPLITS, RawCorpus, extremes

DAMAGE = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, MemoryError)
MOST_CLASSES = 100_000
Texts = tuple[str, ...] | None
KEYS = ("images", "labels", "classes", "names", "captions", "maps")
TEXTS = ("classes", "names", "captions")


def read_arrays(path: Path, keys: tuple[str, ...] | None = None) -> dict[str, np.ndarray]:
    """Read the arrays `keys` of an npz file, or all if None, without unpickling objects."""
    if not path.is_file():
        raise DataError(f"{show_path(path)}: no such file.")
    if path.suffix == ".npy" and (keys is None or "images" in keys):
        return {"images": _single(path)}
    try:
        with open(path, "rb") as file, _open_npz(path, file) as opened:
            wanted = opened.files if keys is None else keys
            return {key: _array(path, opened, key) for key in wanted if key in opened.files}
    except OSError as error:
        raise DataError(f"{show_path(path)}: cannot be read ({error.strerror}).") from error


def _single(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except DAMAGE as error:
        raise DataError(f"{show_path(path)}: is not a npy file ({error}).") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise DataError(f"{show_path(path)}: is an npz archive; its name must end in .npz.")
    return array


def _open_npz(path: Path, file: BinaryIO) -> np.lib.npyio.NpzFile:
    try:
        opened = np.load(file, allow_pickle=False)
    except DAMAGE as error:
        raise DataError(f"{show_path(path)}: is not an npz file.") from error
    if not isinstance(opened, np.lib.npyio.NpzFile):
        raise DataError(f"{show_path(path)}: is a single array, not an npz file.")
    return opened


def _array(path: Path, opened: np.lib.npyio.NpzFile, key: str) -> np.ndarray:
    try:
        return np.asarray(opened[key])
    except DAMAGE as error:
        raise DataError(f"{show_path(path)}: `{key}` cannot be read ({error}).") from error


def pair(folder: Path) -> tuple[Path, Path] | None:
    """Return the `*_train.npz` and the `*_dev.npz` in a folder, or None if it has neither."""
    found = (filter(Path.is_file, folder.glob(f"*_{split}.npz")) for split in SPLITS)
    train, dev = map(sorted, found)
    if not train and not dev:
        return None
    if len(train) != 1 or len(dev) != 1:
        raise DataError(
            f"{show_path(folder)}: needs exactly one *_train.npz and one *_dev.npz, "
            f"found {len(train)} and {len(dev)}."
        )
    return train[0], dev[0]


def check_shape(path: Path, key: str, array: np.ndarray, shape: tuple[int | None, ...]) -> None:
    """Raise a DataError unless an array has the expected shape; None matches any length."""
    fits = len(array.shape) == len(shape) and all(
        wanted in (None, length) for wanted, length in zip(shape, array.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        raise DataError(
            f"{show_path(path)}: `{key}` must have the shape [{wanted}], got {list(array.shape)}."
        )


def _images(path: Path, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    if "images" not in arrays:
        raise DataError(f"{show_path(path)}: has no array `images`.")
    images = arrays["images"]
    if images.dtype not in (np.uint8, np.uint16):
        raise DataError(f"{show_path(path)}: `images` must be uint8 or uint16, got {images.dtype}.")
    images = images[..., None] if images.ndim == 3 else images
    if images.ndim != 4 or images.shape[-1] not in (1, 3):
        raise DataError(
            f"{show_path(path)}: `images` must be [n, height, width], with 1 or 3 "
            "channels after them "
            f"if any, got {list(arrays['images'].shape)}."
        )
    if not len(images):
        raise DataError(f"{show_path(path)}: `images` holds no image.")
    return images


def _check_arrays(
    path: Path, arrays: Mapping[str, np.ndarray], images: np.ndarray
) -> dict[str, Any]:
    shapes: dict[str, tuple[int | None, ...]] = {"classes": (None,), "maps": images.shape[:3]}
    found: dict[str, Any] = {}
    for key in (key for key in KEYS[1:] if key in arrays):
        array, is_text = arrays[key], key in TEXTS
        kinds, wanted = ("US", "text") if is_text else ("iu", "whole numbers")
        if array.dtype.kind not in kinds:
            raise DataError(f"{show_path(path)}: `{key}` must be {wanted}, got {array.dtype}.")
        check_shape(path, key, array, shapes.get(key, images.shape[:1]))
        if array.dtype.kind == "S":
            array = np.char.decode(array, "utf-8", "replace")
        found[key] = tuple(map(str, array)) if is_text else array
    _check_captions(path, found.get("captions", ()))
    classes = found.get("classes", ())
    if len(set(classes)) < len(classes):
        raise DataError(f"{show_path(path)}: `classes` has a name twice.")
    for key, limit in {"labels": len(classes) or MOST_CLASSES, "maps": MOST_CLASSES}.items():
        low, high = (found[key].min(), found[key].max()) if key in found else (0, 0)
        if low < 0 or high >= limit:
            raise DataError(
                f"{show_path(path)}: `{key}` must be in [0, {limit}), got {low} to {high}."
            )
    return found


def _check_captions(path: Path, captions: tuple[str, ...]) -> None:
    for index, caption in enumerate(captions):
        try:
            encode_caption(caption)
        except UserError as error:
            raise DataError(f"{show_path(path)}: `captions` at {index}: {error}") from error
        if not caption.strip():
            raise DataError(f"{show_path(path)}: `captions` is empty at {index}.")


def _reduced_maps(maps: np.ndarray, size: int) -> np.ndarray:
    left, top, right, bottom = centred_square(maps.shape[2], maps.shape[1])
    squares = maps[:, top:bottom, left:right].astype(np.int32)
    return np.stack([subsample_pixels(square, size) for square in squares])


def _fit_images(path: Path, images: np.ndarray, rules: ImageRules) -> np.ndarray:
    height, width = images.shape[1:3]
    if min(height, width) < rules.size:
        raise DataError(
            f"{show_path(path)}: its images are {width}x{height}, "
            f"smaller than {rules.size}x{rules.size}."
        )
    if height == width == rules.size:
        return with_channels(images, rules.channels)
    return np.stack([fit_square(i, rules.size, rules.channels, rules.reduce) for i in images])


def read_npz_file(path: Path, rules: ImageRules, stored_bits: int | None = None) -> RawCorpus:
    """Read the images of an npz file, reduced to `rules.size`.

    Args:
      path: an npz file with `images`, uint8 or uint16 [n, height, width] or [n, height, width, 1 or
        3], or an npy file of only this array. An npz file may also contain `labels`, integers [n];
        `classes`, text [classes]; `names` and `captions`, text [n]; and `maps`, integers [n,
        height, width], which are sub-sampled.
    """
    arrays = read_arrays(path, KEYS)
    images = _images(path, arrays)
    count = len(images)
    found = _check_arrays(path, arrays, images)
    labels, maps = found.get("labels"), found.get("maps")
    classes: tuple[str, ...] = found.get("classes") or ()
    reduced, notes = _at_depth(
        path, _fit_images(path, images, rules), images, rules.bits, stored_bits
    )
    if labels is not None and not classes:
        classes = tuple(map(str, range(int(labels.max()) + 1)))
    return RawCorpus(
        images=reduced,
        names=found.get("names") or tuple(f"{path.stem}[{i}]" for i in range(count)),
        splits=None,
        class_names=None if labels is None else tuple(classes[label] for label in labels),
        classes=classes or None,
        captions=found.get("captions"),
        maps=None if maps is None else _reduced_maps(maps, rules.size),
        stored_sizes=((images.shape[2], images.shape[1]),) * 2,
        notes=notes,
    )


def _at_depth(
    path: Path, reduced: np.ndarray, images: np.ndarray, bits: int, stored_bits: int | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    stored_bits = stored_bits or depth_of(int(images.max()))
    whole = DecodedImage(reduced, (0, 0), (), int(images.max()))
    try:
        made = at_depth(whole, stored_bits, bits)
    except ImageError as error:
        raise DataError(f"{show_path(path)}: {error.kind}: {error.detail}.") from error
    return made.levels, tuple(f"{remark}: {show_path(path.name)}" for remark in made.remarks)


def read_depth(path: Path) -> int:
    """Return the bits per level of an npz file's images, derived from the highest level."""
    images = read_arrays(path, ("images",)).get("images")
    return 8 if images is None or images.dtype != np.uint16 else depth_of(int(images.max()))


def _join_texts(first: Texts, second: Texts) -> Texts:
    return None if first is None or second is None else first + second


def _same_classes(train: Path, dev: Path, first: Texts, second: Texts) -> Texts:
    if first is None or second is None:
        return None
    shared = min(len(first), len(second))
    if first[:shared] != second[:shared]:
        raise DataError(f"{show_path(train)} and {show_path(dev)}: their `classes` differ.")
    return max(first, second, key=len)


def read_npz_pair(train: Path, dev: Path, rules: ImageRules) -> RawCorpus:
    """Read the images of an npz file for train and one for dev."""
    bits = max(read_depth(train), read_depth(dev))
    first, second = (read_npz_file(path, rules, bits) for path in (train, dev))
    for key in ("class_names", "captions", "maps"):
        if (getattr(first, key) is None) != (getattr(second, key) is None):
            what = "labels" if key == "class_names" else key
            raise DataError(
                f"{show_path(train)} and {show_path(dev)}: only one of them has `{what}`."
            )
    return RawCorpus(
        images=np.concatenate([first.images, second.images]),
        names=first.names + second.names,
        splits=("train",) * len(first.names) + ("dev",) * len(second.names),
        class_names=_join_texts(first.class_names, second.class_names),
        classes=_same_classes(train, dev, first.classes, second.classes),
        captions=_join_texts(first.captions, second.captions),
        maps=None if first.maps is None else np.concatenate([first.maps, second.maps]),
        stored_sizes=extremes([*first.stored_sizes, *second.stored_sizes]),
        notes=first.notes + second.notes,
    )
