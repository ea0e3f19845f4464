"""Checks of image requests before anything is drawn, and image files."""

import io
import re
from typing import Any

import numpy as np
from PIL import Image

from replicator.runs.errors import UserError
from serving.bundles.signature import Signature, fastest, scale_name
from serving.engine.served_model import ServedModel
from serving.errors import InvalidInput
from serving.http.fields import excerpt, invalid_field
from serving.http.json_tensors import json_tensor

SCALE = re.compile(r"picture_([0-9]{1,5})")
CONDITIONS = {"label": "class", "caption": "caption", "map": "map"}
NUMBER = re.compile(r"[0-9]{1,9}")
WHOLE = "picture"


def signature(served: ServedModel) -> Signature:
    """Return the signature that draws images."""
    return served.signatures[fastest(served.signatures)]


def condition_input(served: ServedModel) -> str | None:
    """Return the input that conditions an image: label, caption or map; None without one."""
    return next((name for name in CONDITIONS if name in signature(served).inputs), None)


def scales(served: ServedModel) -> list[tuple[int, str]]:
    """Return the side and the output of each scale, smallest first, the image last."""
    outputs = signature(served).outputs
    sides = [(int(match[1]), name) for name in outputs if (match := SCALE.fullmatch(name))]
    whole = outputs[WHOLE].shape[1] or served.spec["size"]
    return [pair for pair in sorted(sides) if pair[0] != whole] + [(whole, WHOLE)]


def scale_signatures(served: ServedModel) -> list[str]:
    """Return the signatures that draw an image scale by scale, or one that draws all scales.

    All but the first of several take the previous scale as `start`.
    """
    names = [scale_name(side) for side, _ in scales(served)]
    known = all(name in served.signatures for name in names)
    return names if known else [fastest(served.signatures)]


def number_of_images(field: str, num: int | None, most: int) -> int:
    """Return the number of images of a request, 1 by default; raise InvalidInput above `most`."""
    if num is not None and num > most:
        raise invalid_field(field, f"an integer from 1 to {most}", num)
    return num or 1


def inputs(
    served: ServedModel,
    value: np.ndarray | None,
    seed: int,
    rows: range,
    temperature: float | list[float] | None = None,
    guidance: float | None = None,
) -> dict[str, np.ndarray]:
    """Return the inputs of a batch of images, rows of a seed with the same condition.

    The condition is as `condition` returns it, the temperature one per scale, or one for all.
    """
    known, count = signature(served).inputs, len(rows)
    values: dict[str, np.ndarray] = {
        "seed": np.full([count], seed, np.int64),
        "row": np.array(rows, np.int32),
        "temperature": np.repeat(_temperature(served, temperature), count, 0),
    }
    if guidance is not None:
        if "guidance" not in known:
            raise InvalidInput("`guidance` must not be given: the model has no null condition.")
        values["guidance"] = json_tensor("guidance", [guidance] * count, known["guidance"])
    name = condition_input(served)
    if name is not None and value is not None:
        values[name] = np.repeat(value[None], count, 0)
    return {name: value for name, value in values.items() if name in known}


def _temperature(served: ServedModel, value: float | list[float] | None) -> np.ndarray:
    """Return the temperature of each scale, base first, float32 [1, scales]."""
    info = signature(served).inputs["temperature"]
    count = info.shape[1] or 1
    if not isinstance(value, list):
        value = [1.0 if value is None else value] * count
    if len(value) != count:
        raise InvalidInput(f"`temperature` must be one number or {count}, got {len(value)}.")
    return json_tensor("temperature", [value], info)


def condition(served: ServedModel, given: dict[str, Any]) -> np.ndarray | None:
    """Return the condition of one image, whichever the model needs.

    It is taken from the given ones of "class", "caption" and "map".
    """
    name = condition_input(served)
    needed = CONDITIONS.get(name or "")
    for other in given:
        if other != needed:
            needs = f"`{needed}`" if needed else "nothing"
            raise InvalidInput(f"`{other}` must not be given: the model needs {needs}.")
    if name is None or needed is None:
        return None
    if needed not in given:
        raise InvalidInput(f"`{needed}` must be given{_examples(served, needed)}.")
    return _condition(served, name, given[needed])


def _condition(served: ServedModel, name: str, value: Any) -> np.ndarray:
    if name == "label":
        return np.array(label(served, "class", value), np.int32)
    if name == "caption":
        return caption(value)
    return json_tensor("map", [value], signature(served).inputs["map"])[0]


def label(served: ServedModel, field: str, value: Any) -> int:
    """Return the index of a class, given by name in any case or by index."""
    classes = served.spec.get("classes") or []
    if type(value) not in (int, str):
        raise invalid_field(field, "the name or the number of a class", value)
    word = str(value).strip()
    if word in classes:
        return classes.index(word)
    names = {name.casefold(): index for index, name in reversed(list(enumerate(classes)))}
    if word.casefold() in names:
        return names[word.casefold()]
    info = signature(served).inputs["label"]
    high = len(classes) - 1 if classes else int(info.high or 0)
    if NUMBER.fullmatch(word) and int(word) <= high:
        return int(word)
    raise InvalidInput(f"`{field}` must be a class, got {excerpt(value)}; {_classes(served)}.")


def caption(value: Any) -> np.ndarray:
    """Return the codes of a caption, int32 [characters]."""
    from pixelcnn.data.captions import encode_caption

    if not isinstance(value, str):
        raise invalid_field("caption", "a text", value)
    try:
        return encode_caption(value)
    except UserError as error:
        raise InvalidInput(str(error)) from error


def _examples(served: ServedModel, needed: str) -> str:
    """Return valid values as the end of a sentence; "" where none are known."""
    captions = served.spec.get("captions")
    if needed == "class":
        return f"; {_classes(served)}"
    return f", such as {captions[0]!r}" if needed == "caption" and captions else ""


def _classes(served: ServedModel) -> str:
    classes = served.spec.get("classes") or []
    return f"there are {', '.join(classes)}" if classes else "the classes have numbers"


def encode_image(image: np.ndarray, container: str = "PNG") -> bytes:
    """Encode an image uint8 [side, side, 1 or 3] as a PNG, JPEG or WEBP file."""
    memory = io.BytesIO()
    grey = image.shape[-1] == 1
    Image.fromarray(image[..., 0] if grey else image).save(memory, container)
    return memory.getvalue()
