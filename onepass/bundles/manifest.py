"""The folder of a bundle: its kind, its name, the digests of its files, and its signature.

Names appear unchanged in URLs, metrics and logs, so they need no quoting anywhere. Only plain files
are read, up to a size limit: a link can lead anywhere, and a pipe blocks its reader. Either may
replace a file between a check and its opening, so the opened file is checked. Signatures are
ed25519 signatures of the name, the version and the manifest's SHA-256; keys are PEM files, as
written by `openssl genpkey -algorithm ed25519`.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from onepass.bundles.errors import shorten_text
from onepass.foundation.files import open_plain, read_plain
from onepass.foundation.model_folders import SAVED_FILE, read_object
from onepass.foundation.rules import UserError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
VERSION = re.compile(r"0|[1-9][0-9]{0,17}")  # each number is written in one way
NAME_RULE = (
    "must be at most 128 letters from a to z or A to Z, digits and `._-`, not begun by `._-`"
)
VERSION_RULE = "must be a number of at most 18 digits from 0 to 9, not begun by 0"


def is_version(word: str) -> bool:
    """Return whether a word is a version."""
    return VERSION.fullmatch(word) is not None


def name_problem(word: str) -> str:
    """Return the rule that the name of a model breaks, and the name; "" if it breaks none."""
    return "" if NAME.fullmatch(word) else f"{NAME_RULE}, got `{shorten_text(word)}`"


def version_problem(word: str) -> str:
    """Return the rule that a version breaks, and the version; "" if it breaks none."""
    return "" if is_version(word) else f"{VERSION_RULE}, got `{shorten_text(word)}`"


def folder_problem(path: Path) -> str:
    """Return why a path does not end in NAME/VERSION, in one clause; "" if it does."""
    path = path.absolute()
    if problem := version_problem(path.name):
        return f"a version {problem}"
    problem = name_problem(path.parent.name)
    return problem and f"a name {problem}"


def check_folder(path: Path, what: str) -> None:
    """Raise UserError, naming the path `what`, unless it ends in NAME/VERSION."""
    if problem := folder_problem(path):
        raise UserError(f"{what} must end in NAME/VERSION, such as voice/1, got {path}: {problem}.")


MANIFEST, SIGNATURE = "manifest.json", "manifest.sig"
FORMAT = 1
MOST_MANIFEST_BYTES = 2**20
MOST_FILES = 1000
MOST_BYTES = 2**35  # total size of all files
MOST_KEY_BYTES = 2**12
SIGNATURE_BYTES = 64


def write_manifest(folder: Path, more: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Write FOLDER/manifest.json with `more` and the digests of all other files, at any depth."""
    digests = {name: digest(folder / name) for name in files_of(folder)}
    text = json.dumps({**more, "format": FORMAT, "sha256": digests}, indent=1)
    (Path(folder) / MANIFEST).write_text(text + "\n", encoding="utf-8")


def verify(folder: Path, manifest_digest: str = "") -> None:
    """Raise UserError, naming the file, unless all files match the manifest.

    No file may be missing from the folder or from the manifest, and none may be a link. If
    `manifest_digest` is given, it must be the manifest's SHA-256.
    """
    path, missing = folder / MANIFEST, f"{folder} is not a bundle: it has no {MANIFEST}."
    manifest = read_object(path, MOST_MANIFEST_BYTES, missing, manifest_digest)
    if manifest.get("format") != FORMAT:
        raise UserError(f"{path} is not of format {FORMAT}, which this version reads.")
    listed, found = manifest.get("sha256"), files_of(folder)
    if not isinstance(listed, dict):
        raise UserError(f"{path} must hold the key `sha256`.")
    if sum((folder / name).lstat().st_size for name in found) > MOST_BYTES:
        raise UserError(f"{folder} must have at most {MOST_BYTES:,} bytes.")
    changed = f"{folder} was changed since its export"
    for name in sorted(listed.keys() - set(found)):
        raise UserError(f"{changed}: {name} is missing.")
    for name in found:
        if name not in listed:
            raise UserError(f"{changed}: {name} was added.")
        try:
            same = digest(folder / name) == listed[name]
        except OSError as error:
            raise UserError(f"{folder / name} cannot be read: {error.strerror}.") from error
        if not same:
            raise UserError(f"{changed}: {name} differs.")


