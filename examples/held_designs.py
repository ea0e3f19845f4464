"""Hold out designs of known subjects from training, to test whether a model generalises to them.

Run as `python -m examples.held_designs SOURCE TARGET`. SOURCE is a folder with a `*_train.npz`
and a `*_dev.npz`, in which `names` identify subjects and `styles` identify designs. Both files are
written to TARGET, the train file without the held-out pairs. The held-out pairs are written to a
`*_dev.npz` in TARGET/held, for `onepass evaluate MODEL --data`.
"""

import argparse
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from onepass.foundation.files import hash_name, make_folder, show_path, write_npz
from pixelcnn.data.sources import DataError, check_array, pair, read_arrays

SHARE = 0.1
SKIN_TONES = frozenset(f"1f3f{tone}" for tone in "bcdef")
NEEDED = ("names", "styles", "captions")


def subject_of(name: str) -> str:
    """Remove skin tones from a name, which consists of hexadecimal code points with hyphens."""
    return "-".join(point for point in name.split("-") if point not in SKIN_TONES)


def held_pairs(
    subjects: Sequence[str], designs: Sequence[str], share: float, wanted: Sequence[bool]
) -> np.ndarray:
    """Return whether each image's pair of subject and design is held out, bool [n].

    One design is held out for a share of the subjects with several designs, chosen by a hash; the
    pairs of `wanted` images are held out in any case.
    """
    known: dict[str, set[str]] = defaultdict(set)
    held: dict[str, set[str]] = defaultdict(set)
    for subject, design, is_wanted in zip(subjects, designs, wanted, strict=True):
        known[subject].add(design)
        if is_wanted:
            held[subject].add(design)
    for subject, all_of_it in known.items():
        if len(all_of_it) > 1 and hash_name(subject) < share and not held[subject]:
            held[subject].add(min(all_of_it, key=lambda design: hash_name(f"{subject} {design}")))
        if held[subject] == all_of_it:
            raise DataError(subject, "no design would be left to train on.")
    pairs = zip(subjects, designs, strict=True)
    return np.array([design in held[subject] for subject, design in pairs])


def write_held(source: Path, target: Path, share: float, captions: Sequence[str]) -> int:
    """Write the files with some designs held out, and return the number of held-out images.

    The designs of images with one of the `captions` are held out in any case.
    """
    files = pair(source)
    if files is None:
        raise DataError(source, "needs a *_train.npz and a *_dev.npz.")
    train, dev = files
    if target.resolve() == source.resolve():
        raise DataError(target, "is the source; name another folder.")
    arrays = read_arrays(train)
    for key in NEEDED:
        check_array(train, arrays, key, "text", (None,))
    rows_of = {key: array for key, array in arrays.items() if key != "classes"}
    for key, array in rows_of.items():
        shape = (len(arrays["names"]), *[None] * (array.ndim - 1))
        check_array(train, arrays, key, str(array.dtype), shape)
    if unknown := sorted(set(captions) - set(arrays["captions"])):
        raise DataError(train, f"no image has the caption {show_path(unknown[0])}.")
    subjects = [subject_of(str(name)) for name in arrays["names"]]
    designs = [str(style) for style in arrays["styles"]]
    held = held_pairs(subjects, designs, share, np.isin(arrays["captions"], captions).tolist())
    for path, rows in {
        target / train.name: ~held,
        target / "held" / train.name.replace("_train.npz", "_held_dev.npz"): held,
    }.items():
        make_folder(path.parent)
        write_npz(path, arrays | {key: array[rows] for key, array in rows_of.items()})
    shutil.copyfile(dev, target / dev.name)
    return int(held.sum())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, help="folder with *_train.npz and *_dev.npz")
    parser.add_argument("target", type=Path, help="folder to write; created if missing")
    parser.add_argument("--share", type=float, default=SHARE, help="share held out (%(default)s)")
    parser.add_argument("--caption", nargs="*", default=[], help="captions of images to hold out")
    given = parser.parse_args()
    try:
        print(write_held(given.source, given.target, given.share, given.caption), "images held out")
    except DataError as error:
        parser.error(str(error))
