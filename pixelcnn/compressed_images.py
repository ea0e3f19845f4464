"""Compressed files of images, for `ImageModel.compress` and `decompress`."""

from typing import Any

import numpy as np

from compression import fields, verification
from compression.container import Container, check_decoded, checksum_of, digest_of, read_for
from compression.verification import Moved, moved_by
from replicator.runs.errors import UserError
from replicator.runs.model_folder import variable_names

MOST_BATCH = 1 << 12  # images that are decoded together, in memory
# Types of conditions in a file, by the kind of the model's condition.
STORED: dict[str, type] = {"none": type(None), "class": int, "text": str, "map": list}
ImageModel = Any  # of pixelcnn/model.py, whose methods these functions are


def compress(
    model: ImageModel,
    images: np.ndarray,
    condition: Any,
    batch: int,
    tolerance: float,
    verify: bool,
) -> bytes:
    """Return the file of images; arguments and errors as for `ImageModel.compress`."""
    _check_model(model)
    images = _checked(model, images)
    if not 1 <= batch <= MOST_BATCH:
        raise UserError(f"`batch` must be 1 to {MOST_BATCH}, got {batch}.")
    if not 0 <= tolerance <= 1e-3:
        raise UserError(f"`tolerance` must be 0 to 0.001, got {tolerance:g}.")
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
    data = Container(
        "images",
        digest(model),
        model.config.output.levels,
        checksum_of(images),
        images.shape,
        {"batch": batch} | ({} if stored == [None] else {"condition": stored}),
        tuple(streams),
    ).to_bytes()
    if verify:
        verification.verify(lambda: decompress(model, data, moved_by(tolerance)), tolerance)
    return data


def read(model: ImageModel, data: bytes) -> Container:
    """Return a file of this model's images, all fields of which are in range.

    Raises:
      UserError: the file is damaged, truncated or of another model.
    """
    _check_model(model)
    found = read_for(data, "images", digest(model), model.config.output.levels)
    num, *shape = found.shape
    if not num or tuple(shape) != (model.size, model.size, model.channels):
        fields.damaged("shape", f"one or more images of {model.size}x{model.size} pixels")
    batch = fields.whole("batch", found.description.get("batch"), 1, MOST_BATCH)
    if len(found.streams) != -(-num // batch):
        fields.damaged("streams", f"one for each {batch} images")
    stored = fields.listed("condition", found.description.get("condition", [None]), (1, num))
    wanted = STORED[model.config.conditioning.kind]
    if not all(type(value) is wanted for value in stored):
        fields.damaged("condition", f"a list of {wanted.__name__}")
    return found


def decompress(model: ImageModel, data: bytes, moved: Moved | None = None) -> np.ndarray:
    """Return the images of a file; errors as for `ImageModel.decompress`.

    Args:
      model: of the images.
      data: the file.
      moved: changes the last layer's outputs; None: they are as they are.
    """
    found = read(model, data)
    num, *shape = found.shape
    batch, stored = found.description["batch"], found.description.get("condition", [None])
    parts = []
    for i, stream in enumerate(found.streams):
        count = min(batch, num - i * batch)
        rows = _read_conditions(model, stored, i * batch, count)
        parts.append(model.codec.decode(stream, (count, *shape), rows, moved).astype(np.uint8))
    images = np.concatenate(parts)
    check_decoded(images, found)
    return images


def _read_conditions(model: ImageModel, stored: list, first: int, count: int) -> dict:
    """Return `_conditions` of a file.

    Raises:
      UserError: a condition is none of the model's.
    """
    try:
        rows = _conditions(model, stored, first, count)
    except (TypeError, ValueError, OverflowError):  # of lists that are no maps
        fields.damaged("condition", "maps")
    if "map" in rows and rows["map"].shape != (count, model.size, model.size):
        fields.damaged("condition", f"maps of {model.size}x{model.size} labels")
    return rows


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
