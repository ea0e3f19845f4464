"""The models in a folder, which are loaded, warmed and replaced while requests are answered."""

import asyncio
import gc
import logging
import math
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from onepass.bundles.bundle import Servable
from onepass.bundles.errors import NotFound, NotReady, ServingError
from onepass.foundation.errors import UserError
from serving.engine.served_model import ServedModel
from serving.engine.version_scanner import FoundVersion, ScanResult, scan
from serving.engine.versions import (
    MAX_ENDED,
    BrokenVersion,
    LoadTimeout,
    ModelLoader,
    VersionSet,
    VersionStatus,
)
from serving.observability import Metrics, event
from serving.sandbox.sandboxed_bundle import ModelEnded, ModelFailed
from serving.settings import Settings

LOG = logging.getLogger(__name__)
MAX_DELAY_SECONDS = 60.0
HIDDEN_ERROR = "The server's log says why."
MISSED_SCANS = 3  # a folder missing for fewer scans may be in the middle of a replacement


class ModelRegistry:
    """The models in a folder by name, each with the highest version that can be loaded.

    The folder contains NAME/VERSION/. A new version is loaded and warmed while the old one is
    served, and then replaces it; the old one is unloaded once its last request is answered. Loaded
    models are kept if the folder cannot be read or is empty, as after a disk was unmounted. The
    registry is `draining` while the server is stopping.
    """

    def __init__(
        self,
        root: Path,
        settings: Settings,
        load: Callable[[Path], Servable] | None = None,
        metrics: Metrics | None = None,
    ):
        self.root, self.settings = Path(root), settings
        self._loader, self._metrics = ModelLoader(settings, load), metrics or Metrics()
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

        That is the case if every model of the first scan was loaded or found broken, a model is
        loaded or the folder has none, and the server is not stopping.
        """
        if self._initial_names is None or self.draining or not self._initial_load.is_set():
            return False
        return not self._version_sets or any(
            version_set.current for version_set in self._version_sets.values()
        )

    @property
    def is_busy(self) -> bool:
        """True if a thread loads a model or works on a request."""
        return any(
            version_set.is_loading or any(served.is_busy for served in version_set.list_loaded())
            for version_set in self._version_sets.values()
        )

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
        if current is None and version in (
            None,
            version_set.loading,
            *(f.number for f in version_set.found),
        ):
            if version_set.loading is None and version_set.broken:
                why = version_set.broken[max(version_set.broken)].error
                raise NotReady(f"`{name}` cannot be loaded. {why}")
            raise NotReady(f"`{name}` is being loaded.")
        if version is not None and version == version_set.loading:
            raise NotReady(f"Version {version} of `{name}` is being loaded.")
        raise NotFound(f"There is no version {version} of `{name}` being served.")

    async def start(self) -> None:
        """Scan the folder and start polling it; models are loaded in the background."""
        await self._scan_folder()
        self._initial_names = {
            name for name, version_set in self._version_sets.items() if version_set.found
        }
        self._check_initial_load()
        self._poller = asyncio.create_task(self._poll())

    async def initial_load_done(self) -> None:
        """Wait until every model of the first scan is loaded or known to be broken."""
        await self._initial_load.wait()

    def drain(self) -> None:
        """Stop being ready; requests are still answered."""
        self.draining = True

    async def stop(self, drain_seconds: float) -> bool:
        """Stop polling, wait for all requests and close models; return whether all were answered.

        Requests whose call has not started after `drain_seconds` fail with NotReady.
        """
        self.drain()
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
            self._close(served)

    def _close(self, served: list[ServedModel]) -> None:
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
            found = (
                None if version_set.loading is not None else version_set.candidate(time.monotonic())
            )
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
            if current is None or not hasattr(current.bundle, "is_alive"):
                continue  # the model runs in this process
            if await asyncio.to_thread(getattr, current.bundle, "is_alive"):
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
            bundle = await self._loader.load(name, found, is_retry)
        except Exception as error:
            self._record_failure(name, version_set, found, error)
        else:
            self._unload_current(version_set)
            version_set.current = ServedModel(bundle, self.settings, self._metrics, name)
            version_set.current_stamp = found.stamp
            version_set.mend(found.number, time.monotonic())
            self._metrics.record_load(name, found.number)
            seconds = time.monotonic() - start
            event(LOG, "ready", model=name, version=found.number, seconds=seconds)
        version_set.loading = None
        self._check_initial_load()

    def _record_failure(
        self, name: str, version_set: VersionSet, found: FoundVersion, error: Exception
    ) -> None:
        before = version_set.failure_before(found, time.monotonic() - MAX_DELAY_SECONDS)
        delay_seconds = self.settings.poll_seconds
        if before is not None:
            delay_seconds = min(2 * before.delay_seconds, MAX_DELAY_SECONDS)
        if _is_refused(error):
            delay_seconds = math.inf
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
        retry = "when it changes"
        if delay_seconds < math.inf:
            retry = f"in {delay_seconds:g} s, then ever less often, logged if the reason changes"
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
        if self._initial_names is not None and all(
            name not in self._version_sets or self._version_sets[name].load_attempted
            for name in self._initial_names
        ):
            self._initial_load.set()

    def _version_set(self, name: str) -> VersionSet:
        if name not in self.names():
            raise NotFound(f"There is no model `{name[:64]}`.")
        return self._version_sets[name]


def _is_refused(error: Exception) -> bool:
    return isinstance(error, UserError) and not isinstance(error.__cause__, OSError)


def _without_paths(text: str, path: Path, root: Path) -> str:
    text = text.replace(str(path), f"{path.parent.name}/{path.name}")
    for folder in (root.resolve(), root):
        text = text.replace(f"{folder}/", "").replace(str(folder), "the folder of models")
    return " ".join(text.split())[:300]
