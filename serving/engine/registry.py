"""The models under a folder, loaded, warm, and replaced while they are being asked."""

import asyncio
import dataclasses
import gc
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from replicator.runs.errors import UserError
from serving.engine.served_model import Served as Served
from serving.engine.version_scanner import Found, Scan, scan
from serving.errors import NotFound, NotReady, ServingError
from serving.observability.logs import event
from serving.settings import Settings

if TYPE_CHECKING:
    from serving.observability.metrics import Metrics

LOG = logging.getLogger(__name__)
MAX_DELAY_SECONDS = 60.0
REPORT_SECONDS = 10.0
MAX_ENDED = 16  # versions that are remembered to have been served
UNTOLD = "It cannot be loaded; the server's log has the reason."
MISSED_SCANS = 3  # after which a name that is gone counts as taken away, not as being replaced

State = Literal["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]


@dataclasses.dataclass(frozen=True)
class VersionStatus:
    """Where a version stands, in TensorFlow Serving's words.

    error: why it cannot be loaded, or what is wrong with the disk it came from; mostly empty.
    """

    version: int
    state: State
    error: str = ""


@dataclasses.dataclass(frozen=True)
class _Broken:
    """A version that could not be loaded, and when to try again."""

    error: str
    stamp: tuple[int, ...]
    delay_seconds: float
    again: float


@dataclasses.dataclass(eq=False)
class _Shelf:
    """All that is known of one name."""

    found: list[Found] = dataclasses.field(default_factory=list)
    current: Served | None = None
    loading: int | None = None
    leaving: list[Served] = dataclasses.field(default_factory=list)
    broken: dict[int, _Broken] = dataclasses.field(default_factory=dict)
    ended: set[int] = dataclasses.field(default_factory=set)
    problem: str = ""
    missed: int = 0

    @property
    def was_tried(self) -> bool:
        """Whether one is loaded, or known to be broken."""
        return self.current is not None or (self.loading is None and bool(self.broken))

    def complain(self, name: str, problem: str) -> None:
        """Notes what is wrong with the disk, empty for nothing; what is loaded is kept."""
        kept = f"{problem}; what is loaded goes on being served" if problem else ""
        if kept and kept != self.problem:
            event(LOG, kept, logging.WARNING, model=name)
        self.problem = kept

    def candidate(self, now: float) -> Found | None:
        """The version to be loaded next: the highest that is not known to be broken."""
        current = None if self.current is None else self.current.version
        for found in self.found:
            # An older one takes over only when all from the current one on were taken away.
            if found.number == current or found.number < (current or 0) < self.found[0].number:
                return None
            broken = self.broken.get(found.number)
            if broken is None or broken.stamp != found.stamp or broken.again <= now:
                return found
        return None

    def statuses(self) -> list[VersionStatus]:
        """Of every version, the lowest first."""
        said = {number: VersionStatus(number, "END") for number in self.ended}
        for found in self.found:
            said[found.number] = VersionStatus(found.number, "START")
            if self.current is not None and found.number < self.current.version:
                said[found.number] = VersionStatus(found.number, "END")
        for number, broken in self.broken.items():
            said[number] = VersionStatus(number, "END", broken.error)
        for served in self.leaving:
            said[served.version] = VersionStatus(served.version, "UNLOADING")
        if self.loading is not None:
            said[self.loading] = VersionStatus(self.loading, "LOADING")
        if self.current is not None:
            version = self.current.version
            said[version] = VersionStatus(version, "AVAILABLE", self.problem)
        return [said[number] for number in sorted(said)]


class Table:
    """The models under a folder by name, of each the highest version that can be loaded.

    A new version is loaded and warmed beside the old one, then takes its place; the old one is let
    go once its last request is answered. What is loaded goes on being served when the folder cannot
    be read, or is empty, as an unmounted disk is.

    Args:
      root: of NAME/VERSION/.
      settings: `poll_seconds` between two looks, and what each model may take.
      load: makes a bundle of a version's folder; None: `serving.bundles.bundle.load`.
      metrics: told what happens.
    """

    def __init__(
        self,
        root: Path,
        settings: Settings,
        load: Callable[[Path], Any] | None = None,
        metrics: "Metrics | None" = None,
    ):
        self.root, self.settings = Path(root), settings
        self._load_bundle, self._metrics = load or _load_from_disk(settings), metrics
        self._shelves: dict[str, _Shelf] = {}
        self._first: set[str] | None = None  # names that lay there at the start
        self._draining = False
        self._tasks: set[asyncio.Task] = set()
        self._poller: asyncio.Task | None = None
        self._scanner = ThreadPoolExecutor(1, thread_name_prefix="scan")
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="load")
        self._settled = asyncio.Event()

    @property
    def ready(self) -> bool:
        """Whether requests can be answered: every model found at first has been loaded or is
        broken, one is there unless none was found, and the server is not stopping."""
        if self._first is None or self._draining or not self._settled.is_set():
            return False
        return not self._shelves or any(shelf.current for shelf in self._shelves.values())

    @property
    def draining(self) -> bool:
        """Whether the server is stopping."""
        return self._draining

    @property
    def is_busy(self) -> bool:
        """Whether a thread loads, or works for a request."""
        return any(
            shelf.loading is not None or any(served.is_busy for served in _all_of(shelf))
            for shelf in self._shelves.values()
        )

    def names(self) -> list[str]:
        """Of all models that were found."""
        return sorted(self._shelves)

    def versions(self, name: str) -> list[VersionStatus]:
        """Where each version of a model stands, the lowest first; NotFound for no model."""
        return self._shelf(name).statuses()

    def get(self, name: str, version: int | None = None) -> Served:
        """The version that is served, or that very version; NotFound or NotReady."""
        shelf = self._shelf(name)
        current = shelf.current
        if current is not None and version in (None, current.version):
            return current
        for served in shelf.leaving:
            if served.version == version:
                return served
        if current is None and version in (None, shelf.loading, *(f.number for f in shelf.found)):
            broken = shelf.loading is None and bool(shelf.broken)
            raise NotReady(f"`{name}` {'cannot be loaded' if broken else 'is being loaded'}.")
        if version is not None and version == shelf.loading:
            raise NotReady(f"Version {version} of `{name}` is being loaded.")
        raise NotFound(f"There is no version {version} of `{name}` being served.")

    async def start(self) -> None:
        """Looks at the folder, and goes on looking; models are loaded behind it."""
        await self._look()
        self._first = {name for name, shelf in self._shelves.items() if shelf.found}
        self._settle()
        self._poller = asyncio.create_task(self._poll())

    async def settled(self) -> None:
        """Returns when every model found at first is loaded, or known to be broken."""
        await self._settled.wait()

    def drain(self) -> None:
        """Is no longer ready; requests are answered as before."""
        self._draining = True

    async def stop(self, drain_seconds: float) -> bool:
        """Ends the looking and waits for all requests; whether all were answered in time."""
        self.drain()
        if self._poller is not None:
            self._poller.cancel()
            await asyncio.wait([self._poller])
        served = [one for shelf in self._shelves.values() for one in _all_of(shelf)]
        try:
            async with asyncio.timeout(drain_seconds):
                for one in served:
                    await one.idle()
            return True
        except TimeoutError:
            return False
        finally:
            self._close(served)

    def _close(self, served: list[Served]) -> None:
        for one in served:
            one.close()
        for task in self._tasks:
            task.cancel()
        for pool in (self._scanner, self._loader):
            pool.shutdown(wait=False, cancel_futures=True)

    async def look(self) -> None:
        """Looks at the folder once, and waits for what is loaded because of it."""
        await self._look()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self.settings.poll_seconds)
            try:
                await self._look()
            except Exception:
                LOG.exception("looking at the folder of models failed")

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._note(await loop.run_in_executor(self._scanner, scan, self.root))
        for name, shelf in self._shelves.items():
            found = None if shelf.loading is not None else shelf.candidate(time.monotonic())
            if found is not None:
                shelf.loading = found.number
                self._begin(self._load(name, shelf, found))

    def _note(self, seen: Scan) -> None:
        """Takes in what was seen, as far as it may be believed."""
        for name, found in seen.versions.items():
            if found or name in self._shelves:
                shelf = self._shelves.setdefault(name, _Shelf())
                shelf.missed = 0
                shelf.found = found
                shelf.broken = {
                    f.number: shelf.broken[f.number]
                    for f in shelf.found
                    if f.number in shelf.broken
                }
                problem = "" if found else seen.problems.get(name, "its folder has no version")
                shelf.complain(name, problem)
        is_empty = not any(seen.versions.values())
        for name in self._shelves.keys() - seen.versions.keys():
            shelf = self._shelves[name]
            shelf.complain(name, seen.error or "its folder is gone")
            shelf.missed += not is_empty
            if shelf.missed >= MISSED_SCANS and shelf.loading is None:
                self._take_away(name, shelf)

    def _take_away(self, name: str, shelf: _Shelf) -> None:
        shelf.found = []
        if shelf.current is not None:
            event(LOG, "taken away", model=name)
            self._retire(shelf)
        elif not shelf.leaving:
            del self._shelves[name]

    async def _load(self, name: str, shelf: _Shelf, found: Found) -> None:
        start = time.monotonic()
        try:
            bundle = await self._in_loader(name, found)
        except Exception as error:
            self._note_broken(name, shelf, found, error)
        else:
            self._retire(shelf)
            shelf.current = Served(bundle, self.settings, self._metrics, name)
            shelf.broken.pop(found.number, None)
            if self._metrics:
                self._metrics.loaded(name, found.number)
            seconds = time.monotonic() - start
            event(LOG, "ready", model=name, version=found.number, seconds=seconds)
        shelf.loading = None
        self._settle()

    async def _in_loader(self, name: str, found: Found) -> Any:
        """The bundle of a version, warm; meanwhile the log says that it is coming."""

        def warm() -> Any:
            event(LOG, "loading", model=name, version=found.number)
            bundle = self._load_bundle(found.path)
            bundle.warm()
            return bundle

        loading = asyncio.get_running_loop().run_in_executor(self._loader, warm)
        while not (await asyncio.wait({loading}, timeout=REPORT_SECONDS))[0]:
            event(LOG, "still loading or warming", model=name, version=found.number)
        return loading.result()

    def _note_broken(self, name: str, shelf: _Shelf, found: Found, error: Exception) -> None:
        before, delay_seconds = shelf.broken.get(found.number), self.settings.poll_seconds
        if before is not None and before.stamp == found.stamp:
            delay_seconds = min(2 * before.delay_seconds, MAX_DELAY_SECONDS)
        told = isinstance(error, UserError | ServingError)
        text = _without_paths(str(error), found.path, self.root) if told else UNTOLD
        again = time.monotonic() + delay_seconds
        shelf.broken[found.number] = _Broken(text, found.stamp, delay_seconds, again)
        if self._metrics:
            self._metrics.broken(name)
        fields = {"model": name, "version": found.number, "again_in_seconds": delay_seconds}
        LOG.error(
            "cannot be loaded: %s",
            error if told else type(error).__name__,
            exc_info=None if told else error,
            extra={"fields": fields},
        )

    def _retire(self, shelf: _Shelf) -> None:
        """Lets the current version go once its last request is answered."""
        if shelf.current is not None:
            shelf.leaving.append(shelf.current)
            shelf.current = None
            self._begin(self._unload(shelf, shelf.leaving[-1]))

    async def _unload(self, shelf: _Shelf, served: Served) -> None:
        # Whoever took it from the table and has not asked yet is still answered: it works until
        # nobody has it any more.
        await served.idle()
        event(LOG, "unloaded", model=served.name, version=served.version)
        shelf.leaving.remove(served)
        shelf.ended = {*list(shelf.ended)[-MAX_ENDED:], served.version}
        del served
        await asyncio.to_thread(gc.collect)  # a model is full of cycles

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            LOG.error("loading or unloading failed", exc_info=task.exception())

    def _settle(self) -> None:
        if self._first is not None and all(
            name not in self._shelves or self._shelves[name].was_tried for name in self._first
        ):
            self._settled.set()

    def _shelf(self, name: str) -> _Shelf:
        if name not in self._shelves:
            raise NotFound(f"There is no model `{name[:64]}`.")
        return self._shelves[name]


def _all_of(shelf: _Shelf) -> list[Served]:
    return [*shelf.leaving, *([] if shelf.current is None else [shelf.current])]


def _without_paths(text: str, path: Path, root: Path) -> str:
    """The text as strangers may read it: one line that names no folder of this machine."""
    text = text.replace(str(path), f"{path.parent.name}/{path.name}")
    for folder in (root.resolve(), root):
        text = text.replace(f"{folder}/", "").replace(str(folder), "the folder of models")
    return " ".join(text.split())[:300]


def _load_from_disk(settings: Settings) -> Callable[[Path], Any]:
    def load(path: Path) -> Any:
        from serving.bundles.bundle import (
            load as load_bundle,  # here, since it may bring TensorFlow
        )

        return load_bundle(path, settings.backend)

    return load
