"""Tests marked `four_devices` run in a process of their file that has four logical CPUs.

The mark names the engine that has them, "tensorflow" or "jax"; the process runs the tests that are
selected here, as any others, and their reports are those of this process.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
from processes import ROOT, run_together

SECONDS = 3600.0  # for the tests of a file
LOGICAL_CPUS = 4


class FourDevices:
    """A plugin of pytest that runs the marked tests of a file in a process of their own."""

    def __init__(self):
        self._reports = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        mark = item.get_closest_marker("four_devices")
        if mark is None:
            return None
        if item.nodeid not in self._reports:
            self._reports |= run_file(item, *mark.args)
        where = {"nodeid": item.nodeid, "location": item.location}
        item.ihook.pytest_runtest_logstart(**where)
        for data in self._reports[item.nodeid]:
            report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
            item.ihook.pytest_runtest_logreport(report=report)
        # What the test before this one left set up for it may not be of the next one.
        item.session._setupstate.teardown_exact(nextitem)
        item.ihook.pytest_runtest_logfinish(**where)
        return True


def run_file(item, engine):
    """Return the reports of all marked tests of an item's file that are selected, by test."""
    here = (other for other in item.session.items if other.path == item.path)
    others = [other for other in here if other.get_closest_marker("four_devices")]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "reports.json")
        words = [engine, output, *(other.nodeid for other in others)]
        [(_, log)] = run_together(Path(__file__), folder, [{}], SECONDS, words)
        reports = json.loads(output.read_text()) if output.exists() else {}
    for other in others:
        if other.nodeid not in reports:
            where = (other.nodeid, other.location, {})
            lost = pytest.TestReport(*where, outcome="failed", longrepr=log[-3000:], when="call")
            data = item.config.hook.pytest_report_to_serializable(config=item.config, report=lost)
            reports[other.nodeid] = [data]
    return reports


class Written:
    """A plugin of pytest that keeps the reports of every test."""

    def __init__(self):
        self.reports = {}

    def pytest_configure(self, config):
        self._config = config

    def pytest_runtest_logreport(self, report):
        to_json = self._config.hook.pytest_report_to_serializable
        data = to_json(config=self._config, report=report)
        self.reports.setdefault(report.nodeid, []).append(data)


def main(engine, output, *tests):
    """Run tests where an engine has four logical CPUs, and write their reports."""
    if engine == "jax":
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={LOGICAL_CPUS}"
        os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    else:
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * LOGICAL_CPUS
        )
        tf.config.list_logical_devices()  # TensorFlow starts, so that no more of them can be made
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.chdir(ROOT)
    written = Written()
    words = ["-c", os.devnull, "--rootdir", str(ROOT), "--noconftest", "-p", "no:cacheprovider"]
    pytest.main([*words, *tests], plugins=[written])
    Path(output).write_text(json.dumps(written.reports))
    os._exit(0)  # servers of TensorFlow cannot be stopped


if __name__ == "__main__":
    main(*sys.argv[1:])
