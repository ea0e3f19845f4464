"""A compressed file says what it holds, and one that is not whole is refused."""

import numpy as np
import pytest
from hostile_files import refused

from onepass.compression import container
from onepass.compression.container import Container, checksum_of, digest_of, read, read_for

DIGEST = bytes(range(16))


def example(**fields):
    made = dict(
        kind="images", digest=DIGEST, levels=256, checksum=7, shape=(2, 8, 8, 3),
        description={"condition": ["ü", 1]}, streams=(b"abc", b"", b"defg"),
    )  # fmt: skip
    return Container(**(made | fields))


@pytest.mark.parametrize(
    "fields", [{}, {"description": {}}, {"streams": ()}, {"kind": "sound"}, {"version": 2}]
)
def test_what_is_written_is_read(fields):
    assert read(example(**fields).to_bytes()) == example(**fields)


def test_every_cut_and_every_changed_byte_is_refused():
    data = example().to_bytes()
    for end in range(len(data)):
        assert refused(read, data[:end])
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 64
        refused(read, bytes(changed))
    refused(read, data + b"x")


def test_what_is_no_such_file_what_is_damaged_and_what_is_later_differ():
    assert "must be written by" in refused(read, b"\x89PNG\r\n\x1a\n" + bytes(100))
    assert "damaged or truncated" in refused(read, example().to_bytes()[:-1])
    data = example(version=4).to_bytes()
    assert "has format version 4; this program reads 1 to 3" in refused(read, data)


def test_a_file_of_another_model_names_both():
    data = example().to_bytes()
    assert read_for(data, "images", DIGEST, 256) == example()
    assert DIGEST.hex()[:12] in refused(read_for, data, "images", bytes(16), 256)
    assert read_for(data, "images", bytes(16), 256, DIGEST) == example()
    assert "requires the model" in refused(
        read_for, example(version=2).to_bytes(), "images", bytes(16), 256, DIGEST
    )
    assert "must hold sound for this model" in refused(read_for, data, "sound", DIGEST, 256)


def test_a_digest_depends_on_names_shapes_and_every_weight():
    weights = {"a": np.ones([2, 3], np.float32), "b": np.zeros(4, np.float32)}
    moved = weights["a"].copy()
    moved[1, 2] = np.nextafter(np.float32(1.0), 2)
    others = [
        {"a": weights["a"].reshape(3, 2), "b": weights["b"]},
        {"c": weights["a"], "b": weights["b"]},
        {"a": moved, "b": weights["b"]},
    ]
    found = {digest_of(each) for each in (weights, *others)}
    assert len(found) == 4 and digest_of(dict(reversed(weights.items()))) in found


def test_other_elements_than_were_compressed_are_refused():
    elements = np.arange(12, dtype=np.uint8)
    parts = checksum_of(elements[5:], checksum_of(elements[:5]))
    container.check_decoded(parts, example(checksum=checksum_of(elements)))
    other = checksum_of(elements[::-1])
    line = refused(container.check_decoded, other, example(checksum=checksum_of(elements)))
    assert "more than the tolerance" in line
