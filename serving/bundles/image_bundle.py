"""A bundle that draws images."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from replicator.runs.errors import UserError
from serving.bundles.bundle import Backend, Bundle, Program
from serving.bundles.signature import COMPILED, PLAIN, Arrays, checked, example, scale_name
from serving.errors import InvalidInput

Condition = int | str | np.ndarray | dict[str, np.ndarray] | None
NEEDS = {
    "class": "a class",
    "text": "a caption",
    "map": "a map of labels",
    "video": "a dict of its `past`, `action` and `state`",
}


class ImageBundle(Bundle):
    """An exported PixelCNN or multiscale model that draws images."""

    kind = "picture"

    def __init__(
        self, path: Path, spec: dict[str, Any], program: Program, backend: Backend = "auto"
    ):
        if backend == "numba":
            raise UserError(f"{path} draws images; the engine `numba` is for audio models.")
        super().__init__(path, spec, program, backend)
        program.restore()

    @property
    def size(self) -> int:
        """Side of its images, in pixels."""
        return self.spec["size"]

    @property
    def channels(self) -> int:
        """1 for grey, 3 for red, green and blue."""
        return self.spec["channels"]

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes by index."""
        return tuple(self.spec["classes"])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sides of its scales, smallest first; one for a PixelCNN."""
        sides = [_side(name) for name in self.signatures[COMPILED].outputs if name != "picture"]
        return tuple(sorted(sides)) or (self.size,)

    def generate(
        self, condition: Condition | Sequence[Condition] = None, *, num: int = 1, **options: Any
    ) -> np.ndarray:
        """Draw images, uint8 [num, size, size, channels].

        Args:
          condition: a class (index or name), a caption, a map int [size, size] or the inputs of a
            video model by name; a list has one per image; None for a model without.
          num: number of images, one per row of the seed; an image does not depend on `num`.
          **options: of `inputs`.

        Raises:
          InvalidInput: the model cannot draw this.
        """
        drawn = self.progressions(condition, num=num, **options)
        return np.stack([scales[-1] for scales in drawn])

    def progressions(
        self,
        condition: Condition | Sequence[Condition] = None,
        *,
        num: int = 1,
        start: np.ndarray | None = None,
        **options: Any,
    ) -> Iterator[list[np.ndarray]]:
        """Return an iterator of all scales of each image, smallest first; see `generate`.

        Invalid requests raise InvalidInput at once, before the first image is requested.
        """
        conditions: list[Any] = [condition] * num
        if isinstance(condition, list | tuple):
            conditions = list(condition)
        if num < 1 or len(conditions) != num:
            raise InvalidInput(f"`condition` must be one or {num}, got {len(conditions)}.")
        calls = [
            self.inputs(value, row=row, start=start, **options)
            for row, value in enumerate(conditions)
        ]
        return (self._scales(*call, start) for call in calls)

    def call(self, signature: str, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return the outputs of a signature for inputs that `check` returned.

        `compiled` also answers for `serving_default`, so that a seed gives the same image in both.
        """
        return super().call(COMPILED if signature == PLAIN else signature, inputs)

    def warmup_calls(self) -> Iterator[tuple[str, Arrays]]:
        """Yield one whole image: all batches run its program; others compile when first called."""
        yield COMPILED, example(self.signatures[COMPILED], 1)

    def inputs(
        self,
        condition: Condition = None,
        seed: int = 0,
        row: int = 0,
        temperature: float | Sequence[float] = 1.0,
        start: np.ndarray | None = None,
        given: tuple[np.ndarray, int] | None = None,
        guidance: float = 0.0,
    ) -> tuple[str, Arrays]:
        """Return the signature that draws an image, and its checked inputs, a batch of one.

        Args:
          condition: as for `generate`.
          seed: seed of the noise.
          row: row of the seed.
          temperature: 1 samples the model; a multiscale model also takes one per scale, base first.
          start: a small image uint8 [side, side, channels] to enlarge (multiscale).
          given: an image uint8 [size, size, channels] and how many of its pixels, in raster order,
            to keep (PixelCNN).
          guidance: for a model with a null condition, how far each pixel moves away from the
            unconditional distribution; above 0 it is no longer the model's density.
        """
        if not 0 <= seed < 2**64:
            raise InvalidInput(f"`seed` must be between 0 and 2^64 - 1, got {seed}.")
        each = temperature
        if isinstance(temperature, int | float):
            each = [temperature] * len(self.sizes)
        inputs: dict[str, Any] = {
            "seed": np.array([seed], np.uint64).astype(np.int64),
            "row": [row],
            "temperature": [each],
            **self.condition(condition),
        }
        if "guidance" in self.signatures[COMPILED].inputs:
            inputs["guidance"] = [guidance]
        elif guidance:
            raise InvalidInput("`guidance` must be 0: the model has no null condition.")
        signature = COMPILED
        if start is not None:
            self._check_start(start)
            signature, inputs["start"] = scale_name(2 * start.shape[0]), start[None]
        if given is not None:
            if "complete" not in self.signatures:
                raise InvalidInput("Only a PixelCNN can complete an image from its first pixels.")
            signature = "complete"
            inputs["given"], inputs["given_count"] = given[0][None], [given[1]]
        return signature, self.check(signature, inputs)

    def condition(self, value: Condition) -> dict[str, np.ndarray]:
        """Return the inputs, a batch of one, for a class, a caption or a map.

        Raises:
          InvalidInput: the class is unknown, the caption too long, or the model needs another
            condition.
        """
        kind = self.spec["condition"]
        if kind == "none":
            if value is not None:
                raise InvalidInput("The model draws without a condition.")
            return {}
        if kind == "class" and isinstance(value, int | np.integer | str):
            return {"label": np.array([self.label(value)], np.int32)}
        if kind == "text" and isinstance(value, str):
            return {"caption": _caption(value)}
        if kind == "map" and isinstance(value, np.ndarray):
            return {"map": value[None]}
        if kind == "video" and isinstance(value, dict):
            return {name: np.asarray(array)[None] for name, array in value.items()}
        raise InvalidInput(f"The model needs {NEEDS[kind]}.")

    def label(self, value: int | str) -> int:
        """Return the index of a class, named or numbered; raise InvalidInput if it is unknown."""
        if str(value) in self.classes:
            return self.classes.index(str(value))
        info = self.signatures[COMPILED].inputs["label"]
        try:
            return int(checked("label", info, [int(value)])[0])
        except ValueError as error:
            known = ", ".join(self.classes)
            raise InvalidInput(f"There is no class `{str(value)[:40]}`; there are {known}.") from (
                error
            )

    def _check_start(self, start: np.ndarray) -> None:
        sides = self.sizes[:-1]
        if not sides:
            raise InvalidInput("A PixelCNN cannot enlarge an image; a multiscale model can.")
        if start.ndim != 3 or start.shape[0] != start.shape[1] or start.shape[0] not in sides:
            raise InvalidInput(
                f"The image to start from must be square with a side of "
                f"{' or '.join(map(str, sides))} pixels, got {list(start.shape)}."
            )

    def _scales(self, signature: str, inputs: Arrays, start: np.ndarray | None) -> list[np.ndarray]:
        if start is not None:
            return self._enlarged(inputs, start)
        drawn = self.call(signature, inputs)
        scales = [drawn[name][0] for name in sorted(drawn, key=_side) if name != "picture"]
        return scales or [drawn["picture"][0]]

    def _enlarged(self, inputs: Arrays, start: np.ndarray) -> list[np.ndarray]:
        scales = [start]
        while len(scales[-1]) < self.size:
            signature = scale_name(2 * len(scales[-1]))
            scales.append(self.call(signature, inputs | {"start": scales[-1][None]})["picture"][0])
        return scales


def _side(name: str) -> int:
    """Return the side in the name of an output; 0 for the largest image, which has no number."""
    return int(name.removeprefix("picture").removeprefix("_") or 0)


def _caption(text: str) -> np.ndarray:
    from pixelcnn.data.captions import encode_caption

    try:
        return encode_caption(text)[None]
    except UserError as error:
        raise InvalidInput(str(error)) from error
