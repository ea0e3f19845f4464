"""The command `onepass sample MODEL ...`: its options, the model, and what draws and writes files.

Each option is declared once, for all kinds of models that take it: a field, annotated with a
`Rule` for its value and, if it is passed to the model, with `Reaches`. To add an option that is
passed to the model unchanged, add a field marked AS_IT_IS and nothing else.
"""

import contextlib
import dataclasses
import functools
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tyro

from onepass.command.sample.drawing import ArrayDrawing, Drawing, write_out
from onepass.foundation.model_folders import is_url
from onepass.foundation.rules import UserError, entries_of
from onepass.interface import OPTIONS, Draw
from pixelcnn.config import SamplerName


@dataclasses.dataclass(frozen=True)
class Rule:
    """A condition that an option's numbers must meet."""

    words: str
    holds: Callable[[float], bool]


@dataclasses.dataclass(frozen=True)
class Reaches:
    """The argument of `stream` or `sample` that an option sets, by default of the same name."""

    argument: str = ""
    read: Callable[[Any], Any] = lambda value: value


AT_LEAST_0 = Rule("at least 0", lambda number: number >= 0)
AT_LEAST_1 = Rule("at least 1", lambda number: number >= 1)
POSITIVE = Rule("above 0 and finite", lambda number: 0 < number < math.inf)
NOT_NEGATIVE = Rule("at least 0 and finite", lambda number: 0 <= number < math.inf)
AS_IT_IS = Reaches()


def _one_or_all(numbers: tuple[float, ...]) -> Any:
    return numbers[0] if len(numbers) == 1 else numbers


def _condition(words: tuple[str, ...]) -> Any:
    from onepass.bundles.export_arguments import condition_of

    return condition_of(words)


