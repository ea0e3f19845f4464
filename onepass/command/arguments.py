"""Arguments that the commands share, and the options of compression and of the quickstart."""

import contextlib
import dataclasses
import difflib
import io
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from onepass.foundation.rules import Checked, Count, Positive, UserError

NO_TYPE = r": no type matching .*{} could .* from \[('.*?')\]\. Got .*"
REWORDED = (
    (r"^Error parsing (?:config\.)?(\S+):", r"\1:"),
    (r": invalid literal for int\(\) with base 10: ", " must be a whole number, got "),
    (r": could not convert string to float: ", " must be a number, got "),
    (NO_TYPE.format("INT"), r" must be a whole number, got \1"),
    (NO_TYPE.format("FLOAT"), r" must be a number, got \1"),
)
SEEDS = 2**64
UNKNOWN = re.compile(r"Unrecognized options: --([\w.-]+)")


class UsageError(UserError):
    """An error in the command-line arguments; its message is one line."""


def parse(
    kind: Callable[..., Any],
    arguments: list[str],
    program: str,
    default: Any = None,
    description: str | None = None,
) -> Any:
    """Parse command-line arguments into an instance of a dataclass, or of `default`'s values.

    The help text begins with `description`, or with the dataclass's docstring.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            given = tyro.cli(
                kind, args=arguments, prog=program, default=default, description=description
            )
    except SystemExit as exit_:
        if exit_.code in (0, None):
            raise
        complaint = _complaint(printed.getvalue())
        if unknown := UNKNOWN.match(complaint):
            near = _guess_option(unknown[1], _all_options(kind, default))
            complaint = f"{complaint.split(';')[0]}; did you mean {near}?" if near else complaint
        raise UsageError(f"{complaint} (see {program} --help)") from None
    for seed in (given, getattr(given, "config", None)):
        number = getattr(seed, "seed", 0)
        if not 0 <= number < SEEDS:
            raise UsageError(f"--seed must be in [0, 2^64), got {number} (see {program} --help)")
    return given


def choose_argument(arguments: list[str], known: Collection[str], what: str, program: str) -> str:
    """Return the first argument, which must be one of the known names."""
    names = ", ".join(known)
    if not arguments:
        raise UsageError(f"name a {what}: {names} (see {program} --help)")
    word = arguments[0]
    if word not in known:
        near = difflib.get_close_matches(word, known, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"there are {names}."
        raise UsageError(f"there is no {what} `{word}`; {hint}")
    return word


def _complaint(boxed: str) -> str:
    sections = _sections(boxed)
    text = " ".join(" ".join(sections[0]).split()) if sections else "it cannot be read"
    if text.startswith("Missing from"):
        return f"{' and '.join(_options(sections[0]))} must be given"
    for pattern, replacement in REWORDED:
        text = re.sub(pattern, replacement, text)
    near = [
        option.split()[0]
        for section in sections[1:]
        if section[0].startswith(("Arguments similar to", "Perhaps you meant"))
        for option in _options(section)
    ]
    return text.rstrip(".") + (f"; did you mean {near[0]}?" if near else "")


def _all_options(kind: Callable[..., Any], default: Any) -> list[str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        tyro.cli(kind, args=["--help"], default=default)
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue())
    return re.findall(r"^[│| ]*(?:-\w, )?(--[\w.-]+)", text, re.MULTILINE)


def _guess_option(word: str, options: Collection[str]) -> str | None:
    """Return the option that `word` matches but for groups and "num-", or None."""

    def split(option: str) -> tuple[str, str]:
        group, _, name = option.replace("_", "-").lower().rpartition(".")
        return group, name.removeprefix("num-")

    group, name = split(word)
    found = [each for each in options if split(each.removeprefix("--"))[1] == name]
    same = [each for each in found if split(each.removeprefix("--"))[0] == group]
    return next(iter(same or found), None)


def _sections(boxed: str) -> list[list[str]]:
    text = re.sub(r"\x1b\[[0-9;]*m", "", boxed)
    sections: list[list[str]] = [[]]
    for line in text.splitlines()[1:]:  # the first one is the title
        if re.fullmatch(r"[│ ]*[─-]{3,}[│ ]*", line):
            sections.append([])
        elif line[:1] in ("│", " ") and line.strip("│ "):
            sections[-1].append(line[2:].rstrip("│ "))
    return [section for section in sections if section]


def _options(section: list[str]) -> list[str]:
    return [line.strip() for line in section if re.match(r" {4}\S", line)]


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
    """Decode the file before writing it, and fail if the result differs from the input: cheap
    (only for images and up to 20,000 samples), always, or never."""


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


@dataclasses.dataclass(frozen=True)
class QuickstartArguments(Checked):
    """Run a demonstration: networks of Keras and PyTorch, speech, measures, images and training.

    It derives the steps of two networks that it has never seen; speaks a held-out sentence sample
    by sample and in one pass, and measures the results; draws images pixel by pixel and scale by
    scale; trains a small WaveNet; and writes a report.
    """

    out: Path = Path("onepass-quickstart")
    """Folder for the sounds, the images, the run and report.md; created if missing."""
    overwrite: bool = False
    """Replace existing files of the same names."""
    seconds: Positive = 3.0
    """Length of the teacher's sound, in seconds; the student speaks the whole recording."""
    spoken: Count = 4
    """Number of recordings that are resynthesised and measured."""
    train: bool = True
    """Train a small WaveNet too, in two minutes, and distil it for half a minute."""
    seed: int = 0
    """Seed of the noise."""
