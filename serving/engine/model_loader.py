"""Loading and warm-up of model versions, a few at a time, each with a time limit."""

import asyncio
import concurrent.futures
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from onepass.bundles.bundle import Servable
from onepass.bundles.errors import DeadlineExceeded
from onepass.bundles.manifest import public_key, signed_manifest
from onepass.foundation.errors import UserError
from serving.engine.version_scanner import FoundVersion
from serving.observability.logs import event
from serving.sandbox.confinement import check_available
from serving.sandbox.fork_server import MOST_CONNECTIONS
from serving.sandbox.processes import ForkServer
from serving.sandbox.sandboxed_bundle import SPARE_CONNECTIONS, SandboxedBundle
from serving.settings import Settings

LOG = logging.getLogger(__name__)
REPORT_SECONDS = 10.0  # after this time, a slow load lets the next model load
LOADS_AT_ONCE = max(2, (os.cpu_count() or 1) // 2)


class LoadTimeout(DeadlineExceeded):
    """Error for a version that is not ready in time; its `attempt` is abandoned but continues."""

    def __init__(self, seconds: float, attempt: "asyncio.Future[Servable]"):
        super().__init__(f"It was not loaded and warmed within {seconds:g} seconds.")
        self.attempt = attempt


class ModelLoader:
    """Loads bundles in threads, by `load` or, if that is None, by `bundle_loader`."""

    def __init__(self, settings: Settings, load: Callable[[Path], Servable] | None = None):
        self._load_bundle = load or bundle_loader(settings)
        self._load_seconds = settings.load_seconds
        self._slots = asyncio.Semaphore(LOADS_AT_ONCE)

    async def load(self, name: str, found: FoundVersion, is_retry: bool = False) -> Servable:
        """Load and warm a version; return its bundle, or raise LoadTimeout after `load_seconds`.

        The log reports the first attempt, not the later ones. Only LOADS_AT_ONCE versions load at a
        time, but a load that takes longer than REPORT_SECONDS is no longer counted; the log reports
        that it continues.
        """

        def warm() -> Servable:
            if not is_retry:
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
    """Start work in a daemon thread, which may be abandoned; its future cannot be cancelled."""
    done: concurrent.futures.Future[Servable] = concurrent.futures.Future()

    def run() -> None:
        done.set_running_or_notify_cancel()  # cannot be cancelled any more
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return asyncio.wrap_future(done)


def bundle_loader(settings: Settings) -> Callable[[Path], Servable]:
    """Return a function that loads a version's bundle from its folder, according to the settings.

    Bundles signed with a trusted key run in this process. Others run in a separate process or,
    without a sandbox, in this one if no keys are trusted; else they are rejected.
    """
    keys = [public_key(Path(path)) for path in settings.trust]
    if settings.sandbox:
        check_available()
        _check_connections(settings)
    fork_server = ForkServer()

    def load(path: Path) -> Servable:
        signed = signed_manifest(path, keys) if keys else ""
        if keys and not (signed or settings.sandbox):
            raise UserError(f"{path} must be signed to be loaded without a sandbox.")
        if not signed and settings.sandbox:
            return SandboxedBundle(path, fork_server, settings, {"backend": settings.backend})
        from onepass.bundles import loading  # imports TensorFlow

        return loading.load(path, settings.backend, *([signed] if signed else []))

    return load


def _check_connections(settings: Settings) -> None:
    most = MOST_CONNECTIONS - 1 - SPARE_CONNECTIONS - settings.threads
    if settings.max_streams > most:
        raise UserError(
            f"`--max-streams` must be at most {most} in a sandbox (with `--threads` "
            f"{settings.threads}), got {settings.max_streams}: start more servers, or serve "
            "bundles that you trust with `--no-sandbox`."
        )
