"""The inputs for drawing images, for bundles, HTTP requests and the client."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onepass.bundles.errors import InvalidInput, shorten_text
from onepass.bundles.requests import noise_inputs, seed_number
from onepass.bundles.signature import IMAGE, Arrays, TensorInfo
from onepass.foundation.errors import UserError

CONDITIONS = {"label": "class", "caption": "caption", "map": "map"}  # name in requests per input
NUMBER = re.compile(r"[0-9]{1,9}")
Problem = Callable[[str], Exception]


def image_inputs(
    known: Mapping[str, TensorInfo],
    seed: int,
    rows: Sequence[int] | np.ndarray,
    temperature: float | Sequence[float] = 1.0,
    guidance: float = 0.0,
    condition: Mapping[str, np.ndarray] | None = None,
    problem: Problem = InvalidInput,
) -> Arrays:
    """Return the inputs of a batch of images.

    Args:
      temperature: temperature of all scales, or one per scale, smallest first.
      guidance: weight, at least 0, by which images move away from the unconditional distribution; 0
        for a model without a null condition.
      condition: inputs that are conditions, by name, with one row, or one row per image.
    """
    try:
        seed = seed_number(seed)
    except ValueError as error:
        raise problem(str(error)) from error
    count, scales = len(rows), known["temperature"].shape[1] or 1
    each = np.atleast_1d(temperature)
    if len(each) not in (1, scales):
        raise problem(f"`temperature` must be one number or {scales}, got {len(each)}.")
    inputs = noise_inputs(known, seed, rows, each)
    if "guidance" in known:
        inputs["guidance"] = np.full([count], guidance, np.float32)
    elif guidance:
        raise problem("`guidance` must be 0: the model has no null condition.")
    for name, value in (condition or {}).items():
        inputs[name] = np.repeat(value, count // len(value), 0)
    return inputs


def condition_rows(
    name: str,
    values: Sequence[Any],
    classes: Sequence[str] = (),
    info: TensorInfo | None = None,
    field: str = "label",
    problem: Problem = InvalidInput,
) -> Arrays:
    """Return the conditions of images as an input by its name, with one row per image.

    Args:
      name: the input: "label", "caption" or "map".
      values: for each image a class (name or index), a caption, or a map int [side, side].
      info: the input in the signature, which limits the index of a class; None: no limit is known.
    """
    if name == "label":
        labels = [label_index(field, each, classes, info, problem) for each in values]
        return {name: np.array(labels, np.int32)}
    if name == "caption":
        return {name: np.stack([caption_codes(str(each)) for each in values])}
    return {name: np.stack(values)}


def scales_of(outputs: Mapping[str, np.ndarray], row: int) -> list[np.ndarray]:
    """Return the scales of image `row` of a batch, smallest first; the last is the whole image."""
    whole = outputs[IMAGE][row]
    scales = [value[row] for name, value in outputs.items() if name.startswith(f"{IMAGE}_")]
    smaller = [pixels for pixels in scales if len(pixels) < len(whole)]
    return [*sorted(smaller, key=len), whole]


def label_index(
    field: str,
    value: Any,
    classes: Sequence[str],
    info: TensorInfo | None = None,
    problem: Problem = InvalidInput,
) -> int:
    """Return the index of a class, given by name (in upper or lower case) or by index."""
    value = int(value) if isinstance(value, np.integer) else value
    word = str(value).strip()
    if word in classes:
        return classes.index(word)
    names = {name.casefold(): index for index, name in reversed(list(enumerate(classes)))}
    if word.casefold() in names:
        return names[word.casefold()]
    high = len(classes) - 1 if classes or info is None else int(info.high or 0)
    if type(value) in (int, str) and NUMBER.fullmatch(word) and (int(word) <= high or high < 0):
        return int(word)
    raise problem(f"`{field}` must be a class, got `{shorten_text(word)}`; {classes_of(classes)}.")


def classes_of(classes: Sequence[str]) -> str:
    """Return a clause for messages that lists the known classes."""
    return f"there are {', '.join(classes)}" if classes else "the classes have numbers"


def caption_codes(text: str) -> np.ndarray:
    """Return the codes of a caption, int32 [characters]; raise InvalidInput if it is too long."""
    from pixelcnn.data.captions import encode_caption

    try:
        return encode_caption(text)
    except UserError as error:
        raise InvalidInput(str(error)) from error
