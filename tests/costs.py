"""What a run of the tests cost: the files that took longest, and the memory of every process."""

import collections
import resource

import pytest

SHOWN = 25


def peak_mib():
    """Return the most memory that this process has had at once."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


class Costs:
    """A plugin of pytest that adds a section to the summary wherever `--durations` is given."""

    def __init__(self):
        self._seconds, self._peaks = collections.Counter(), {}

    def pytest_runtest_logreport(self, report):
        self._seconds[report.nodeid.split("::")[0]] += report.duration

    def pytest_sessionfinish(self, session):
        output = getattr(session.config, "workeroutput", {})
        output["peak_mib"] = self._peaks["main"] = peak_mib()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        """Keep what a process of pytest-xdist said last; one that died has said nothing."""
        said = getattr(node, "workeroutput", None) or {}
        self._peaks[node.gateway.id] = said.get("peak_mib", "unknown")

    def pytest_terminal_summary(self, terminalreporter, config):
        if config.option.durations is None:
            return
        terminalreporter.section(f"slowest {SHOWN} files")
        for name, seconds in self._seconds.most_common(SHOWN):
            terminalreporter.line(f"{seconds:.1f} s {name}")
        terminalreporter.line(f"{self._seconds.total():.0f} s in {len(self._seconds)} files")
        terminalreporter.line(f"most memory, MiB: {self._peaks}")
