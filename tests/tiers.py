"""The tiers of the tests: a quick test starts no process of Python, and says so if it does.

A test is quick unless it, its class or its file (`pytestmark`) is marked `integration` or `slow`,
or its file is in `WHOLE`; one that has both marks is slow.
"""

import fnmatch
import os
import re
import sys
from pathlib import Path

import pytest

INTEGRATION = "integration"
SELECTED = {INTEGRATION: "integration and not slow"}  # by `-m`
# Files whose tests are integration tests: they run shipped models, benchmarks, examples, exported
# programs and commands as a whole, while quick tests state laws of small networks.
WHOLE = (
    *("benchmarks/*", "examples/*", "golden/*", "*/test_shipped*.py", "*/test_golden_*.py"),
    *("*/test_image_command.py", "*/test_enlarge_command.py", "*/test_sample_command.py"),
    *("*/test_array_command.py", "*portable.py", "*/test_card.py", "*/test_copy_synthesis.py"),
)
# What marks all tests of a file as others than quick ones.
MARKED = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.(integration|slow)\b", re.MULTILINE)
# Reported to `sys.audit` where a process comes from one that was started for an earlier test.
FORKED = "tests.forked"


def refined_selection(expression):
    """Return what `-m EXPRESSION` selects: the tests of a tier are in no other one."""
    return SELECTED.get(expression, expression)


def is_whole(file):
    """Return whether a file's tests are integration tests by its place, a path below tests/."""
    return any(fnmatch.fnmatchcase(file, pattern) for pattern in WHOLE)


def has_no_quick_test(path, file):
    """Return whether the place of a test file, or its `pytestmark`, says that no test is quick.

    Args:
      path: of the file.
      file: its path below tests/.
    """
    return is_whole(file) or MARKED.search(path.read_text("utf-8")) is not None


def compiles_quickly(expression):
    """Return whether `-m EXPRESSION` leaves out the slow tests."""
    return "not slow" in expression and " or " not in expression


def is_quick(expression):
    """Return whether `-m EXPRESSION` leaves out the integration tests too."""
    return compiles_quickly(expression) and "not integration" in expression


class ProcessWatch:
    """A plugin of pytest that fails a quick test in which a process of Python starts."""

    def __init__(self):
        self._quick, self._started = False, []
        sys.addaudithook(self._audit)

    def _audit(self, event, arguments):
        if not self._quick:
            return
        if event == "subprocess.Popen":
            words = [os.fsdecode(word) for word in [arguments[0], *arguments[1]] if word]
            if any(Path(word).name.startswith("python") for word in words[:3]):
                self._started.append(" ".join(words[1:4]))
        elif event in ("os.fork", "os.forkpty", FORKED):
            self._started.append(event)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        marked = item.get_closest_marker(INTEGRATION) or item.get_closest_marker("slow")
        self._quick, self._started = not marked, []
        try:
            return (yield)
        finally:
            self._quick = False

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self):
        started, self._started = self._started, []
        if started:
            pytest.fail(f"a quick test starts `{started[0]}`: mark it `{INTEGRATION}`", False)
