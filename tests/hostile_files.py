"""Compressed files of a right model with wrong fields, for tests of what reads them."""

import dataclasses
import random

import pytest

from onepass.compression.container import Container
from onepass.foundation.rules import UserError

MOST = 2**32 - 1
DEEP: list = []
for _ in range(500):
    DEEP = [DEEP]
VALUES = (
    None, True, False, -1, 0, 1, 2, 3, MOST, 2**64, -0.5, 0.5, 1e300, float("nan"), float("inf"),
    "", "x", "table", "closed", "cumulative", "\0", "../x", "x" * 5000, [], [None], [0], [-1],
    [1.5], ["x"], [[0]], [[[0, 1], [2]]], {}, {"x": 1}, DEEP,
)  # fmt: skip


def variants(found: Container, seed: int = 0, count: int = 60):
    """Yield the name and bytes of files that differ from a right one in one or two fields."""
    changes = [*_shapes(found), *_descriptions(found), *_streams(found)]
    draws = random.Random(seed)
    for name, fields in changes:
        yield name, dataclasses.replace(found, **fields)
    for _ in range(count):
        (one, first), (other, second) = draws.sample(changes, 2)
        yield f"{one} and {other}", dataclasses.replace(found, **{**first, **second})


def _shapes(found: Container):
    for axis in range(4):
        for size in (0, 1, found.shape[axis] + 1, 20_000, MOST):
            shape = (*found.shape[:axis], size, *found.shape[axis + 1 :])
            if shape != found.shape:
                yield f"shape {shape}", {"shape": shape}


def _descriptions(found: Container):
    yield "no description", {"description": {}}
    for key, right in found.description.items():
        rest = {name: value for name, value in found.description.items() if name != key}
        yield f"no {key}", {"description": rest}
        for value in VALUES:
            yield f"{key} {value!r:.30}", {"description": rest | {key: value}}
            if isinstance(right, list):
                changed = [value, *right[1:]]
                yield f"{key} {changed!r:.30}", {"description": rest | {key: changed}}


def _streams(found: Container):
    first, *rest = found.streams
    draws = random.Random(1)
    for stream in (
        b"",
        b"\1",
        first[:-4],
        first[:7],
        b"\0" * len(first),
        b"\xff" * len(first),
        first[:3] + draws.randbytes(len(first) - 3),
        b"\1\1\0" + first[3:],
    ):
        yield f"stream {stream[:9].hex()}", {"streams": (stream, *rest)}
    yield "no streams", {"streams": ()}
    yield "a stream twice", {"streams": (first, first, *rest)}
    yield "many streams", {"streams": found.streams * 300}


def check(found: Container, decode, same, count: int = 60) -> None:
    """Assert that variants of a file are refused in one line, or give back the same elements."""
    for name, changed in variants(found, count=count):
        # A writer pads the files that declare much; a hostile one does not.
        data = _unpadded(changed)
        try:
            with pytest.MonkeyPatch.context() as patch:  # so that the test is short
                patch.setattr("onepass.compression.container.MOST_ELEMENTS", 8)
                elements = decode(data)
        except UserError as error:
            assert "\n" not in str(error), name
        except Exception as error:
            pytest.fail(f"{name}: {type(error).__name__}: {error}")
        else:
            assert same(elements), name


def refused(call, *arguments, **options) -> str:
    """Return the one line that a call is refused with."""
    with pytest.raises((UserError, ValueError)) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _unpadded(changed: Container) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onepass.compression.container._least_size", lambda *sizes: 0)
        return changed.to_bytes()
