"""Loading and warming of model versions, a few at a time, each with a time limit."""

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
REPORT_SECONDS = 10.0  # after which a slow load lets the next model load
LOADS_AT_ONCE = max(2, (os.cpu_count() or 1) // 2)


class LoadTimeout(DeadlineExceeded):
    """A version that is not ready in time; `attempt` continues, and nobody waits for it."""

    def __init__(self, seconds: float, attempt: "asyncio.Future[Servable]"):
        super().__init__(f"It was not loaded and warmed within {seconds:g} seconds.")
        self.attempt = attempt


class ModelLoader:
    """Loads bundles in threads.

    Args:
      settings: `load_seconds`, the time limit of a version.
      load: returns the bundle of a version's folder; None: as the settings say.
    """

    def __init__(self, settings: Settings, load: Callable[[Path], Servable] | None = None):
        self._load_bundle = load or bundle_loader(settings)
        self._load_seconds = settings.load_seconds
        self._slots = asyncio.Semaphore(LOADS_AT_ONCE)

    async def load(self, name: str, found: FoundVersion) -> Servable:
        """Load and warm a version, and return its bundle.

        A version that takes long lets others load; the log reports that it is still loading.

        Raises:
          LoadTimeout: it takes longer than `load_seconds`.
        """

        def warm() -> Servable:
            event(LOG, "loading", model=name, version=found.number)
            bundle = self._load_bundle(found.path)
            bundle.warm()
            return bundle

        async with self._slots:
            attempt = _in_daemon_thread(warm, f"load-{name}")
            end = time.monotonic() + self._load_seconds
            await asyncio.wait({attempt}, timeout=min(REPORT_SECONDS, self._load_seconds))
        while not attempt.done() and (left := end - time.monotonic()) > 0:
            event(LOG, "still loading or warming", model=name, version=found.number)
            await asyncio.wait({attempt}, timeout=min(REPORT_SECONDS, left))
        if not attempt.done():
            # Retrieves the exception, so that asyncio does not log it.
            attempt.add_done_callback(lambda ended: ended.exception())
            raise LoadTimeout(self._load_seconds, attempt)
        return attempt.result()


def _in_daemon_thread(work: Callable[[], Servable], name: str) -> "asyncio.Future[Servable]":
    """Start work in a daemon thread and return its future, which cannot be cancelled.

    The work may be abandoned: neither the caller nor the interpreter's exit waits for the thread.
    """
    done: concurrent.futures.Future[Servable] = concurrent.futures.Future()

    def run() -> None:
        done.set_running_or_notify_cancel()  # cannot be cancelled from here on
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return asyncio.wrap_future(done)
