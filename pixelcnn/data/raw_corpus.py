"""Images as read from a source, before they are split into train and dev."""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True)
class RawCorpus:
    """The images, labels and captions of a folder, an npz file or a TensorFlow data set.

    Attributes:
      images: uint8 [n, size, size, channels], or uint16 for more than 8 bits; for photographs
        (`ImageRules.crop`) objects [n], uint8 [height, width, channels] each.
      splits: split of each image, "train" or "dev"; None: a hash of the name decides.
      classes: all classes, in the order of their labels; None: the classes in train, sorted.
      maps: a label for each pixel, integers [n, size, size], or None.
      stored_sizes: (width, height) of the smallest and the largest stored image, in pixels.
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
