"""What an exchange in a ring costs, fitted to measured ones, and steps simulated with it.

Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations": R
replicas in a ring reduce n bytes by 2 (R - 1) messages one after another, each of n / R bytes:

    seconds = 2 (R - 1) latency + 2 (R - 1) / R n / bandwidth
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from scipy.optimize import nnls

# What a fit cannot tell from nothing: it would divide by it.
LEAST_LATENCY_SECONDS, LEAST_SECONDS_A_BYTE = 1e-9, 1e-14


@dataclasses.dataclass(frozen=True)
class Network:
    """Between two neighbours of a ring: seconds before a message arrives, and bytes a second."""

    latency_seconds: float
    bytes_per_second: float


@dataclasses.dataclass(frozen=True)
class Reduced:
    """What a replica gives to be reduced in a step: bytes, in so many collectives."""

    size_bytes: float
    collectives: float


def exchanged_bytes(replicas: int, reduced_bytes: float) -> float:
    """Bytes that a replica sends, and as many that it receives: 2 (R - 1) / R n."""
    return 2 * (replicas - 1) / replicas * reduced_bytes


def exchange_seconds(network: Network, replicas: int, reduced: Reduced) -> float:
    """Seconds of the exchanges of a step; every collective waits for its own messages."""
    messages = 2 * (replicas - 1) * reduced.collectives
    sending = exchanged_bytes(replicas, reduced.size_bytes) / network.bytes_per_second
    return messages * network.latency_seconds + sending


def fitted(seconds: Mapping[int, float], replicas: int = 2) -> Network:
    """The network whose exchanges take most nearly the seconds measured, by bytes reduced.

    The sum of squared relative errors is the least there is with nothing below 0.
    """
    sizes, times = np.array(list(seconds)), np.array(list(seconds.values()))
    messages = np.full(len(sizes), 2.0 * (replicas - 1))
    moved = np.array([exchanged_bytes(replicas, size) for size in sizes])
    # Columns of like size, or the solver takes the bytes for all there is.
    scales = np.array([np.max(messages / times), np.max(moved / times)])
    columns = np.stack([messages / times, moved / times], 1) / scales
    latency, each = nnls(columns, np.ones(len(sizes)))[0] / scales
    return Network(
        float(max(latency, LEAST_LATENCY_SECONDS)), float(1 / max(each, LEAST_SECONDS_A_BYTE))
    )


def compute_seconds(measured: Mapping[int, float], rows: float) -> float:
    """Seconds of a step of one device on a batch, from those measured at several sizes.

    Between two sizes on the line through them; beyond the largest in proportion, as if it were made
    one after another of batches that large.

    Raises:
      ValueError: `rows` is below the smallest size.
    """
    sizes = sorted(measured)
    if rows < sizes[0]:
        raise ValueError(f"`rows` must be at least {sizes[0]}, got {rows:g}.")
    if rows > sizes[-1]:
        return measured[sizes[-1]] * rows / sizes[-1]
    return float(np.interp(rows, sizes, [measured[size] for size in sizes]))


def step_seconds(
    measured: Mapping[int, float], rows: float, network: Network, replicas: int, reduced: Reduced
) -> float:
    """Seconds of a step of `replicas` devices with so many rows each: compute, then exchange."""
    return compute_seconds(measured, rows) + exchange_seconds(network, replicas, reduced)