def with_options_of_draw(kind: type) -> type:
    """Add the fields of `Draw` to a class of options, with their defaults and their texts."""
    texts = entries_of(Draw)
    for name, each in OPTIONS.items():
        flag = f"--{name.replace('_', '-')}"
        reaches = Reaches(read=functools.partial(each.read, flag=flag))
        text = texts.get(name, "")
        help_ = tyro.conf.arg(help=text[:1].upper() + text[1:])
        kind.__annotations__[name] = Annotated[each.words, help_, reaches]
        setattr(kind, name, each.words_default)
    return kind


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Options for every model."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="MODEL")]
    """Run directory, model folder, bundle NAME/VERSION, or the name of a shipped model."""
    out: Path
    """Folder for the files; created if missing."""
    overwrite: bool = False
    """Replace existing files of the same names; for images, also remove those left from a larger
    `--num` with the same seed."""
    num: Annotated[int | None, AT_LEAST_1] = None
    """Number of samples: rows 0, 1, ... of the seed. None: 16 for images and videos, 1 for anything
    else."""
    seed: int = 0
    """Seed of the noise: the same seed gives the same samples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served(Options):
    """Options for every served model."""

    model: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="URL")]
    """Model of `onepass serve`: http://HOST:PORT/NAME, or with https:// or grpc://."""
    timeout: float = 600.0
    """Time limit for each sound, or for all images, in seconds."""
    retries: int = 4
    """Retries if the server is busy or not running yet."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sounds(Options):
    """Options for every model of sound."""

    seconds: Annotated[float | None, POSITIVE] = None
    """Length of a sound in seconds; None: the length of the recording or mel, 3 s for a model
    without frames, or the server's default."""
    recording: Path | None = None
    """Recording to resynthesise from its frames (mel, F0), at its level; None: a shipped dev
    recording, or the first of the server's examples."""
    mel: Path | None = None
    """Log-mel frames to synthesise from instead, in the convention of the model's model.json: an
    npy file [frames, bands]; for a local model also [bands, frames] or [1, bands, frames]."""
    text: str | None = None
    """US English text, or SSML in <speak>, to synthesise instead, for a student that reads the mel
    frames of the shipped text front end (needs espeak-ng), or a server that has one."""
    phonemes: str | None = None
    """Phonemes to synthesise in place of a text: IPA as espeak-ng writes it for US English."""
    pronunciations: Path | None = None
    """Dictionary for the text: a file with a word and its IPA on each line."""
    force: bool = False
    """Synthesise a mel even if it looks unlike the model's training data."""
    speaker: Annotated[str | None, AS_IT_IS] = None
    """Name of a speaker, for a model with speakers."""
    temperature: Annotated[float | None, NOT_NEGATIVE, AS_IT_IS] = None
    """1 samples the model's distribution; lower values approach its mode. None: the model's
    default, else 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoundOptions(Sounds):
    """Sounds of a trained model: WAV files and spectrograms.

    The files are NAME_SEED_ROW, named after the recording, mel or text, else `sample`.
    """

    times: Path | None = None
    """File to write with the times, in seconds, of the words of the text: .json with their phonemes
    in IPA, or subtitles, .srt or .vtt (with the time of every word)."""
    speed: float = 1.0
    """Speed of the text relative to the voice's recordings, 0.25 to 4."""
    refine: Annotated[int | None, AT_LEAST_0] = None
    """Passes that fit a student's spectral magnitudes to the mel, which improves recordings and
    text; each adds one window of look-ahead. None: the model's default, or 0 for `--mel`."""
    prime_seconds: Annotated[float, NOT_NEGATIVE] = 0.0
    """Seconds at the beginning of the recording to keep and continue."""
    draft: Path | None = None
    """Student (or `shipped`) that drafts samples for a WaveNet with a logistic or Gaussian output,
    which checks many per pass; the distribution is exactly the WaveNet's. For accelerators."""
    method: Annotated[
        Literal["auto", "numba", "numba-bfloat16", "cached", "fixed-point", "tensorflow", "naive"],
        AS_IT_IS,
    ] = "auto"
    """Sampler; all but numba-bfloat16 give the same sound. A WaveNet has cached, fixed-point
    (passes over many samples, for accelerators) and naive; a student has numba, tensorflow and
    numba-bfloat16 (up to 1.5 times as fast, on processors with AVX512-BF16; differs by -54 dB)."""
    weights: Annotated[Literal["float32", "bfloat16", "int8"], AS_IT_IS] = "float32"
    """Type in which a processor keeps large weights of a WaveNet, with `--method auto`: fewer bytes
    are read sooner, and the sounds are those of a slightly different model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedSoundOptions(Sounds, Served):
    """Synthesise speech on a server: WAV files and spectrograms. Set the token in ONEPASS_TOKEN."""

    example: str | None = None
    """Name of one of the server's recordings to resynthesise."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images(Options):
    """Options for every model of images."""

    temperature: Annotated[tuple[float, ...], NOT_NEGATIVE, Reaches(read=_one_or_all)] = (1.0,)
    """1 samples the model's distribution, lower values approach its mode; one number, or one per
    scale, base first."""
    guidance: Annotated[float, AS_IT_IS] = 0.0
    """Guidance weight: moves every pixel away from the unconditional distribution. Above 0, classes
    show more clearly, at twice the work, and samples no longer follow the model's density."""
    label: str | None = None
    """Class, by name or number; None: all classes in turn."""
    caption: tuple[str, ...] | None = None
    """Captions to draw in turn, up to 200 characters each, for a model of captions."""
    map: Path | None = None
    """Label map, for a model of maps: an image whose grey levels are the labels, or an npy file
    [side, side]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageOptions(Images):
    """Draw images: PNG files, contact sheets and, for a multiscale model, how the images grow."""

    size: Annotated[int | None, Reaches("length")] = None
    """Side in pixels, for a photograph the longer one; None: the size in training. A multiscale
    model can draw each of its sizes."""
    method: Annotated[Literal["auto"] | SamplerName, AS_IT_IS] = "auto"
    """cached, also as auto: compute one pixel per step. fixed-point: the same images in fewer, more
    expensive passes over whole rows, for accelerators. naive: a full pass per pixel."""
    batch: Annotated[int, AS_IT_IS] = 1
    """Images per fixed-point pass; the next image takes the place of a finished one."""
    start: Path | None = None
    """Small square image to enlarge, whose side is one of a multiscale model's scales. A model
    trained with upsample-512 enlarges photographs of any shape whose longer side is a scale; it
    draws one enlargement unless `--num` is given."""
    prime: Path | None = None
    """Image to continue (PixelCNN)."""
    prime_rows: int | None = None
    """Number of pixel rows of the `--prime` image to keep; None: the upper half."""
    video: Path | None = None
    """Folder of episodes (*_train.npz, *_dev.npz) whose dev clips a video model continues."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedImageOptions(Images, Served):
    """Draw images on a server: PNG files, and contact sheets of the images and their scales.

    Set the token in ONEPASS_TOKEN.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
@with_options_of_draw
class Arrays(Options):
    """Options for every model of a user's network."""

    length: tuple[int, ...]
    """Number of elements of a sequence; or height, width and channels of an image."""
    condition: Annotated[tuple[str, ...], tyro.conf.UseAppendAction, Reaches(read=_condition)] = ()
    """Condition of the rows: FILE.npy [num, ...], or NUMBER, such as a class, for all rows. For
    several conditions, repeat the option with NAME=FILE.npy or NAME=NUMBER."""
    log_prob: Annotated[bool, Reaches("return_log_prob")] = False
    """Also write the log-probability of every element, in nats: sample_SEED_log_prob.npy."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayOptions(Arrays):
    """Sample a model that `onepass.save` or `onepass.export` wrote.

    For a sound model, write WAV files, and for a model of grey images of up to 65,536 levels or of
    colour images of up to 256, PNG files (16-bit above 256 levels), named sample_SEED_ROW; for any
    other model, one npy file, sample_SEED.
    """

    method: Annotated[Literal["auto", "cached", "fixed-point", "naive"], AS_IT_IS] = "auto"
    """Sampler of a saved model; all return the same samples."""
    weights: Annotated[Literal["float32", "bfloat16", "int8"], AS_IT_IS] = "float32"
    """Type in which a processor keeps large weights of a saved model: fewer bytes are read sooner,
    and the samples are those of a slightly different model."""
    npy: bool = False
    """Always write an npy file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedArrayOptions(Arrays, Served):
    """Sample a user's model on a server: sample_SEED.npy, [num, ...].

    Set the token in ONEPASS_TOKEN.
    """

    length: tuple[int, ...] = (1000,)
    """Length of a sequence, or the shape that the model was exported for."""
    weights: Annotated[Literal["float32", "bfloat16", "int8"], AS_IT_IS] = "float32"
    """Type of large weights with which the server must draw (`onepass serve --weights`), or the
    draw is refused; float32: those that it has."""


