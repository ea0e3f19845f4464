"""Versions of models loaded and warmed, a few at a time, each within its time."""

import asyncio
import concurrent.futures
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from serving.bundles.protocols import Servable
from serving.engine.version_scanner import FoundVersion
from serving.errors import DeadlineExceeded
from serving.observability.logs import event
from serving.sandbox.loader import bundle_loader
from serving.settings import Settings

LOG = logging.getLogger(__name__)
REPORT_SECONDS = 10.0  # after which the next model is loaded beside one that is not ready yet
LOADS_AT_ONCE = max(2, (os.cpu_count() or 1) // 2)


class LoadTimeout(DeadlineExceeded):
    """A version that is not ready in its time; `attempt` goes on without anyone to wait for it."""

    def __init__(self, seconds: float, attempt: "asyncio.Future[Servable]"):
        super().__init__(f"It was not loaded and warm within {seconds:g} seconds.")
        self.attempt = attempt


class ModelLoader:
    """Loads bundles in threads.

    Args:
      settings: `load_seconds` that a version has. load: makes a bundle of a version's folder; None:
        as the settings say.
    """

    def __init__(self, settings: Settings, load: Callable[[Path], Servable] | None = None):
        self._load_bundle = load or bundle_loader(settings)
        self._most_seconds = settings.load_seconds
        self._places = asyncio.Semaphore(LOADS_AT_ONCE)

    async def load(self, name: str, found: FoundVersion) -> Servable:
        """The bundle of a version, warm; meanwhile the log says that it is coming.

        One that takes long leaves its turn to others. Raises LoadTimeout.
        """

        def warm() -> Servable:
            event(LOG, "loading", model=name, version=found.number)
            bundle = self._load_bundle(found.path)
            bundle.warm()
            return bundle

        async with self._places:
            attempt = _in_daemon_thread(warm, f"load-{name}")
            end = time.monotonic() + self._most_seconds
            await asyncio.wait({attempt}, timeout=min(REPORT_SECONDS, self._most_seconds))
        while not attempt.done() and (left := end - time.monotonic()) > 0:
            event(LOG, "still loading or warming", model=name, version=found.number)
            await asyncio.wait({attempt}, timeout=min(REPORT_SECONDS, left))
        if not attempt.done():
            attempt.add_done_callback(lambda ended: ended.exception())  # which nobody asks for
            raise LoadTimeout(self._most_seconds, attempt)
        return attempt.result()


def _in_daemon_thread(work: Callable[[], Servable], name: str) -> "asyncio.Future[Servable]":
    """The result of the work, which may be given up: nobody waits for its thread, not at the end.

    It begins at once, and nothing cancels it.
    """
    done: concurrent.futures.Future[Servable] = concurrent.futures.Future()

    def run() -> None:
        done.set_running_or_notify_cancel()  # from here on it cannot be cancelled
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return asyncio.wrap_future(done)