def files_of(folder: Path) -> list[str]:
    """Return the sorted relative paths of all files except the manifest and its signature."""
    names: list[str] = []
    for parent, inside, files in os.walk(folder):
        for name in [*inside, *files]:
            path = Path(parent) / name
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                raise UserError(f"{path} must be a plain file, not a link.")
        names += [(Path(parent) / name).relative_to(folder).as_posix() for name in files]
        if len(names) > MOST_FILES:
            raise UserError(f"{folder} must have at most {MOST_FILES} files.")
    return sorted(name for name in names if name not in (MANIFEST, SIGNATURE))


def digest(path: Path) -> str:
    """Return the SHA-256 of a plain file, in hexadecimal."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_key(path: Path, kind: Literal["private", "public"]) -> Any:
    """Read an ed25519 key from a PEM file; raise UserError if that fails."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise UserError("Signatures need another package: pip install 'onepass[sign]'") from error
    try:
        content = read_plain(path.resolve(), MOST_KEY_BYTES)
    except OSError as error:
        raise UserError(f"Cannot read the key {path}: {error.strerror}.") from error
    try:
        if kind == "private":
            key: Any = serialization.load_pem_private_key(content, password=None)
        else:
            key = serialization.load_pem_public_key(content)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} must be a {kind} key in PEM, without a password.") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey | ed25519.Ed25519PublicKey):
        raise UserError(f"{path} must be an ed25519 key.")
    return key


def sign(folder: Path, name: str, version: int, key: Any) -> None:
    """Write the signature of a bundle that will be named NAME/VERSION next to its manifest."""
    digest = hashlib.sha256((Path(folder) / MANIFEST).read_bytes()).hexdigest()
    (Path(folder) / SIGNATURE).write_bytes(key.sign(_message(name, version, digest)))


def signed_manifest(folder: Path, keys: Sequence[Any]) -> str:
    """Return the SHA-256 of the signed manifest of a bundle's folder; "" if it is not signed."""
    folder = Path(folder)
    try:
        signature = read_plain(folder / SIGNATURE, SIGNATURE_BYTES)
    except FileNotFoundError:
        return ""
    digest = hashlib.sha256(read_plain(folder / MANIFEST, MOST_MANIFEST_BYTES)).hexdigest()
    message = _message(folder.parent.name, int(folder.name), digest)
    from cryptography.exceptions import InvalidSignature

    for key in keys:
        with contextlib.suppress(InvalidSignature):
            key.verify(signature, message)
            return digest
    raise UserError(
        f"{folder} is signed by none of the keys in `--trust`, or was changed or renamed since."
    )


def _message(name: str, version: int, digest: str) -> bytes:
    return f"onepass bundle {name}/{version} {digest}".encode()


FolderKind = Literal["saved", "bundle", "trained"]
PROGRAMS = ("saved_model.pb", "lowered.pb")  # in bundles
RUN = "config.json"
PARTS = {".stablehlo": "JAX", ".tflite": "LiteRT"}  # of `export --format`, by their suffixes
NOT_SAVED = ("manifest.json", "model.json", "weights.npz", RUN)  # bundles, model folders, runs


def folder_kind(path: Path) -> FolderKind:
    """Return "saved" (by `onepass.save`), "bundle" (NAME[/VERSION]) or "trained", by file names.

    Raises:
      UserError: the folder has files of two kinds, or functions of one size for another runtime.
    """
    of_versions = ((each.name, _first(each, PROGRAMS)) for each in versions_of(path))
    program = _first(path, PROGRAMS)
    program = program or next((f"{version}/{name}" for version, name in of_versions if name), "")
    if _first(path, (SAVED_FILE,)):
        _refuse(path, SAVED_FILE, program or _first(path, NOT_SAVED))
        return "saved"
    if program:
        _refuse(path, program, _first(path, (RUN,)))
        return "bundle"
    for suffix, runtime in PARTS.items():
        if _first(path, ("manifest.json",)) and any(path.glob(f"*{suffix}")):
            raise UserError(
                f"{path} holds functions for {runtime}, which runs them; it is no model."
            )
    return "trained"


def _refuse(path: Path, one: str, other: str) -> None:
    if other:
        raise UserError(
            f"{path} is ambiguous: it has both {one} and {other}, of two kinds of models."
        )


def _first(path: Path, names: tuple[str, ...]) -> str:
    """Return the first of `names` that the folder contains, even as a broken link; "" if none."""
    return next((name for name in names if os.path.lexists(path / name)), "")


def versions_of(path: Path) -> list[Path]:
    """Return the folders NAME/VERSION of a folder NAME, lowest first."""
    found = (folder for folder in path.glob("*/") if is_version(folder.name))
    return sorted(found, key=lambda folder: int(folder.name))
