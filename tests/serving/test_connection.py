"""Heads that are refused, and the connection that ends with them."""

import contextlib

import pytest

from serving.server import HEAD_BYTES

START = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
END = b"\r\n\r\n"
POST = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"2\r\n{}\r\n0\r\n\r\n"


def head_of(size):
    """A head of so many bytes, in one long field."""
    return START + b"X: ".ljust(size - len(START) - len(END), b"x") + END


def answers(running, *packets):
    """Return all that comes back until the server closes the connection."""
    received = b""
    with running.connection() as connection, contextlib.suppress(ConnectionError):
        for packet in packets:
            connection.sendall(packet)
        while part := connection.recv(1 << 16):
            received += part
    return received


LAST = START + b"Connection: close" + END


@pytest.mark.parametrize("cut", ["whole", "in pieces", "pipelined"])
@pytest.mark.parametrize(
    ("size", "status"), [(HEAD_BYTES, b"200"), (HEAD_BYTES + 1, b"400"), (70_000, b"400")]
)
def test_a_head_has_at_most_64_kib_however_it_comes(running, cut, size, status):
    head = head_of(size)
    assert len(head) == size
    packets = {
        "whole": [head + LAST],
        "in pieces": [head[:5], head[5:-1], head[-1:] + LAST],
        "pipelined": [START + b"\r\n" + head + LAST],
    }[cut]
    received = answers(running, *packets)
    heads = received.count(b"HTTP/1.1 ")
    before = cut == "pipelined"
    if status == b"200":
        assert received.count(b"HTTP/1.1 200 ") == heads == 2 + before
    else:  # a reset of the connection may overtake the answer
        assert received.count(b"HTTP/1.1 200 ") <= before
        assert received.count(b"HTTP/1.1 400 ") == 1 or size - HEAD_BYTES > 1


@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked",
        b"transfer-encoding: chunked\r\ncontent-length: 12",
        b"TRANSFER-ENCODING: Chunked\r\nX: 1\r\nCONTENT-LENGTH: 0",
    ],
)
@pytest.mark.parametrize("smuggled", [b"", LAST])
def test_a_body_with_two_lengths_is_refused_and_ends_the_connection(running, fields, smuggled):
    received = answers(running, POST + fields + END + CHUNKED + smuggled)
    assert received.count(b"HTTP/1.1 ") == 1 and received.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in received.lower()


@pytest.mark.parametrize("field", [b"Content-Length: 2", b"Transfer-Encoding: chunked"])
def test_a_body_with_one_length_keeps_the_connection(running, field):
    body = b"{}" if b"Length" in field else CHUNKED
    received = answers(running, POST + field + END + body + LAST)
    assert received.count(b"HTTP/1.1 ") == 2 and received.count(b"HTTP/1.1 200 ") == 1
