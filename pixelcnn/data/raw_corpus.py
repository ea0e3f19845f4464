"""Images as read from a source: reduced to one size, not yet split into train and dev."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class RawCorpus:
    """The images, labels and captions of a folder, an npz file or a TensorFlow data set.

    Attributes:
      images: uint8 [n, size, size, channels], or uint16 beyond 8 bits; for photographs
        (`ImageRules.crop`) objects [n], each uint8 [height, width, channels].
      names: one name per image.
      splits: "train" or "dev" per image; None: a hash of the name decides.
      class_names: one class per image, or None.
      captions: one text per image, or None.
      classes: all classes, in the order of their indices; None: those of train, sorted.
      maps: integers [n, size, size], or None.
      stored_sizes: (width, height) of the smallest and the largest, in pixels.
      notes: lines to print.
    """

    images: np.ndarray
    names: tuple[str, ...]
    splits: tuple[str, ...] | None
    class_names: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    captions: tuple[str, ...] | None = None
    maps: np.ndarray | None = None
    stored_sizes: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()


def extremes(sizes: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the smallest and the largest of (width, height) pairs, by area."""
    ordered = sorted(sizes, key=lambda size: (size[0] * size[1], size))
    return (ordered[0], ordered[-1]) if ordered else ()
