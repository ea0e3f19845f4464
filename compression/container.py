"""The compressed file: kind of elements, model, checksums and streams.

offset  size  content (little-endian)
0       8     magic, 89 "ONEP" 0D 0A 1A: text-mode copies and 7-bit channels damage it visibly
8       2     format version
10      1     kind of content: 1 images, 2 sound, 3 arrays
11      16    model digest, the first half of SHA-256 over names, shapes and weights
27      4     levels of an element
31      4     CRC-32 of the decoded elements, one or two bytes each, little-endian
35      16    shape: images, height, width, channels; for sound: recordings, samples, 1, 1;
              for arrays: as for images, or rows, elements, 1, 1
51      4     length of the description, which is JSON compressed by zlib, or 0 for {}
55      4     number of streams
59      ...   length of each stream, 4 bytes each | the description | the streams
end - 4 4     CRC-32 of everything before
"""

import dataclasses
import hashlib
import itertools
import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from replicator.runs.errors import UserError

MAGIC = b"\x89ONEP\r\n\x1a"
VERSION = 1
KINDS = {"images": 1, "sound": 2, "arrays": 3}
_HEAD = struct.Struct("<8sHB16sII4III")
_CRC = struct.Struct("<I")
_LARGEST_DESCRIPTION = 1 << 26
DAMAGED = "The compressed file is damaged or truncated: its checksum does not match."


@dataclasses.dataclass(frozen=True)
class Container:
    """A compressed file.

    Attributes:
      kind: "images", "sound" or "arrays".
      digest: of the model, 16 bytes.
      levels: of an element.
      checksum: of the elements.
      shape: 4 sizes.
      description: conditions and other information for a reader, as JSON values.
      streams: of the batches.
    """

    kind: str
    digest: bytes
    levels: int
    checksum: int
    shape: tuple[int, ...]
    description: dict[str, Any]
    streams: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Return the file as bytes."""
        described = b""
        if self.description:
            text = json.dumps(self.description, separators=(",", ":"), ensure_ascii=False)
            described = zlib.compress(text.encode(), 9)
        head = _HEAD.pack(
            MAGIC,
            VERSION,
            KINDS[self.kind],
            self.digest,
            self.levels,
            self.checksum,
            *self.shape,
            len(described),
            len(self.streams),
        )
        lengths = np.array([len(stream) for stream in self.streams], "<u4").tobytes()
        body = b"".join([head, lengths, described, *self.streams])
        return body + _CRC.pack(zlib.crc32(body))


def read(data: bytes) -> Container:
    """Return the compressed file in some bytes.

    Raises:
      UserError: the bytes are no such file, or a damaged or truncated one, or of a later version.
    """
    if data[: len(MAGIC)] != MAGIC:
        raise UserError("The file must be written by `onepass compress`.")
    if len(data) < _HEAD.size + _CRC.size:
        raise UserError(DAMAGED)
    _, version, kind, digest, levels, checksum, *rest = _HEAD.unpack_from(data)
    if zlib.crc32(data[: -_CRC.size]) != _CRC.unpack(data[-_CRC.size :])[0]:
        raise UserError(DAMAGED)
    if version != VERSION:
        raise UserError(
            f"The compressed file has format version {version}; this program reads {VERSION}."
        )
    *shape, described, count = rest
    names = {number: name for name, number in KINDS.items()}
    start = _HEAD.size + 4 * count
    end = len(data) - _CRC.size
    lengths = np.frombuffer(data[_HEAD.size : start], "<u4").astype(np.int64)
    if kind not in names or start > end or described + lengths.sum() != end - start:
        raise UserError(DAMAGED)
    edges = start + described + np.concatenate([[0], np.cumsum(lengths)])
    streams = tuple(data[a:b] for a, b in itertools.pairwise(edges))
    description = _described(data[start : start + described])
    return Container(names[kind], digest, levels, checksum, tuple(shape), description, streams)


def _described(packed: bytes) -> dict[str, Any]:
    if not packed:
        return {}
    try:
        text = zlib.decompressobj().decompress(packed, _LARGEST_DESCRIPTION)
        found = json.loads(text)
    except (zlib.error, ValueError) as error:
        raise UserError(DAMAGED) from error
    if not isinstance(found, dict):
        raise UserError(DAMAGED)
    return found


def read_for(data: bytes, kind: str, digest: bytes, levels: int) -> Container:
    """Return the compressed file in some bytes after checking that it is for a model.

    Args:
      data: the bytes.
      kind: "images" or "sound".
      digest: of the model.
      levels: of an element of the model.

    Raises:
      UserError: as for `read`, or the file is for another model.
    """
    found = read(data)
    if found.kind != kind:
        raise UserError(f"The compressed file must hold {kind} for this model, got {found.kind}.")
    if found.digest != digest or found.levels != levels:
        raise UserError(
            f"The compressed file requires the model {found.digest.hex()[:12]}, "
            f"got {digest.hex()[:12]}."
        )
    return found


def read_file(path: Path) -> bytes:
    """Return the bytes of a file.

    Raises:
      UserError: it cannot be read; the message names it.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or 'it cannot be read'}.") from error


def digest_of(weights: Mapping[str, np.ndarray]) -> bytes:
    """Return the digest of a model's weights and their names, 16 bytes."""
    whole = hashlib.sha256()
    for name in sorted(weights):
        array = np.ascontiguousarray(weights[name], "<f4")
        whole.update(f"{name} {list(array.shape)}\n".encode())
        whole.update(array.tobytes())
    return whole.digest()[:16]


def checksum_of(elements: np.ndarray) -> int:
    """Return the CRC-32 of elements, as bytes or as little-endian pairs of bytes."""
    dtype = "u1" if elements.dtype.itemsize == 1 else "<u2"
    return zlib.crc32(np.ascontiguousarray(elements, dtype).tobytes())


def check_decoded(elements: np.ndarray, container: Container) -> None:
    """Raise UserError unless the elements are those that were compressed."""
    if checksum_of(elements) != container.checksum:
        raise UserError(
            "The compressed file cannot be decoded on this processor: its network outputs differ "
            "from those of the encoder by more than the tolerance."
        )
