"""What `onepass bench serving`, and what it refuses."""

import dataclasses
import importlib.util
import math
from pathlib import Path
from typing import Annotated

import tyro

from replicator.runs.errors import UserError
from serving.settings import NEEDED

ADDED, CLIENTS, IMAGES, SOUND, COLD = PARTS = ("added", "clients", "pictures", "sound", "cold")
BACKENDS = ("numba", "tensorflow")
DIGITS, STUDENT = "digits", "student"
SHIPPED = {DIGITS: "shipped-digits", STUDENT: "shipped-student"}


@dataclasses.dataclass(frozen=True)
class BenchArguments:
    """A server and its clients on this machine's CPUs, each in a process of its own, in one run.

    added: milliseconds of a call by every protocol, over the bare call in a third process, of a
    bundle that computes nothing (with 64 bytes and with 64 kB) and of the shipped digits. clients:
    requests a second of clients that ask again once they are answered, on the bundle that computes
    nothing. pictures: images a second of the digits, and rows a call, as clients become more.
    sound: seconds to the first sound of a long utterance against those to all of it. cold: seconds
    to load and to warm each bundle, with and without XLA's programs kept on disk. And for every
    target whether it was met.
    """

    json: Path | None = None
    """File for the rows as JSON."""
    plot: Path | None = None
    """File for a plot of what protocols add and of images a second (.png, .pdf or .svg)."""
    parts: tuple[str, ...] = PARTS
    """What to measure, any of: added, clients, pictures, sound, cold."""
    models: Path | None = None
    """Folder with the bundles digits/VERSION and student/VERSION; None: the shipped ones,
    exported first."""
    clients: int = 8
    """Clients on the bundle that computes nothing."""
    image_clients: Annotated[tuple[int, ...], tyro.conf.arg(aliases=["--picture-clients"])] = (
        1,
        4,
        16,
    )
    """Clients that draw; 1 is always there."""
    utterance_seconds: float = 10.0
    """Length of the utterance."""
    backends: tuple[str, ...] = BACKENDS
    """What the student speaks on, any of: numba, tensorflow."""
    ray: bool = False
    """Also ask the server on Ray (clients), which listens on every interface, with a token."""
    least_seconds: float = 4.0
    """Time that a measurement takes at least."""
    limit_seconds: float = 300.0
    """Time that a server may take to be ready, and another process to answer."""
    rounds: int = 3
    """Times that everything is measured; medians are shown."""

    @property
    def image_clients_measured(self) -> tuple[int, ...]:
        """The numbers of clients that draw."""
        return tuple(sorted({1, *self.image_clients}))


def check(given: BenchArguments) -> None:
    """Returns nothing; raises UserError for what cannot be measured."""
    _check_names("part", given.parts, PARTS)
    _check_names("backend", given.backends, BACKENDS)
    for name in ("clients", "rounds"):
        _check_number(name, getattr(given, name))
    for value in given.image_clients:
        _check_number("image_clients", value)
    for name in ("utterance_seconds", "least_seconds", "limit_seconds"):
        value = getattr(given, name)
        if not 0 < value < math.inf:
            raise UserError(f"`--{name.replace('_', '-')}` must be above 0, got {value:g}.")
    if given.models:
        for name in SHIPPED:
            if not (given.models / name).is_dir():
                raise UserError(f"there is no folder {given.models / name}.")
    if given.plot and given.plot.suffix not in (".png", ".pdf", ".svg"):
        raise UserError(f"`--plot` must end in .png, .pdf or .svg, got {given.plot}.")
    if given.plot and not {ADDED, IMAGES} & {*given.parts}:
        raise UserError("`--plot` shows added and pictures, which `--parts` leaves out.")
    for path in (given.json, given.plot):
        if path and not path.parent.is_dir():  # said now, not after minutes of measuring
            raise UserError(f"there is no folder {path.parent} to write {path.name} to.")
    _check_packages(given)


def _check_names(what: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(f"there is no {what} `{unknown[0]}`; there are {', '.join(known)}.")
    if not names:
        raise UserError(f"`--{what}s` must leave something to measure.")


def _check_number(name: str, value: int) -> None:
    if value < 1:
        raise UserError(f"`--{name.replace('_', '-')}` must be at least 1, got {value}.")


def _check_packages(given: BenchArguments) -> None:
    needed, extra = [*NEEDED, *["ray"] * given.ray], "ray" if given.ray else "serve"
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"serving needs more packages ({', '.join(missing)}): pip install 'onepass[{extra}]'"
        )