def check(given: Options) -> None:
    """Raise UserError for the first option that breaks its rule."""
    for name, value, rule in _options_with_mark(given, Rule):
        for number in value if isinstance(value, tuple) else (value,):
            if not rule.holds(number):
                flag = name.replace("_", "-")
                raise UserError(f"`--{flag}` must be {rule.words}, got {number:g}.")


def arguments_of(given: Options) -> dict[str, Any]:
    """Return the model's keyword arguments for the options that differ from their defaults."""
    default = {field.name: field.default for field in dataclasses.fields(given)}
    return {
        reaches.argument or name: reaches.read(value)
        for name, value, reaches in _options_with_mark(given, Reaches)
        if value != default[name]
    }


def _options_with_mark(given: Options, mark: type) -> list[tuple[str, Any, Any]]:
    hints = get_type_hints(type(given), include_extras=True).items()
    marks = [(name, each) for name, hint in hints for each in getattr(hint, "__metadata__", ())]
    found = [(name, getattr(given, name), each) for name, each in marks if isinstance(each, mark)]
    return [each for each in found if each[1] is not None]


KINDS: dict[str, type[Options]] = {
    "sound": SoundOptions,
    "images": ImageOptions,
    "arrays": ArrayOptions,
    "served sound": ServedSoundOptions,
    "served picture": ServedImageOptions,
    "served array": ServedArrayOptions,
}
"""The option class for each kind of model; "served" marks models on a server."""


def run_sample(makes: str, words: list[str], parse: Callable, prepare: Callable[[], None]) -> int:
    """Run `onepass sample` for a local model of a kind of `KINDS`, and return the exit status."""
    given = parse(KINDS[makes], words, "onepass sample")
    check(given)
    prepare()
    return write_out(_drawing(given, _model_here(makes, given)))


def run_served(words: list[str], parse: Callable) -> int:
    """Run `onepass sample URL ...` for the server's kind of model; return the exit status."""
    from onepass.remote_model import RemoteModel

    logging.getLogger("stamina").setLevel(logging.ERROR)  # only the final error is reported
    url = next(filter(is_url, words))
    with contextlib.closing(RemoteModel(url)) as model:
        kind = KINDS[_served_kind(model)]
    given: Any = parse(kind, words, "onepass sample")
    check(given)
    limits: Any = {"timeout_seconds": given.timeout, "retries": given.retries}
    with contextlib.closing(RemoteModel(url, **limits)) as model:
        return write_out(_drawing(given, model))


def _served_kind(model: Any) -> str:
    from onepass.bundles.signature import has_named

    kind = f"served {'array' if has_named(model.spec) else model.spec.get('kind')}"
    if kind not in KINDS:
        states = [str(version.get("state")) for version in model.spec.get("versions", ())]
        state = " and ".join(states).lower() or "not served"
        raise UserError(f"The model `{model.name}` cannot be sampled now; it is {state}.")
    return kind


def _model_here(makes: str, given: Any) -> Any:
    """Load a local model by folder or shipped name; of a bundle, the model folder in it.

    A bundle's program supports only one size and one sampler, the model all options.
    """
    from onepass.models import load, load_trained

    if makes == "arrays":
        return load(given.model)
    if getattr(given, "draft", None) is not None:
        from distill.teacher import load_teacher

        return load_teacher(Path(given.model))
    return load_trained(Path(given.model))


def _drawing(given: Options, model: Any) -> Drawing:
    arguments = arguments_of(given)
    if isinstance(given, Arrays):
        return ArrayDrawing(given, model, arguments)
    if isinstance(given, Images):
        from onepass.command.sample.images import image_drawing

        return image_drawing(given, model, arguments)
    from onepass.command.sample.sound import ServedSound, SoundHere

    is_served = isinstance(given, Served)
    return (ServedSound if is_served else SoundHere)(given, model, arguments)
