"""Reading of image data sets from TensorFlow Datasets."""

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from onepass.foundation.folders import show_path, some
from pixelcnn.data.image_file import EIGHT, DataError, ImageRules, fit_square, rescale_levels
from pixelcnn.data.raw_corpus import RawCorpus, extremes

PREFIX = "tfds:"
DEV_SPLITS = ("validation", "test")


def _library() -> Any:
    try:
        return importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise DataError(
            "A `tfds:` name needs TensorFlow Datasets: pip install onepass[tfds]"
        ) from error


def _prepare_builder(library: Any, name: str) -> Any:
    try:
        builder = library.builder(name)
        builder.download_and_prepare()
    except Exception as error:  # downloads and data sets may raise any kind of error
        reason = show_path(str(error).strip().split("\n")[0]) or type(error).__name__
        raise DataError(f"{PREFIX}{show_path(name)}: {reason}") from error
    if "image" not in builder.info.features:
        raise DataError(f"{PREFIX}{show_path(name)}: its examples have no `image`.")
    return builder


def _splits(name: str, available: Iterable[str]) -> dict[str, str]:
    known = set(available)
    if "train" not in known:
        raise DataError(f"{PREFIX}{show_path(name)}: has no split train.")
    dev = [split for split in DEV_SPLITS if split in known][:1]
    return {"train": "train"} | dict.fromkeys(dev, "dev")


def _examples(library: Any, builder: Any, splits: dict[str, str]) -> Iterator[tuple[str, str, Any]]:
    for split, ours in splits.items():
        stored = library.as_numpy(builder.as_dataset(split=split, shuffle_files=False))
        for index, example in enumerate(stored):
            yield ours, f"{split}[{index}]", example


def _image(name: str, example: dict[str, np.ndarray]) -> np.ndarray:
    image = np.asarray(example["image"])
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] not in (1, 3):
        raise DataError(
            f"{PREFIX}{show_path(name)}: `image` must be uint8 [height, width, 1 or 3], "
            f"got {image.dtype} {list(image.shape)}."
        )
    return image


def _class(name: str, place: str, example: dict[str, np.ndarray], classes: list[str]) -> str:
    label = int(example["label"])
    if label < 0:
        raise DataError(f"{PREFIX}{show_path(name)}: {place} has no label, although others have.")
    return classes[label]


def read_tfds(name: str, rules: ImageRules) -> RawCorpus:
    """Read the images of a data set, such as "mnist", with labels if it has any.

    The dev split is validation, or else test; without either, a hash of the name selects dev
    images from train.
    """
    library = _library()
    builder = _prepare_builder(library, name)
    splits = _splits(name, builder.info.splits)
    features = builder.info.features
    classes = getattr(features["label"], "names", None) if "label" in features else None
    images, names, sizes, ours, labels, small = [], [], [], [], [], []
    for split, place, example in _examples(library, builder, splits):
        image = _image(name, example)
        if min(image.shape[:2]) < rules.size:
            small.append(f"{place} ({image.shape[1]}x{image.shape[0]})")
            continue
        images.append(fit_square(image, rules.size, rules.channels, rules.reduce))
        names.append(place)
        sizes.append((image.shape[1], image.shape[0]))
        ours.append(split)
        labels += [_class(name, place, example, classes)] if classes else []
    if not images:
        raise DataError(
            f"{PREFIX}{show_path(name)}: no image of {rules.size}x{rules.size} or more."
        )
    return RawCorpus(
        images=rescale_levels(np.stack(images), EIGHT, rules.bits),
        names=tuple(names),
        splits=tuple(ours) if "dev" in splits.values() else None,
        class_names=tuple(labels) or None,
        classes=tuple(classes) if classes else None,
        stored_sizes=extremes(sizes),
        notes=(f"left out, too small: {some(small)}",) if small else (),
    )
