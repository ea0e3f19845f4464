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
    """The calls of one model.

    Args:
      client: of its server. name: of the model. spec: what the server says of it.
    """

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

        Args:
          length: number of elements.
          seed: of the noise.
          condition: float32 [length, channels], where the model has one.
          temperature: as for `sample`.
        """
        if CHUNK not in self._signatures:
            raise UserError(f"The model `{self._name}` makes arrays whole: see `sample`.")
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
        inputs = {"elements": _as(known["elements"], elements)}
        inputs |= {} if condition is None else {"frames": np.asarray(condition, np.float32)}
        return self._client.predict(self._name, inputs, LOG_PROB)[LOG_PROB]

    def _inputs(self, signature: str, rows: np.ndarray, seed: int, temperature: float) -> Arrays:
        heat = self._signatures[signature]["temperature"]
        shape = [len(rows), *(size or 1 for size in heat.shape[1:])]
        return {
            "seed": np.full([len(rows)], seed, np.int64),
            "row": rows,
            "temperature": np.full(shape, temperature, np.float32),
        }

    def _length(self, signature: str, rows: int, length: Any, condition: Any) -> Arrays:
        """Return the inputs that say how long a sequence is, of those that the model has."""
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
    return array if array.dtype.kind == "f" and info.dtype.kind == "i" else array.astype(info.dtype)


def _only(outputs: Arrays) -> np.ndarray:
    """Return the array that a model makes, next to how long its rows are."""
    return next(array for name, array in outputs.items() if name != "num_samples")
