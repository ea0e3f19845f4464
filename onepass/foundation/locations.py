"""Where models are: the folders of the shipped ones, the files of any, and servers' addresses."""

import hashlib
import ipaddress
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from onepass.foundation.files import read_plain
from onepass.foundation.rules import UserError

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
