"""Clients that keep what they are given: python attackers.py PORT GRPC_ADDRESS TOKEN, until killed.

Idle sockets and silent probes come without the token; bodies that stand still, streams that nobody
reads and requests of many rows with it. All of them let go and come again every few seconds.
"""

import asyncio
import contextlib
import http.client
import json
import socket
import sys
import threading
import time

import grpc
from fake_bundle import CHANNELS

KEPT_SECONDS = 5.0
IDLE, BODIES, STREAMS, CONNECTIONS, PROBES = 1100, 16, 8, 5, 250
BODY_BYTES = 16 * 2**20
SOUND = json.dumps({"frames": [[0.5] * CHANNELS], "format": "l16"}).encode()
ROWS = [{"frames": [[0.5] * CHANNELS] * 600, "num_frames": 600, "seed": n} for n in range(64)]
CHECK = "/grpc.health.v1.Health/Check"


def head(path, size, token):
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Length: {size}\r\n\r\n"
    ).encode()


def keep_sockets(port, count, sent=b""):
    """Sends the same on many connections, and then neither sends nor reads."""
    while True:
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                made = stack.enter_context(socket.socket())
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                made.settimeout(2)
                with contextlib.suppress(OSError):  # it had to make room
                    made.connect(("127.0.0.1", port))
                    made.sendall(sent)
            time.sleep(KEPT_SECONDS)


async def keep_probes(address):
    """Asks for the health on a few connections, without a message."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    while True:
        channels = [grpc.aio.insecure_channel(address, own) for _ in range(CONNECTIONS)]
        calls = [channel.stream_unary(CHECK)() for channel in channels for _ in range(PROBES)]
        await asyncio.sleep(KEPT_SECONDS)
        for call in calls:
            call.cancel()
        for channel in channels:
            await channel.close()


def ask_for_many_rows(port, token):
    body, headers = json.dumps({"instances": ROWS}), {"Authorization": f"Bearer {token}"}
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("POST", "/v1/models/voice:predict", body, headers)
            connection.getresponse().read()
        connection.close()


def main(port, address, token):
    """Attacks in every way at once."""
    infer = head("/v2/models/voice/infer", BODY_BYTES, token) + bytes(BODY_BYTES - 1)
    speak = head("/v1/models/endless:speak", len(SOUND), token) + SOUND
    ways = [
        (keep_sockets, port, IDLE),
        (keep_sockets, port, BODIES, infer),
        (keep_sockets, port, STREAMS, speak),
        (ask_for_many_rows, port, token),
    ]
    for way, *rest in ways:
        threading.Thread(target=way, args=rest, daemon=True).start()
    asyncio.run(keep_probes(address))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
