"""Conversion of the conditions that users give to the arrays that a conditioner reads."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from onepass.foundation.errors import UserError
from pixelcnn.data.captions import encode_caption
from pixelcnn.networks.conditioning import check_label
from pixelcnn.networks.config import ConditioningConfig

ConditionValue = int | str | np.ndarray | None
NEEDS = {
    "class": "a class",
    "text": "a caption",
    "map": "a map of labels",
    "video": "the frames before, an action and a state",
}


def as_condition(
    value: ConditionValue,
    config: ConditioningConfig,
    classes: Sequence[str],
    captions: Sequence[str] = (),
) -> dict[str, np.ndarray]:
    """Return a batch of one with a class, a caption or a map, as the conditioner reads it.

    Args:
      value: the class, by name or number, the caption, or the map.
      config: the settings of the condition.
      classes: the names of the classes.
      captions: captions that the model knows, for the message.

    Raises:
      UserError: the class is unknown, the caption is too long, a model without a condition gets a
        value, or a model with a condition gets no value or the wrong kind.
    """
    kind = config.kind
    if kind == "none" or value is None:
        if kind == "none" and value is not None:
            raise UserError("The model draws without a condition.")
        if kind != "none":
            example = f", such as {captions[0]!r}" if captions else ""
            raise UserError(f"The model needs a condition: {NEEDS[kind]}{example}.")
        return {}
    if kind == "class":
        return {"label": np.array([label_of(value, classes, config.classes)], np.int32)}
    if kind == "text":
        return {"caption": encode_caption(str(value))[None]}
    if kind == "map" and isinstance(value, np.ndarray):
        return {"map": value[None].astype(np.int32)}
    raise UserError(f"The model needs {NEEDS[kind]}.")


def label_of(value: ConditionValue, classes: Sequence[str], count: int) -> int:
    """Return the number of a class that is given by name or number, out of `count` classes.

    Raises:
      UserError: the class is unknown.
    """
    if str(value) in classes:
        return classes.index(str(value))
    try:
        number = int(str(value))
    except ValueError as error:
        raise UserError(f"There is no class `{value}`; there are {', '.join(classes)}.") from error
    check_label(number, count)
    return number


def as_list(condition: Any, num: int) -> list[Any]:
    """Return the condition of each image; raise UserError unless there are one or `num`."""
    values: list[Any] = list(condition) if isinstance(condition, list | tuple) else [condition]
    values = values * num if len(values) == 1 else values
    if len(values) != num:
        raise UserError(f"`condition` must be one or {num}, got {len(values)}.")
    return values


def stack_conditions(each: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the conditions of several images, each a batch of one, as those of one batch."""
    return {name: np.concatenate([one[name] for one in each]) for name in each[0]}
