"""The front of image models: classes, captions and maps become the arrays of a conditioner."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from onepass.draw import Draw
from onepass.foundation.errors import UserError
from pixelcnn.config import AnyTrainConfig
from pixelcnn.data.captions import encode_caption
from pixelcnn.data.video import Statistics
from pixelcnn.networks.conditioning import check_label
from pixelcnn.request_checks import check_images

ConditionValue = int | str | np.ndarray | None
NEEDS = {
    "class": "a class",
    "text": "a caption",
    "map": "a map of labels",
    "video": "the frames before, an action and a state",
}


@dataclasses.dataclass(frozen=True)
class ImageFront:
    """What makes a class, a caption or a map a condition, and says what the images are.

    Args:
      config: the training configuration.
      classes: class names, in the order of their labels.
      statistics: normalisation of actions and states for a video model, or None.
      captions: captions that the model knows, for messages.
    """

    config: AnyTrainConfig
    classes: tuple[str, ...] = ()
    statistics: Statistics | None = None
    captions: Sequence[str] = ()

    makes: ClassVar[str] = "images"

    @property
    def size(self) -> int:
        """Side of the images in pixels."""
        return self.config.data.size

    @property
    def channels(self) -> Literal[1, 3]:
        """Number of channels: 1 for grey, 3 for red, green and blue."""
        return self.config.data.channels

    @property
    def bits(self) -> int:
        """Number of bits per level, 8 to 16."""
        return self.config.data.bits

    @property
    def levels(self) -> int:
        """Number of levels per channel."""
        return self.config.output.levels

    def read(self, draw: Draw) -> Draw:
        """Return a request in which conditions are replaced by the conditioner's inputs."""
        return dataclasses.replace(draw, condition=self._conditions(draw.condition, draw.num))

    def read_elements(self, elements: Any, condition: Any, speaker: None) -> tuple[Any, Any]:
        """Return images, checked, and the conditioner's inputs for them."""
        del speaker
        check_images("images", elements, (None, self.size, self.size, self.channels), self.levels)
        return elements, self._conditions(condition, len(elements))

    def finish(self, images: Any, draw: Draw) -> Any:
        """Return images as they were drawn."""
        del draw
        return images

    def condition(self, value: ConditionValue) -> dict[str, np.ndarray]:
        """Return the conditioner's inputs for a class, a caption or a map, as a batch of one.

        Args:
          value: the class, by name or number, the caption, or the map.

        Raises:
          UserError: the class is unknown, the caption is too long, a model without a condition gets
            a value, or a model with a condition gets no value or the wrong kind.
        """
        kind = self.config.conditioning.kind
        if kind == "none" or value is None:
            if kind == "none" and value is not None:
                raise UserError("The model draws without a condition.")
            if kind != "none":
                example = f", such as {self.captions[0]!r}" if self.captions else ""
                raise UserError(f"The model needs a condition: {NEEDS[kind]}{example}.")
            return {}
        if kind == "class":
            return {"label": np.array([self.label(value)], np.int32)}
        if kind == "text":
            return {"caption": encode_caption(str(value))[None]}
        if kind == "map" and isinstance(value, np.ndarray):
            return {"map": value[None].astype(np.int32)}
        raise UserError(f"The model needs {NEEDS[kind]}.")

    def label(self, value: ConditionValue) -> int:
        """Return the label of a class, given its name or label.

        Raises:
          UserError: the class is unknown.
        """
        if str(value) in self.classes:
            return self.classes.index(str(value))
        try:
            number = int(str(value))
        except ValueError as error:
            known = ", ".join(self.classes)
            raise UserError(f"There is no class `{value}`; there are {known}.") from error
        check_label(number, self.config.conditioning.classes)
        return number

    def list_conditions(self, condition: Any, num: int) -> list[Any]:
        """Return the condition of `num` images, or one for each, as a list of 1 or `num`."""
        axes = 2 if self.config.conditioning.kind == "map" else 0  # of one image's condition
        is_array = isinstance(condition, np.ndarray) and condition.ndim > axes
        values = list(condition) if is_array or isinstance(condition, list | tuple) else [condition]
        if len(values) not in (1, num):
            raise UserError(f"`condition` must be one or {num}, got {len(values)}.")
        return values

    def _conditions(self, condition: Any, num: int) -> dict[str, np.ndarray]:
        values = self.list_conditions(condition, num)
        each = [self.condition(value) for value in (values * num if len(values) == 1 else values)]
        return {name: np.concatenate([one[name] for one in each]) for name in each[0]}
