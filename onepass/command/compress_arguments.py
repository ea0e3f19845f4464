"""The options of `onepass compress` and `onepass decompress`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclasses.dataclass(frozen=True)
class CompressArguments:
    """Compress images or recordings losslessly, with a model's exact conditional distributions.

    Pixels and samples are stored, not the files that contained them.
    """

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """Run directory, model folder, shipped model, or folder written by `onepass.save`."""
    files: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FILES")]
    """Images of the model's size with 8 bits per channel; or 16-bit mono recordings at its sample
    rate; or one npy file, for a folder written by `onepass.save`."""
    out: Path
    """File to write, such as images.onepass."""
    overwrite: bool = False
    """Replace an existing file of that name."""
    condition: tuple[str, ...] = ()
    """Class or caption, one for all images or one per image; or the speaker of the recordings. It
    is stored in the file."""
    batch: int = 256
    """Number of images that are decoded together."""
    tolerance: float = 1e-5
    """Relative difference allowed between the network's outputs in encoding and in decoding."""
    verify: Literal["cheap", "always", "never"] = "cheap"
    """Whether to decode the file before writing it, and to fail if the result differs from the
    input: cheap (only for images and up to 20,000 samples), always, or never."""


@dataclasses.dataclass(frozen=True)
class DecompressArguments:
    """Write the images (PNG), recordings (WAV or FLAC) or array (npy) of a compressed file."""

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """The model that the file was compressed with."""
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """The compressed file."""
    out: Path
    """Folder for the decompressed files; created if missing."""
    overwrite: bool = False
    """Replace existing files of the same names."""
    max_elements: int | None = None
    """Refuse a file that holds more elements (channels of pixels, samples) than this; default: only
    one that declares more than 1,024 for each of its bytes, or whose bytes end long before."""
