"""What the server should reach, whether a run of the bench met it, and how to read the rest."""

import os
from collections.abc import Mapping

from onepass.bench.report import Row, ratio, row_of, verdict_lines
from onepass.bench.serving.arguments import ADDED, CLIENTS, COLD, IMAGES, SOUND, BenchArguments
from onepass.bench.serving.cold_start import BOTH, MEMORY, MODELS
from onepass.bench.serving.models import DIGITS, LARGE, LARGE_VALUES, NULL, SMALL_VALUES
from onepass.bench.serving.protocols import GRPC, GRPC_SPEAK, HTTP_SPEAK, HTTP_TEXT, V2
from onepass.bench.serving.rows import (
    FIRST,
    GAP,
    LOOPED,
    SIZES,
    STREAMS,
    Looped,
    added_title,
    drawn_title,
    loop_title,
)

MOST_ADDED_MS = 5.0
NOISE_MS = 1.0  # by which a call through a server may seem faster than the bare one
# Requests a second of 8 clients for nothing, measured elsewhere, on 2 cores.
ELSEWHERE = {
    "an asyncio server": 409,
    "Triton (Python backend)": 367,
    "Ray Serve, one hop behind HAProxy": 357,
}
MOST_OF_WHOLE = 0.25
MOST_TEXT_SECONDS = 0.15
MOST_GAP_SECONDS = 2.0  # which a chunk of the shipped student lasts
MOST_READY_SECONDS, MOST_MB = 5.0, 1000.0


def verdicts(given: BenchArguments, rows: list[Row]) -> list[str]:
    """A line for every target: met, not met or not measured, with the figures of this run."""
    found = [_added(rows, way, size) for size in (NULL, LARGE, DIGITS) for way in (GRPC, V2)]
    found += [_not_behind(rows, way) for way in LOOPED]
    found += [
        _early(rows, way, backend) for backend in given.backends for way in (HTTP_SPEAK, GRPC_SPEAK)
    ]
    for backend in given.backends:
        size, first = SIZES[backend], f"{FIRST}, {HTTP_TEXT}"
        said = f"first sound of a text, {backend}"
        found.append(_at_most(rows, first, size, MOST_TEXT_SECONDS, said))
        said = f"{GAP} of {STREAMS} streams, {backend}"
        found.append(_at_most(rows, GAP, size, MOST_GAP_SECONDS, said))
    for size in (DIGITS, *(SIZES[backend] for backend in given.backends)):
        said = f"processor time of {size} until it is ready"
        found.append(_at_most(rows, MODELS, size, MOST_READY_SECONDS, said))
    found.append(_at_most(rows, MEMORY, BOTH, MOST_MB, "memory of a server of both models"))
    return verdict_lines(found)


def _added(rows: list[Row], way: str, size: str):
    text = f"{way} adds less than {MOST_ADDED_MS:g} ms to the bare call of {size}"
    row = row_of(rows, added_title(way), size)
    if row is None:
        return None, text
    least, most = min(row.values), max(row.values)
    figures = f"{text}: {row.value:.2f} ms ({least:.2f} to {most:.2f})"
    if most - least > MOST_ADDED_MS or least < -NOISE_MS:
        return None, f"{figures}, the machine was not quiet"
    return row.value < MOST_ADDED_MS, figures


def _not_behind(rows: list[Row], way: str):
    most = max(ELSEWHERE.values())
    text = f"{way}: at least {most} requests/s for nothing"
    row = row_of(rows, loop_title(way), NULL)
    if row is None:
        return None, text
    return row.value >= most, f"{text}: {row.value:,.0f} of {row.batch} clients"


def _early(rows: list[Row], way: str, backend: str):
    text = f"{way}, {backend}: first sound in under {MOST_OF_WHOLE:g} of the whole's time"
    row = row_of(rows, f"{FIRST}, {way}", SIZES[backend])
    figure = None if row is None else ratio(row, rows)
    if figure is None:
        return None, text
    return figure < MOST_OF_WHOLE, f"{text}: {figure:.3f}"


def _at_most(rows: list[Row], what: str, size: str, most: float, said: str):
    row = row_of(rows, what, size)
    text = f"{said}: at most {most:g}"
    if row is None:
        return None, text
    return row.value <= most, f"{text} {row.unit}: {row.value:.3g}"


def notes(given: BenchArguments, drawn: Mapping[int, Looped]) -> list[str]:
    """How to read the rows."""
    lines = [f"server, clients and bare calls share {os.cpu_count()} cores, over the loopback"]
    if ADDED in given.parts:
        lines.append(
            f"{NULL}: {SMALL_VALUES} float32 there and back; {LARGE}: {LARGE_VALUES:,}; a call is "
            "from arrays to arrays, what the client does included; added: the median over rounds"
        )
    if CLIENTS in given.parts:
        shown = ", ".join(f"{name} {rate}" for name, rate in ELSEWHERE.items())
        lines.append(
            "requests: clients that send the same bytes again and read no array, in threads of one "
            "process; cores: that they kept busy themselves; rows: of a call, in which the server "
            "answers those that come together"
        )
        lines.append(f"measured elsewhere, 8 clients, 2 cores, requests/s: {shown}")
    if IMAGES in given.parts:
        lines += [_calls_note(count, looped) for count, looped in drawn.items()]
    if SOUND in given.parts:
        lines.append(
            f"sound: the shipped student, {given.utterance_seconds:g} s; whole: one answer with "
            "all of it; real time: seconds to the last byte of the stream for a second of sound; "
            f"{SIZES['tensorflow']}: the exported program"
        )
    if COLD in given.parts:
        lines.append(
            "cold: ready: processor seconds of all processes of a server; models: of those alone "
            "that run models; memory: of all, what they share counted once, in MB"
        )
    return lines


def _calls_note(count: int, looped: Looped) -> str:
    calls = {rows: made for rows, made in looped.calls.items() if made}
    shown = ", ".join(f"{made:.0f} of up to {rows}" for rows, made in calls.items())
    return f"{drawn_title(count)}, last round: calls by their rows: {shown}"
