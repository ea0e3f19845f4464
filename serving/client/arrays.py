"""Requests to a served model of a user: arrays in, arrays out."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from replicator.runs.arguments import checked_length, checked_seed, checked_temperature
from replicator.runs.errors import UserError
from serving.bundles.own_sampling import ELEMENTS, OwnSampling, only_output
from serving.bundles.signature import Arrays, TensorInfo
from serving.client.client import Client

CHUNK, STATE = "chunk", "state_"


class ArrayClient(OwnSampling):
    """The calls of one model, with its specification by the server."""

    def __init__(self, client: Client, name: str, spec: dict[str, Any]):
        if not isinstance(spec.get(ELEMENTS), dict):
            raise UserError(f"`{name}` is not a model of a user; it has `generate`.")
        self._client, self.name, self.spec = client, name, spec
        self._signatures = client.signatures(name)

    def stream(
        self, length: int, seed: int, condition: Any, temperature: float
    ) -> Iterator[np.ndarray]:
        """Yield one sequence in chunks, as they are made.

        The condition is float32 [length, channels], where the model has one.
        """
        if CHUNK not in self._signatures:
            raise UserError(f"The model `{self.name}` cannot stream: call `sample`.")
        with self._own_errors():
            (length,), seed = checked_length(length, "time"), checked_seed(seed)
            temperature = checked_temperature(temperature)
        return self._chunks(length, seed, condition, temperature)

    def _chunks(
        self, length: int, seed: int, condition: Any, temperature: float
    ) -> Iterator[np.ndarray]:
        unit, row = int(self.spec["unit_samples"]), np.zeros([1], np.int32)
        state = {
            name: np.zeros([1, *(size or 0 for size in info.shape[1:])], info.dtype)
            for name, info in self._signatures[CHUNK].items()
            if name.startswith(STATE)
        }
        for first in range(0, length, unit):
            count = min(unit, length - first)
            part = None if condition is None else np.asarray(condition)[None, first : first + count]
            given = self._request(CHUNK, row, seed, temperature, count, part) | state
            given["start"] = np.full([1], first, np.int32)
            outputs = self._outputs(CHUNK, given)
            state = {name: outputs.pop(name) for name in state}
            yield only_output(outputs)[0, :count].astype(self.spec[ELEMENTS]["dtype"])

    def _inputs_of(self, signature: str) -> Mapping[str, TensorInfo]:
        return self._signatures.get(signature, {})

    def _outputs(self, signature: str, inputs: Arrays) -> Arrays:
        return self._client.predict(self.name, inputs, signature)
