"""Compressed files: their container, and their contents of images, recordings and arrays.

offset  size  content (little-endian)
0       8     magic, 89 "ONEP" 0D 0A 1A: text-mode copies and 7-bit channels damage it visibly
8       2     format version
10      1     kind of content: 1 images, 2 sound, 3 arrays
11      16    model digest, the first half of a SHA-256 over the model's weights (`model_digest`)
27      4     levels of an element
31      4     CRC-32 of the decoded elements in the order of the streams, one or two bytes each,
              little-endian; of sound, of rows with zeros up to the longest one's length
35      16    shape: images, height, width, channels; for sound: recordings, samples, 1, 1;
              for arrays: rows, height, width, channels, or rows, elements, 1, 1
51      4     length of the description, which is JSON compressed by zlib, or 0 for {}
55      4     number of streams
59      ...   length of each stream, 4 bytes each | the description | the streams
        ...   from format version 2 on, zero bytes that make the file as long as MOST_ELEMENTS and
              MOST_DESCRIBED require for its content
end - 4 4     CRC-32 of all preceding bytes

Version 2 differs from 1 in this padding, and in the meaning of the description and the digest
(`forms`, `model_digest` and the writers of each kind); version 3 is that of sound in segments.

A `Kind` defines what differs between images, recordings and arrays.
"""

import abc
import collections
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from onepass.compression.conditionals import Coding, Conditionals, Moved, decode, encode
from onepass.compression.stream import Advance, silent
from onepass.foundation.progress import Progress
from onepass.foundation.rules import UserError, check_unmasked, require
from onepass.foundation.runtime import check_compiler

