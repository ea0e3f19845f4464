"""Samples and log-probabilities of a user's model by its signatures, here or on a server."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from replicator.runs.arguments import (
    checked_length,
    checked_seed,
    checked_temperature,
    whole_number,
)
from replicator.runs.errors import UserError
from serving.bundles.signature import COMPILED, LOG_PROB, Arrays, TensorInfo

ROWS = 8  # of a call
ELEMENTS = "elements"


class OwnSampling:
    """The methods that a user's model has wherever it is; a subclass calls its signatures.

    name, spec: of the model. problem: the type of the errors raised for wrong arguments.
    """

    name: str
    spec: dict[str, Any]
    problem: ClassVar[type[Exception]] = UserError

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Raise the errors of checks as this model's type of error."""
        try:
            yield
        except ValueError as error:
            raise self.problem(str(error)) from error

    def _inputs_of(self, signature: str) -> Mapping[str, TensorInfo]:
        """Return the inputs of a signature; empty if the model lacks it."""
        raise NotImplementedError

    def _outputs(self, signature: str, inputs: Arrays) -> Arrays:
        raise NotImplementedError

    def sample(
        self,
        num: int,
        length: Any,
        seed: int,
        condition: Any = None,
        *,
        temperature: float = 1.0,
    ) -> np.ndarray:
        """Return `num` arrays [num, *length]; arguments as for `Autoregressive.sample`."""
        with self._own_errors():
            order = self.spec.get("order", "time" if np.ndim(length) == 0 else "raster")
            num, shape = whole_number(num, "num"), checked_length(length, order)
            temperature, seed = checked_temperature(temperature), checked_seed(seed)
        if condition is not None and len(condition) != num:
            raise self.problem(f"`condition` must have {num} rows, got {len(condition)}.")
        parts = []
        for first in range(0, num, ROWS):
            rows = np.arange(first, min(first + ROWS, num), dtype=np.int32)
            given = None if condition is None else np.asarray(condition)[rows]
            inputs = self._request(COMPILED, rows, seed, temperature, length, given)
            parts.append(only_output(self._outputs(COMPILED, inputs)))
            if parts[0].shape[1:] != shape:
                wanted = parts[0].shape[1:] if parts[0].ndim > 2 else parts[0].shape[1]
                raise self.problem(f"`length` must be {wanted}, as exported, got {length}.")
        return np.concatenate(parts).astype(self.spec[ELEMENTS]["dtype"])

    def log_prob(self, elements: Any, condition: Any = None) -> np.ndarray:
        """Return the log-probability of every element, float32, in nats, as the model's own.

        Args:
          elements: [batch, time] or [batch, height, width, channels].
          condition: float32 [batch, time, channels], where the model has one.
        """
        known = self._inputs_of(LOG_PROB)
        if not known:
            raise UserError(f"The model `{self.name}` has no log-probabilities.")
        given = {ELEMENTS: self._elements(known[ELEMENTS], elements)}
        given |= {} if condition is None else {"frames": np.asarray(condition, np.float32)}
        parts = []
        for first in range(0, max(1, len(given[ELEMENTS])), ROWS):
            inputs = {name: array[first : first + ROWS] for name, array in given.items()}
            parts.append(self._outputs(LOG_PROB, inputs)[LOG_PROB])
        return np.concatenate(parts)

    def _elements(self, info: TensorInfo, elements: Any) -> np.ndarray:
        """Return elements as an array of the model's type; whole numbers of any size are taken."""
        array = np.asarray(elements)
        if array.dtype.kind in "iu" and info.dtype.kind == "i" and array.size:
            limits, least, greatest = np.iinfo(info.dtype), array.min(), array.max()
            if least < limits.min or greatest > limits.max:
                raise self.problem(f"`elements` must be {info.dtype}, got {least} to {greatest}.")
        is_real = array.dtype.kind == "f" and info.dtype.kind == "i"
        return array if is_real else array.astype(info.dtype)

    def _request(
        self,
        signature: str,
        rows: np.ndarray,
        seed: int,
        temperature: float,
        length: Any,
        condition: np.ndarray | None,
    ) -> Arrays:
        """Return the inputs of a batch: rows of a seed, of a length, with their condition."""
        known = self._inputs_of(signature)
        heat = [len(rows), *(size or 1 for size in known["temperature"].shape[1:])]
        inputs = {
            "seed": np.full([len(rows)], seed, np.uint64).astype(np.int64),
            "row": rows,
            "temperature": np.full(heat, temperature, np.float32),
        }
        if condition is not None:
            inputs["frames"] = np.asarray(condition, np.float32)
        for name in ("num_samples", "num_frames"):
            if name in known:
                inputs[name] = np.full([len(rows)], length, np.int32)
        return inputs


def only_output(outputs: Arrays) -> np.ndarray:
    """Return the output that is not `num_samples`."""
    return next(array for name, array in outputs.items() if name != "num_samples")
