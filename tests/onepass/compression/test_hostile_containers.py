"""Reading a compressed file is bounded by its bytes, whatever they declare."""

import json
import struct
import tracemalloc
import zlib

import pytest
from hostile_files import MOST

from onepass.compression import container
from onepass.compression.container import MAGIC, Container, read, read_for
from onepass.foundation.rules import UserError

DIGEST = bytes(range(16))
HEAD = struct.Struct("<8sHB16sII4III")


def file(
    shape=(1, 1, 1, 1), packed=b"", described=None, lengths=(), body=b"", kind=3, version=1,
    count=None,
):  # fmt: skip
    """A file with a right magic, digest and checksum, and otherwise these fields."""
    described = len(packed) if described is None else described
    count = len(lengths) if count is None else count
    head = HEAD.pack(MAGIC, version, kind, DIGEST, 256, 0, *shape, described, count)
    data = head + struct.pack(f"<{len(lengths)}I", *lengths) + packed + body
    return data + struct.pack("<I", zlib.crc32(data))


def packed(text):
    return zlib.compress(text.encode(), 9)


HOSTILE = {
    "rows": file(shape=(MOST, 1, 1, 1)),
    "all sizes": file(shape=(MOST,) * 4),
    "a large image": file(shape=(1, 20_000, 20_000, 1), lengths=[53], body=bytes(53)),
    "samples": file(shape=(1, MOST, 1, 1), kind=2),
    "streams": file(count=MOST),
    "a long stream": file(lengths=[MOST]),
    "many long streams": file(lengths=[MOST] * 1000),
    "a long description": file(described=MOST),
    "nested lists": file(packed=packed("[" * 100_000)),
    "nested objects": file(packed=packed('{"a":' * 100_000)),
    "a bomb": file(packed=packed('{"a": "' + "0" * (1 << 26) + '"}')),
    "a bomb of lists": file(packed=packed('{"a": [' + "[]," * (1 << 23) + "[]]}")),
    "a long number": file(packed=packed('{"a": ' + "9" * 10_000 + "}")),
    "no JSON": file(packed=packed("x")),
    "no object": file(packed=packed("[]")),
    "no text": file(packed=zlib.compress(b'{"a": "\xff"}')),
    "no zlib": file(packed=b"12345678"),
    "half of zlib": file(packed=packed('{"a": 1}')[:-3]),
    "kind": file(kind=9),
    "padding that is not zero": file(body=b"\0\0x", version=2),
    "padding in an old file": file(body=b"\0"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line_and_in_little_memory(name, monkeypatch):
    data = HOSTILE[name]
    tracemalloc.start()
    with pytest.raises(UserError) as caught:
        read(data)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "damaged" in str(caught.value) and "\n" not in str(caught.value)
    assert most < (32 << 20) + 600 * len(data)
    monkeypatch.setattr(container, "_unpack_description", None)  # models are compared before that
    if name != "kind":
        with pytest.raises(UserError, match="requires the model"):
            read_for(data, "sound" if name == "samples" else "arrays", bytes(16), 256)


def test_a_file_that_holds_much_in_few_bytes_is_padded_and_read():
    parts = ("images", DIGEST, 256, 7, (100, 1000, 1000, 3))
    described = {"condition": [[0] * 1000] * 1200}
    for fields in ({"description": {}}, {"description": described}):
        made = Container(*parts, streams=(b"abc",), **fields)
        data = made.to_bytes()
        assert len(data) >= 100 * 1000 * 1000 * 3 / container.MOST_ELEMENTS
        found = read(data)
        assert (found.description, found.streams) == (made.description, made.streams)
        assert found.version == 2
    assert len(json.dumps(described)) > container.DESCRIBED


def test_the_description_that_a_small_file_may_have_is_bounded():
    text = json.dumps({"a": "0" * (container.DESCRIBED // 2)})
    assert read(file(packed=packed(text))).description == json.loads(text)
