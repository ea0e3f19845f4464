"""The options of `onepass export`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro


@dataclasses.dataclass(frozen=True)
class ExportArguments:
    """Write a bundle, NAME/VERSION in TensorFlow Serving's layout: the program (SavedModel), and
    the model folder: model.json, weights.npz (average weights) and card.md with what was measured
    on dev."""

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """Run directory; or a model folder or a shipped model, which is taken as it is; or a folder of
    `onepass.save`."""
    out: Path
    """Folder to write, new or empty: MODELS/NAME/VERSION, the version a whole number."""
    bare: bool = False
    """The model folder alone, without a program to serve; it may have any name."""
    buckets: tuple[int, ...] = ()
    """Lengths, in frames, that sounds are padded to, the longest of them the longest sound; none:
    a few up to two minutes."""
    batches: tuple[int, ...] = ()
    """Numbers of rows that a call may have, each compiled once; none: a few up to 8."""
    bfloat16: bool = False
    """Compute in bfloat16 (models of sound)."""
    float16: bool = False
    """Round the weights of a model of images to float16: half the file, and images that differ from
    the run's in a few pixels of a hundred. Without it they are the run's to the pixel."""
    portable: bool = False
    """Also write the sampler as StableHLO, for JAX without TensorFlow, to OUT/portable."""
    warm: bool = True
    """Write the warm-up requests that TensorFlow Serving makes (needs tensorflow-serving-api)."""
    temperature: float | None = None
    """Temperature at which a model of sound speaks unless another is asked for, for its model.json;
    None: 1."""
    sign: Path | None = None
    """Private key of ed25519, in PEM, to sign the bundle with: for `onepass serve --trust`."""
    parts_from: tuple[Path, ...] = ()
    """Runs, or model folders, that trained other parts of the same multiscale model."""
    length: tuple[int, ...] = ()
    """Of a folder of `onepass.save`: elements of the longest sequence, or height, width and
    channels of an image."""
    sample_rate_hz: int | None = None
    """Of a folder of `onepass.save` that makes sound; None: what it was saved with."""
    data_licence: str = ""
    """Licence of the recordings or images, and whose they are, for the card."""
    note: str = ""
    """Anything else that the card shall say of the training."""
    machine: str | None = None
    """What it was trained on; None: this machine."""
