"""Corpora of images with labels, captions or maps, split into train and dev."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from onepass.foundation.folders import count_noun, hash_name, show_path, some
from pixelcnn.data.captions import encode_caption
from pixelcnn.data.image_file import EIGHT, DataError, ImageRules
from pixelcnn.data.image_folder import read_folder
from pixelcnn.data.npz import pair, read_npz_file, read_npz_pair
from pixelcnn.data.raw_corpus import SPLITS, RawCorpus
from pixelcnn.data.tfds import PREFIX, read_tfds

__all__ = ["Corpus", "DataError", "ImageRules", "ImageSet", "read_corpus"]

REDUCED = {"area": "area-averaged", "subsample": "sub-sampled"}


@dataclasses.dataclass(frozen=True)
class ImageSet:
    """The images of a split, in memory; a field is None if the source does not have it.

    Attributes:
      images: uint8 or uint16 [n, size, size, channels]; for photographs an array of objects [n],
        uint8 [height, width, channels] each.
      maps: a label for each pixel, int32 [n, size, size].
    """

    images: np.ndarray
    labels: np.ndarray | None
    captions: tuple[str, ...] | None
    maps: np.ndarray | None
    names: tuple[str, ...]

    @functools.cached_property
    def stored(self) -> dict[str, np.ndarray]:
        """The arrays that `batch_sampling.image_batch` reads."""
        arrays = {"levels": self.images}
        if self.labels is not None:
            arrays["label"] = self.labels
        if self.captions is not None:
            codes = [encode_caption(caption).astype(np.uint8) for caption in self.captions]
            arrays["caption"] = np.stack(codes)
        if self.maps is not None:
            arrays["map"] = self.maps
        return arrays


@dataclasses.dataclass(frozen=True)
class Corpus:
    """The images of a source: the splits that were read, and the number `found` in all splits."""

    splits: dict[str, ImageSet]
    classes: tuple[str, ...]
    notes: tuple[str, ...]
    found: int
    statistics: ClassVar[None] = None  # only a `Video` has statistics


def _read_source(source: Path | str, rules: ImageRules) -> RawCorpus:
    if str(source).startswith(PREFIX) and not rules.crop:
        return read_tfds(str(source).removeprefix(PREFIX), rules)
    path = Path(source)
    if not path.exists():
        raise DataError(f"{show_path(path)}: no such file or folder.")
    if rules.crop and not path.is_dir():
        raise DataError(f"{show_path(path)}: `data.crop` needs a folder of image files.")
    if not path.is_dir():
        return read_npz_file(path, rules)
    files = None if rules.crop else pair(path)
    return read_npz_pair(*files, rules) if files else read_folder(path, rules)


def _hashed_splits(raw: RawCorpus, dev_share: float) -> list[str]:
    hashes = np.array([hash_name(name) for name in raw.names])
    order = np.argsort(hashes, kind="stable")
    num_dev = int(np.sum(hashes < dev_share))
    if dev_share > 0.0 and len(order) > 1:
        num_dev = min(max(num_dev, 1), len(order) - 1)
    splits = np.full(len(order), "train", object)
    splits[order[:num_dev]] = "dev"
    classes = np.array(raw.class_names or [""] * len(order))
    for name in set(classes[splits == "dev"]) - set(classes[splits == "train"]):
        splits[max(np.flatnonzero(classes == name), key=lambda i: hashes[i])] = "train"
    return list(splits)


def _why_none(raw: RawCorpus, split: str) -> str:
    if raw.splits or split != "dev" or raw.class_names is None or len(raw.names) < 2:
        return ""
    if len(set(raw.class_names)) < len(raw.names):
        return ""
    return (
        f" {len(raw.names)} classes have a single image each, which stays in train: add images to "
        "them, or make the folders train/ and dev/."
    )


def _check_splits(source: str, splits: Sequence[str], raw: RawCorpus) -> None:
    for split in SPLITS:
        if split not in splits:
            found = f" ({'; '.join(raw.notes)})" if raw.notes else ""
            raise DataError(
                f"{source}: no image for {split}, of {len(splits)} in all{found}; "
                f"train and dev need at least one each.{_why_none(raw, split)}"
            )


def _classes(source: str, raw: RawCorpus, splits: Sequence[str]) -> tuple[str, ...]:
    if raw.class_names is None:
        return ()
    of: dict[str, set[str]] = {split: set() for split in SPLITS}
    for name, split in zip(raw.class_names, splits, strict=True):
        of[split].add(name)
    for name in sorted(of["dev"] - of["train"]):
        raise DataError(f"{source}: class {show_path(name)} has images for dev but none for train.")
    return raw.classes or tuple(sorted(of["train"]))


def _choose_images(raw: RawCorpus, chosen: np.ndarray, classes: tuple[str, ...]) -> ImageSet:
    index = {name: label for label, name in enumerate(classes)}
    named, captions, maps = raw.class_names, raw.captions, raw.maps
    return ImageSet(
        images=raw.images[chosen],
        labels=None if named is None else np.array([index[named[i]] for i in chosen], np.int32),
        captions=None if captions is None else tuple(captions[i] for i in chosen),
        maps=None if maps is None else maps[chosen].astype(np.int32),
        names=tuple(raw.names[i] for i in chosen),
    )


def _summary(raw: RawCorpus, splits: dict[str, ImageSet], rules: ImageRules) -> str:
    counts = {split: len(members.names) for split, members in splits.items()}
    low, high = ("x".join(map(str, size)) for size in raw.stored_sizes)
    wanted = f"{rules.size}x{rules.size}"
    if rules.crop:
        said = f"{count_noun(counts['train'], 'photograph')} for train, {counts['dev']} for dev"
        return f"{said}, longer side {rules.size}, from {low} to {high}"
    how = "as stored"
    if (low, high) != (wanted, wanted):
        how = f"{REDUCED[rules.reduce]} from {low}{'' if low == high else f' to {high}'}"
    deep = f"{rules.bits} bits, " if rules.bits > EIGHT else ""
    square = all(width == height for width, height in raw.stored_sizes)
    return (
        f"{count_noun(counts['train'], 'image')} for train, {counts['dev']} for dev, {wanted}, "
        f"{count_noun(rules.channels, 'channel')}, {deep}{how}"
        f"{'' if square else ', cropped to the centred square'}"
    )


def _shared_note(splits: dict[str, ImageSet]) -> list[str]:
    def digests(members: ImageSet) -> list[bytes]:
        return [hashlib.blake2b(p.tobytes(), digest_size=16).digest() for p in members.images]

    known, dev = set(digests(splits["train"])), splits["dev"]
    same = [show_path(n) for n, d in zip(dev.names, digests(dev), strict=True) if d in known]
    return [f"images of dev that are also in train: {some(same)}"] if same else []


def read_corpus(path: Path | str, rules: ImageRules) -> Corpus:
    """Read the train and dev images of a source.

    Args:
      path: one of
        - a folder of images in any format that pillow decodes, searched recursively, with splits,
          classes and captions according to `image_folder.find_entries`;
        - a folder with one `*_train.npz` and one `*_dev.npz`, or one npz or npy file, with the
          arrays of `npz.read_npz_file`;
        - "tfds:NAME", a data set of TensorFlow Datasets.
      rules: size, channels and depth of the images. If the source has no split, the share
        `dev_share` of the images goes to dev, chosen by a hash of each name; at least one image of
        each class stays in train.
    """
    raw, source = _read_source(path, rules), show_path(path)
    splits = list(raw.splits or _hashed_splits(raw, rules.dev_share))
    _check_splits(source, splits, raw)
    classes = _classes(source, raw, splits)
    places = {split: np.flatnonzero(np.array(splits) == split) for split in SPLITS}
    sets = {split: _choose_images(raw, chosen, classes) for split, chosen in places.items()}
    notes = [_summary(raw, sets, rules), *raw.notes, *_shared_note(sets)]
    return Corpus(sets, classes, tuple(notes), len(splits))


def is_dev_file(path: Path | str) -> bool:
    """Return whether a source is a single `*_dev.npz`, which has no images for train."""
    return Path(path).is_file() and str(path).endswith("_dev.npz")


def read_dev(
    path: Path | str,
    rules: ImageRules,
    classes: Sequence[str],
    *,
    everything: bool = False,
    others_allowed: bool = False,
) -> Corpus:
    """Read only the dev images of a source, to evaluate a model.

    `everything` makes all images dev; unknown classes are an error unless `others_allowed`.
    """
    raw, source = _read_source(path, rules), show_path(path)
    splits = ["dev"] * len(raw.names)
    if not everything and not is_dev_file(path):
        splits = list(raw.splits or _hashed_splits(raw, rules.dev_share))
    if "dev" not in splits:
        raise DataError(f"{source}: no image for dev.{_why_none(raw, 'dev')}")
    unknown = set(raw.class_names or ()) - set(classes)
    if not classes or (unknown and others_allowed):
        raw, classes, unknown = dataclasses.replace(raw, class_names=None), (), set()
    if unknown:
        raise DataError(f"{source}: the model knows no class {show_path(min(unknown))}.")
    chosen = np.flatnonzero(np.array(splits) == "dev")
    notes = (f"{count_noun(len(chosen), 'image')} for dev", *raw.notes)
    dev = {"dev": _choose_images(raw, chosen, tuple(classes))}
    return Corpus(dev, tuple(classes), notes, len(splits))
