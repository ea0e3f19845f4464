"""The options of `onepass sample`: each is declared once, for all kinds of models that take it.

A field is an option: its name, type, default and help text, its `Rule` and whether it `Reaches` the
model. A class of options belongs to one kind of model, or is shared by several. To add an option
that reaches the model unchanged, add a field and nothing else. This module imports nothing large,
so that help texts are quick.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tyro

from foundation.errors import UserError
from pixelcnn.config import SamplerName


@dataclasses.dataclass(frozen=True)
class Rule:
    """A condition that an option's numbers must meet, in words and as a test."""

    words: str
    holds: Callable[[float], bool]


@dataclasses.dataclass(frozen=True)
class Reaches:
    """The argument of the model's `stream`, `progressions` or `sample` that an option sets.

    Attributes:
      argument: the argument's name; "": the option's own name.
      read: makes the argument from the option's value.
    """

    argument: str = ""
    read: Callable[[Any], Any] = lambda value: value


AT_LEAST_0 = Rule("at least 0", lambda number: number >= 0)
AT_LEAST_1 = Rule("at least 1", lambda number: number >= 1)
POSITIVE = Rule("positive and finite", lambda number: 0 < number < math.inf)
NOT_NEGATIVE = Rule("0 or more and finite", lambda number: 0 <= number < math.inf)
AS_IT_IS = Reaches()


def _one_or_all(numbers: tuple[float, ...]) -> Any:
    return numbers[0] if len(numbers) == 1 else numbers


def _condition(words: tuple[str, ...]) -> Any:
    from serving.bundles.condition_words import condition_of

    return condition_of(words)


def _prefix(words: tuple[str, ...]) -> Any:
    from serving.bundles.condition_words import prefix_of

    return prefix_of(words)


