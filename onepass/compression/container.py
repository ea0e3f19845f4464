"""The format of a compressed file: kind of elements, model, checksums and streams.

offset  size  content (little-endian)
0       8     magic, 89 "ONEP" 0D 0A 1A: text-mode copies and 7-bit channels damage it visibly
8       2     format version
10      1     kind of content: 1 images, 2 sound, 3 arrays
11      16    model digest, the first half of a SHA-256 over the model's weights (`model_digest`)
27      4     levels of an element
31      4     CRC-32 of the decoded elements, one or two bytes each, little-endian
35      16    shape: images, height, width, channels; for sound: recordings, samples, 1, 1;
              for arrays: rows, height, width, channels, or rows, elements, 1, 1
51      4     length of the description, which is JSON compressed by zlib, or 0 for {}
55      4     number of streams
59      ...   length of each stream, 4 bytes each | the description | the streams
        ...   in format version 2, zero bytes that make the file as long as MOST_ELEMENTS and
              MOST_DESCRIBED require for its content
end - 4 4     CRC-32 of all preceding bytes

Version 2 differs in this padding, and in the meaning of the description and the digest (`forms`,
`model_digest` and the writers of each kind).
"""

import dataclasses
import hashlib
import itertools
import json
import math
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from onepass.foundation.errors import UserError

MAGIC = b"\x89ONEP\r\n\x1a"
VERSION = 2  # the newest; 1 is read too
KINDS = {"images": 1, "sound": 2, "arrays": 3}
_HEAD = struct.Struct("<8sHB16sII4III")
_CRC = struct.Struct("<I")
# The largest numbers of elements and of description bytes beyond DESCRIBED per byte of a
# file: they bound a reader's work and memory by the file's size.
MOST_ELEMENTS = 1 << 10
MOST_DESCRIBED = 64
DESCRIBED = 1 << 20
DAMAGED = "The compressed file is damaged or truncated: its checksum does not match."


@dataclasses.dataclass(frozen=True)
class Container:
    """The content of a compressed file."""

    kind: str
    digest: bytes  # the model's digest, 16 bytes
    levels: int
    checksum: int
    shape: tuple[int, ...]  # the four sizes that describe the elements, as in the module's table
    description: dict[str, Any]
    streams: tuple[bytes, ...]
    version: int = 1

    @property
    def elements(self) -> int:
        """Total number of elements; for sound, the total number of samples of all recordings."""
        return self.shape[1] if self.kind == "sound" else math.prod(self.shape)

    def to_bytes(self) -> bytes:
        """Return the file as bytes; if it needs padding, its format version is 2."""
        text = b""
        if self.description:
            text = json.dumps(self.description, separators=(",", ":"), ensure_ascii=False).encode()
        described = zlib.compress(text, 9) if text else b""
        size = _HEAD.size + 4 * len(self.streams) + len(described) + sum(map(len, self.streams))
        padding = max(0, _least_size(self.elements, len(text)) - size - _CRC.size)
        head = _HEAD.pack(
            MAGIC,
            VERSION if padding else self.version,
            KINDS[self.kind],
            self.digest,
            self.levels,
            self.checksum,
            *self.shape,
            len(described),
            len(self.streams),
        )
        lengths = np.array([len(stream) for stream in self.streams], "<u4").tobytes()
        body = b"".join([head, lengths, described, *self.streams, bytes(padding)])
        return body + _CRC.pack(zlib.crc32(body))


