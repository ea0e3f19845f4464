"""Heads and bodies that are refused, and the connection that ends with them."""

import contextlib
import socket

import pytest

from serving.server import HEAD_BYTES

START = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
END = b"\r\n\r\n"
POST = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"2\r\n{}\r\n0\r\n\r\n"
LAST = START + b"Connection: close" + END
FIELDS = b"a: b\r\n" * 100_000


def head_of(size):
    """A head of so many bytes, in one long field."""
    return START + b"X: ".ljust(size - len(START) - len(END), b"x") + END


def answers(running, *packets, ends=False):
    """Return all that comes back until the server closes the connection."""
    received = b""
    with running.connection() as connection, contextlib.suppress(ConnectionError):
        for packet in packets:
            connection.sendall(packet)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(1 << 16):
            received += part
    return received


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
    "sent",
    [
        *(START + b"x: " + b"y" * 400_000, b"GET /" + b"y" * 400_000, START + FIELDS),
        POST + b"Transfer-Encoding: chunked" + END + b"0\r\n" + FIELDS,
        *(b"\x00" * 99, b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"),
        b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
    ids=["field", "path", "fields", "trailers", "zeros", "version", "TLS", "address"],
)
def test_a_head_without_end_or_that_is_none_is_refused_and_the_connection_closed(running, sent):
    received = answers(running, sent, ends=len(sent) < 100)
    assert b"Traceback" not in received
    assert received == b"" or received.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 404 "))
    assert running.client.get("/healthz").status_code == 200


@pytest.mark.parametrize("smuggled", [b"", LAST])
@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked",
        b"transfer-encoding: chunked\r\ncontent-length: 12",
        b"TRANSFER-ENCODING: Chunked\r\nX: 1\r\nCONTENT-LENGTH: 0",
    ],
)
def test_a_body_with_two_lengths_is_refused_and_ends_the_connection(running, fields, smuggled):
    received = answers(running, POST + fields + END + CHUNKED + smuggled)
    assert received.count(b"HTTP/1.1 ") == 1 and received.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in received.lower()


LONG = b"y" * 600_000


@pytest.mark.parametrize("pieces", [1, 3, 200])
@pytest.mark.parametrize("body", [b"{}", LONG, CHUNKED])
def test_a_body_with_one_length_is_no_head_and_keeps_the_connection(running, body, pieces):
    field = b"Content-Length: %d" % len(body) if body != CHUNKED else b"Transfer-Encoding: chunked"
    size = max(1, len(body) // pieces)
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    received = answers(running, *2 * [POST + field + END, *parts], LAST)
    assert received.count(b"HTTP/1.1 ") == 3 and received.count(b"HTTP/1.1 200 ") == 1


@pytest.mark.parametrize("field", [b"Content-Length: 500", b"Transfer-Encoding: chunked"])
def test_a_body_that_ends_before_its_length_is_answered(running, field):
    received = answers(running, POST + field + END + b"20\r\n{", ends=True)
    words = b"The connection ended before the body of the request did."
    assert received.startswith(b"HTTP/1.1 400 ") and words in received
