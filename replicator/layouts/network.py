"""Bytes and seconds of collectives in a ring with a latency and a bandwidth.

Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations": R
devices in a ring reduce n bytes by 2 (R - 1) messages one after another, each of n / R bytes:

    seconds = 2 (R - 1) latency + 2 (R - 1) / R n / bandwidth
"""

import dataclasses
from collections.abc import Mapping

# Lower bounds of a fit, which would otherwise divide by zero.
LEAST_LATENCY_SECONDS, LEAST_SECONDS_A_BYTE = 1e-9, 1e-14


@dataclasses.dataclass(frozen=True)
class Network:
    """Latency in seconds and bandwidth in bytes per second between two neighbours of a ring."""

    latency_seconds: float
    bytes_per_second: float

    def seconds(self, kind: str, size_bytes: float, devices: int) -> float:
        """Return the time of a collective of XLA's programs, with `size_bytes` from each device."""
        sent = sent_bytes(kind, size_bytes, devices)
        return messages(kind, devices) * self.latency_seconds + sent / self.bytes_per_second


def messages(kind: str, devices: int) -> int:
    """Return the number of messages that a collective sends one after another."""
    if devices == 1:
        return 0
    if kind.startswith("collective-"):
        return 1
    return (2 if kind == "all-reduce" else 1) * (devices - 1)


def sent_bytes(kind: str, size_bytes: float, devices: int) -> float:
    """Return the bytes that a device sends, and receives, for an input of `size_bytes`.

    all-reduce: 2 (R - 1) / R n. all-gather: (R - 1) n, as n is a shard. reduce-scatter, all-to-all:
    (R - 1) / R n. collective-permute: n. One device sends nothing.
    """
    if devices == 1:
        return 0.0
    others = devices - 1
    factors = {"all-reduce": 2 * others / devices, "all-gather": others}
    once = 1.0 if kind.startswith("collective-") else others / devices
    return factors.get(kind, once) * size_bytes


def fitted(seconds: Mapping[int, float], devices: int = 2) -> Network:
    """Return the network that fits best all-reduces of `devices`, in seconds by bytes reduced.

    It minimises the sum of squared relative errors over non-negative latencies and bandwidths.
    """
    import numpy as np
    from scipy.optimize import nnls

    sizes, times = np.array(list(seconds)), np.array(list(seconds.values()))
    waits = np.full(len(sizes), float(messages("all-reduce", devices)))
    moved = np.array([sent_bytes("all-reduce", size, devices) for size in sizes])
    # Columns of similar scale; otherwise the solver ignores the latency.
    scales = np.array([np.max(waits / times), np.max(moved / times)])
    columns = np.stack([waits / times, moved / times], 1) / scales
    latency, each = nnls(columns, np.ones(len(sizes)))[0] / scales
    return Network(
        float(max(latency, LEAST_LATENCY_SECONDS)), float(1 / max(each, LEAST_SECONDS_A_BYTE))
    )