def _least_size(elements: int, described: int) -> int:
    return max(-(-elements // MOST_ELEMENTS), -(-(described - DESCRIBED) // MOST_DESCRIBED))


def read(
    data: bytes, check: Callable[[int, str, bytes, int], None] = lambda *head: None
) -> Container:
    """Parse the bytes of a compressed file; raise UserError if it is none, or damaged.

    Time and memory are bounded by the number of bytes, whatever sizes the file declares. `check` is
    called with version, kind, digest and levels once the checksum is verified, before the rest.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise UserError("The file must be written by `onepass compress`.")
    if len(data) < _HEAD.size + _CRC.size:
        raise UserError(DAMAGED)
    _, version, number, digest, levels, checksum, *rest = _HEAD.unpack_from(data)
    if zlib.crc32(data[: -_CRC.size]) != _CRC.unpack(data[-_CRC.size :])[0]:
        raise UserError(DAMAGED)
    if not 1 <= version <= VERSION:
        raise UserError(
            f"The compressed file has format version {version}; this program reads 1 to {VERSION}."
        )
    kinds = [kind for kind, own in KINDS.items() if own == number]
    if not kinds:
        raise UserError(DAMAGED)
    check(version, kinds[0], digest, levels)
    *shape, described, count = rest
    start, end = _HEAD.size + 4 * count, len(data) - _CRC.size
    if start > end:
        raise UserError(DAMAGED)
    lengths = np.frombuffer(data[_HEAD.size : start], "<u4").astype(np.int64)
    edges = start + described + np.concatenate([[0], np.cumsum(lengths)])
    last = int(edges[-1])
    if last > end or (version == 1 and last < end) or data.count(0, last, end) < end - last:
        raise UserError(DAMAGED)
    streams = tuple(data[a:b] for a, b in itertools.pairwise(edges))
    description = _unpack_description(data[start : start + described], len(data))
    found = Container(
        kinds[0], digest, levels, checksum, tuple(shape), description, streams, version
    )
    if _least_size(found.elements, 0) > len(data):
        raise UserError(
            f"The compressed file is damaged: it declares {found.elements:,} elements in"
            f" {len(data):,} bytes, more than {MOST_ELEMENTS:,} for each."
        )
    return found


def _unpack_description(packed: bytes, size: int) -> dict[str, Any]:
    if not packed:
        return {}
    most, unpacking = DESCRIBED + MOST_DESCRIBED * size, zlib.decompressobj()
    try:
        text = unpacking.decompress(packed, most + 1)
        if len(text) > most or not unpacking.eof:
            raise UserError(DAMAGED)
        found = json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise UserError(DAMAGED) from error
    if not isinstance(found, dict):
        raise UserError(DAMAGED)
    return found


def read_for(
    data: bytes, kind: str, digest: bytes, levels: int, old_digest: bytes | None = None
) -> Container:
    """Parse a file made with a given model, whose digest was `old_digest` in format version 1."""

    def check(version: int, found: str, required: bytes, found_levels: int) -> None:
        if found != kind:
            raise UserError(f"The compressed file must hold {kind} for this model, got {found}.")
        own = digest if version > 1 or old_digest is None else old_digest
        if required != own or found_levels != levels:
            raise UserError(
                f"The compressed file requires the model {required.hex()[:12]}, "
                f"got {own.hex()[:12]}."
            )

    return read(data, check)


def read_file(path: Path) -> bytes:
    """Return the bytes of a file; raise a UserError that names it if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or 'it cannot be read'}.") from error


def digest_of(weights: Mapping[str, np.ndarray]) -> bytes:
    """Return a 16-byte digest of the names, shapes and float32 values of a model's weights."""
    whole = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name], "<f4")
        whole.update(f"{name} {list(array.shape)}\n".encode())
        whole.update(array.tobytes())
    return whole.digest()[:16]


def checksum_of(elements: np.ndarray, before: int = 0) -> int:
    """Return the CRC-32 of elements, each stored as one byte or as two little-endian bytes."""
    dtype = "u1" if elements.dtype.itemsize == 1 else "<u2"
    return zlib.crc32(np.ascontiguousarray(elements, dtype).tobytes(), before)


def check_decoded(checksum: int, container: Container) -> None:
    """Raise UserError unless the checksum of decoded elements is the one in the file."""
    if checksum != container.checksum:
        raise UserError(
            "The compressed file cannot be decoded on this processor: its network outputs differ "
            "from those of the encoder by more than the tolerance."
        )


MOST = 2**32 - 1  # largest size that a field of the file can store


def raise_damaged(name: str, wanted: str) -> NoReturn:
    """Raise UserError for an invalid field of a compressed file."""
    raise UserError(f"The compressed file is damaged: `{name}` must be {wanted}.")


def whole(name: str, value: Any, least: int = 0, most: int = MOST) -> int:
    """Return a field of a file that must be an integer from `least` to `most`."""
    if type(value) is not int or not least <= value <= most:
        raise_damaged(name, f"a whole number from {least} to {most}")
    return value


def share(name: str, value: Any) -> float:
    """Return a field of a file that must be a number from 0 to 1."""
    if type(value) not in (int, float) or not 0.0 <= value <= 1.0:
        raise_damaged(name, "a number from 0 to 1")
    return float(value)


def check_list(name: str, value: Any, counts: tuple[int, ...]) -> list[Any]:
    """Return a field of a file that must be a list with one of the lengths in `counts`."""
    if not isinstance(value, list) or len(value) not in counts:
        raise_damaged(name, f"a list of {' or '.join(map(str, counts))}")
    return value
