"""Requests to a served model of a user: arrays in, arrays out."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from foundation.errors import UserError
from serving.bundles.own_requests import OwnRequest
from serving.bundles.own_sampling import ELEMENTS, OwnSampling
from serving.bundles.signature import Arrays, TensorInfo
from serving.client.client import Client


class ArrayClient(OwnSampling):
    """The calls of one served model, with the server's description of it."""

    def __init__(self, client: Client, name: str, spec: dict[str, Any]):
        if not isinstance(spec.get(ELEMENTS), dict):
            raise UserError(f"`{name}` is not a model of a user; it has `generate`.")
        self._client, self.name, self.spec = client, name, spec
        self._signatures = client.signatures(name)

    def stream(
        self,
        length: int,
        seed: int,
        condition: Any = None,
        *,
        chunk: int = 1,
        **options: Any,
    ) -> Iterator[np.ndarray]:
        """Yield one sequence in parts [n], as they are made.

        Args:
          length: number of elements.
          seed: seed of the noise.
          condition: an array for the model's only condition, arrays by name for several, or None;
            [1, ...], or without the first axis.
          chunk: elements at a time, rounded up to a multiple of the model's unit.
          **options: `temperature`, `top_k`, `top_p`, `prefix` and `stop` of
            `Autoregressive.sample`, for one row.

        Raises:
          UserError: an argument has no meaning, or the model cannot make this; raised at the call.
        """
        with self._own_errors():
            given = self._conditions(condition, for_all=True)
            request = OwnRequest.checked("time", 1, length, seed, given, **options)
        return (part[0] for part in self.streamed(request, chunk))

    def _inputs_of(self, signature: str) -> Mapping[str, TensorInfo]:
        return self._signatures.get(signature, {})

    def _outputs(self, signature: str, inputs: Arrays) -> Arrays:
        return self._client.predict(self.name, inputs, signature)
