"""What `onepass bench serving`, and what it refuses."""

import dataclasses
import importlib.util
from pathlib import Path
from typing import Annotated

import tyro

from onepass.bench.options import BenchOptions, check_names, check_some
from replicator.runs.errors import UserError
from serving.settings import NEEDED

ADDED, CLIENTS, IMAGES, SOUND, COLD = PARTS = ("added", "clients", "pictures", "sound", "cold")
BACKENDS = ("numba", "tensorflow")
DIGITS, STUDENT = "digits", "student"
SHIPPED = {DIGITS: "shipped-digits", STUDENT: "shipped-student"}


@dataclasses.dataclass(frozen=True)
class BenchArguments(BenchOptions):
    """A server and its clients on this machine's CPUs, each in a process of its own, in one run.

    added: milliseconds of a call by every protocol, over the bare call in a third process, of a
    bundle that computes nothing (with 64 bytes and with 64 kB) and of the shipped digits. clients:
    requests a second of clients that ask again once they are answered, on the bundle that computes
    nothing. pictures: images a second of the digits, and rows a call, as clients become more.
    sound: seconds to the first sound of a long utterance against those to all of it, to that of a
    text, and the longest gap of streams side by side. cold: processor seconds until a server of
    each bundle, and of both, is ready, and its memory. And for every target whether it was met.
    """

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
    least_seconds: float = 4.0
    """Time that a measurement takes at least."""
    limit_seconds: float = 300.0
    """Time that a server may take to be ready, and another process to answer."""

    @property
    def image_clients_measured(self) -> tuple[int, ...]:
        """The numbers of clients that draw."""
        return tuple(sorted({1, *self.image_clients}))


def check(given: BenchArguments) -> None:
    """Returns nothing; raises UserError for what cannot be measured."""
    check_names("part", given.parts, PARTS)
    check_some("parts", given.parts)
    check_names("backend", given.backends, BACKENDS)
    check_some("backends", given.backends)
    given.check_numbers("clients", "rounds", "image_clients")
    given.check_numbers("utterance_seconds", "least_seconds", "limit_seconds", least=0, above=True)
    if given.models:
        for name in SHIPPED:
            if not (given.models / name).is_dir():
                raise UserError(f"there is no folder {given.models / name}.")
    given.check_files(given.plot)
    if given.plot and not {ADDED, IMAGES} & {*given.parts}:
        raise UserError("`--plot` shows added and pictures, which `--parts` leaves out.")
    _check_packages(given)


def _check_packages(given: BenchArguments) -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"serving needs more packages ({', '.join(missing)}): pip install 'onepass[serve]'"
        )
