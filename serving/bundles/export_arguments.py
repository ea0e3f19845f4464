"""The options of `onepass export`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro


@dataclasses.dataclass(frozen=True)
class ExportArguments:
    """Write a bundle, NAME/VERSION in TensorFlow Serving's layout.

    It holds the program (SavedModel) and the model folder: model.json, weights.npz (average
    weights) and card.md with measures on dev.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """Run directory, model folder or shipped model, the latter two exported unchanged; or a folder
    of `onepass.save`."""
    out: Path
    """Folder to write, new or empty: MODELS/NAME/VERSION, the version a whole number."""
    bare: bool = False
    """Write only the model folder, without a program; it may have any name."""
    buckets: tuple[int, ...] = ()
    """Lengths in frames that sounds are padded to; the longest is the longest sound. None: a few up
    to two minutes."""
    batches: tuple[int, ...] = ()
    """Batch sizes of a call, each compiled once; none: a few up to 8."""
    bfloat16: bool = False
    """Compute in bfloat16 (audio models)."""
    float16: bool = False
    """Round the weights of an image model to float16: half the file size, but a few percent of the
    pixels differ from the run's. Without it all pixels are equal."""
    portable: bool = False
    """Also write the sampler as StableHLO to OUT/portable, for JAX without TensorFlow."""
    warm: bool = True
    """Write warm-up requests for TensorFlow Serving (needs tensorflow-serving-api)."""
    temperature: float | None = None
    """Default temperature of an audio model, stored in its model.json; None: 1."""
    refine: int | None = None
    """Default passes that bring a student's sound to its mel, stored likewise; None: 0."""
    sign: Path | None = None
    """Private ed25519 key in PEM to sign the bundle with, for `onepass serve --trust`."""
    parts_from: tuple[Path, ...] = ()
    """Runs or model folders with other parts of the same multiscale model."""
    length: tuple[int, ...] = ()
    """For a folder of `onepass.save`: elements of the longest sequence, or height, width and
    channels of an image."""
    entries: tuple[str, ...] = ()
    """For a folder of `onepass.save`: how many entries a memory has in every request; NAME=NUMBER
    for each of several."""
    sample_rate_hz: int | None = None
    """For a folder of `onepass.save` with an audio model; None: the rate it was saved with."""
    trust: bool = False
    """Run the program in a folder of `onepass.save` without the scan, with your rights."""
    data_licence: str = ""
    """Licence and owner of the recordings or images, for the card."""
    note: str = ""
    """Note on the training, for the card."""
    machine: str | None = None
    """Machine of the training, for the card; None: this machine."""
