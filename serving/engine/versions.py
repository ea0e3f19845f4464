"""The versions of one model, which are found, loading, loaded or broken, and their loading."""

import asyncio
import concurrent.futures
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from onepass.bundles.bundle import Servable
from onepass.bundles.errors import DeadlineExceeded
from onepass.bundles.manifest import (
    public_key,
    signed_manifest,
)
from onepass.foundation.errors import UserError
from serving.engine.served_model import ServedModel
from serving.engine.version_scanner import FoundVersion
from serving.observability import event
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
        from onepass.bundles import bundle  # imports TensorFlow

        return bundle.load(path, settings.backend, *([signed] if signed else []))

    return load


def _check_connections(settings: Settings) -> None:
    most = MOST_CONNECTIONS - 1 - SPARE_CONNECTIONS - settings.threads
    if settings.max_streams > most:
        raise UserError(
            f"`--max-streams` must be at most {most} in a sandbox (with `--threads` "
            f"{settings.threads}), got {settings.max_streams}: start more servers, or serve "
            "bundles that you trust with `--no-sandbox`."
        )


MAX_ENDED = 16  # largest number of unloaded versions to list

State = Literal["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]


@dataclasses.dataclass(frozen=True)
class VersionStatus:
    """A version's status, in TensorFlow Serving's terms, with what is wrong with it, or ""."""

    version: int
    state: State
    error: str = ""


@dataclasses.dataclass(frozen=True)
class BrokenVersion:
    """A version that could not be loaded, and when to retry.

    Attributes:
      error: why it could not be loaded, for clients.
      reason: why it could not be loaded, for the log.
      retry_at: `time.monotonic()` of the next attempt, infinite if the content was rejected.
      attempt: an abandoned attempt, which must end before the next one starts, or None.
    """

    error: str
    reason: str
    stamp: tuple[int, ...]
    delay_seconds: float
    retry_at: float
    attempt: "asyncio.Future[Any] | None" = None

    def is_due(self, found: FoundVersion, now: float) -> bool:
        """Return whether to retry: the files changed, or the delay and any old attempt are over."""
        is_over = self.attempt is None or self.attempt.done()
        return self.stamp != found.stamp or (self.retry_at <= now and is_over)


@dataclasses.dataclass(eq=False)
class VersionSet:
    """The state of all versions of one model.

    Attributes:
      mended: versions that were broken before they loaded, by number: the time of the successful
        load, and the failure before it.
      missed_scans: number of scans in a row that did not find the model.
    """

    found: list[FoundVersion] = dataclasses.field(default_factory=list)
    current: ServedModel | None = None
    current_stamp: tuple[int, ...] = ()
    loading: int | None = None
    unloading: list[ServedModel] = dataclasses.field(default_factory=list)
    broken: dict[int, BrokenVersion] = dataclasses.field(default_factory=dict)
    mended: dict[int, tuple[float, BrokenVersion]] = dataclasses.field(default_factory=dict)
    ended: set[int] = dataclasses.field(default_factory=set)
    problem: str = ""
    missed_scans: int = 0

    def take_in(self, name: str, found: list[FoundVersion]) -> None:
        """Record the versions found on disk, which must be sorted with the highest first."""
        self.missed_scans, self.found = 0, found
        self.report_replaced(name)
        numbers = [version.number for version in found]
        self.broken = {n: broken for n, broken in self.broken.items() if n in numbers}

    @property
    def is_loading(self) -> bool:
        """True if a thread is loading a version, even in an attempt that was abandoned."""
        attempts = [broken.attempt for broken in self.broken.values()]
        return self.loading is not None or any(a is not None and not a.done() for a in attempts)

    @property
    def load_attempted(self) -> bool:
        """True if a version is loaded, or is known to be broken while none is being loaded."""
        return self.current is not None or (self.loading is None and bool(self.broken))

    def report_problem(self, name: str, problem: str) -> None:
        """Record and log a problem with the model's folder, "" for none; keep loaded versions."""
        kept = f"{problem}; loaded models are still served" if problem else ""
        if kept and kept != self.problem:
            event(LOG, kept, logging.WARNING, model=name)
        self.problem = kept

    def report_replaced(self, name: str) -> None:
        """Log, once per change, that the current version's files changed; keep the loaded model."""
        for found in self.found:
            is_current = self.current is not None and found.number == self.current.version
            if is_current and found.stamp != self.current_stamp:
                self.current_stamp = found.stamp
                fields = {"model": name, "version": found.number}
                words = "its files changed; the loaded model is still served: export a new version"
                event(LOG, words, logging.WARNING, **fields)

    def mend(self, number: int, now: float) -> None:
        """Record that a version that was broken has been loaded; it may fail again later."""
        if number in self.broken:
            self.mended[number] = now, self.broken.pop(number)

    def failure_before(self, found: FoundVersion, since: float) -> BrokenVersion | None:
        """Return the same files' last failure; None if none, or if they were loaded by `since`."""
        at, mended = self.mended.get(found.number, (since, None))
        before = self.broken.get(found.number) or (mended if at > since else None)
        return before if before is not None and before.stamp == found.stamp else None

    def candidate(self, now: float) -> FoundVersion | None:
        """Return the version to load next: the highest that is not broken, or is due for a retry.

        Return None if that is the current version, or if it is older than the current version and a
        newer one is on disk.
        """
        current = None if self.current is None else self.current.version
        for found in self.found:
            # An older version is loaded only if the current one and all newer ones were removed.
            if found.number == current or found.number < (current or 0) < self.found[0].number:
                return None
            broken = self.broken.get(found.number)
            if broken is None or broken.is_due(found, now):
                return found
        return None

    def statuses(self) -> list[VersionStatus]:
        """Return the status of each version, lowest first."""
        statuses_by_number = {number: VersionStatus(number, "END") for number in self.ended}
        for found in self.found:
            statuses_by_number[found.number] = VersionStatus(found.number, "START")
            if self.current is not None and found.number < self.current.version:
                statuses_by_number[found.number] = VersionStatus(found.number, "END")
        for number, broken in self.broken.items():
            statuses_by_number[number] = VersionStatus(number, "END", broken.error)
        for served in self.unloading:
            statuses_by_number[served.version] = VersionStatus(served.version, "UNLOADING")
        if self.loading is not None:
            statuses_by_number[self.loading] = VersionStatus(self.loading, "LOADING")
        if self.current is not None:
            version = self.current.version
            statuses_by_number[version] = VersionStatus(version, "AVAILABLE", self.problem)
        return [statuses_by_number[number] for number in sorted(statuses_by_number)]

    def list_loaded(self) -> list[ServedModel]:
        """Return the loaded versions, which may still answer requests; the current one is last."""
        return [*self.unloading, *([] if self.current is None else [self.current])]
