"""Folders of models: where they are, of which kind, and what they hold; and servers' addresses.

In the folder of a trained model, model.json describes it and weights.npz contains its weights by
name. Imports TensorFlow and NumPy only to write weights.
"""

import hashlib
import ipaddress
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from onepass.foundation.files import Arrays, read_json, read_npz, read_plain, write_npz, write_text
from onepass.foundation.rules import UserError

if TYPE_CHECKING:
    import tensorflow as tf
    from numpy.typing import DTypeLike

    from onepass.foundation.run_directory import RunDirectory

ROOT = Path(__file__).resolve().parents[2]  # of the packages, in a checkout or installed
FOLDERS = {
    "shipped": "distill/shipped/universal-student-22k",
    "shipped-small": "distill/shipped/universal-small-22k",
    "shipped-kathleen": "distill/shipped/kathleen-student-16k",
    "shipped-teacher": "wavenet/shipped/kathleen-teacher-16k",
    "shipped-two-voices": "wavenet/shipped/kathleen-nathalie-teacher-24k",
    "shipped-universal-teacher": "wavenet/shipped/universal-teacher-22k",
    "shipped-speech-16k": "wavenet/shipped/speech-density-16k",
    "shipped-digits": "pixelcnn/shipped/digits-multiscale-32",
    "shipped-digits-teacher": "pixelcnn/shipped/digits-pixelcnn-32",
    "shipped-digits-flow": "pixelcnn/shipped/digits-flow-32",
    "shipped-objects": "pixelcnn/shipped/objects-multiscale-64",
    "shipped-objects-teacher": "pixelcnn/shipped/objects-pixelcnn-64",
    "shipped-digits-64": "pixelcnn/shipped/digits-multiscale-64",
    "shipped-digits-64-teacher": "pixelcnn/shipped/digits-pixelcnn-64",
    "shipped-emoji": "pixelcnn/shipped/emoji-multiscale-32",
    "shipped-upsample": "pixelcnn/shipped/upsample-512",
}
"""The folder of each model, by name: sound first, students before their teachers."""

# In a checkout of the source, for repeating measurements; loaded by name, but not listed.
SOURCE_ONLY = ("shipped-objects", "shipped-objects-teacher")
SHIPPED = tuple(name for name in FOLDERS if name not in SOURCE_ONLY)


def folder(name: str) -> Path:
    """Return the model folder of a shipped model, with model.json and card.md."""
    return check_packed(name, ROOT / FOLDERS[name])


def names_in(package: str) -> list[str]:
    """Return the names of the listed models that lie in a package, such as "wavenet"."""
    return [name for name in SHIPPED if FOLDERS[name].startswith(f"{package}/")]


def model_folder(path: Path | str) -> Path:
    """Return the path or, if it does not exist, the folder of the shipped model that it names."""
    path = Path(path)
    return folder(str(path)) if str(path) in FOLDERS and not path.exists() else path


def check_packed(name: str, path: Path) -> Path:
    """Return a path of a shipped model; raise a UserError if the wheel was built without it."""
    if not path.exists():
        raise UserError(
            f"{name} comes with the source of onepass, in pixelcnn/shipped, and not in the "
            "installed package; clone the repository and run `pip install -e .` there."
        )
    return path


SPEC_FILE, WEIGHTS_FILE = "model.json", "weights.npz"
SAVED_FILE = "autoregressive.json"  # written by `onepass.save`


def kind_of(path: Path) -> str | None:
    """Return the kind of model in a run, model folder or saved folder, or None if it is unknown."""
    for name in (SPEC_FILE, "config.json", SAVED_FILE):
        file = Path(path) / name
        try:
            if not file.is_file():  # a pipe would block the reader
                continue
            stored = json.loads(file.read_text())
        except (OSError, RecursionError, ValueError):
            continue
        kind = stored.get("kind") if isinstance(stored, dict) else None
        return kind if isinstance(kind, str) else None
    return None


# A model that replaces another one is written to the name that the other one does not have.
PROGRAM_FOLDERS = ("program", "program.new")
MOST_SPEC_BYTES = 2**24


def read_object(
    path: Path, most_bytes: int = MOST_SPEC_BYTES, missing: str = "", digest: str = ""
) -> dict[str, Any]:
    """Return the JSON object in a plain file, {} for another value; raise UserError if it fails.

    `missing` is the message if there is no such file, `digest` the SHA-256 of the signed one.
    """
    try:
        content = read_plain(path, most_bytes)
        if digest and hashlib.sha256(content).hexdigest() != digest:
            raise UserError(f"{path} is not the one that was signed.")
        stored = json.loads(content)
    except UserError:
        raise
    except (OSError, RecursionError, ValueError) as error:
        is_missing = missing and isinstance(error, FileNotFoundError)
        raise UserError(missing if is_missing else f"{path} cannot be read: {error}.") from error
    return stored if isinstance(stored, dict) else {}


