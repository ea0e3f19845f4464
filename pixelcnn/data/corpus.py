"""Corpora of images with labels, captions or maps, split into train and dev."""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from onepass.foundation.files import count_noun, hash_name, show_path, some, split_by_hash
from pixelcnn.config import ImageRules
from pixelcnn.data.captions import encode_caption
from pixelcnn.data.image_file import EIGHT, centred_square, subsample_pixels
from pixelcnn.data.sources import SPLITS, DataError, Entry, Listing, gather

REDUCED = {"area": "area-averaged", "subsample": "sub-sampled"}


@dataclasses.dataclass(frozen=True)
class ImageSet:
    """The images of a split, in memory; a field is None if the source does not have it.

    They are uint8 or uint16 [n, size, size, channels]; for photographs an array of objects [n],
    uint8 [height, width, channels] each. The maps have a label for each pixel, int32 [n, size,
    size].
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


def read_corpus(path: Path | str, rules: ImageRules) -> Corpus:
    """Read the train and dev images of a source.

    A source is a folder of images, searched recursively (`sources.list_folder`); a folder with one
    `*_train.npz` and one `*_dev.npz`, or one npz or npy file (`sources.list_npz`); or "tfds:NAME",
    a data set of TensorFlow Datasets. If it has no split, the share `dev_share` of the images goes
    to dev, chosen by a hash of each name; at least one image of each class stays in train.
    """
    source = gather(path, rules)
    members, count = _split_entries(source, rules.dev_share), len(source.entries)
    for split in SPLITS:
        if not members[split]:
            found = f" ({'; '.join(source.notes)})" if source.notes else ""
            lack = f"no image for {split}, of {count} in all{found}; train and dev need at least"
            raise DataError(path, f"{lack} one each.{_why_none(source, split)}")
    train, dev = ({entry.class_name or "" for entry in members[split]} for split in SPLITS)
    for name in sorted(dev - train):
        raise DataError(path, f"class {show_path(name)} has images for dev but none for train.")
    classes = () if "" in train else source.classes or tuple(sorted(train))
    sets = {split: _image_set(entries, classes, rules) for split, entries in members.items()}
    notes = (_summary(source, sets, rules), *source.notes, *_shared_note(sets))
    return Corpus(sets, classes, notes, count)


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
    source = gather(path, rules)
    entries = source.entries
    if not everything and not is_dev_file(path):
        entries = _split_entries(source, rules.dev_share)["dev"]
    if not entries:
        raise DataError(path, f"no image for dev.{_why_none(source, 'dev')}")
    unknown = {entry.class_name or "" for entry in source.entries} - {"", *classes}
    if classes and unknown and not others_allowed:
        raise DataError(path, f"the model knows no class {show_path(min(unknown))}.")
    classes = () if unknown else tuple(classes)
    notes = (f"{count_noun(len(entries), 'image')} for dev", *source.notes)
    dev = _image_set(entries, classes, rules)
    return Corpus({"dev": dev}, classes, notes, len(source.entries))


def _split_entries(source: Listing, dev_share: float) -> dict[str, list[Entry]]:
    """Return the images of each split, by hashes of their names if the source has no split."""
    entries = source.entries
    splits = np.array([entry.split for entry in entries], object)
    if entries[0].split is None:
        names = [entry.name for entry in entries]
        splits[:] = split_by_hash(names, dev_share)
        classes = np.array([entry.class_name or "" for entry in entries])
        for name in {*classes[splits == "dev"]} - {*classes[splits == "train"]}:
            places = np.flatnonzero(classes == name)
            splits[max(places, key=lambda i: hash_name(names[i]))] = "train"
    return {split: [entries[i] for i in np.flatnonzero(splits == split)] for split in SPLITS}


def _why_none(source: Listing, split: str) -> str:
    count, classes = len(source.entries), {entry.class_name for entry in source.entries}
    has_split = source.entries[0].split is not None
    if has_split or split != "dev" or None in classes or not 1 < count <= len(classes):
        return ""
    single = f" {count} classes have a single image each, which stays in train: add images to"
    return f"{single} them, or make the folders train/ and dev/."


def _image_set(entries: list[Entry], classes: tuple[str, ...], rules: ImageRules) -> ImageSet:
    images = np.empty(len(entries), object)
    for i, entry in enumerate(entries):
        images[i] = entry.image.levels
    label, first = {name: i for i, name in enumerate(classes)}, entries[0]
    labels = captions = maps = None
    if classes and first.class_name is not None:
        labels = np.array([label[entry.class_name or ""] for entry in entries], np.int32)
    if first.caption is not None:
        captions = tuple(entry.caption or "" for entry in entries)
    if first.map is not None:
        squares = [centred_square(np.asarray(entry.map)) for entry in entries]
        maps = np.stack([subsample_pixels(square, rules.size) for square in squares])
        maps = maps.astype(np.int32)
    names = tuple(entry.name for entry in entries)
    levels = images if rules.crop else np.stack(images.tolist())
    return ImageSet(levels, labels, captions, maps, names)


def _summary(source: Listing, splits: dict[str, ImageSet], rules: ImageRules) -> str:
    train, dev = (len(splits[split].names) for split in SPLITS)
    sizes = sorted([entry.image.stored_size for entry in source.entries], key=math.prod)
    low, high = (f"{width}x{height}" for width, height in (sizes[0], sizes[-1]))
    if rules.crop:
        said = f"{count_noun(train, 'photograph')} for train, {dev} for dev"
        return f"{said}, longer side {rules.size}, from {low} to {high}"
    wanted, how = f"{rules.size}x{rules.size}", "as stored"
    if (low, high) != (wanted, wanted):
        how = f"{REDUCED[rules.reduce]} from {low}{'' if low == high else f' to {high}'}"
    if any(width != height for width, height in sizes):
        how += ", cropped to the centred square"
    deep = f"{rules.bits} bits, " if rules.bits > EIGHT else ""
    return (
        f"{count_noun(train, 'image')} for train, {dev} for dev, {wanted}, "
        f"{count_noun(rules.channels, 'channel')}, {deep}{how}"
    )


def _shared_note(splits: dict[str, ImageSet]) -> list[str]:
    def digests(members: ImageSet) -> list[bytes]:
        return [hashlib.blake2b(p.tobytes(), digest_size=16).digest() for p in members.images]

    known, dev = {*digests(splits["train"])}, splits["dev"]
    same = [show_path(n) for n, d in zip(dev.names, digests(dev), strict=True) if d in known]
    return [f"images of dev that are also in train: {some(same)}"] if same else []
