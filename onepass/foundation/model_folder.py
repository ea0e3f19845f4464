"""Model folders: model.json describes the model, weights.npz contains its weights by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import DTypeLike

from onepass.foundation.files import Arrays, read_json, read_npz, write_npz, write_text
from onepass.foundation.locations import SPEC_FILE, WEIGHTS_FILE
from onepass.foundation.progress import say
from onepass.foundation.rules import UserError
from onepass.foundation.run_directory import RunDirectory

SHARED = "shared_weights"  # in model.json: {"folder": "a", "prefix": "b/"}, b/* are only in ../a


def save(
    network: tf.Module, spec: dict, stored: dict, folder: Path, dtype: DTypeLike = np.float32
) -> None:
    """Write a model folder: model.json (`spec` and configuration) and weights.npz as `dtype`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    names = variable_names(network)
    arrays = {
        name: variable.numpy().astype(dtype)
        for name, variable in zip(names, network.trainable_variables, strict=True)
    }
    write_npz(folder / WEIGHTS_FILE, arrays)
    write_text(folder / SPEC_FILE, json.dumps({**spec, "config": stored}, indent=2) + "\n")


def best_or_newest(run: RunDirectory) -> Arrays:
    """Return a run's best arrays on dev, or its newest; say on stderr what was passed over."""
    checkpoints = run.checkpoints()
    best, damaged = checkpoints.best_step(), []
    if best is not None:
        try:
            found = read_npz(checkpoints.path(best))
        except UserError:
            damaged = [checkpoints.path(best)]
        else:
            newest = checkpoints.steps()[-1]
            if newest > (checkpoints.scored_step() or 0):
                say(f"{run.path}: using step {best}; step {newest} is not evaluated on dev yet.")
            return found
    arrays, newer = checkpoints.newest()
    if arrays is None:
        raise UserError(f"{run.path} has no checkpoint yet; training writes one.")
    for path in dict.fromkeys([*damaged, *newer]):
        say(f"{path} is damaged; using step {int(arrays['step'])} instead.")
    return arrays


def averages(arrays: Arrays) -> Arrays:
    """Return the Polyak averages in a checkpoint, by variable name."""
    slot = "average/"
    return {name.removeprefix(slot): v for name, v in arrays.items() if name.startswith(slot)}


def read_folder(path: Path) -> tuple[dict[str, Any], Arrays]:
    """Return the contents of model.json and the weights of a folder."""
    spec = read_json(path / SPEC_FILE)
    if "config" not in spec:
        raise UserError(f"{path / SPEC_FILE} must hold a JSON object with the key `config`.")
    return spec, _read_weights(path, spec)


def _read_weights(path: Path, spec: dict[str, Any]) -> Arrays:
    """Return a folder's weights, with those of its neighbour that `SHARED` names by a prefix."""
    own = read_npz(path / WEIGHTS_FILE)
    if SHARED not in spec:
        return own
    try:
        folder, prefix = Path(spec[SHARED]["folder"]).name, str(spec[SHARED]["prefix"])
    except (KeyError, TypeError) as error:
        raise UserError(
            f"`{SHARED}` in {path / SPEC_FILE} must name a `folder` and a `prefix`."
        ) from error
    file = path.parent / folder / WEIGHTS_FILE
    if not file.exists():
        raise UserError(
            f"{path} has only a part of its weights, and {file}, which has the others, is missing; "
            "`onepass export MODEL --bare --out FOLDER` writes a folder with all of them."
        )
    return {k: array for k, array in read_npz(file).items() if k.startswith(prefix)} | own


def read_stored_model(
    path: Path, spec_of: Callable[[dict, Path], dict[str, Any]]
) -> tuple[dict, Arrays, dict[str, Any]]:
    """Return the configuration, weights and model.json of a model folder or a run directory.

    For a run, they are the averages in the checkpoint that `best_or_newest` chooses, and what
    `spec_of` returns for its configuration and path, with the checkpoint's step.
    """
    if (path / SPEC_FILE).exists():
        spec, weights = read_folder(path)
        return spec["config"], weights, spec
    run = RunDirectory.open(path)
    stored = run.config()
    arrays = best_or_newest(run)
    spec = {**spec_of(stored, path), "step": int(arrays["step"])}
    return stored, averages(arrays), spec


def read_stored_weights(path: Path) -> Arrays:
    """Return the weights that `read_stored_model` does, by name."""
    return read_stored_model(path, lambda stored, path: {})[1]


def assign_weights(network: tf.Module, weights: Arrays, path: Path) -> None:
    """Assign weights to a network's trainable variables by name."""
    for name, variable in zip(variable_names(network), network.trainable_variables, strict=True):
        if name not in weights or weights[name].shape != tuple(variable.shape):
            raise UserError(
                f"The weights in {path} do not fit the configuration of the network: `{name}`."
            )
        variable.assign(weights[name].astype(variable.dtype.as_numpy_dtype))


def variable_names(network: tf.Module) -> list[str]:
    """Return a unique path for each trainable variable, e.g. `stack/layers/3/gate_kernel`."""
    paths: dict[object, str] = {}
    for path, value in network._flatten(  # tf.Module's own traversal, the only one with paths
        predicate=lambda v: isinstance(v, tf.Variable), with_path=True, expand_composites=False
    ):
        paths.setdefault(value.ref(), "/".join(str(part) for part in path))
    return [paths[v.ref()] for v in network.trainable_variables]
