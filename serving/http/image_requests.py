"""Image requests, checked before anything is drawn; and image files."""

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
    """What images are drawn with."""
    return served.signatures[fastest(served.signatures)]


def condition_input(served: ServedModel) -> str | None:
    """The input that says what to draw: label, caption or map; None for a model without."""
    return next((name for name in CONDITIONS if name in signature(served).inputs), None)


def scales(served: ServedModel) -> list[tuple[int, str]]:
    """The side and the output of every scale that comes out, smallest first, the image last."""
    outputs = signature(served).outputs
    sides = [(int(match[1]), name) for name in outputs if (match := SCALE.fullmatch(name))]
    whole = outputs[WHOLE].shape[1] or served.spec["size"]
    return [pair for pair in sorted(sides) if pair[0] != whole] + [(whole, WHOLE)]


def scale_signatures(served: ServedModel) -> list[str]:
    """The signatures that draw an image, each the next scale; one that draws all if there is none.

    All but the first of several take the image before as `start`.
    """
    names = [scale_name(side) for side, _ in scales(served)]
    there = all(name in served.signatures for name in names)
    return names if there else [fastest(served.signatures)]


def number_of_images(field: str, num: int | None, most: int) -> int:
    """How many images a request asks for, by default one; InvalidInput for more than the most."""
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
    """The inputs of a batch of images, the rows of a seed; all of the same condition.

    value: of one image, as `condition` gives it. temperature: of each scale, or one for all.
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
    """float32 [1, scales]: of each scale, base first, or one for all."""
    info = signature(served).inputs["temperature"]
    count = info.shape[1] or 1
    if not isinstance(value, list):
        value = [1.0 if value is None else value] * count
    if len(value) != count:
        raise InvalidInput(f"`temperature` must be one number or {count}, got {len(value)}.")
    return json_tensor("temperature", [value], info)


def condition(served: ServedModel, given: dict[str, Any]) -> np.ndarray | None:
    """The conditioning of one image: a class, a caption or a map, whichever the model needs.

    Args:
      given: by "class", "caption" and "map", those that were given.
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
    """The number of a class, by its name in any case or by its number."""
    classes = served.spec.get("classes") or []
    said = str(value).strip() if type(value) in (int, str) else None
    if said is None:
        raise invalid_field(field, "the name or the number of a class", value)
    names = {name.casefold(): place for place, name in reversed(list(enumerate(classes)))}
    if said in classes:
        return classes.index(said)
    if said.casefold() in names:
        return names[said.casefold()]
    info = signature(served).inputs["label"]
    high = len(classes) - 1 if classes else int(info.high or 0)
    if NUMBER.fullmatch(said) and int(said) <= high:
        return int(said)
    raise InvalidInput(f"`{field}` names no class: {excerpt(value)}; {_classes(served)}.")


def caption(value: Any) -> np.ndarray:
    """int32 [characters], the codes of a caption."""
    from pixelcnn.data.captions import encode_caption

    if not isinstance(value, str):
        raise invalid_field("caption", "a text", value)
    try:
        return encode_caption(value)
    except UserError as error:
        raise InvalidInput(str(error)) from error


def _examples(served: ServedModel, needed: str) -> str:
    """What could be given, as the end of a sentence; "" where nothing is known of it."""
    captions = served.spec.get("captions")
    if needed == "class":
        return f"; {_classes(served)}"
    return f", such as {captions[0]!r}" if needed == "caption" and captions else ""


def _classes(served: ServedModel) -> str:
    classes = served.spec.get("classes") or []
    return f"there are {', '.join(classes)}" if classes else "the classes have numbers"


def encode_image(image: np.ndarray, container: str = "PNG") -> bytes:
    """The PNG, JPEG or WEBP file of an image uint8 [side, side, 1 or 3]."""
    memory = io.BytesIO()
    grey = image.shape[-1] == 1
    Image.fromarray(image[..., 0] if grey else image).save(memory, container)
    return memory.getvalue()
