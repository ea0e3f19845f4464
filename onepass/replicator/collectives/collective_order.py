"""Check that all replicas call the same collectives in the same order with equal shapes.

A collective that only some replicas call would wait forever, so the calls of each replica are
recorded while its step is traced, and compared before anything runs.
"""

import hashlib
import re
import threading
from collections.abc import Iterable

import tensorflow as tf

from onepass.foundation.errors import UserError

_NEIGHBOURS = 3  # calls shown before and after the first difference
# TensorFlow's messages about different shapes, between workers and between a worker's devices.
_OTHER_SHAPES = (
    r"expected shape (\[.*?\]) but another member in the group expected shape (\[.*?\])",
    r"must have the same size and shape\.\s+Input 0: (\[.*?\]) != input \d+: (\[.*?\])",
)


class CollectiveOrderError(UserError):
    """Replicas or workers call different collectives."""


def call_text(primitive: str, tensors: Iterable[tf.Tensor]) -> str:
    """Return a call with its tensors' dtypes and shapes as text, e.g. `all_sum(float32[2,3])`."""
    return f"{primitive}({', '.join(_spec(tensor) for tensor in tensors)})"


def _spec(tensor: tf.Tensor) -> str:
    if tensor.shape.rank is None:
        return f"{tensor.dtype.name}[...]"
    dims = ",".join("?" if dim is None else str(dim) for dim in tensor.shape)
    return f"{tensor.dtype.name}[{dims}]"


class CollectiveRecord:
    """A record of the collectives that this process's replicas call in one trace of a step."""

    def __init__(self) -> None:
        self._calls: dict[int, list[str]] = {}
        self._done: set[int] = set()
        self._lock = threading.Lock()

    def begin(self, replica: int) -> None:
        """Start the record of a replica."""
        with self._lock:
            self._calls[replica] = []

    def note(self, replica: int, call: str) -> None:
        """Append a call; raise CollectiveOrderError if it differs from another replica's."""
        with self._lock:
            calls = self._calls[replica]
            calls.append(call)
            for other in self._calls:
                recorded = self._calls[other]
                ended = other in self._done and len(recorded) < len(calls)
                if ended or (len(recorded) >= len(calls) and recorded[len(calls) - 1] != call):
                    raise CollectiveOrderError(
                        _difference(f"replica {other}", recorded, f"replica {replica}", calls)
                    )

    def end(self, replica: int) -> None:
        """Complete a replica's record; raise CollectiveOrderError if another one has more calls."""
        with self._lock:
            calls = self._calls[replica]
            self._done.add(replica)
            for other in self._calls:
                recorded = self._calls[other]
                if len(recorded) > len(calls):
                    raise CollectiveOrderError(
                        _difference(f"replica {other}", recorded, f"replica {replica}", calls)
                    )

    def calls(self) -> list[str]:
        """Return the calls of a replica, which are the same for all replicas after `end`."""
        return next(iter(self._calls.values()), [])


def digest(calls: list[str]) -> tf.Tensor:
    """Return the SHA-256 of a list of calls as int32 [8]."""
    return tf.constant(
        [
            int.from_bytes(part, "little", signed=True)
            for part in _parts(hashlib.sha256("\n".join(calls).encode()).digest())
        ],
        tf.int32,
    )


def _parts(data: bytes) -> list[bytes]:
    return [data[start : start + 4] for start in range(0, len(data), 4)]


def compare_workers(texts: list[str]) -> None:
    """Raise CollectiveOrderError unless the workers' calls, one per line of a text, are equal."""
    for worker, text in enumerate(texts):
        if text != texts[0]:
            raise CollectiveOrderError(
                _difference("worker 0", _lines(texts[0]), f"worker {worker}", _lines(text))
            )


def shape_mismatch_error(error: Exception) -> CollectiveOrderError | None:
    """Return a CollectiveOrderError if a step failed because dynamic shapes differ, else None."""
    for pattern in _OTHER_SHAPES:
        if found := re.search(pattern, str(error)):
            return CollectiveOrderError(
                f"Replicas must call the same primitives in the same order with the same shapes; "
                f"one gave a tensor of shape {found[1]}, another of shape {found[2]}."
            )
    return None


def _lines(text: str) -> list[str]:
    return text.split("\n") if text else []


def _difference(who: str, calls: list[str], whom: str, others: list[str]) -> str:
    index = next(
        (k for k, pair in enumerate(zip(calls, others, strict=False)) if pair[0] != pair[1]),
        min(len(calls), len(others)),
    )
    return (
        f"Replicas must call the same primitives in the same order with the same shapes; call "
        f"{index + 1} of the step is {_at(calls, index)} on {who} and {_at(others, index)} on "
        f"{whom}. Order on {who}: {_around(calls, index)}; on {whom}: {_around(others, index)}."
    )


def _at(calls: list[str], index: int) -> str:
    return f"`{calls[index]}`" if index < len(calls) else "missing"


def _around(calls: list[str], index: int) -> str:
    first, last = max(index - _NEIGHBOURS, 0), index + _NEIGHBOURS + 1
    shown = ["..."] * (first > 0) + calls[first:last] + ["..."] * (last < len(calls))
    return ", ".join(shown) or "none"
