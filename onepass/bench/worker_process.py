"""What a process of a bench does: it answers requests that come through a pipe, objects in JSON."""

import json
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

STACK = ("Graph execution error", "Detected at node")


def serve(connection: Connection, make: Callable[..., Any]) -> None:
    """Answers requests until the pipe is closed.

    The first is the arguments of `make`; the others name a method of what it makes and its
    arguments. An error is an answer too.
    """
    made = None
    while True:
        try:
            request = json.loads(connection.recv_bytes())
        except (EOFError, ConnectionError):
            return
        try:
            if made is None:
                made, answer = make(**request), {}
            else:
                answer = getattr(made, request.pop("do"))(**request)
        except Exception as error:  # for the process that asked to tell
            answer = {"error": f"{type(error).__name__}: {reason(error)}"}
        connection.send_bytes(json.dumps(answer).encode())


def median_seconds(call: Callable[[], object], count: int) -> float:
    """The median of the seconds that so many calls take, one by one."""
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def reason(error: Exception) -> str:
    """What an error says, in one line, without the stack that TensorFlow puts in between."""
    lines = [line for line in str(error).splitlines() if not line.startswith((" ", "\t", *STACK))]
    return " ".join(" ".join(lines).split())[:300]
