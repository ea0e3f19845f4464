"""A served model with the methods of a local one; needs no TensorFlow and no weights."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from onepass.bundles.sampling import (
    OWN_OPTIONS,
    Sampling,
    condition_rows,
    image_inputs,
    restore_level,
    scales_of,
)
from onepass.bundles.signature import Arrays, TensorInfo, fastest, has_named
from onepass.foundation.model_folders import TOKEN_VARIABLE
from onepass.foundation.rules import UserError, require, whole_number
from onepass.interface import Draw, collect_images, stream_images
from serving.client.calls import whole_images
from serving.client.client import Client, server_and_name

ROWS = 8  # images per request
CAPTIONS = ("caption", "text")  # what servers call the condition


class RemoteModel(Sampling):
    """A model served by `onepass serve`; its methods raise ClientError if it cannot be reached.

    Attributes:
      name: the model's name on the server.
      spec: the server's description of the model.

    Args:
      url: http://HOST:PORT/NAME, or https:// or grpc://. The token is read from ONEPASS_TOKEN.
      options: further arguments of `serving.Client`, such as `timeout_seconds`.
    """

    def __init__(self, url: str, **options: Any):
        address, self.name = server_and_name(url)
        token = os.environ.get(TOKEN_VARIABLE) or None
        self._client = Client(address, token=token, **options)
        with contextlib.ExitStack() as stack:  # the connection ends if there is no such model
            stack.callback(self._client.close)
            self.spec = self._client.spec(self.name)
            stack.pop_all()

    @property
    def makes_sound(self) -> bool:
        """True if it generates sound, rather than images or arrays."""
        return self.spec.get("kind") == "sound"

    @property
    def options(self) -> frozenset[str]:
        """Names of the options of `Draw` that the server takes for this model."""
        if self._is_sequence:
            return OWN_OPTIONS | {"weights"}
        kinds = {"temperature", "speaker", "row"}, {"temperature", "guidance", "scales"}
        return frozenset(kinds[0] if self.makes_sound else kinds[1])

    @property
    def _is_sequence(self) -> bool:
        """True for a user's network, also of sound with conditions other than frames."""
        named_sound = self.makes_sound and has_named(self.spec)
        return self._is_own or named_sound or self.spec.get("kind") == "array"

    def _sample(self, draw: Draw) -> Any:
        # The condition of a sound may also be a dict of arguments of `Client.speak`: `text`,
        # `pronunciations`, `phonemes`, `recording`, `example`, `frames`, `force`.
        if self._is_sequence:
            self._check_weights(draw.weights)
            return self._draw_rows(draw)
        if self.makes_sound:
            num = whole_number(draw.num, "num")
            rows = [self._sound(dataclasses.replace(draw, row=draw.row + n)) for n in range(num)]
            return np.stack([np.concatenate(list(chunks)) for chunks in rows])
        return collect_images(self._images(draw), draw.scales)

    def _stream(self, draw: Draw, chunk: int | None) -> Iterator[Any]:
        if self._is_sequence:
            self._check_weights(draw.weights)
            request = self._request(draw, for_all=True)
            return self.stream_chunks(request, 1 if chunk is None else chunk)
        if chunk is not None:
            raise UserError("`chunk` must be None: the server chooses the parts.")
        if self.makes_sound:
            require(draw.num == 1, "num", "1 to stream sound of a server", draw.num)
            return (part[np.newaxis] for part in self._sound(draw))
        return stream_images(self._images(draw), draw.scales)

    def _check_weights(self, weights: str) -> None:
        served = self.spec.get("weights", "float32")
        rule = f"{served}, as served (`onepass serve --weights` chooses it)"
        require(weights in ("float32", served), "weights", rule, weights)

    def _sound(self, draw: Draw) -> Iterator[np.ndarray]:
        condition = draw.condition
        source = condition if isinstance(condition, Mapping) else {"frames": condition}
        seconds = None if draw.length is None else draw.length / self.spec["sample_rate_hz"]
        speech = self._client.speak(
            self.name,
            **source,
            seed=draw.seed,
            row=draw.row,
            seconds=seconds,
            speaker=draw.speaker,
            temperature=draw.temperature,
        )
        with speech as chunks:
            for chunk in chunks:
                yield restore_level(chunk, condition)

    def _images(self, draw: Draw) -> Iterator[list[np.ndarray]]:
        condition, num = draw.condition, whole_number(draw.num, "num")
        heat = 1.0 if draw.temperature is None else draw.temperature
        size = self.spec.get("size")
        require(draw.length in (None, size), "length", str(size), draw.length)
        if isinstance(condition, list):
            require(len(condition) == num, "condition", f"one or {num}", len(condition))
            if any(each is not condition[0] for each in condition):
                yield from self._images_of(condition, draw.seed, heat, draw.guidance)
                return
            condition = condition[0]
        drawn = self._client.draw(
            self.name,
            **self._condition(condition),
            num=num,
            seed=draw.seed,
            temperature=heat,
            guidance=draw.guidance,
        )
        with drawn as scales:
            yield from whole_images(scales)

    def _images_of(
        self, conditions: list, seed: int, temperature: Any, guidance: float
    ) -> Iterator[list[np.ndarray]]:
        signature = fastest(self._signatures)
        inputs = self._inputs_of(signature)
        name = "caption" if self.spec.get("condition") in CAPTIONS else "label"
        classes = [str(each) for each in self.spec.get("classes") or ()]
        for start in range(0, len(conditions), ROWS):
            part = conditions[start : start + ROWS]
            rows = np.arange(start, start + len(part), dtype=np.int32)
            with self._own_errors():
                codes = condition_rows(name, part, classes)
                batch = image_inputs(inputs, seed, rows, temperature, guidance, codes)
            outputs = self._outputs(signature, batch)
            yield from (scales_of(outputs, row) for row in range(len(part)))

    @functools.cached_property
    def _signatures(self) -> dict[str, dict[str, TensorInfo]]:
        return self._client.signatures(self.name)

    def _inputs_of(self, signature: str) -> Mapping[str, TensorInfo]:
        return self._signatures.get(signature, {})

    def _outputs(self, signature: str, inputs: Arrays) -> Arrays:
        return self._client.predict(self.name, inputs, signature)

    def examples(self) -> list[dict[str, Any]]:
        """Return the server's example recordings (`name`, `text`, `seconds`); HTTP only."""
        return self._client.examples(self.name)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _condition(self, condition: Any) -> dict[str, Any]:
        if condition is None:
            return {}
        if self.spec.get("condition") in CAPTIONS:
            return {"caption": condition}
        return {"map": condition} if isinstance(condition, np.ndarray) else {"label": condition}
