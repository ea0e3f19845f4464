"""`compress` and `decompress`: from the elements of any model to the bytes of a file, and back.

A `Kind` defines what differs between images, recordings and arrays.
"""

import abc
import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from onepass.compression import container
from onepass.compression.conditionals import Coding, Conditionals, Moved, decode, encode
from onepass.compression.container import VERSION, Container, check_decoded, checksum_of, read_for
from onepass.compression.stream import Advance, silent
from onepass.foundation.arguments import check_unmasked
from onepass.foundation.errors import UserError
from onepass.foundation.progress import Progress
from onepass.foundation.tensorflow_state import check_compiler

TOLERANCE, MOST_TOLERANCE = 1e-5, 1e-3
SHARE = 0.5  # share of the tolerance that `_verify` uses; cached and repeated outputs differ, too


class Kind(abc.ABC):
    """A kind of compressed file: how the elements of a model become levels and a description."""

    name: str
    version, dtype, way = VERSION, "<u2", "closed"
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
    def unpack(self, parts: list[np.ndarray]) -> Any:
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
            narrowest = container.share("narrowest", found.description.get("narrowest"))
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
    """Compress elements of a model as `onepass.compress` does, and return the bytes of the file.

    `names`, such as those of images, are stored in it; `options` are further ones of `Kind.pack`.
    """
    check_compiler()
    check_unmasked(elements, "elements")
    if not 0 <= tolerance <= MOST_TOLERANCE:
        raise UserError(f"`tolerance` must be 0 to {MOST_TOLERANCE:g}, got {tolerance:g}.")
    shape, description, parts = kind.pack(elements, condition, tolerance, **options)
    description |= {} if names is None else {"names": names}
    made = Container(
        kind.name,
        kind.digests()[0],
        kind.conditionals.levels,
        0,
        shape,
        description,
        (),
        kind.version,
    )
    coding = dataclasses.replace(kind.coding(made), tolerance=tolerance)
    streams, checksum = [], 0
    with _advancing(made, "compressing", progress) as advance:
        for levels, (_, given) in zip(parts, kind.blocks(made, condition), strict=True):
            checksum = checksum_of(levels.astype(kind.dtype), checksum)
            streams.append(encode(kind.conditionals, levels, given, coding, advance))
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


def read(kind: Kind, data: bytes) -> Container:
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
    found = read(kind, data)
    if max_elements is not None and found.elements > max_elements:
        raise UserError(
            f"The compressed file must hold at most `max_elements` = {max_elements:,} elements, "
            f"got {found.elements:,}."
        )
    coding = dataclasses.replace(kind.coding(found), moved=moved)
    parts, checksum = [], 0
    with _advancing(found, progress, bool(progress)) as advance:
        for stream, block in zip(found.streams, kind.blocks(found, condition), strict=True):
            levels = decode(kind.conditionals, stream, *block, coding, advance)
            parts.append(levels.astype(kind.dtype))
            checksum = checksum_of(parts[-1], checksum)
    check_decoded(checksum, found)
    return kind.unpack(parts)


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
