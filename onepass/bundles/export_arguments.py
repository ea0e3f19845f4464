"""The options of `onepass export`, and values of options that are numbers or npy files."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from onepass.bundles.formats import FormatName
from onepass.foundation.rules import UserError, number_of

SUFFIX = ".npy"


def condition_of(words: Sequence[str]) -> Any:
    """Return `--condition` (FILE.npy or number, or NAME= either) as `sample` takes it, or None."""
    return _by_name(words, "--condition", _value, "FILE.npy or NAME=NUMBER")


def entries_of(words: Sequence[str]) -> Any:
    """Return the values of `--entries`, NUMBER or NAME=NUMBER, as `export` takes them."""

    def whole(word: str) -> int:
        if not word.isdecimal():
            raise UserError(f"--entries must be NUMBER or NAME=NUMBER, got {word}.")
        return int(word)

    return _by_name(words, "--entries", whole, "NUMBER")


def _by_name(words: Sequence[str], option: str, read: Callable[[str], Any], what: str) -> Any:
    found: dict[str, Any] = {}
    for word in words:
        name, sign, value = ("", "", word) if Path(word).is_file() else word.partition("=")
        name, value = (name, value) if sign else ("", word)
        if name in found or (sign and not name) or ("" in (*found, name) and found):
            raise UserError(
                f"{option} must be NAME={what} for each of several conditions, once, got {word}."
            )
        found[name] = read(value)
    return found.get("", found) if found else None


def _value(word: str) -> Any:
    from onepass.foundation.files import read_npy

    is_file = word.endswith(SUFFIX) or Path(word).is_file()
    number = None if is_file else number_of(word)
    return read_npy(Path(word)) if number is None else number


@dataclasses.dataclass(frozen=True)
class ExportArguments:
    """Write a model for use without its code: by default a bundle, NAME/VERSION.

    It has TensorFlow Serving's layout, and contains the program (SavedModel) and the model folder:
    model.json, weights.npz (average weights) and card.md with measurements on dev.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """A run directory; a model folder or shipped model, which is exported unchanged; or a folder
    that `onepass.save` wrote."""
    out: Path
    """Folder to write, new or empty; a bundle's is MODELS/NAME/VERSION: NAME has letters, digits
    and ._- only; VERSION is a number without leading zeros."""
    format: FormatName = "bundle"
    """Format to write: a bundle, for `onepass serve` and TensorFlow Serving; or functions of one
    size, as StableHLO for JAX, or as TensorFlow Lite for LiteRT on phones and in browsers."""
    rows: int = 1
    """Number of rows of a call, in formats of one size."""
    bare: bool = False
    """Write only the model folder, without a program; it may have any name."""
    buckets: tuple[int, ...] = ()
    """Lengths in frames that sounds are padded to; the largest limits the length of a sound. None
    given: several, up to two minutes."""
    batches: tuple[int, ...] = ()
    """Batch sizes of calls, each compiled once. None given: several, up to 8."""
    bfloat16: bool = False
    """Compute in bfloat16 (audio models)."""
    float16: bool = False
    """Round the weights of an image model to float16: halves the file size, but changes a few
    percent of the pixels. Otherwise, all pixels are the same as the run's."""
    warm: bool = True
    """Write warm-up requests for TensorFlow Serving (needs tensorflow-serving-api)."""
    temperature: float | None = None
    """Default temperature of an audio model, stored in its model.json; None: 1."""
    refine: int | None = None
    """Default number of passes that fit a student's audio to its mel frames; None: 0."""
    sign: Path | None = None
    """PEM file of a private ed25519 key to sign the bundle with, for `onepass serve --trust`."""
    parts_from: tuple[Path, ...] = ()
    """Runs or model folders with other parts of the same multiscale model."""
    length: tuple[int, ...] = ()
    """For a folder of `onepass.save`: length of the longest sequence, in elements; or height, width
    and channels of an image. In formats of one size: elements of a call; of sound, rounded up to
    whole frames."""
    entries: tuple[str, ...] = ()
    """For a folder of `onepass.save`: number of entries of a memory in every request; NAME=NUMBER
    for each of several memories."""
    sample_rate_hz: int | None = None
    """Sample rate, for an audio model of `onepass.save`; None: the rate it was saved with."""
    data_licence: str = ""
    """Licence and owner of the recordings or images, for the card."""
    note: str = ""
    """Note on the training, for the card."""
    machine: str | None = None
    """Machine that the model was trained on, for the card; None: this machine."""
