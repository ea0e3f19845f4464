"""A served model with the methods of a local one; needs no TensorFlow and no weights."""

import contextlib
import functools
import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from onepass.bundles.condition_inputs import has_named
from onepass.bundles.image_inputs import condition_rows, image_inputs, scales_of
from onepass.bundles.requests import Request
from onepass.bundles.sampling import Sampling
from onepass.bundles.signature import ARRAY, SOUND, Arrays, TensorInfo, fastest
from onepass.bundles.sound_sampling import levelled
from onepass.draw import OPTIONS
from onepass.foundation.errors import UserError
from serving.client.client import Client, server_and_name
from serving.client.streams import whole_images
from serving.settings import TOKEN_VARIABLE

ROWS = 8  # images per request
CAPTIONS = ("caption", "text")  # what servers call the condition
STREAMED = {*OPTIONS, "chunk"}


class RemoteModel(Sampling):
    """A model served by `onepass serve`; its methods raise ClientError if it cannot be reached.

    Attributes:
      name: the model's name on the server.
      spec: the server's description of the model.

    Args:
      url: http://HOST:PORT/NAME, or https:// or grpc://. The token is read from ONEPASS_TOKEN.
      options: further arguments of `serving.Client`, such as `timeout_seconds`.
    """

    compresses: ClassVar[bool] = False

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
        return self.spec.get("kind") == SOUND

    def generate(
        self, condition: Any = None, *, seed: int = 0, num: int = 1, **given: Any
    ) -> np.ndarray:
        """Return sounds, float32 [num, samples], or images, uint8 [num, size, size, channels].

        Args:
          condition: frames to speak, float [frames, channels]; or a class, a caption or a map.
          seed: seed of the noise, an integer in [0, 2^64).
          num: number of outputs; output n of a seed does not depend on `num`.
          given: further arguments of `Client.speak` (text, recording, seconds, temperature, ...)
            or of `Client.draw` (temperature, ...).

        Raises:
          ClientError: the server rejects the request or cannot be reached.
        """
        if self.makes_sound:
            rows = [
                np.concatenate(list(self.stream(condition, seed=seed, row=row, **given)))
                for row in range(num)
            ]
            return np.stack(rows)
        return np.stack([scales[-1] for scales in self.progressions(condition, seed, num, **given)])

    def stream(self, condition: Any = None, *, seed: int = 0, **given: Any) -> Iterator[np.ndarray]:
        """Return one sound, or one sequence of a user's model, in chunks [samples].

        If the condition comes from a local model's `frames(...)`, the sound has the recording's
        level. For a user's model of sequences, or of sound with conditions other than frames,
        `length` is required, and `chunk` and the fields of `Draw` work as in
        `Autoregressive.stream`.

        Raises:
          UserError: the model generates images, or an argument is missing, unknown or invalid.
        """
        if self.spec.get("kind") == ARRAY or (self.makes_sound and has_named(self.spec)):
            length, unknown = given.pop("length", None), ", ".join(given.keys() - STREAMED)
            if length is None or unknown:
                got = unknown or "no `length`"
                raise UserError(f"`stream` of `{self.name}` takes `length`, got {got}.")
            with self._own_errors():
                chunk = given.pop("chunk", 1)
                conditions = self._conditions(condition, for_all=True)
                request = Request.checked("time", 1, length, seed, conditions, **given)
            return (part[0] for part in self.streamed(request, chunk))
        if not self.makes_sound:
            raise UserError(f"The model `{self.name}` generates images: call `progressions`.")
        return self._sound(condition, seed, given)

    def _sound(self, condition: Any, seed: int, given: dict[str, Any]) -> Iterator[np.ndarray]:
        with self._client.speak(self.name, frames=condition, seed=seed, **given) as chunks:
            for chunk in chunks:
                yield levelled(chunk, condition)

    def progressions(
        self, condition: Any = None, seed: int = 0, num: int = 1, **given: Any
    ) -> Iterator[list[np.ndarray]]:
        """Yield the scales of each image, smallest first, as the server generates them.

        Args:
          condition: a class, a caption or a map for all images, or a list with one for each.
          seed: seed of the noise.
          num: number of images.
          **given: further arguments of `Client.draw`.

        Raises:
          ClientError: the server rejects the request or cannot be reached.
          UserError: a list of conditions does not have `num` entries.
        """
        if isinstance(condition, list):
            if len(condition) != num:
                raise UserError(f"`condition` must be one or {num}, got {len(condition)}.")
            if any(each is not condition[0] for each in condition):
                yield from self._images_of(condition, seed, **given)
                return
            condition = condition[0]
        named = {**self._condition(condition), **given}
        with self._client.draw(self.name, num=num, seed=seed, **named) as scales:
            yield from whole_images(scales)

    def _images_of(
        self, conditions: list, seed: int, temperature: Any = 1.0, guidance: float = 0.0
    ) -> Iterator[list[np.ndarray]]:
        """Yield the scales of one image per condition, requesting several images at a time."""
        signature = fastest(self._signatures)
        inputs = self._inputs_of(signature)
        for start in range(0, len(conditions), ROWS):
            part = conditions[start : start + ROWS]
            rows = np.arange(start, start + len(part), dtype=np.int32)
            codes = self._codes(part)
            batch = image_inputs(inputs, seed, rows, temperature, guidance, codes, UserError)
            outputs = self._outputs(signature, batch)
            yield from (scales_of(outputs, row) for row in range(len(part)))

    def _codes(self, conditions: list) -> Arrays:
        """Return the model's inputs for a batch of classes or captions, by name."""
        name = "caption" if self.spec.get("condition") in CAPTIONS else "label"
        classes = [str(each) for each in self.spec.get("classes") or ()]
        return condition_rows(name, conditions, classes, problem=UserError)

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
        """Return a condition as a keyword argument of `Client.draw`; an array counts as a map."""
        if condition is None:
            return {}
        if self.spec.get("condition") in CAPTIONS:
            return {"caption": condition}
        return {"map": condition} if isinstance(condition, np.ndarray) else {"label": condition}