def read_spec(folder: Path) -> dict[str, Any]:
    """Return the values in a stored model's `autoregressive.json`."""
    try:
        spec = read_object(folder / SAVED_FILE)
    except UserError as error:
        raise UserError(f"{folder} contains no model that `save` wrote: {error}") from error
    if not spec:
        raise UserError(f"{folder} contains no model that `save` wrote: {SAVED_FILE} is empty.")
    name = spec.setdefault("program", PROGRAM_FOLDERS[0])
    if name not in PROGRAM_FOLDERS:
        raise UserError(f"{folder} contains no model that `save` wrote: its program is {name!r}.")
    return spec


def program_name(folder: Path) -> str:
    """Return the name of the program in a folder; "" if there is no model."""
    try:
        return read_spec(folder)["program"]
    except UserError:
        return ""


SCHEMES = ("http://", "https://", "grpc://", "grpcs://")  # prefixes of server addresses
TOKEN_VARIABLE = "ONEPASS_TOKEN"
"""The environment variable with the token that a server asks for and a client sends."""


def is_url(word: object) -> bool:
    """Return whether a value is the URL of a served model; schemes ignore case (RFC 3986, 3.1)."""
    return str(word).lower().startswith(SCHEMES)


def check_address(address: str) -> tuple[str, str]:
    """Return the scheme and HOST:PORT of an address; raise UserError if it is invalid.

    An address of HTTP may also have the path of a proxy, HOST:PORT/PATH.
    """
    rule = "must be http://HOST:PORT[/PATH] or grpc://HOST:PORT, with TLS https:// or grpcs://"
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError:
        raise UserError(f"The address {rule}, got {address}.") from None
    path = parts.path.rstrip("/")
    is_grpc = parts.scheme.startswith("grpc")
    plain = not (parts.query or parts.fragment or parts.username or (is_grpc and path))
    if f"{parts.scheme}://" not in SCHEMES or not parts.hostname or not plain:
        raise UserError(f"The address {rule}, got {address}.")
    if is_grpc and port is None:
        raise UserError(f"The address {rule}, got {address} without a port.")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return parts.scheme, (host if port is None else f"{host}:{port}") + path


def is_loopback(host: str) -> bool:
    """Return whether a host name or an address can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


SHARED = "shared_weights"  # in model.json: {"folder": "a", "prefix": "b/"}, b/* are only in ../a


def save(
    network: "tf.Module", spec: dict, stored: dict, folder: Path, dtype: "DTypeLike" = "float32"
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


def best_or_newest(run: "RunDirectory") -> Arrays:
    """Return a run's best arrays on dev, or its newest; say on stderr what was passed over."""
    from onepass.foundation.progress import say

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
    from onepass.foundation.run_directory import RunDirectory

    run = RunDirectory.open(path)
    stored = run.config()
    arrays = best_or_newest(run)
    spec = {**spec_of(stored, path), "step": int(arrays["step"])}
    return stored, averages(arrays), spec


def read_stored_weights(path: Path) -> Arrays:
    """Return the weights that `read_stored_model` does, by name."""
    return read_stored_model(path, lambda stored, path: {})[1]


def assign_weights(network: "tf.Module", weights: Arrays, path: Path) -> None:
    """Assign weights to a network's trainable variables by name."""
    for name, variable in zip(variable_names(network), network.trainable_variables, strict=True):
        if name not in weights or weights[name].shape != tuple(variable.shape):
            raise UserError(
                f"The weights in {path} do not fit the configuration of the network: `{name}`."
            )
        variable.assign(weights[name].astype(variable.dtype.as_numpy_dtype))


def variable_names(network: "tf.Module") -> list[str]:
    """Return a unique path for each trainable variable, e.g. `stack/layers/3/gate_kernel`."""
    import tensorflow as tf

    paths: dict[object, str] = {}
    for path, value in network._flatten(  # tf.Module's own traversal, the only one with paths
        predicate=lambda v: isinstance(v, tf.Variable), with_path=True, expand_composites=False
    ):
        paths.setdefault(value.ref(), "/".join(str(part) for part in path))
    return [paths[v.ref()] for v in network.trainable_variables]
