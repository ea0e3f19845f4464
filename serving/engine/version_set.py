"""The versions of one model: found, loading, loaded, being unloaded, broken."""

import asyncio
import dataclasses
import logging
from typing import Any, Literal

from serving.engine.served_model import ServedModel
from serving.engine.version_scanner import FoundVersion
from serving.observability.logs import event

LOG = logging.getLogger(__name__)
MAX_ENDED = 16  # versions that are remembered to have been served

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
class BrokenVersion:
    """A version that could not be loaded, and when to try again.

    stamp: of what was tried. retry_at: infinite for what was refused for its content.
    attempt: one that was given up, before whose end there is no other.
    """

    error: str
    stamp: tuple[int, ...]
    delay_seconds: float
    retry_at: float
    attempt: "asyncio.Future[Any] | None" = None

    def is_due(self, found: FoundVersion, now: float) -> bool:
        """Whether to try again: it has changed, or its time has come."""
        is_over = self.attempt is None or self.attempt.done()
        return self.stamp != found.stamp or (self.retry_at <= now and is_over)


@dataclasses.dataclass(eq=False)
class VersionSet:
    """All that is known of one name."""

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
        """Notes what lies on the disk, the highest version first."""
        self.missed_scans, self.found = 0, found
        self.report_replaced(name)
        numbers = [version.number for version in found]
        self.broken = {n: broken for n, broken in self.broken.items() if n in numbers}

    @property
    def is_loading(self) -> bool:
        """Whether a thread loads, be it for an attempt that was given up."""
        attempts = [broken.attempt for broken in self.broken.values()]
        return self.loading is not None or any(a is not None and not a.done() for a in attempts)

    @property
    def load_attempted(self) -> bool:
        """Whether one is loaded, or known to be broken."""
        return self.current is not None or (self.loading is None and bool(self.broken))

    def report_problem(self, name: str, problem: str) -> None:
        """Notes what is wrong with the disk, empty for nothing; what is loaded is kept."""
        kept = f"{problem}; what is loaded goes on being served" if problem else ""
        if kept and kept != self.problem:
            event(LOG, kept, logging.WARNING, model=name)
        self.problem = kept

    def report_replaced(self, name: str) -> None:
        """Says, once, that the version being served was written anew: it stays as it was loaded."""
        for found in self.found:
            is_current = self.current is not None and found.number == self.current.version
            if is_current and found.stamp != self.current_stamp:
                self.current_stamp = found.stamp
                fields = {"model": name, "version": found.number}
                words = "was replaced in place, and is served as it was: export a new version"
                event(LOG, words, logging.WARNING, **fields)

    def mend(self, number: int, now: float) -> None:
        """Notes that a version was loaded; whether it lasts is to be seen."""
        if number in self.broken:
            self.mended[number] = now, self.broken.pop(number)

    def failure_before(self, found: FoundVersion, since: float) -> BrokenVersion | None:
        """The last failure of the same files, unless what came of it was well since then."""
        at, mended = self.mended.get(found.number, (since, None))
        before = self.broken.get(found.number) or (mended if at > since else None)
        return before if before is not None and before.stamp == found.stamp else None

    def candidate(self, now: float) -> FoundVersion | None:
        """The version to be loaded next: the highest that is not known to be broken."""
        current = None if self.current is None else self.current.version
        for found in self.found:
            # An older one takes over only when all from the current one on were taken away.
            if found.number == current or found.number < (current or 0) < self.found[0].number:
                return None
            broken = self.broken.get(found.number)
            if broken is None or broken.is_due(found, now):
                return found
        return None

    def statuses(self) -> list[VersionStatus]:
        """Of every version, the lowest first."""
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

    def loaded(self) -> list[ServedModel]:
        """Every version that may still be answering, the current one last."""
        return [*self.unloading, *([] if self.current is None else [self.current])]
