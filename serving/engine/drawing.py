"""Images of a served model, drawn scale by scale for all that stream them."""

import asyncio
import collections
import io
import itertools
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
from PIL import Image

from onepass.bundles.errors import InvalidInput
from onepass.bundles.sampling import CONDITIONS, classes_of, condition_rows
from onepass.bundles.signature import Arrays, Signature, fastest, scale_name
from serving.engine.fields import json_tensor
from serving.engine.served_model import ServedModel


def signature(served: ServedModel) -> Signature:
    """Return the fastest signature that draws whole images."""
    return served.signatures[fastest(served.signatures)]


def condition_input(served: ServedModel) -> str | None:
    """Return the name of the condition's input, "label", "caption" or "map", or None."""
    return next((name for name in CONDITIONS if name in signature(served).inputs), None)


def scales(served: ServedModel) -> list[tuple[int, str]]:
    """Return the side and the output name of each scale, smallest first, up to the whole image."""
    outputs = signature(served).outputs
    whole = outputs["picture"].shape[1] or served.spec["size"]
    smaller = {name: info for name, info in outputs.items() if name.startswith("picture_")}
    sides = [(info.shape[1] or whole, name) for name, info in smaller.items()]
    return [pair for pair in sorted(sides) if pair[0] != whole] + [(whole, "picture")]


def condition(served: ServedModel, given: dict[str, Any], field: str = "class") -> Arrays:
    """Return the input, by name, for an image's class, caption or map."""
    name, classes = condition_input(served), served.spec.get("classes") or []
    needed = CONDITIONS.get(name or "")
    for other in given:
        if other != needed:
            needs = f"`{needed}`" if needed else "nothing"
            raise InvalidInput(f"`{other}` must not be given: the model needs {needs}.")
    if name is None or needed is None:
        return {}
    if needed not in given:
        captions, choice = served.spec.get("captions"), ""
        if needed == "class":
            choice = f"; {classes_of(classes)}"
        elif needed == "caption" and captions:
            choice = f", such as {captions[0]!r}"
        raise InvalidInput(f"`{needed}` must be given{choice}.")
    info = signature(served).inputs[name]
    if name == "map":
        return {name: json_tensor(name, [given[needed]], info)}
    return condition_rows(name, [given[needed]], classes, info, field)


def encode_image(image: np.ndarray, file: str = "png") -> bytes:
    """Encode an image uint8 [side, side, 1 or 3] as a file: "png", "jpeg" or "webp"."""
    memory = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(memory, file)
    return memory.getvalue()


async def image_scales(
    served: ServedModel, rows: list[Arrays]
) -> AsyncGenerator[tuple[int, np.ndarray, bool], None]:
    """Yield (index of the image, pixels of a scale, is last) in order; a batch is drawn at once."""
    ahead = max(served.spec["serving"]["allowed_batches"])
    in_progress: collections.deque[list[asyncio.Task]] = collections.deque()
    waiting = collections.deque(rows)
    try:
        for number in range(len(rows)):
            while waiting and len(in_progress) < ahead:
                in_progress.append(_start_scales(served, waiting.popleft()))
            for scale in in_progress[0]:
                yield number, await scale, scale is in_progress[0][-1]
            in_progress.popleft()
    finally:
        tasks = list(itertools.chain.from_iterable(in_progress))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _start_scales(served: ServedModel, inputs: Arrays) -> list[asyncio.Task]:
    tasks: list[asyncio.Task] = []
    names = [scale_name(side) for side, _ in scales(served)]
    if not all(name in served.signatures for name in names):
        names = [fastest(served.signatures)]  # which draws the whole image
    for name in names:
        work = _scale(served, inputs, name, tasks[-1] if tasks else None)
        tasks.append(asyncio.create_task(work))
    return tasks


async def _scale(
    served: ServedModel, inputs: Arrays, signature: str, smaller: asyncio.Task | None
) -> np.ndarray:
    start = {} if smaller is None else {"start": (await smaller)[np.newaxis]}
    return (await served.predict(inputs | start, signature))["picture"][0]
