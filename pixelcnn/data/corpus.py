"""Pictures of one size with their labels and captions, split and ready to be trained on."""

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pixelcnn.data.image_file import DataError, PictureRules
from pixelcnn.data.image_folder import gather_folder
from pixelcnn.data.metadata import SPLITS
from pixelcnn.data.npz import gather_file, gather_pair, pair
from pixelcnn.data.raw_corpus import Gathered, plural, some
from pixelcnn.data.tfds import PREFIX, gather_named
from replicator.runs.folders import shown

__all__ = ["Corpus", "DataError", "PictureRules", "PictureSet", "read_corpus"]

REDUCED = {"area": "area-averaged", "subsample": "sub-sampled"}


@dataclasses.dataclass(frozen=True)
class PictureSet:
    """The pictures of one split, all in memory.

    pictures: uint8 [n, size, size, channels]. labels: int32 [n], indices into the corpus's
    classes. captions: one each. maps: int32 [n, size, size], a label for each pixel. names: of the
    files, or of the places in a file. What the source does not have is None.
    """

    pictures: np.ndarray
    labels: np.ndarray | None
    captions: tuple[str, ...] | None
    maps: np.ndarray | None
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A `PictureSet` for "train" and for "dev", the names of the classes, and notes to print.

    classes: none where the source has no labels. notes: lines on what was read, how it was
    reduced, and what was left out and why.
    """

    splits: dict[str, PictureSet]
    classes: tuple[str, ...]
    notes: tuple[str, ...]


def _gathered(source: Path | str, rules: PictureRules) -> Gathered:
    if str(source).startswith(PREFIX):
        return gather_named(str(source).removeprefix(PREFIX), rules)
    path = Path(source)
    if not path.exists():
        raise DataError(f"{shown(path)}: no such file or folder.")
    if not path.is_dir():
        return gather_file(path, rules)
    files = pair(path)
    return gather_pair(*files, rules) if files else gather_folder(path, rules)


def _hashed(name: str) -> float:
    data = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(data, "big") / 2.0**64


def _drawn_splits(gathered: Gathered, dev_share: float) -> list[str]:
    """A split for each picture, by the hash of its name; train keeps one of each class."""
    hashes = np.array([_hashed(name) for name in gathered.names])
    order = np.argsort(hashes, kind="stable")
    num_dev = int(np.sum(hashes < dev_share))
    if dev_share > 0.0 and len(order) > 1:
        num_dev = min(max(num_dev, 1), len(order) - 1)
    splits = np.full(len(order), "train", object)
    splits[order[:num_dev]] = "dev"
    classes = np.array(gathered.class_names or [""] * len(order))
    for name in set(classes[splits == "dev"]) - set(classes[splits == "train"]):
        splits[max(np.flatnonzero(classes == name), key=lambda i: hashes[i])] = "train"
    return list(splits)


def _check_splits(source: str, splits: Sequence[str], notes: Sequence[str]) -> None:
    for split in SPLITS:
        if split not in splits:
            found = f" ({'; '.join(notes)})" if notes else ""
            raise DataError(
                f"{source}: no picture for {split}, of {len(splits)} in all{found}; "
                f"train and dev need at least one each."
            )


def _classes(source: str, gathered: Gathered, splits: Sequence[str]) -> tuple[str, ...]:
    """The names of the classes in the order of their indices; every one of dev is in train."""
    if gathered.class_names is None:
        return ()
    of: dict[str, set[str]] = {split: set() for split in SPLITS}
    for name, split in zip(gathered.class_names, splits, strict=True):
        of[split].add(name)
    for name in sorted(of["dev"] - of["train"]):
        raise DataError(f"{source}: class {shown(name)} has pictures for dev but none for train.")
    return gathered.classes or tuple(sorted(of["train"]))


def _chosen(gathered: Gathered, chosen: np.ndarray, classes: tuple[str, ...]) -> PictureSet:
    index = {name: label for label, name in enumerate(classes)}
    named, captions, maps = gathered.class_names, gathered.captions, gathered.maps
    return PictureSet(
        pictures=gathered.pictures[chosen],
        labels=None if named is None else np.array([index[named[i]] for i in chosen], np.int32),
        captions=None if captions is None else tuple(captions[i] for i in chosen),
        maps=None if maps is None else maps[chosen].astype(np.int32),
        names=tuple(gathered.names[i] for i in chosen),
    )


def _summary(gathered: Gathered, splits: dict[str, PictureSet], rules: PictureRules) -> str:
    counts = {split: len(members.names) for split, members in splits.items()}
    low, high = ("x".join(map(str, size)) for size in gathered.stored_sizes)
    wanted = f"{rules.size}x{rules.size}"
    how = "as stored"
    if (low, high) != (wanted, wanted):
        how = f"{REDUCED[rules.reduce]} from {low}{'' if low == high else f' to {high}'}"
    square = all(width == height for width, height in gathered.stored_sizes)
    return (
        f"{plural(counts['train'], 'picture')} for train, {counts['dev']} for dev, {wanted}, "
        f"{plural(rules.channels, 'channel')}, {how}"
        f"{'' if square else ', cropped to the centred square'}"
    )


def _shared_note(splits: dict[str, PictureSet]) -> list[str]:
    def digests(members: PictureSet) -> list[bytes]:
        return [hashlib.blake2b(p.tobytes(), digest_size=16).digest() for p in members.pictures]

    known, dev = set(digests(splits["train"])), splits["dev"]
    same = [shown(n) for n, d in zip(dev.names, digests(dev), strict=True) if d in known]
    return [f"pictures of dev that are also in train: {some(same)}"] if same else []


def read_corpus(path: Path | str, rules: PictureRules) -> Corpus:
    """The pictures of a source, for train and for dev.

    Args:
      path: one of
        - a folder of pictures, of any format that pillow decodes, at any depth: see
          `folders.find_entries` for where splits, classes and captions come from;
        - a folder with one `*_train.npz` and one `*_dev.npz`, or one npz file: see
          `npz.gather_file`;
        - "tfds:NAME", of TensorFlow Datasets.
      rules: what the pictures are made into. Where the source has no split, dev_share of the
        pictures, by the hash of each name, are dev's; one of each class stays in train.

    Raises:
      DataError: a source that cannot be read, no picture for train or dev, a class of dev that
        train does not have.
    """
    gathered, source = _gathered(path, rules), shown(path)
    splits = list(gathered.splits or _drawn_splits(gathered, rules.dev_share))
    _check_splits(source, splits, gathered.notes)
    classes = _classes(source, gathered, splits)
    places = {split: np.flatnonzero(np.array(splits) == split) for split in SPLITS}
    sets = {split: _chosen(gathered, chosen, classes) for split, chosen in places.items()}
    notes = [_summary(gathered, sets, rules), *gathered.notes, *_shared_note(sets)]
    return Corpus(sets, classes, tuple(notes))


def read_dev(path: Path | str, rules: PictureRules, classes: Sequence[str]) -> Corpus:
    """The pictures for dev alone, to judge a model by; there is no split for train.

    Args:
      path: as for `read_corpus`, or a single `*_dev.npz`, all of whose pictures are taken.
      rules: as for `read_corpus`.
      classes: of the model, in the order of its labels; none for a model without.

    Raises DataError for a class that the model does not have, and as `read_corpus`.
    """
    gathered, source = _gathered(path, rules), shown(path)
    splits = ["dev"] * len(gathered.names)
    if not (Path(path).is_file() and str(path).endswith("_dev.npz")):
        splits = list(gathered.splits or _drawn_splits(gathered, rules.dev_share))
    if "dev" not in splits:
        raise DataError(f"{source}: no picture for dev.")
    if not classes:
        gathered = dataclasses.replace(gathered, class_names=None)
    unknown = set(gathered.class_names or ()) - set(classes)
    if unknown:
        raise DataError(f"{source}: the model knows no class {shown(min(unknown))}.")
    chosen = np.flatnonzero(np.array(splits) == "dev")
    notes = (f"{plural(len(chosen), 'picture')} for dev", *gathered.notes)
    return Corpus({"dev": _chosen(gathered, chosen, tuple(classes))}, tuple(classes), notes)
