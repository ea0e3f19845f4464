"""Clients of a server under test: each with its own connection, each answer noted."""

import contextlib
import dataclasses
import http.client
import json
import os
import threading
import time
from pathlib import Path

TOKEN = "0123456789abcdef0123"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
REPLICA = "ray::ServeReplica:onepass:onepass"
WAIT_SECONDS = 60


@dataclasses.dataclass
class Noted:
    """An answer: when asked, how long it took, and its status, or the error in its place."""

    time: float
    seconds: float
    status: int | str
    retry_after: str | None = None


def frames(count):
    return [[0.1, 0.2, 0.3]] * count


def predict_body(seed=3, count=2):
    instance = {"frames": frames(count), "num_frames": count, "seed": seed}
    return json.dumps({"instances": [instance]})


def ask(port, method, path, body=None, headers=HEADERS):
    """(status, headers, content) of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()


class Client(threading.Thread):
    """Asks one model until it is stopped, or so many times."""

    def __init__(self, port, model, times=None):
        super().__init__(daemon=True)
        self.port, self.model, self.times = port, model, times
        self.answers, self.stopped = [], threading.Event()

    def run(self):
        connection = self._connection()
        while not self.stopped.is_set() and len(self.answers) != self.times:
            start = time.time()
            status: int | str
            try:
                connection.request(
                    "POST", f"/v1/models/{self.model}:predict", predict_body(), HEADERS
                )
                answer = connection.getresponse()
                answer.read()
                status, retry_after = answer.status, answer.getheader("Retry-After")
            except (OSError, http.client.HTTPException) as error:
                status, retry_after = type(error).__name__, None
                connection.close()
                connection = self._connection()
            self.answers.append(Noted(start, time.time() - start, status, retry_after))
        connection.close()

    def _connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)


@contextlib.contextmanager
def load(port, models):
    """Clients that ask while the block runs; yields a list that has their answers after it."""
    clients, answers = [Client(port, model) for model in models], []
    for client in clients:
        client.start()
    try:
        yield answers
    finally:
        for client in clients:
            client.stopped.set()
        for client in clients:
            client.join(WAIT_SECONDS)
            answers += client.answers


def rate(port, model, clients=8, seconds=3.0):
    """Requests answered 200 in a second."""
    start = time.time()
    with load(port, [model] * clients) as answers:
        time.sleep(seconds)
    return sum(a.status == 200 for a in answers) / (time.time() - start)


def statuses(answers):
    """How many of each status."""
    counts = {}
    for answer in answers:
        counts[str(answer.status)] = counts.get(str(answer.status), 0) + 1
    return counts


def replicas():
    """The process ids of the replicas."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                if words[0].decode().strip() == REPLICA:
                    found.append(int(folder.name))
    return sorted(found)


def wait_until(true, seconds, what):
    """Seconds until something is so; TimeoutError if it does not become so."""
    start = time.time()
    while not true():
        if time.time() - start > seconds:
            raise TimeoutError(f"after {seconds} s not: {what}")
        time.sleep(0.05)
    return time.time() - start


def end(process, number, seconds):
    """The exit status of a subprocess after a signal."""
    os.kill(process.pid, number)
    return process.wait(seconds)