MAGIC = b"\x89ONEP\r\n\x1a"
VERSION = 3  # the newest
PADDED = 2  # the first that may be padded
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
        """Return the file as bytes; if it needs padding, its format version is at least PADDED."""
        text = b""
        if self.description:
            text = json.dumps(self.description, separators=(",", ":"), ensure_ascii=False).encode()
        described = zlib.compress(text, 9) if text else b""
        size = _HEAD.size + 4 * len(self.streams) + len(described) + sum(map(len, self.streams))
        padding = max(0, _least_size(self.elements, len(text)) - size - _CRC.size)
        head = _HEAD.pack(
            MAGIC,
            max(PADDED, self.version) if padding else self.version,
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


TOLERANCE, MOST_TOLERANCE = 1e-5, 1e-3
SHARE = 0.5  # share of the tolerance that `_verify` uses; cached and repeated outputs differ, too


class Kind(abc.ABC):
    """A kind of compressed file: how the elements of a model become levels and a description."""

    name: str
    version, dtype, way = PADDED, "<u2", "closed"
    at_once = 1  # streams that are decoded at the same time
    conditionals: Conditionals

    @abc.abstractmethod
    def digests(self) -> tuple[bytes, bytes | None]:
        """Return the model's digest, and its digest for format version 1 (None: the same)."""

    @abc.abstractmethod
    def pack(
        self, elements: Any, condition: Any, tolerance: float, **options: Any
    ) -> tuple[tuple[int, ...], dict[str, Any], Iterable[np.ndarray]]:
        """Return the shape and description of a container, and the int32 levels of each stream."""

    @abc.abstractmethod
    def check(self, found: Container) -> None:
        """Raise UserError unless all fields of a file are in range."""

    @abc.abstractmethod
    def blocks(self, found: Container, condition: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
        """Yield each stream's shape and condition, which is the file's if the file stores one."""

    @abc.abstractmethod
    def unpack(self, found: Container, parts: list[np.ndarray]) -> Any:
        """Return the elements of a file, given the levels of each stream, of type `dtype`."""

    def coding(self, found: Container) -> Coding:
        """Return how a file's streams are coded, without a tolerance."""
        way, narrowest = found.description.get("odds", self.way), None
        if way not in self.conditionals.ways:
            raise UserError(
                f"The compressed file requires odds by {way!r:.20}, which the model's distribution"
                f" cannot compute; save the model again."
            )
        if found.version > 1 and self.version > 1:
            narrowest = share("narrowest", found.description.get("narrowest"))
        return Coding(way, narrowest)


def compress(
    kind: Kind,
    elements: Any,
    condition: Any = None,
    *,
    tolerance: float = TOLERANCE,
    verify: bool | None = None,
    names: list[str] | None = None,
    progress: bool = False,
    **options: Any,
) -> bytes:
    """Compress elements as `onepass.compress` does; `names`, such as of images, are stored, too."""
    check_compiler()
    check_unmasked(elements, "elements")
    rule = f"between 0 and {MOST_TOLERANCE:g}"
    require(0 <= tolerance <= MOST_TOLERANCE, "tolerance", rule, f"{tolerance:g}")
    shape, description, parts = kind.pack(elements, condition, tolerance, **options)
    description |= {} if names is None else {"names": names}
    digest, levels = kind.digests()[0], kind.conditionals.levels
    made = Container(kind.name, digest, levels, 0, shape, description, (), kind.version)
    coding = dataclasses.replace(kind.coding(made), tolerance=tolerance)
    streams, checksum = [], 0
    with _advancing(made, "compressing", progress) as advance:
        for symbols, (_, given) in zip(parts, kind.blocks(made, condition), strict=True):
            checksum = checksum_of(symbols.astype(kind.dtype), checksum)
            streams.append(encode(kind.conditionals, symbols, given, coding, advance))
    data = dataclasses.replace(made, checksum=checksum, streams=tuple(streams)).to_bytes()
    if kind.conditionals.is_cheap(shape) if verify is None else verify:
        _verify(kind, data, condition, tolerance, progress)
    return data


@contextlib.contextmanager
def _advancing(found: Container, title: str, progress: bool) -> Iterator[Advance]:
    if not progress:
        yield silent
        return
    with Progress(found.elements, title, "element") as shown:
        yield shown.advance


def read_file_of(kind: Kind, data: bytes) -> Container:
    """Parse a file of a model's elements and check that all its fields are in range."""
    digest, old_digest = kind.digests()
    found = read_for(data, kind.name, digest, kind.conditionals.levels, old_digest)
    kind.check(found)
    return found


def decompress(
    kind: Kind,
    data: bytes,
    condition: Any = None,
    moved: Moved | None = None,
    *,
    max_elements: int | None = None,
    progress: str = "",
) -> Any:
    """Return the elements in a file that `compress` made; `moved` changes outputs, to verify."""
    check_compiler()
    found = read_file_of(kind, data)
    if max_elements is not None and found.elements > max_elements:
        raise UserError(
            f"The compressed file must hold at most `max_elements` = {max_elements:,} elements, "
            f"got {found.elements:,}."
        )
    coding = dataclasses.replace(kind.coding(found), moved=moved)
    parts, checksum = [], 0
    with _advancing(found, progress, bool(progress)) as advance:
        for levels in _decode_streams(kind, found, condition, coding, advance):
            parts.append(levels.astype(kind.dtype))
            checksum = checksum_of(parts[-1], checksum)
    check_decoded(checksum, found)
    return kind.unpack(found, parts)


def _decode_streams(
    kind: Kind, found: Container, condition: Any, coding: Coding, advance: Advance
) -> Iterator[np.ndarray]:
    """Yield the levels of each stream, `kind.at_once` of which are decoded at the same time."""
    streams = zip(found.streams, kind.blocks(found, condition), strict=True)
    if kind.at_once == 1:
        for stream, (shape, given) in streams:
            yield decode(kind.conditionals, stream, shape, given, coding, advance)
        return
    lock, is_over = threading.Lock(), threading.Event()

    def advance_together(elements: int) -> None:
        if is_over.is_set():
            raise InterruptedError
        with lock:
            advance(elements)

    pending: collections.deque[Future[np.ndarray]] = collections.deque()
    with ThreadPoolExecutor(kind.at_once) as pool:
        try:
            for stream, (shape, given) in streams:
                run = functools.partial(decode, kind.conditionals, advance=advance_together)
                pending.append(pool.submit(run, stream, shape, given, coding))
                if len(pending) == kind.at_once:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:  # an error or Ctrl-C ends the other threads, too
            is_over.set()


def _verify(kind: Kind, data: bytes, condition: Any, tolerance: float, progress: bool) -> None:
    draws = np.random.default_rng(0)

    def perturb_outputs(outputs: np.ndarray) -> np.ndarray:
        return outputs * (1.0 + SHARE * tolerance * draws.choice([-1.0, 1.0], outputs.shape))

    try:
        decompress(kind, data, condition, perturb_outputs, progress="verifying" if progress else "")
    except UserError as error:
        raise UserError(
            f"The file could not be decoded again, and is not written: the network's cached or"
            f" repeated outputs differ by more than half of `tolerance`, {tolerance:g}; pass a"
            f" larger one, up to {MOST_TOLERANCE:g}."
        ) from error
