"""A real `onepass serve` over fake bundles, in a process of its own."""

import contextlib
import http.client
import json
import re
import socket
import time
from pathlib import Path

import grpc
from processes import ROOT, Process, wait_until

SCRIPT = ROOT / "tests" / "served_process.py"
PROBES = r"(?: and, for probes, (\S+))?"
READY = re.compile(rf"^serving (.*) at https?://(\S+):(\d+) and, for gRPC, (\S+?){PROBES}$", re.M)
METRICS = "/monitoring/prometheus/metrics"
INSIDES = ("Traceback", 'File "', ".py", "secret", "Error(", str(ROOT))


def ready(server, seconds=120):
    """The match of the line that a server's process says once it is ready."""
    end = time.monotonic() + seconds
    while (said := READY.search(server.output())) is None:
        assert server.is_running() and time.monotonic() < end, server.output()
        time.sleep(0.02)
    return said


class Command:
    """A running `onepass serve`, ready: `names`, `port`, `grpc_address`."""

    def __init__(self, store, *options, environment=None):
        words = (store.root, "--port", 0, "--grpc-port", 0, "--poll-seconds", 0.05, *options)
        log = store.root.parent / "log"
        self.process = Process(SCRIPT, log, *words, environment=environment)

    def __enter__(self):
        said = ready(self.process, 30)
        self.names, port, self.grpc_address = said[1], said[3], said[4]
        self.probe_address = said[5]
        self.port = int(port)
        return self

    def __exit__(self, *exception):
        self.process.kill()

    def ended(self, number, seconds=10):
        self.process.signal(number)
        return self.process.ended(seconds)

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def socket(self, receive_bytes=None):
        """A bare socket to the HTTP side."""
        made = socket.socket()
        if receive_bytes is not None:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        made.settimeout(10)
        made.connect(("127.0.0.1", self.port))
        return made

    def channel(self):
        """Return a gRPC channel with a connection of its own."""
        return grpc.insecure_channel(self.grpc_address, [("grpc.use_local_subchannel_pool", 1)])

    def asked(self, method, path, body=None, **headers):
        """(status, headers, body) of an answer; a refusal must tell nothing of the insides."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with contextlib.closing(self.connection()) as connection:
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            content = answer.read()
        if answer.status >= 400:
            assert is_discreet(content.decode("latin-1")), content
            assert json.loads(content)["error"]
        return answer.status, answer.headers, content

    def metric(self, name, **headers):
        """The value of a metric, written as in the page for Prometheus."""
        text = self.asked("GET", METRICS, **headers)[2].decode()
        found = [line for line in text.splitlines() if line.rpartition(" ")[0] == name]
        return float(found[0].rpartition(" ")[2]) if found else 0.0

    def wait_for(self, name, value, seconds=10):
        """Returns once a metric has that value."""
        wait_until(lambda: self.metric(name) == value, seconds)

    def memory_mib(self, what="VmRSS"):
        """Resident memory of the process: `VmRSS` now, `VmHWM` the most so far."""
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.search(rf"^{what}:\s+(\d+) kB$", text, re.M)[1]) / 1024

    def count(self, what):
        """Return the number of open files (`fd`) or threads (`task`) of the process."""
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/{what}").iterdir())


def is_discreet(words):
    return not any(hint in words for hint in INSIDES)
