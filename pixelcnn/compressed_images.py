"""Compressed files of images, for `ImageModel.compress` and `decompress`."""

from typing import Any

import numpy as np

from compression.container import Container, check_decoded, checksum_of, digest_of, read_for
from replicator.runs.errors import UserError
from replicator.runs.model_folder import variable_names

ImageModel = Any  # of pixelcnn/model.py, whose methods these functions are


def compress(
    model: ImageModel, images: np.ndarray, condition: Any, batch: int, tolerance: float
) -> bytes:
    """Return the file of images; arguments and errors as for `ImageModel.compress`."""
    _check_model(model)
    images = _checked(model, images)
    if batch < 1 or not 0 <= tolerance <= 1e-3:
        what = f"batch {batch}" if batch < 1 else f"tolerance {tolerance:g}"
        raise UserError(f"The batch must be 1 or more, the tolerance 0 to 0.001, got {what}.")
    values = list(condition) if isinstance(condition, list | tuple) else [condition]
    if len(values) not in (1, len(images)):
        raise UserError(f"There must be 1 or {len(images)} conditions, got {len(values)}.")
    stored = [_stored(model, value) for value in values]
    stored = stored[:1] if all(each == stored[0] for each in stored) else stored
    streams = []
    for first in range(0, len(images), batch):
        part = images[first : first + batch]
        rows = _conditions(model, stored, first, len(part))
        streams.append(model.codec.encode(part.astype(np.int32), rows, tolerance))
    return Container(
        "images",
        digest(model),
        model.config.output.levels,
        checksum_of(images),
        images.shape,
        {"batch": batch} | ({} if stored == [None] else {"condition": stored}),
        tuple(streams),
    ).to_bytes()


def decompress(model: ImageModel, data: bytes) -> np.ndarray:
    """Return the images of a file; arguments and errors as for `ImageModel.decompress`."""
    _check_model(model)
    found = read_for(data, "images", digest(model), model.config.output.levels)
    num, *shape = found.shape
    batch, stored = found.description["batch"], found.description.get("condition", [None])
    parts = []
    for i, stream in enumerate(found.streams):
        count = min(batch, num - i * batch)
        rows = _conditions(model, stored, i * batch, count)
        parts.append(model.codec.decode(stream, (count, *shape), rows).astype(np.uint8))
    images = np.concatenate(parts)
    check_decoded(images, found)
    return images


def digest(model: ImageModel) -> bytes:
    """Return the digest of a model's weights, 16 bytes."""
    network = model.network
    named = zip(variable_names(network), network.trainable_variables, strict=True)
    return digest_of({name: variable.numpy() for name, variable in named})


def _check_model(model: ImageModel) -> None:
    multiscale, kind = model.multiscale, model.config.conditioning.kind
    if not model.whole:
        raise UserError("The run has not trained all parts; it gives no probability.")
    if multiscale is not None and multiscale.has_flow:
        raise UserError(
            "The model's base is a flow, of whose images only a bound is known: it has no "
            "conditionals to compress by."
        )
    if kind == "video":
        raise UserError("A video model's images cannot be compressed: they need the frames before.")


def _checked(model: ImageModel, images: np.ndarray) -> np.ndarray:
    """Return the images, once they are known to be of the model's size."""
    images = np.asarray(images)
    wanted = (model.size, model.size, model.channels)
    if images.dtype != np.uint8 or images.shape[1:] != wanted or not len(images):
        raise UserError(
            f"Images must be uint8 [num, {', '.join(map(str, wanted))}], got "
            f"{images.dtype} {list(images.shape)}."
        )
    return images


def _stored(model: ImageModel, value: Any) -> Any:
    """Return a condition as stored: a class's number, a caption, the rows of a map, or None."""
    model.condition(value)  # refuses what the model does not know
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        return value.tolist()
    return model.label(value) if model.config.conditioning.kind == "class" else str(value)


def _conditions(model: ImageModel, stored: list, first: int, count: int) -> dict[str, np.ndarray]:
    """Return the conditions of `count` images from `first` on, as the conditioner reads them."""
    values = stored * count if len(stored) == 1 else stored[first : first + count]
    rows = [model.condition(np.array(v) if isinstance(v, list) else v) for v in values]
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