def _stop(word: str) -> Any:
    from serving.bundles.condition_words import number_of

    return number_of(word, "--stop")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options for every model."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """Run directory, model folder, bundle NAME/VERSION, or the name of a shipped model."""
    out: Path
    """Folder for the files; created if missing."""
    overwrite: bool = False
    """Replace existing files of the same names; of images also remove the rest of a larger grid of
    the seed."""
    num: Annotated[int | None, AT_LEAST_1] = None
    """Number of samples, from the rows 0, 1, ... of the seed. None: 16 images or videos, or 1 of
    anything else."""
    seed: int = 0
    """Seed of the noise: the same seed gives the same samples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served(Options):
    """The options for every model of a server."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="URL")]
    """Model of `onepass serve`: http://HOST:PORT/NAME, or with https:// or grpc://."""
    timeout: float = 600.0
    """Time limit for each sound, or for all images, in seconds."""
    retries: int = 4
    """Retries if the server is busy or not running yet."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sounds(Options):
    """The options for every model of sound."""

    seconds: Annotated[float | None, POSITIVE] = None
    """Length of a sound; None: that of the recording or mel, or 3 s for a model without frames, or
    a server's default."""
    recording: Path | None = None
    """Recording to resynthesise from its frames (mel, F0), at its level; None: a shipped dev
    recording, or the first of the server's examples."""
    mel: Path | None = None
    """Mel frames to synthesise from instead: an npy file [frames, bands], here also [bands, frames]
    or [1, bands, frames] of logarithms, by the convention in the model's model.json."""
    text: str | None = None
    """US English text to synthesise instead, for a student that reads the mel frames of the shipped
    text front end (needs espeak-ng), or a server that has one."""
    force: bool = False
    """Synthesise a mel even if it does not look like those of the model's training."""
    speaker: Annotated[str | None, AS_IT_IS] = None
    """Name of a speaker, for a model with speakers."""
    temperature: Annotated[float | None, NOT_NEGATIVE, AS_IT_IS] = None
    """1 samples the model; less comes closer to its mode. None: what the model declares, else 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoundOptions(Sounds):
    """Sounds of a trained model: WAV files and spectrograms.

    The files are NAME_SEED_ROW, named after the recording, mel or text, else `sample`.
    """

    speed: float = 1.0
    """Speed of the text relative to the voice's recordings, 0.25 to 4."""
    refine: Annotated[int | None, AT_LEAST_0] = None
    """Passes that bring a student's magnitudes to the mel: better for recordings and for text;
    each adds one window of look-ahead. None: what the model declares, 0 for `--mel`."""
    prime_seconds: Annotated[float, NOT_NEGATIVE] = 0.0
    """Seconds of the recording to begin with and continue."""
    draft: Path | None = None
    """Student that drafts for a WaveNet with a logistic or Gaussian output, or `shipped`: passes
    over many samples, of exactly the WaveNet's distribution; for an accelerator."""
    backend: Annotated[
        Literal["auto", "numba", "numba-bfloat16", "xla", "fixed-point", "tensorflow", "naive"],
        AS_IT_IS,
    ] = "auto"
    """Sampler; all but numba-bfloat16 give the same sound. A WaveNet has numba, xla, fixed-point
    (passes over many samples, for an accelerator) and naive, a student numba, tensorflow and
    numba-bfloat16 (up to 1.5 times as fast, on processors with AVX512-BF16; 54 dB from numba's)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedSoundOptions(Sounds, Served):
    """Synthesise speech on a server: WAV files and spectrograms. ONEPASS_TOKEN holds the token."""

    example: str | None = None
    """Name of one of the server's recordings to resynthesise."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images(Options):
    """The options for every model of images."""

    temperature: Annotated[tuple[float, ...], NOT_NEGATIVE, Reaches(read=_one_or_all)] = (1.0,)
    """1 samples the model, less comes closer to its mode; one number, or one per scale, base
    first."""
    guidance: Annotated[float, AS_IT_IS] = 0.0
    """Guidance weight: moves every pixel away from the unconditional distribution. Beyond 0 classes
    show more clearly, at twice the work, and it is no longer the model's own density."""
    label: str | None = None
    """Class, by name or number; None: all classes in turn."""
    caption: tuple[str, ...] | None = None
    """Texts to draw, in turn, up to 200 characters each, for a model of captions."""
    map: Path | None = None
    """Labels of a map, for a model of maps: an image whose grey levels they are, or an npy file
    [side, side]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageOptions(Images):
    """Draw images: PNG files, a sheet of them all and, from a multiscale model, how they grow."""

    size: Annotated[int | None, AS_IT_IS] = None
    """Side in pixels, the longer one of a photograph; None: as trained. A multiscale model draws
    every size from its base up."""
    sampler: Annotated[SamplerName, AS_IT_IS] = "cached"
    """cached: the work of one pixel per pixel. fixed-point: the same images in passes over whole
    rows, fewer and more expensive, for an accelerator. naive: a whole pass per pixel."""
    batch: Annotated[int, AS_IT_IS] = 1
    """Images per fixed-point pass; a finished one makes way for the next."""
    start: Path | None = None
    """Small square image to enlarge, of a side that the model draws on its way (multiscale). A
    model trained by upsample-512 enlarges photographs of any shape, of such a longer side, one
    unless `--num` is given."""
    prime: Path | None = None
    """Image to continue (PixelCNN)."""
    prime_rows: int | None = None
    """Rows of that image to keep; None: the upper half."""
    video: Path | None = None
    """Folder of episodes (*_train.npz, *_dev.npz) whose dev clips a video model continues."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedImageOptions(Images, Served):
    """Draw images on a server: PNG files, a sheet of them and, if multiscale, of their scales.

    ONEPASS_TOKEN holds the token.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrays(Options):
    """The options for every model of a user."""

    length: tuple[int, ...]
    """Elements of a sequence; or height, width and channels of an image."""
    condition: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, Reaches(read=_condition)] = ()
    """FILE.npy [num, ...], or NUMBER, such as a class, for a model with a condition; with several,
    NAME=FILE.npy or NAME=NUMBER for each, the option repeated."""
    temperature: Annotated[tuple[float, ...], Reaches(read=_one_or_all)] = (1.0,)
    """1 samples the model, lower values approach its mode; one number, or one for each row."""
    prefix: Annotated[tuple[str, ...] | None, Reaches(read=_prefix)] = None
    """Elements that all rows begin with; or an npy file [n] or [num, n]; or one file per row."""
    top_k: Annotated[int, AS_IT_IS] = 0
    """Draw only from this number of the most probable tokens; 0: from all."""
    top_p: Annotated[float, AS_IT_IS] = 1.0
    """Draw only from the most probable tokens that together have this probability."""
    stop: Annotated[str | None, Reaches(read=_stop)] = None
    """Element that ends a row; those after it are equal to it."""
    log_prob: Annotated[bool, Reaches("return_log_prob")] = False
    """Also write the log-probability of every element, in nats: sample_SEED_log_prob.npy."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayOptions(Arrays):
    """Sample a model that `onepass.save` or `onepass.export` wrote.

    A model of sound gives WAV files, one of grey or colour images PNG files (16 bits beyond 256
    levels), sample_SEED_ROW; any other one npy file, sample_SEED.
    """

    method: Annotated[Literal["auto", "cached", "fixed-point", "naive"], AS_IT_IS] = "auto"
    """Sampler of a saved model; all return the same samples."""
    npy: bool = False
    """Always write an npy file."""
    trust: bool = False
    """Run the program in a folder of `onepass.save` without the scan, with your rights."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedArrayOptions(Arrays, Served):
    """Sample a user's model on a server: sample_SEED.npy, [num, ...].

    ONEPASS_TOKEN holds the token.
    """

    length: tuple[int, ...] = (1000,)
    """Length of a sequence, or the shape that the model was exported for."""


def check(given: Options) -> None:
    """Raise UserError for the first option that breaks its rule."""
    for name, value, rule in _marked(given, Rule):
        for number in value if isinstance(value, tuple) else (value,):
            if not rule.holds(number):
                flag = name.replace("_", "-")
                raise UserError(f"`--{flag}` must be {rule.words}, got {number:g}.")


def arguments_of(given: Options) -> dict[str, Any]:
    """Return the model's arguments for the options that are set, without those at their defaults.

    Raises:
      UserError: a word cannot be read as its option requires.
    """
    default = {field.name: field.default for field in dataclasses.fields(given)}
    return {
        reaches.argument or name: reaches.read(value)
        for name, value, reaches in _marked(given, Reaches)
        if value != default[name]
    }


def _marked(given: Options, mark: type) -> list[tuple[str, Any, Any]]:
    """Return the name, value and mark of each option that has a mark of this type and a value."""
    hints = get_type_hints(type(given), include_extras=True).items()
    marks = [(name, each) for name, hint in hints for each in getattr(hint, "__metadata__", ())]
    found = [(name, getattr(given, name), each) for name, each in marks if isinstance(each, mark)]
    return [each for each in found if each[1] is not None]
