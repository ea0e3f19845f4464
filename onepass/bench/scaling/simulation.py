"""Weak and strong scaling beyond this machine, simulated from rows that were measured on it."""

from onepass.bench.report import Row, find
from onepass.bench.scaling.arguments import COLLECTIVE, REPLICAS, BenchArguments
from onepass.bench.scaling.ring import Network, Reduced, fitted, step_seconds
from onepass.bench.scaling.rows import (
    ALL_SUM,
    COMPUTE,
    PAIR,
    RATE,
    STRONG,
    WEAK,
    bytes_name,
    bytes_title,
    size_name,
)

SIMULATED = "simulated"
REPLICAS_SIMULATED = tuple(2**k for k in range(11))
FITTED_LATENCY, FITTED_BANDWIDTH = "fitted latency", "fitted bandwidth"


def fitted_rows(given: BenchArguments, rows: list[Row]) -> list[Row]:
    """Latency and bandwidth that fit the all_sums, those of each round on their own."""
    if COLLECTIVE not in given.parts:
        return []
    networks = [_fitted(given, rows, k) for k in range(given.rounds)]
    latencies = [1e6 * network.latency_seconds for network in networks]
    bandwidths = [8e-9 * network.bytes_per_second for network in networks]
    return [
        Row(FITTED_LATENCY, size_name(2), 1, "us/message", values=latencies),
        Row(FITTED_BANDWIDTH, size_name(2), 1, "Gbit/s", values=bandwidths),
    ]


def simulated_rows(given: BenchArguments, rows: list[Row]) -> list[Row]:
    """Steps a second of up to 1024 replicas, from the figures of each round on their own.

    Empty where compute was not measured, or no network is known.
    """
    if REPLICAS not in given.parts or not given.is_network_known:
        return []
    simulated = [_row(given, rows, WEAK, given.clips, replicas) for replicas in REPLICAS_SIMULATED]
    for batch in sorted({given.clips, given.simulated_clips}):
        simulated += [
            _row(given, rows, STRONG, batch, replicas)
            for replicas in REPLICAS_SIMULATED
            if replicas <= batch
        ]
    return simulated


def _row(given: BenchArguments, rows: list[Row], kind: str, batch: int, replicas: int) -> Row:
    each = batch if kind == WEAK else batch / replicas
    reduced = reduced_of(given, rows)
    seconds = [
        step_seconds(_compute(given, rows, k), each, network_of(given, rows, k), replicas, reduced)
        for k in range(given.rounds)
    ]
    what, against = f"{SIMULATED} {kind}", size_name(1)
    row = Row(what, size_name(replicas), batch, RATE, values=[1 / value for value in seconds])
    if replicas > 1:
        row.against, row.against_size = what, against
    return row


def reduced_of(given: BenchArguments, rows: list[Row]) -> Reduced:
    """What a replica gives to be reduced in a step; of two, each sends as many bytes."""
    sent = _needed(rows, bytes_title(PAIR), size_name(2), given.clips)
    collectives = _needed(rows, f"collectives, {PAIR}", size_name(2), given.clips)
    return Reduced(sent.value, collectives.value)


def network_of(given: BenchArguments, rows: list[Row], index: int) -> Network:
    """The network that was given, or, where it was not, what fits a round's all_sums."""
    latency = None if given.latency_us is None else 1e-6 * given.latency_us
    bandwidth = None if given.bandwidth_gbit is None else given.bandwidth_gbit / 8e-9
    if latency is not None and bandwidth is not None:
        return Network(latency, bandwidth)
    found = _fitted(given, rows, index)
    return Network(
        found.latency_seconds if latency is None else latency,
        found.bytes_per_second if bandwidth is None else bandwidth,
    )


def _fitted(given: BenchArguments, rows: list[Row], index: int) -> Network:
    sizes = [1024 * kib for kib in sorted(set(given.all_sum_kib))]
    times = [_needed(rows, ALL_SUM, bytes_name(size), 1).values[index] for size in sizes]
    return fitted({size: 1e-3 * time for size, time in zip(sizes, times, strict=True)})


def _compute(given: BenchArguments, rows: list[Row], index: int) -> dict[int, float]:
    return {
        clips: 1e-3 * _needed(rows, COMPUTE, size_name(1), clips).values[index]
        for clips in given.compute_rows
    }


def _needed(rows: list[Row], what: str, size: str, batch: int) -> Row:
    row = find(rows, what, size, batch)
    if row is None:
        raise ValueError(f"`rows` must hold `{what}` of {size}, batch {batch}.")
    return row
