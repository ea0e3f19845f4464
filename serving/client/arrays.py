"""Requests to a served model of a user: arrays in, arrays out."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from replicator.runs.errors import UserError
from serving.bundles.signature import COMPILED, LOG_PROB, TensorInfo
from serving.client.client import Client

ROWS = 8  # of a request
CHUNK, STATE = "chunk", "state_"
Arrays = dict[str, np.ndarray]


class ArrayClient:
    """The calls of one model, with its specification by the server."""

    def __init__(self, client: Client, name: str, spec: dict[str, Any]):
        if not isinstance(spec.get("elements"), dict):
            raise UserError(f"`{name}` is not a model of a user; it has `generate`.")
        self._client, self._name, self._spec = client, name, spec
        self._signatures = client.signatures(name)

    def sample(
        self, num: int, length: Any, seed: int, condition: Any, temperature: float
    ) -> np.ndarray:
        """Return `num` arrays [num, *length]; arguments as for `Autoregressive.sample`."""
        if num < 1 or (condition is not None and len(condition) != num):
            raise UserError(f"`num` must be at least 1 and the rows of the condition, got {num}.")
        made = []
        for first in range(0, num, ROWS):
            rows = np.arange(first, min(first + ROWS, num), dtype=np.int32)
            given = None if condition is None else np.asarray(condition)[rows]
            inputs = self._inputs(COMPILED, rows, seed, temperature)
            inputs |= self._length(COMPILED, len(rows), length, given)
            outputs = self._client.predict(self._name, inputs, COMPILED)
            made.append(_only(outputs))
        whole = np.concatenate(made)
        shape = (length,) if np.ndim(length) == 0 else tuple(length)
        if whole.shape[1:] != shape:
            raise UserError(f"`length` must be {list(whole.shape[1:])}, as exported, got {length}.")
        return whole.astype(self._spec["elements"]["dtype"])

    def stream(
        self, length: int, seed: int, condition: Any, temperature: float
    ) -> Iterator[np.ndarray]:
        """Yield one sequence in chunks, as they are made.

        The condition is float32 [length, channels], where the model has one.
        """
        if CHUNK not in self._signatures:
            raise UserError(f"The model `{self._name}` cannot stream: call `sample`.")
        unit, row = int(self._spec["unit_samples"]), np.zeros([1], np.int32)
        inputs = self._inputs(CHUNK, row, seed, temperature)
        state = {
            name: np.zeros([1, *(size or 0 for size in info.shape[1:])], info.dtype)
            for name, info in self._signatures[CHUNK].items()
            if name.startswith(STATE)
        }
        for first in range(0, length, unit):
            count = min(unit, length - first)
            part = None if condition is None else np.asarray(condition)[None, first : first + count]
            given = {**inputs, **self._length(CHUNK, 1, count, part), **state}
            given["start"] = np.full([1], first, np.int32)
            outputs = self._client.predict(self._name, given, CHUNK)
            state = {name: outputs.pop(name) for name in state}
            yield _only(outputs)[0, :count].astype(self._spec["elements"]["dtype"])

    def log_prob(self, elements: Any, condition: Any) -> np.ndarray:
        """Return the log-probability of every element; see `Autoregressive.log_prob`."""
        known = self._signatures.get(LOG_PROB)
        if known is None:
            raise UserError(f"The model `{self._name}` has no log-probabilities.")
        given = {"elements": _as(known["elements"], elements)}
        given |= {} if condition is None else {"frames": np.asarray(condition, np.float32)}
        parts = []
        for first in range(0, max(1, len(given["elements"])), ROWS):
            inputs = {name: array[first : first + ROWS] for name, array in given.items()}
            parts.append(self._client.predict(self._name, inputs, LOG_PROB)[LOG_PROB])
        return np.concatenate(parts)

    def _inputs(self, signature: str, rows: np.ndarray, seed: int, temperature: float) -> Arrays:
        if not 0 <= seed < 2**64:
            raise UserError(f"`seed` must be between 0 and 2^64 - 1, got {seed}.")
        heat = self._signatures[signature]["temperature"]
        shape = [len(rows), *(size or 1 for size in heat.shape[1:])]
        return {
            "seed": np.full([len(rows)], seed, np.uint64).astype(np.int64),
            "row": rows,
            "temperature": np.full(shape, temperature, np.float32),
        }

    def _length(self, signature: str, rows: int, length: Any, condition: Any) -> Arrays:
        known = self._signatures[signature]
        given: Arrays = {}
        if condition is not None:
            given["frames"] = np.asarray(condition, np.float32)
        for name in ("num_samples", "num_frames"):
            if name in known:
                given[name] = np.full([rows], length, np.int32)
        return given


def _as(info: TensorInfo, elements: Any) -> np.ndarray:
    """Return elements as an array of the model's type; whole numbers of any size are taken."""
    array = np.asarray(elements)
    if array.dtype.kind in "iu" and info.dtype.kind == "i" and array.size:
        limits = np.iinfo(info.dtype)
        if array.min() < limits.min or array.max() > limits.max:
            raise UserError(f"`elements` must be {info.dtype}, got {array.min()} to {array.max()}.")
    return array if array.dtype.kind == "f" and info.dtype.kind == "i" else array.astype(info.dtype)


def _only(outputs: Arrays) -> np.ndarray:
    """Return the output that is not `num_samples`."""
    return next(array for name, array in outputs.items() if name != "num_samples")
