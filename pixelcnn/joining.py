"""Parts of a multiscale model that several runs, or model folders, have trained, as one model.

No part depends on another's weights, but of captions on those of the encoder it was trained with.
Encoders of words are put side by side, every part reading its own's channels: a vector is the sum
of the vectors of words, and a map is linear in it, so that both encoders are one that is wider.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pixelcnn.model import ImageModel, folder_of, load, model_of, spec_of
from replicator.runs.atomic_files import Arrays
from replicator.runs.errors import UserError
from replicator.runs.model_folder import stored_model

OF_THE_MODEL = ("kind", "network", "output", "conditioning", "class_names", "statistics")
OF_THE_IMAGES = ("size", "channels", "reduce")
TABLE, PAINTED = "conditioner/text/table", "conditioner/painted/kernel"
SHALLOW = "/shallow/"  # in the names of what reads a factor's units, and no condition
# The weights that read a condition, and the axis of its channels.
READS_VECTOR = {"vector_kernel": 0}
READS_MAP = {"map_kernel": 0, "map_prediction": 0, "map_front": 2}


class _Trained(NamedTuple):
    """What a run or folder adds: its configuration, its weights by name, the parts taken from it.

    is_encoded: whether it has trained an encoder.
    """

    path: Path
    stored: dict[str, Any]
    weights: Arrays
    parts: tuple[str, ...]
    is_encoded: bool


class _Channels(NamedTuple):
    """Channels of a condition that an encoder fills, among `all_`: `own`, from `first` on."""

    first: int
    own: int
    all_: int

    def padded(self, weight: np.ndarray, axis: int) -> np.ndarray:
        """The weight of all channels, zero for those of the others; what lies behind stays."""
        own, behind = np.split(weight, [self.own], axis)
        sizes = [(0, 0)] * weight.ndim
        sizes[axis] = (self.first, self.all_ - self.first - self.own)
        return np.concatenate([np.pad(own, sizes), behind], axis)


def joined(run: Path, others: Sequence[Path]) -> tuple[dict, ImageModel]:
    """The configuration and the model of runs, or folders, that each trained some of its parts.

    A part that several have trained is the first one's. The base may be of another width in each
    of them: no other part depends on it.

    Raises UserError if they are of different models, or train encoders that cannot be joined.
    """
    taken: list[_Trained] = []
    for path in (run, *others):
        known = {part for each in taken for part in each.parts}
        taken.append(_trained(path, known))
        _check_alike(taken[0], taken[-1])
    taken = [each for each in taken if each.parts]
    first = taken[0].stored
    network, small = first["network"], str(first["network"]["base_size"])
    base = next((t.stored["network"]["base"] for t in taken if small in t.parts), network["base"])
    parts = sorted((part for each in taken for part in each.parts), key=_place)
    whole = {**first, "network": network | {"base": base}, "parts": parts}
    if any(each.is_encoded for each in taken):
        conditioning, weights = _side_by_side(taken)
        whole["conditioning"] = first["conditioning"] | conditioning
    else:
        weights = {name: w for each in taken for name, w in _own(each).items()}
    return whole, model_of(whole, weights, {**spec_of(whole, run), "step": None}, run)


def _trained(path: Path, known: set[str]) -> _Trained:
    """What is at a path, with the parts that are not known yet."""
    stored, weights, _ = stored_model(folder_of(path), spec_of)
    model = load(path)
    if model.multiscale is None:
        raise UserError(f"{path} holds a PixelCNN, which has no parts.")
    parts = tuple(part for part in model.multiscale.parts if part not in known)
    floats = {name: weight.astype(np.float32) for name, weight in weights.items()}
    is_encoded = bool(model.density.conditioner.trainable_variables)
    if is_encoded and TABLE not in weights:
        raise UserError(f"{path} trained an encoder of its own; its parts go with no others.")
    return _Trained(path, stored, floats, parts, is_encoded)


def _check_alike(first: _Trained, other: _Trained) -> None:
    """Raises UserError unless both are of one model."""
    network = other.stored["network"] | {"base": first.stored["network"]["base"]}
    like = {**other.stored, "network": network}
    different = [k for k in OF_THE_MODEL if like.get(k) != first.stored.get(k)]
    here, there = other.stored.get("data") or {}, first.stored.get("data") or {}
    different += [f"data.{k}" for k in OF_THE_IMAGES if here.get(k) != there.get(k)]
    if different:
        raise UserError(f"{other.path} and {first.path} differ in {', '.join(different)}.")


def _own(each: _Trained) -> Arrays:
    """The weights of the parts that are taken from a run, by name."""
    network = each.stored["network"]
    return {
        name: weight
        for name, weight in each.weights.items()
        if not name.startswith("conditioner/") and _part_of(name, network) in each.parts
    }


def _side_by_side(taken: list[_Trained]) -> tuple[dict[str, int], Arrays]:
    """The joined encoder's channels, as settings, and all weights, each reading its encoder's."""
    vectors = _channels([each.stored["conditioning"]["text_channels"] for each in taken])
    maps = _channels([each.stored["conditioning"]["text_map_channels"] for each in taken])
    tables = [each.weights[TABLE] for each in taken]
    weights: Arrays = {TABLE: np.concatenate(tables, -1)}
    painted: Any = 0.0
    for each, vector, map_ in zip(taken, vectors, maps, strict=True):
        for name, weight in _own(each).items():
            kind = "" if SHALLOW in name else name.rpartition("/")[2]
            if kind in READS_VECTOR:
                weight = vector.padded(weight, READS_VECTOR[kind])
            elif kind in READS_MAP:
                weight = map_.padded(weight, READS_MAP[kind])
            weights[name] = weight
        if map_.own:
            kernel = each.weights[PAINTED].reshape(vector.own, -1, map_.own)
            painted = painted + map_.padded(vector.padded(kernel, 0), 2)
    if maps[0].all_:
        weights[PAINTED] = painted.reshape(vectors[0].all_, -1)
    return {"text_channels": vectors[0].all_, "text_map_channels": maps[0].all_}, weights


def _channels(sizes: list[int]) -> list[_Channels]:
    return [_Channels(sum(sizes[:i]), own, sum(sizes)) for i, own in enumerate(sizes)]


def _place(part: str) -> tuple[int, str]:
    return int(part.split(".")[0]), part


def _part_of(weight: str, network: dict) -> str:
    _, kind, part, *_ = weight.split("/")
    return part if kind == "factors" else str(network["base_size"])
