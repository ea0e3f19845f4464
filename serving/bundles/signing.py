"""Signatures of bundles: ed25519 over the name, the version and the manifest's SHA-256.

Keys are PEM files, as `openssl genpkey -algorithm ed25519` writes them.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from replicator.runs.errors import UserError
from serving.bundles.manifest import MANIFEST, MOST_MANIFEST_BYTES, SIGNATURE, read_plain

MOST_KEY_BYTES = 2**12
SIGNATURE_BYTES = 64


def private_key(path: Path) -> Any:
    """Read a private key from a PEM file; raise UserError if it is not ed25519."""
    ed25519, serialization = _cryptography()
    content = _content(path)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} must be a private key in PEM, without a password.") from error
    return _checked(path, key, ed25519.Ed25519PrivateKey)


def public_key(path: Path) -> Any:
    """Read a public key from a PEM file; raise UserError if it is not ed25519."""
    ed25519, serialization = _cryptography()
    content = _content(path)
    try:
        key = serialization.load_pem_public_key(content)
    except ValueError as error:
        raise UserError(f"{path} must be a public key in PEM.") from error
    return _checked(path, key, ed25519.Ed25519PublicKey)


def sign(folder: Path, name: str, version: int, key: Any) -> None:
    """Write the signature of a folder, to be served as NAME/VERSION, next to its manifest."""
    digest = hashlib.sha256((Path(folder) / MANIFEST).read_bytes()).hexdigest()
    (Path(folder) / SIGNATURE).write_bytes(key.sign(_message(name, version, digest)))


def signed_manifest(folder: Path, keys: Sequence[Any]) -> str:
    """Return the SHA-256 of the signed manifest of NAME/VERSION; "" if it is not signed.

    A signature by none of the keys, or for something else, raises UserError.
    """
    folder = Path(folder)
    try:
        signature = read_plain(folder / SIGNATURE, SIGNATURE_BYTES)
    except FileNotFoundError:
        return ""
    digest = hashlib.sha256(read_plain(folder / MANIFEST, MOST_MANIFEST_BYTES)).hexdigest()
    message = _message(folder.parent.name, int(folder.name), digest)
    if not any(_verifies(key, signature, message) for key in keys):
        raise UserError(
            f"{folder} is signed by none of the keys in `--trust`, or was changed or renamed since."
        )
    return digest


def _message(name: str, version: int, digest: str) -> bytes:
    return f"onepass bundle {name}/{version} {digest}".encode()


def _verifies(key: Any, signature: bytes, message: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _checked(path: Path, key: Any, kind: type) -> Any:
    if not isinstance(key, kind):
        raise UserError(f"{path} must be an ed25519 key.")
    return key


def _content(path: Path) -> bytes:
    try:
        return read_plain(path.resolve(), MOST_KEY_BYTES)
    except OSError as error:
        raise UserError(f"Cannot read the key {path}: {error.strerror}.") from error


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise UserError("Signatures need another package: pip install 'onepass[sign]'") from error
    return ed25519, serialization
