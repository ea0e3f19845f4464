"""Trained image models, and what they are asked with."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from onepass.draw import Draw
from onepass.foundation.atomic_files import Arrays
from onepass.foundation.model_folder import assign_weights, stored_model
from onepass.foundation.stored_config import checked_config
from onepass.likelihoods.initial import ZeroInitial
from onepass.trained import Trained
from pixelcnn import shipped
from pixelcnn.condition_values import (
    ConditionValue,
    as_condition,
    as_list,
    label_of,
    stack_conditions,
)
from pixelcnn.config import KINDS, AnyTrainConfig
from pixelcnn.data.video import Statistics
from pixelcnn.density import ImageDensity
from pixelcnn.request_checks import check_images
from pixelcnn.sampling.generation import ImageSampler
from pixelcnn.training import config_from


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

        Raises:
          UserError: the value is not a condition of this model.
        """
        return as_condition(value, self.config.conditioning, self.classes, self.captions)

    def label(self, value: ConditionValue) -> int:
        """Return the label of a class, given its name or label.

        Raises:
          UserError: If the class is unknown.
        """
        return label_of(value, self.classes, self.config.conditioning.classes)

    def _conditions(self, condition: Any, num: int) -> dict[str, np.ndarray]:
        return stack_conditions([self.condition(value) for value in as_list(condition, num)])


def load(path: Path | str) -> Trained:
    """Load a model from a run directory or a model folder.

    Args:
      path: a model folder; a run directory, whose best checkpoint provides averaged weights; or the
        name of a shipped model (`shipped.FOLDERS`), unless a folder has that name.

    Raises:
      UserError: If there is no image model, or it cannot be read.
    """
    path = folder_of(path)
    return model_of(*stored_model(path, spec_of), path)


def folder_of(path: Path | str) -> Path:
    """Return a shipped model's folder if `path` is its name and does not exist, else `path`."""
    path = Path(path)
    if str(path) in shipped.FOLDERS and not path.exists():
        return shipped.folder(str(path))
    return path


def spec_of(stored: dict, path: Path) -> dict[str, Any]:
    """Return the entries of model.json that describe the model; `stored` is a config.json."""
    config = _config(stored, path)
    return {
        "kind": config.kind,
        "preset": stored["preset"],
        "size": config.data.size,
        "channels": config.data.channels,
        "levels": config.output.levels,
        "condition": config.conditioning.kind,
        "classes": stored["class_names"],
        "statistics": stored["statistics"],
    }


def model_of(stored: dict, weights: Arrays, spec: dict, path: Path) -> Trained:
    """Return the model for a config.json (`stored`), weights by name, and a model.json (`spec`)."""
    config = _config(stored, path)
    density = ImageDensity(config, ZeroInitial())
    assign_weights(density, weights, path)
    statistics = stored["statistics"] and Statistics.from_dict(stored["statistics"])
    classes, captions = tuple(stored["class_names"]), spec.get("captions") or ()
    return Trained(ImageSampler(density), ImageFront(config, classes, statistics, captions), spec)


def _config(stored: Any, path: Path) -> AnyTrainConfig:
    needed = {"preset", "class_names", "statistics"}
    return checked_config(stored, path, tuple(KINDS), needed, config_from)
