"""A log that nobody reads stops nothing."""

import contextlib
import http.client
import io
import logging
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from fake_bundle import FakeModelStore
from processes import ROOT

from serving.observability import logs

READY = re.compile(r"at http://127\.0\.0\.1:(\d+)")
REQUESTS = 1000  # whose lines are more than a pipe holds


@pytest.fixture
def server(tmp_path):
    """A server whose stderr is a pipe that nobody reads, and its port."""
    store = FakeModelStore(tmp_path / "models")
    store.add()
    script = str(ROOT / "tests" / "served_process.py")
    words = [script, str(store.root), "--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(
        [sys.executable, *words],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        port = READY.search(process.stdout.readline())[1]
        yield process, int(port)
        process.kill()


def test_a_reader_of_the_log_that_hangs_stops_neither_answers_nor_the_end(server):
    process, port = server
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    with contextlib.closing(connection):
        for _ in range(REQUESTS):
            connection.request("GET", "/v2", headers={"x-request-id": "a" * 64})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


class Gate(io.StringIO):
    """A stream that takes nothing until it is opened."""

    def __init__(self):
        super().__init__()
        self.opened, self.asked = threading.Event(), threading.Event()

    def write(self, text):
        self.asked.set()
        self.opened.wait(20)
        return super().write(text)


def test_lines_that_nobody_reads_are_lost_and_counted(monkeypatch):
    monkeypatch.setattr(logs, "MAX_LINES", 3)
    gate, lost = Gate(), []
    handler = logs.BackgroundHandler(gate, lambda: lost.append(True))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.warning("first")
    assert gate.asked.wait(10)  # it is being written
    for number in range(10):
        logger.warning("line %d", number)
    assert len(lost) == 7
    assert not handler.write_all(0.01)
    gate.opened.set()
    end = time.monotonic() + 10
    while "line 2" not in gate.getvalue():
        assert time.monotonic() < end
        time.sleep(0.01)
    assert gate.getvalue().splitlines() == [
        "first",
        "7 lines of this log were lost",
        "line 0",
        "line 1",
        "line 2",
    ]
