"""The clients of a server, in a process of their own: calls timed one by one, and closed loops.

Started as `python -m onepass.bench.serving.client DESCRIPTOR`, see onepass/bench/worker_process.py.
"""

import itertools
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

from onepass.bench.serving.in_process import arrays_of
from onepass.bench.serving.protocols import HTTP_SPEAK, WAYS, Way, spoken
from onepass.bench.worker_process import median_seconds, serve
from serving.bundles.signature import Arrays


class Client:
    """Asks one server. A call is of a model with the arrays of a file, see `serving_models.Case`.

    Args:
      http_address, grpc_address: of the server. token: that it asks for, if any.
    """

    def __init__(self, http_address: str, grpc_address: str, token: str = ""):
        self._http_address, self._grpc_address, self._token = http_address, grpc_address, token

    def call(self, way: str, model: str, inputs: str, count: int) -> dict[str, float]:
        """Seconds of a call from arrays to arrays, the median of `count` after one more."""
        arrays = arrays_of(inputs)
        # A new one for each measurement: the server closes those that fell silent in between.
        connection = self._connected(way, model)

        def call() -> None:
            connection.outputs(connection.ask(connection.request(arrays)))

        try:
            call()  # wakes the server up
            return {"seconds": median_seconds(call, count)}
        finally:
            connection.close()

    def closed_loop(
        self, way: str, model: str, inputs: str, clients: int, seconds: float
    ) -> dict[str, float]:
        """Calls a second of so many clients, each of which asks again once it is answered.

        cores: that this process was busy on meanwhile, of which the server had so much less.
        """
        arrays = arrays_of(inputs)
        connections = [self._connected(way, model) for _ in range(clients)]
        try:
            return _looped(connections, arrays, seconds)
        finally:
            for connection in connections:
                connection.close()

    def speak(self, way: str, model: str, inputs: str, wav: str, count: int) -> dict[str, float]:
        """Seconds to the first and to the last byte of a streamed sound, medians of `count`."""
        frames, recording = arrays_of(inputs)["frames"][0], Path(wav).read_bytes()
        first, last = [], []
        for _ in range(count):
            addresses = (self._http_address, self._grpc_address)
            parts = spoken(way, *addresses, model, frames, recording)
            start = time.perf_counter()
            next(parts)
            first.append(time.perf_counter() - start)
            for _ in parts:
                pass
            last.append(time.perf_counter() - start)
        return {"first": statistics.median(first), "last": statistics.median(last)}

    def streams(self, model: str, inputs: str, count: int) -> dict[str, float]:
        """The longest time in seconds between two parts of a stream, of `count` side by side."""
        frames = arrays_of(inputs)["frames"][0]
        addresses = (self._http_address, self._grpc_address)
        each = [spoken(HTTP_SPEAK, *addresses, model, frames, b"") for _ in range(count)]
        with ThreadPoolExecutor(count) as pool:
            return {"gap": max(pool.map(_longest_gap, each))}

    def _connected(self, way: str, model: str) -> Way:
        kind = WAYS[way]
        over_grpc = kind is WAYS["gRPC Predict"]
        address = self._grpc_address if over_grpc else self._http_address
        return kind(address, model, self._token)


def _longest_gap(parts: Iterator[bytes]) -> float:
    times = [time.perf_counter() for _ in parts]
    return max(later - earlier for earlier, later in itertools.pairwise(times))


def _looped(connections: list[Way], arrays: Arrays, seconds: float) -> dict[str, float]:
    starts: list[tuple[float, float]] = []
    problems, counts, ends = [], [], []

    def started() -> None:  # once, when the last of them is there
        starts.append((time.perf_counter(), time.process_time()))

    begin = threading.Barrier(len(connections) + 1, started)

    def loop(connection: Way) -> None:
        try:
            request, count = connection.request(arrays), 0
            connection.ask(request)
            begin.wait()
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                connection.ask(request)
                count += 1
            ends.append(time.perf_counter())
            counts.append(count)
        except Exception as error:  # raised again by the thread that began it
            problems.append(error)
            begin.abort()

    threads = [threading.Thread(target=loop, args=(each,), daemon=True) for each in connections]
    for thread in threads:
        thread.start()
    try:
        begin.wait()
    except threading.BrokenBarrierError:
        raise problems[0] from None
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
    start, busy = starts[0]
    taken = max(ends) - start
    return {"rate": sum(counts) / taken, "cores": (time.process_time() - busy) / taken}


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), Client)
