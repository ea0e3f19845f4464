"""Threads for the work before and after a model's call: features, phonemes, file formats."""

import asyncio
import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from onepass.bundles.errors import Cancelled, DeadlineExceeded
from serving.engine.fair_shares import (
    PROCESSORS,
    FairShares,
    Permits,
    RequestOrder,
    Use,
    current_client,
)

MAX_RUNNING = 8  # each may need 100 MB for the frames of the longest part of a text
MAX_RUNNING_OF_CLIENT = 4
SHORT_PART = 1 / 8  # a job with less of the work of each running job of its client is short


@dataclasses.dataclass(frozen=True)
class _Job:
    client: str
    run: Callable[[], Any]
    size: float
    rank: float


class Work:
    """Work in pieces, each with a permit for a processor, which can be stopped between two."""

    def __init__(self, permits: Permits, client: str):
        self._permits, self._client, self._use = permits, client, Use()
        self._stopped = threading.Event()
        self._piece = contextlib.ExitStack()

    def stop(self) -> None:
        """Make the next `pause` raise Cancelled."""
        self._stopped.set()

    def pause(self) -> None:
        """Wait for a permit for the next piece; raise Cancelled if the work was stopped."""
        self._piece.close()
        self._check()
        self._piece.enter_context(self._permits.permit(self._client, self._use))
        self._check()

    def _check(self) -> None:
        if self._stopped.is_set():
            raise Cancelled("The work was stopped.")

    @contextlib.contextmanager
    def hold_permit(self) -> Iterator[None]:
        """Hold a permit while the context lasts, except while `pause` waits for the next one."""
        with self._piece:
            self.pause()
            yield


class FairThreads:
    """Threads for jobs, at most `most` at once and `most_of_client` per client.

    The next job is one of the client with the fewest running jobs or, among several such clients,
    of the one that has been served least: its job of the lowest rank (`RequestOrder`). A client
    whose jobs take all of its threads may have one more for a short job. Unlike an executor's
    threads, these are daemons, so a job that hangs does not keep the process alive.
    """

    def __init__(self, most: int = MAX_RUNNING, most_of_client: int = MAX_RUNNING_OF_CLIENT):
        self._most, self._most_of_client = most, most_of_client
        self._lock = threading.Lock()
        self._waiting: dict[Future, _Job] = {}
        self._running: dict[str, list[float]] = {}  # sizes of the jobs
        self._shares, self._order = FairShares(), RequestOrder()

    def submit(self, client: str, job: Callable[[], Any], size: float = 1.0) -> Future:
        """Return the future of a job of this estimated `size`; cancelling removes a waiting job."""
        future: Future = Future()
        with self._lock:
            self._waiting[future] = _Job(client, job, size, self._order.join(client, size))
            self._start_next()
        future.add_done_callback(self._forget)
        return future

    def _forget(self, future: Future) -> None:
        with self._lock:
            if (job := self._waiting.pop(future, None)) is not None:
                self._order.leave(job.client)

    def _start_next(self) -> None:
        if sum(map(len, self._running.values())) >= self._most:
            return
        able: dict[str, Future] = {}
        for future, job in self._waiting.items():
            if self._has_thread_for(job):
                first = self._waiting[able.setdefault(job.client, future)]
                able[job.client] = future if job.rank < first.rank else able[job.client]
        if not able:
            return
        client = min(
            able, key=lambda name: (len(self._running.get(name, ())), self._shares.account(name))
        )
        job = self._waiting.pop(able[client])
        self._running.setdefault(client, []).append(job.size)
        self._order.advance(client, job.size)
        self._order.leave(client)
        self._shares.serve(client)
        self._shares.charge(client, 1.0)
        run = functools.partial(self._run, job, able[client])
        threading.Thread(target=run, name="preparing", daemon=True).start()

    def _has_thread_for(self, job: _Job) -> bool:
        running = self._running.get(job.client, [])
        if len(running) == self._most_of_client:
            return job.size < SHORT_PART * min(running)
        return len(running) < self._most_of_client

    def _run(self, job: _Job, future: Future) -> None:
        client = job.client
        try:
            if future.set_running_or_notify_cancel():
                _complete(future, job.run)
        finally:
            with self._lock:
                self._running[client].remove(job.size)
                if not self._running[client]:
                    del self._running[client]
                self._start_next()


def _complete(future: Future, job: Callable[[], Any]) -> None:
    try:
        result = job()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)


THREADS = FairThreads()


async def run_in_turn(
    seconds: float,
    function: Callable[..., Any],
    *arguments: Any,
    in_pieces: bool = False,
    size: float = 1.0,
) -> Any:
    """Call a function in a thread, taking turns with the work of other clients.

    If the awaiting task is cancelled or the time limit is over, a function that has not been called
    is never called, and a function that works in pieces ends after the current piece.

    Args:
      seconds: the time limit, including waiting.
      in_pieces: whether the function takes the keyword `pause`, a function that it calls between
        pieces of its work.
      size: estimated work, by which a client's shorter calls come first: for a text its characters
        at speed 1.
    """
    client = current_client()
    work = Work(PROCESSORS, client)

    def job() -> Any:
        more = {"pause": work.pause} if in_pieces else {}
        with work.hold_permit():
            return function(*arguments, **more)

    try:
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(THREADS.submit(client, job, size))
    except TimeoutError as error:
        raise DeadlineExceeded("The input took too long to process.") from error
    finally:
        work.stop()
