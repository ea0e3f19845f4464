"""A server and its clients: what protocols add, requests, images, sound and cold starts."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from onepass.bench.report import Measures, Row, finished, measured
from onepass.bench.serving import cold_start as serving_cold
from onepass.bench.serving import models as serving_models
from onepass.bench.serving import rows as serving_rows
from onepass.bench.serving.arguments import (
    ADDED,
    CLIENTS,
    COLD,
    IMAGES,
    SOUND,
    BenchArguments,
    check,
)
from onepass.bench.serving.models import DIGITS, NULL, STUDENT
from onepass.bench.serving.plot import write_plot
from onepass.bench.serving.rows import SIZES, Looped
from onepass.bench.serving.server_process import Server
from onepass.bench.serving.targets import notes, verdicts
from onepass.bench.worker_group import Group

BARE, CLIENT = "onepass.bench.serving.in_process", "onepass.bench.serving.client"
NEEDS = {
    ADDED: (NULL, DIGITS),
    CLIENTS: (NULL,),
    IMAGES: (DIGITS,),
    SOUND: (STUDENT,),
    COLD: (DIGITS, STUDENT),
}
Drawn = dict[int, Looped]


def run(given: BenchArguments) -> int:
    """Measures, prints table, targets and notes; the exit status of `onepass bench serving`."""
    check(given)
    drawn: Drawn = {}
    rows = all_measured(given, drawn)
    sections = {"targets": verdicts(given, rows), "notes": notes(given, drawn)}
    return finished(given, rows, sections, write_plot)


def all_measured(given: BenchArguments, drawn: Drawn) -> list[Row]:
    """The rows of everything asked for, measured; no process is left.

    drawn: gets what was asked for images, by the number of clients.
    """
    rows: list[Row] = []
    names = tuple(dict.fromkeys(name for part in given.parts for name in NEEDS[part]))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        made = serving_models.bundles(folder, names, given.models)
        stages = (
            ({ADDED, CLIENTS, IMAGES}, "asking", _asking(given, folder, made, drawn)),
            ({SOUND}, "speaking", _speaking(given, folder, made)),
            ({COLD}, "cold starts", _cold(given, folder, made)),
        )
        for parts, title, stage in stages:
            if parts & {*given.parts}:
                with stage as measures:
                    rows += measured(measures, given.rounds, title)
    return rows


@contextlib.contextmanager
def _asking(
    given: BenchArguments, folder: Path, made: dict[str, Path], drawn: Drawn
) -> Iterator[Measures]:
    """A server of what draws or does nothing, its clients, and a process that makes bare calls."""
    served = {name: made[name] for name in (NULL, DIGITS) if name in made}
    cases = serving_models.cases(folder, served)
    with contextlib.ExitStack() as stack:
        server, client = _served(given, stack, folder / "serve", served)
        measures: Measures = []
        if ADDED in given.parts:
            bare = _group(given, stack, "The process of bare calls", BARE)
            for path in served.values():
                bare.ask(do="load", path=str(path), backend="auto")
            measures += serving_rows.of_calls(bare, client, cases, given.least_seconds)
        if CLIENTS in given.parts:
            asked = (cases[NULL], given.clients, given.least_seconds)
            measures += serving_rows.of_clients(client, server, *asked)
        if IMAGES in given.parts:
            counts, seconds = given.image_clients_measured, given.least_seconds
            found, more = serving_rows.of_images(client, server, cases[DIGITS], counts, seconds)
            drawn.update(found)
            measures += more
        yield measures


@contextlib.contextmanager
def _speaking(given: BenchArguments, folder: Path, made: dict[str, Path]) -> Iterator[Measures]:
    """A server of the student for each backend, and its client."""
    utterance = serving_models.utterance(folder, made[STUDENT], given.utterance_seconds)
    measures: Measures = []
    with contextlib.ExitStack() as stack:
        for backend in given.backends:
            root = folder / f"serve-{backend}"
            # One client, as all of these are to the server, may have part of the streams alone.
            options = ("--backend", backend, "--max-streams", str(2 * serving_rows.STREAMS))
            _, client = _served(given, stack, root, {STUDENT: made[STUDENT]}, options)
            measures += serving_rows.of_sound(client, utterance, backend, given.utterance_seconds)
        yield measures


@contextlib.contextmanager
def _cold(given: BenchArguments, folder: Path, made: dict[str, Path]) -> Iterator[Measures]:
    """A server of each bundle, the student by each backend, and one of all."""
    served = {DIGITS: ((DIGITS,), "auto"), serving_cold.BOTH: ((DIGITS, STUDENT), "auto")}
    served |= {SIZES[backend]: ((STUDENT,), backend) for backend in given.backends}
    roots = {}
    for size, (names, backend) in served.items():
        roots[size] = folder / f"cold-{size}", backend
        for name in names:
            serving_models.copy(made[name], roots[size][0] / name / made[name].name)
    yield serving_cold.measures_of(roots, given.limit_seconds)


def _served(
    given: BenchArguments,
    stack: contextlib.ExitStack,
    root: Path,
    bundles: dict[str, Path],
    options: tuple[str, ...] = (),
) -> tuple[Server, Group]:
    """A server of these bundles and the process of its clients, which end with the stack."""
    print("starting a server ...", flush=True)
    for name, path in bundles.items():
        serving_models.copy(path, root / name / path.name)
    server = Server(root, given.limit_seconds, options)
    stack.callback(server.stop)
    addresses = {"http_address": server.http_address, "grpc_address": server.grpc_address}
    client = _group(given, stack, "The process of clients", CLIENT, **addresses)
    return server, client


def _group(
    given: BenchArguments, stack: contextlib.ExitStack, name: str, module: str, **settings: str
) -> Group:
    """A process of the bench, ready, which ends with the stack."""
    group = Group(name, [{}], given.limit_seconds, module)
    stack.callback(group.stop)
    group.ask(**settings)
    return group
