"""The models in a folder, which are loaded, warmed and replaced while requests are answered."""

import asyncio
import concurrent.futures
import dataclasses
import gc
import itertools
import logging
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from onepass.bundles import manifest
from onepass.bundles.bundle import Servable
from onepass.bundles.errors import DeadlineExceeded, NotFound, NotReady, ServingError, shorten_text
from onepass.foundation.rules import UserError
from serving.engine.clients import run_to_future
from serving.engine.prefix_states import StateCache
from serving.engine.served_model import ServedModel
from serving.observability import Metrics, event
from serving.sandbox.confinement import check_available
from serving.sandbox.fork_server import MOST_CONNECTIONS
from serving.sandbox.sandboxed_bundle import (
    SPARE_CONNECTIONS,
    ForkServer,
    ModelEnded,
    ModelFailed,
    SandboxedBundle,
)
from serving.settings import Settings

MOST_FILES = 1000  # largest number of files per version that are checked for changes
LOG = logging.getLogger(__name__)
REPORT_SECONDS = 10.0  # after this time, a slow load lets the next model load
LOADS_AT_ONCE = max(2, (os.cpu_count() or 1) // 2)
MAX_ENDED = 16  # largest number of unloaded versions to list
State = Literal["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]
MAX_DELAY_SECONDS = 60.0
HIDDEN_ERROR = "The server's log says why."
MISSED_SCANS = 3  # a folder missing for fewer scans may be in the middle of a replacement


@dataclasses.dataclass(frozen=True)
class FoundVersion:
    """A version on disk: its real path, and a `stamp` that changes if one of its files does."""

    number: int
    path: Path
    stamp: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ScanResult:
    """The content of a folder of models.

    `versions` are those of each model by name, highest first; `ignored` says why a folder with a
    manifest is not a version, by its path; `error` why the folder itself cannot be read, or "".
    """

    versions: dict[str, list[FoundVersion]] = dataclasses.field(default_factory=dict)
    ignored: dict[str, str] = dataclasses.field(default_factory=dict)
    problems: dict[str, str] = dataclasses.field(default_factory=dict)
    error: str = ""


def scan(root: Path) -> ScanResult:
    """Return the models and versions in a folder: NAME/VERSION with a manifest, no links out."""
    try:
        real = Path(root).resolve(strict=True)
        names = sorted(os.listdir(real))
    except OSError as error:
        return ScanResult(error=f"the folder of models cannot be read: {_reason(error)}")
    seen = ScanResult()
    for name in names:
        try:
            if not ((real / name).is_dir() or (real / name).is_symlink()):
                continue
            if problem := manifest.name_problem(name):
                if any(_with_manifest(real / name / word) for word in os.listdir(real / name)):
                    seen.ignored[name] = f"the name of a model {problem}"
            else:
                seen.versions[name] = _versions(real, name, seen)
        except OSError as error:
            if manifest.name_problem(name):
                continue
            seen.versions[name] = []
            seen.problems[name] = f"its folder cannot be read: {_reason(error)}"
    return seen


def _versions(root: Path, name: str, seen: ScanResult) -> list[FoundVersion]:
    versions: list[FoundVersion] = []
    for word in sorted(os.listdir(root / name)):
        path = root / name / word
        problem = manifest.folder_problem(path)
        if (real := _with_manifest(path)) is None:
            continue
        if not problem and not real.is_relative_to(root):
            problem = "it is a link out of the folder of models"
        if not problem and (real.name != word or manifest.folder_problem(real)):
            target = shorten_text(str(real.relative_to(root)))
            problem = f"it is a link to `{target}`, not NAME/{word}"
        if problem:
            seen.ignored[f"{name}/{word}"] = problem
            continue
        changes = tuple(itertools.chain.from_iterable(_changes(real)))
        versions.append(FoundVersion(int(word), real, changes))
    return sorted(versions, key=lambda found: -found.number)


def _with_manifest(path: Path) -> Path | None:
    try:
        real = path.resolve(strict=True)
        return real if stat.S_ISREG((real / manifest.MANIFEST).lstat().st_mode) else None
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        return None


def _changes(folder: Path) -> Iterator[tuple[int, ...]]:
    files = ((path, name) for path, _, names in os.walk(folder) for name in sorted(names))
    for path, name in itertools.islice(files, MOST_FILES):
        found = os.lstat(os.path.join(path, name))
        yield found.st_mtime_ns, found.st_size, found.st_ino


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


class LoadTimeout(DeadlineExceeded):
    """Error for a version that is not ready in time; its `attempt` is abandoned but continues."""

    def __init__(self, seconds: float, attempt: "asyncio.Future[Servable]"):
        super().__init__(f"It was not loaded and warmed within {seconds:g} seconds.")
        self.attempt = attempt


def bundle_loader(settings: Settings) -> Callable[[Path], Servable]:
    """Return a function that loads a version's bundle from its folder, according to the settings.

    Bundles signed with a trusted key run in this process; others in a separate process or, without
    a sandbox, in this one if no keys are trusted, and else they are rejected.
    """
    keys = [manifest.read_key(Path(path), "public") for path in settings.trust]
    if settings.sandbox:
        check_available()
        most = MOST_CONNECTIONS - 1 - SPARE_CONNECTIONS - settings.threads
        if settings.max_streams > most:
            raise UserError(
                f"`--max-streams` must be at most {most} in a sandbox (with `--threads` "
                f"{settings.threads}), got {settings.max_streams}: start more servers, or serve "
                "bundles that you trust with `--no-sandbox`."
            )
    fork_server = ForkServer(settings.weights, settings.backend)
    named = {"backend": settings.backend, "weights": settings.weights}

    def load(path: Path) -> Servable:
        signed = manifest.signed_manifest(path, keys) if keys else ""
        if keys and not (signed or settings.sandbox):
            raise UserError(f"{path} must be signed to be loaded without a sandbox.")
        if not signed and settings.sandbox:
            return SandboxedBundle(path, fork_server, settings, named)
        from onepass.bundles import bundle  # imports TensorFlow

        return bundle.load(path, settings.backend, signed, settings.weights)

    return load


@dataclasses.dataclass(frozen=True)
class VersionStatus:
    """A version's status, in TensorFlow Serving's terms, with what is wrong with it, or ""."""

    version: int
    state: State
    error: str = ""


@dataclasses.dataclass(frozen=True)
class BrokenVersion:
    """A version that could not be loaded, and when to retry.

    `error` says why for clients, `reason` for the log; `retry_at`, on the monotonic clock, is
    infinite if the content was rejected; `attempt` is an abandoned one, which must end before the
    next starts.
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

    `mended` has the versions that were broken before they loaded: the time of the successful load,
    and the failure before it. `missed_scans` in a row did not find the model.
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
        numbers = [version.number for version in found]
        self.broken = {n: broken for n, broken in self.broken.items() if n in numbers}
        # Once per change of the current version's files; the loaded model is kept.
        for each in found:
            is_current = self.current is not None and each.number == self.current.version
            if is_current and each.stamp != self.current_stamp:
                self.current_stamp = each.stamp
                fields = {"model": name, "version": each.number}
                words = "its files changed; the loaded model is still served: export a new version"
                event(LOG, words, logging.WARNING, **fields)

    @property
    def is_loading(self) -> bool:
        """True if a thread is loading a version, even in an attempt that was abandoned."""
        attempts = [broken.attempt for broken in self.broken.values()]
        return self.loading is not None or any(a is not None and not a.done() for a in attempts)

    def report_problem(self, name: str, problem: str) -> None:
        """Record and log a problem with the model's folder, "" for none; keep loaded versions."""
        kept = f"{problem}; loaded models are still served" if problem else ""
        if kept and kept != self.problem:
            event(LOG, kept, logging.WARNING, model=name)
        self.problem = kept

    def failure_before(self, found: FoundVersion, since: float) -> BrokenVersion | None:
        """Return the same files' last failure; None if none, or if they were loaded by `since`."""
        at, mended = self.mended.get(found.number, (since, None))
        before = self.broken.get(found.number) or (mended if at > since else None)
        return before if before is not None and before.stamp == found.stamp else None

    def candidate(self, now: float) -> FoundVersion | None:
        """Return the version to load next: the highest that is not broken, or is due for a retry.

        Return None if that is the current one, or is older than it while a newer one is on disk.
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
        current = -1 if self.current is None else self.current.version
        states: dict[int, tuple[State, str]] = {number: ("END", "") for number in self.ended}
        for found in self.found:
            states[found.number] = ("END" if found.number < current else "START"), ""
        for number, broken in self.broken.items():
            states[number] = "END", broken.error
        for served in self.unloading:
            states[served.version] = "UNLOADING", ""
        if self.loading is not None:
            states[self.loading] = "LOADING", ""
        if self.current is not None:
            states[current] = "AVAILABLE", self.problem
        return [VersionStatus(n, state, error) for n, (state, error) in sorted(states.items())]

    def list_loaded(self) -> list[ServedModel]:
        """Return the loaded versions, which may still answer requests; the current one is last."""
        return [*self.unloading, *([] if self.current is None else [self.current])]


class ModelRegistry:
    """The models in a folder, NAME/VERSION/, each with the highest version that can be loaded.

    A new version is loaded and warmed while the old one is served, and then replaces it; the old
    one is unloaded once its last request is answered. Loaded models are kept if the folder cannot
    be read or is empty, as after a disk was unmounted. The registry is `draining` while the server
    stops.
    """

    def __init__(
        self,
        root: Path,
        settings: Settings,
        load: Callable[[Path], Servable] | None = None,
        metrics: Metrics | None = None,
    ):
        self.root, self.settings = Path(root), settings
        self._load_bundle, self._metrics = load or bundle_loader(settings), metrics or Metrics()
        self._load_slots = asyncio.Semaphore(LOADS_AT_ONCE)
        self._states = StateCache(settings.prefix_bytes, self._metrics)
        self._version_sets: dict[str, VersionSet] = {}
        self._ignored: dict[str, str] = {}  # reasons that the log has, by folder
        self._initial_names: set[str] | None = None  # names of the first scan
        self.draining = self._is_scanned = False
        self._tasks: set[asyncio.Task] = set()
        self._poller: asyncio.Task | None = None
        self._scanner = ThreadPoolExecutor(1, thread_name_prefix="scan")
        self._initial_load = asyncio.Event()

    @property
    def ready(self) -> bool:
        """True if requests can be answered.

        Every model of the first scan was loaded or found broken, a model is loaded or the folder
        has none, and the server is not stopping.
        """
        if self._initial_names is None or self.draining or not self._initial_load.is_set():
            return False
        return not self._version_sets or any(x.current for x in self._version_sets.values())

    @property
    def is_busy(self) -> bool:
        """True if a thread loads a model or works on a request."""
        sets = self._version_sets.values()
        return any(x.is_loading or any(one.is_busy for one in x.list_loaded()) for x in sets)

    def names(self) -> list[str]:
        """Return the names of all models found; raise NotReady before the first scan."""
        if not self._is_scanned:
            raise NotReady("The server has not scanned its models yet.")
        return sorted(self._version_sets)

    def versions(self, name: str) -> list[VersionStatus]:
        """Return the status of each version of a model, lowest first."""
        return self._version_set(name).statuses()

    def get(self, name: str, version: int | None = None) -> ServedModel:
        """Return a loaded version of a model, by default the current one."""
        version_set = self._version_set(name)
        current = version_set.current
        if current is not None and version is None:
            return current
        for served in version_set.list_loaded():
            if served.version == version:
                return served
        known = [None, version_set.loading, *(found.number for found in version_set.found)]
        if current is None and version in known:
            if version_set.loading is None and (broken := version_set.broken):
                raise NotReady(f"`{name}` cannot be loaded. {broken[max(broken)].error}")
            raise NotReady(f"`{name}` is being loaded.")
        if version is not None and version == version_set.loading:
            raise NotReady(f"Version {version} of `{name}` is being loaded.")
        raise NotFound(f"There is no version {version} of `{name}` being served.")

    async def start(self) -> None:
        """Scan the folder and start polling it; models are loaded in the background."""
        await self._scan_folder()
        self._initial_names = {name for name, each in self._version_sets.items() if each.found}
        self._check_initial_load()
        self._poller = asyncio.create_task(self._poll())

    async def initial_load_done(self) -> None:
        """Wait until every model of the first scan is loaded or known to be broken."""
        await self._initial_load.wait()

    async def stop(self, drain_seconds: float) -> bool:
        """Stop, answering requests for `drain_seconds`; return whether all were answered."""
        self.draining = True
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait([self._poller])
        served = [one for known in self._version_sets.values() for one in known.list_loaded()]
        try:
            async with asyncio.timeout(drain_seconds):
                for one in served:
                    await one.wait_idle()
            return True
        except TimeoutError:
            return False
        finally:
            for one in served:
                one.close()
            for task in self._tasks:
                task.cancel()
            self._scanner.shutdown(wait=False, cancel_futures=True)

    async def rescan(self) -> None:
        """Scan the folder once, and wait for the loads that it starts."""
        await self._scan_folder()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self.settings.poll_seconds)
            try:
                await self._scan_folder()
            except Exception:
                LOG.exception("scanning the folder of models failed")

    async def _scan_folder(self) -> None:
        loop = asyncio.get_running_loop()
        self._apply_scan(await loop.run_in_executor(self._scanner, scan, self.root))
        self._is_scanned = True
        await self._remove_ended()
        for name, version_set in list(self._version_sets.items()):
            is_loading = version_set.loading is not None
            found = None if is_loading else version_set.candidate(time.monotonic())
            if found is not None:
                version_set.loading = found.number
                self._start_task(self._load(name, version_set, found))

    def _apply_scan(self, seen: ScanResult) -> None:
        for folder, reason in seen.ignored.items():
            if self._ignored.get(folder) != reason:
                event(LOG, f"ignored: {reason}", logging.WARNING, folder=folder)
        self._ignored = seen.ignored
        for name, found in seen.versions.items():
            if found or name in self._version_sets:
                version_set = self._version_sets.setdefault(name, VersionSet())
                version_set.take_in(name, found)
                problem = "" if found else seen.problems.get(name, "its folder has no version")
                version_set.report_problem(name, problem)
        is_empty = not any(seen.versions.values())
        for name in self._version_sets.keys() - seen.versions.keys():
            version_set = self._version_sets[name]
            version_set.report_problem(name, seen.error or "its folder is gone")
            version_set.missed_scans += not is_empty
            if version_set.missed_scans >= MISSED_SCANS:
                self._remove(name)

    async def _remove_ended(self) -> None:
        for name, version_set in list(self._version_sets.items()):
            current = version_set.current
            # A model that runs in this process has no `is_alive`.
            if current is None or await asyncio.to_thread(
                getattr, current.bundle, "is_alive", True
            ):
                continue
            if current is version_set.current:
                self._unload_current(version_set)
                for found in version_set.found:
                    if found.number == current.version:
                        self._record_failure(name, version_set, found, ModelEnded())

    def _remove(self, name: str) -> None:
        version_set = self._version_sets[name]
        if version_set.loading is not None:
            return  # until the next scan
        version_set.found = []
        if version_set.current is not None:
            event(LOG, "removed", model=name, version=version_set.current.version)
            self._unload_current(version_set)
        elif not version_set.unloading:
            del self._version_sets[name]

    async def _load(self, name: str, version_set: VersionSet, found: FoundVersion) -> None:
        start = time.monotonic()
        try:
            is_retry = found.number in version_set.broken
            bundle = await self._load_in_time(name, found, is_retry)
        except Exception as error:
            self._record_failure(name, version_set, found, error)
        else:
            self._unload_current(version_set)
            served = ServedModel(bundle, self.settings, self._metrics, name, self._states)
            version_set.current, version_set.current_stamp = served, found.stamp
            if found.number in version_set.broken:  # it may fail again later
                broken = version_set.broken.pop(found.number)
                version_set.mended[found.number] = time.monotonic(), broken
            self._metrics.record_load(name, found.number)
            seconds = time.monotonic() - start
            event(LOG, "ready", model=name, version=found.number, seconds=seconds)
        version_set.loading = None
        self._check_initial_load()

    async def _load_in_time(self, name: str, found: FoundVersion, is_retry: bool) -> Servable:
        """Load and warm a version; return its bundle, or raise LoadTimeout after `load_seconds`.

        The log reports only the first attempt. LOADS_AT_ONCE versions load at a time, but a load
        that takes longer than REPORT_SECONDS is no longer counted; the log reports that it
        continues.
        """

        def warm() -> Servable:
            if not is_retry:
                event(LOG, "loading", model=name, version=found.number)
            bundle = self._load_bundle(found.path)
            bundle.warm()
            return bundle

        seconds = self.settings.load_seconds
        async with self._load_slots:
            done: concurrent.futures.Future[Servable] = concurrent.futures.Future()
            # A daemon, which may be abandoned.
            threading.Thread(
                target=run_to_future, args=(done, warm), name=f"load-{name}", daemon=True
            ).start()
            attempt = asyncio.wrap_future(done)
            end = time.monotonic() + seconds
            await asyncio.wait({attempt}, timeout=min(REPORT_SECONDS, seconds))
        while not attempt.done() and (left := end - time.monotonic()) > 0:
            event(LOG, "still loading or warming", model=name, version=found.number)
            await asyncio.wait({attempt}, timeout=min(REPORT_SECONDS, left))
        if not attempt.done():
            # Retrieves the exception, so that asyncio does not log it.
            attempt.add_done_callback(lambda ended: ended.exception())
            raise LoadTimeout(seconds, attempt)
        return attempt.result()

    def _record_failure(
        self, name: str, version_set: VersionSet, found: FoundVersion, error: Exception
    ) -> None:
        before = version_set.failure_before(found, time.monotonic() - MAX_DELAY_SECONDS)
        delay_seconds = self.settings.poll_seconds
        if before is not None:
            delay_seconds = min(2 * before.delay_seconds, MAX_DELAY_SECONDS)
        if isinstance(error, UserError) and not isinstance(error.__cause__, OSError):
            delay_seconds = math.inf  # the content is refused
        is_public = isinstance(error, UserError | ServingError)
        reason = str(error) if is_public else f"{type(error).__name__}: {error}"
        last = version_set.broken.get(found.number)
        is_known = last is not None and (last.reason, last.stamp) == (reason, found.stamp)
        text = _without_paths(str(error), found.path, self.root) if is_public else HIDDEN_ERROR
        retry_at = time.monotonic() + delay_seconds
        attempt = error.attempt if isinstance(error, LoadTimeout) else None
        version_set.broken[found.number] = BrokenVersion(
            text, reason, found.stamp, delay_seconds, retry_at, attempt
        )
        self._metrics.load_failed(name)
        if is_known:  # and logged
            return
        later = f"in {delay_seconds:g} s, then ever less often, logged if the reason changes"
        retry = later if delay_seconds < math.inf else "when it changes"
        LOG.error(
            "cannot be loaded: %s",
            reason,
            # The failure of a model's process is not in this process's traceback.
            exc_info=None if is_public or isinstance(error, ModelFailed) else error,
            extra={"fields": {"model": name, "version": found.number, "retry": retry}},
        )

    def _unload_current(self, version_set: VersionSet) -> None:
        if version_set.current is not None:
            self._metrics.record_unload(version_set.current.name, version_set.current.version)
            version_set.unloading.append(version_set.current)
            version_set.current = None
            self._start_task(self._unload(version_set, version_set.unloading[-1]))

    async def _unload(self, version_set: VersionSet, served: ServedModel) -> None:
        # A handler may hold a reference that it has not used yet, so the model is not closed here.
        await served.wait_idle()
        served.forget_states()
        event(LOG, "unloaded", model=served.name, version=served.version)
        version_set.unloading.remove(served)
        version_set.ended = {*list(version_set.ended)[-MAX_ENDED:], served.version}
        del served
        await asyncio.to_thread(gc.collect)  # a model has many reference cycles

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            LOG.error("loading or unloading failed", exc_info=task.exception())

    def _check_initial_load(self) -> None:
        if self._initial_names is None:
            return
        initial = (self._version_sets.get(name, None) for name in self._initial_names)
        known = [each for each in initial if each is not None]
        if all(each.current or (each.loading is None and each.broken) for each in known):
            self._initial_load.set()

    def _version_set(self, name: str) -> VersionSet:
        if name not in self.names():
            raise NotFound(f"There is no model `{name[:64]}`.")
        return self._version_sets[name]


def _without_paths(text: str, path: Path, root: Path) -> str:
    text = text.replace(str(path), f"{path.parent.name}/{path.name}")
    for folder in (root.resolve(), root):
        text = text.replace(f"{folder}/", "").replace(str(folder), "the folder of models")
    return " ".join(text.split())[:300]
