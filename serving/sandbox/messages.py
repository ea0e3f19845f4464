"""Messages between the server and a model's process: a head in JSON, followed by raw arrays.

Nothing is unpickled, and all sizes in a message are checked before its arrays are allocated.
"""

import json
import math
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from onepass.bundles.signature import V2_DTYPES, Arrays

Head = dict[str, Any]
MOST_BYTES = 2**30  # total size of the arrays in a message
MOST_HEAD_BYTES = 2**16
LENGTH = struct.Struct("<I")
DTYPES = {dtype.str: dtype for dtype in V2_DTYPES.values()}


class BadMessage(ValueError):  # noqa: N818 - named as the errors of requests
    """Error for bytes that are not a message, or for a message that is too long."""


def send(connection: socket.socket, head: Mapping[str, Any], arrays: Arrays | None = None) -> None:
    """Send a message; raise OSError if the connection fails or the socket's timeout is over."""
    given = {name: np.ascontiguousarray(array) for name, array in (arrays or {}).items()}
    described = [(name, array.dtype.str, array.shape) for name, array in given.items()]
    text = json.dumps({**head, "arrays": described}).encode()
    connection.sendall(LENGTH.pack(len(text)) + text)
    for array in given.values():
        connection.sendall(_bytes_of(array))


def receive(
    connection: socket.socket, most_head_bytes: int = MOST_HEAD_BYTES, seconds: float | None = None
) -> tuple[Head, Arrays]:
    """Return the head and the arrays of the next message.

    Raises:
      BadMessage: the bytes are not a message, or the message is too long.
      EOFError: the connection has ended.
      OSError: the connection failed.
      TimeoutError: the whole message takes longer than `seconds`.
    """
    end = None if seconds is None else time.monotonic() + seconds
    (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size, end))
    if length > most_head_bytes:
        raise BadMessage(f"a head of {length:,} bytes")
    try:
        head = json.loads(_exactly(connection, length, end))
        described = [(str(n), DTYPES[d], tuple(map(int, shape))) for n, d, shape in head["arrays"]]
        sizes = [_size(dtype, shape) for _, dtype, shape in described]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadMessage("an invalid head") from error
    # Checked before memory is allocated, as a short head can ask for any number of bytes.
    if sum(sizes) > MOST_BYTES:
        raise BadMessage(f"arrays of {sum(sizes):,} bytes")
    arrays = {name: np.empty(shape, dtype) for name, dtype, shape in described}
    for array in arrays.values():
        _fill(connection, _bytes_of(array), end)
    return head, arrays


def _size(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    if min(shape, default=0) < 0:
        raise ValueError("a negative length")
    return dtype.itemsize * math.prod(shape)


def _bytes_of(array: np.ndarray) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _exactly(connection: socket.socket, length: int, end: float | None) -> bytes:
    data = bytearray(length)
    _fill(connection, memoryview(data), end)
    return bytes(data)


def _fill(connection: socket.socket, rest: memoryview, end: float | None) -> None:
    while len(rest):
        if end is not None:
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
        count = connection.recv_into(rest)
        if not count:
            raise EOFError
        rest = rest[count:]
