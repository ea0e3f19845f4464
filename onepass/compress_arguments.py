"""The options of `onepass compress` and `onepass decompress`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro


@dataclasses.dataclass(frozen=True)
class CompressArguments:
    """Compress images or recordings without loss, by a model's exact conditionals.

    Pixels and samples are kept, not the files they came in.
    """

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """Run directory, model folder, or a shipped model of images; or a folder of `onepass.save`."""
    files: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FILES")]
    """Images of the model's size, 8 bits a channel; or mono recordings of 16 bits at its rate; or
    one npy file, for a folder of `onepass.save`."""
    out: Path
    """File to write, such as images.onepass."""
    condition: tuple[str, ...] = ()
    """Class or caption of the images: one for all, or one for each; or the speaker. It is stored
    in the file."""
    batch: int = 256
    """Images that are decoded together."""
    tolerance: float = 1e-5
    """How far a network's outputs may differ, relative, on the processor that decodes."""


@dataclasses.dataclass(frozen=True)
class DecompressArguments:
    """Write the images (PNG), recordings (WAV or FLAC) or array (npy) of a file from `onepass
    compress`."""

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """The model that the file was compressed with."""
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """The compressed file."""
    out: Path
    """Folder for what is in it; made if missing."""
