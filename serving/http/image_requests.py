"""Checks image requests before anything is drawn, and encodes images as files."""

import io
from typing import Any

import numpy as np
from PIL import Image

from onepass.bundles.errors import InvalidInput
from onepass.bundles.image_inputs import CONDITIONS, classes_of, condition_rows
from onepass.bundles.signature import IMAGE, Signature, fastest, scale_name
from serving.engine.served_model import ServedModel
from serving.http.fields import invalid_field
from serving.http.json_tensors import json_tensor


def signature(served: ServedModel) -> Signature:
    """Return the fastest signature that draws whole images."""
    return served.signatures[fastest(served.signatures)]


def condition_input(served: ServedModel) -> str | None:
    """Return the name of the condition's input, "label", "caption" or "map", or None."""
    return next((name for name in CONDITIONS if name in signature(served).inputs), None)


def scales(served: ServedModel) -> list[tuple[int, str]]:
    """Return the side and the output name of each scale, smallest first, up to the whole image."""
    outputs = signature(served).outputs
    whole = outputs[IMAGE].shape[1] or served.spec["size"]
    smaller = {name: info for name, info in outputs.items() if name.startswith(f"{IMAGE}_")}
    sides = [(info.shape[1] or whole, name) for name, info in smaller.items()]
    return [pair for pair in sorted(sides) if pair[0] != whole] + [(whole, IMAGE)]


def scale_signatures(served: ServedModel) -> list[str]:
    """Return the names of the signatures that draw an image scale by scale.

    Each except the first takes the previous scale as `start`. If the model has no such signatures,
    return only the name of the one that draws the whole image.
    """
    names = [scale_name(side) for side, _ in scales(served)]
    known = all(name in served.signatures for name in names)
    return names if known else [fastest(served.signatures)]


def number_of_images(field: str, num: int | None, most: int) -> int:
    """Return the number of images of a request, by default 1; raise InvalidInput above `most`."""
    if num is not None and num > most:
        raise invalid_field(field, f"an integer from 1 to {most}", num)
    return num or 1


def condition(
    served: ServedModel, given: dict[str, Any], field: str = "class"
) -> dict[str, np.ndarray]:
    """Return the input, by name, for an image's class, caption or map."""
    name = condition_input(served)
    needed = CONDITIONS.get(name or "")
    for other in given:
        if other != needed:
            needs = f"`{needed}`" if needed else "nothing"
            raise InvalidInput(f"`{other}` must not be given: the model needs {needs}.")
    if name is None or needed is None:
        return {}
    if needed not in given:
        raise InvalidInput(f"`{needed}` must be given{_examples(served, needed)}.")
    value, info = given[needed], signature(served).inputs[name]
    if name == "map":
        return {name: json_tensor(name, [value], info)}
    return condition_rows(name, [value], served.spec.get("classes") or [], info, field)


def _examples(served: ServedModel, needed: str) -> str:
    captions = served.spec.get("captions")
    if needed == "class":
        return f"; {classes_of(served.spec.get('classes') or [])}"
    return f", such as {captions[0]!r}" if needed == "caption" and captions else ""


def encode_image(image: np.ndarray, container: str = "PNG") -> bytes:
    """Encode an image uint8 [side, side, 1 or 3] as a PNG, JPEG or WEBP file."""
    memory = io.BytesIO()
    grey = image.shape[-1] == 1
    Image.fromarray(image[..., 0] if grey else image).save(memory, container)
    return memory.getvalue()
