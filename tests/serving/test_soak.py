"""Forty clients for minutes: nobody is left without an answer, and nothing grows."""

import collections
import contextlib
import json
import os
import shutil
import statistics
import threading
import time

import grpc
import pytest
from fake_bundle import HOP, FakeModelStore
from serve_command import Command
from serve_load import FRAMES, INFER, SOUND_FRAMES, SPEAK, predict, predict_request, speak, until

SECONDS = float(os.environ.get("ONEPASS_SOAK_SECONDS", "600"))
LOOK_SECONDS = 2.0
SWAP_SECONDS = 20.0
GROWTH_MIB = 8.0  # of the last fifth of the time over the second
MORE_FILES = 24  # connections that are being opened and closed differ from look to look
MORE_THREADS = 8
PATIENCE_SECONDS = 120.0
BACK_SECONDS = 0.05  # sooner than a full server asks for, so that it stays full
ANSWERED, REFUSED, LEFT = "answered", "refused", "left"
LIMITS = ("--queue-rows", 8, "--max-streams", 4, "--log-level", "warning", "--poll-seconds", 0.5)
CONTROL = {"seconds": 0.04, "chunk_seconds": 0.002}


def look_at(command):
    """The process at this moment."""
    threads, files = command.count("task"), command.count("fd")
    return {"memory_mib": command.memory_mib(), "files": files, "threads": threads}


class Client(threading.Thread):
    """Asks with `once(client)` until stopped; ending in no allowed way is a failure."""

    def __init__(self, command, once, is_odd=False):
        super().__init__(daemon=True)
        self.command, self.once, self.is_odd = command, once, is_odd
        self.stopped, self.ended = threading.Event(), collections.Counter()
        self.versions, self.failures = set(), []
        self.connection, self.channel = command.connection(), command.channel()

    def run(self):
        while not self.stopped.is_set():
            try:
                way = self.once(self)
            except grpc.RpcError as error:
                way = REFUSED
                if error.code().name != "UNAVAILABLE" or not is_later(error.trailing_metadata()):
                    self.failures.append(repr(error)[:500])
            except Exception as error:
                way = "failed"
                self.failures.append(repr(error)[:500])
            self.ended[way] += 1
            if way != ANSWERED:
                self.stopped.wait(BACK_SECONDS)
        self.connection.close()
        self.channel.close()


def is_later(headers):
    return int({k.lower(): v for k, v in headers or ()}.get("retry-after", 0)) >= 1


def is_refused(answer):
    """Whether a full server answers that the client may come again, instead of the result."""
    assert answer.status == 200 or (answer.status == 503 and is_later(answer.getheaders()))
    return answer.status == 503


def predict_http(client):
    client.connection.request("POST", "/v2/models/voice/infer", INFER)
    answer = client.connection.getresponse()
    content = json.loads(answer.read())
    if client.is_odd:  # every request has a connection of its own
        client.connection.close()
    if is_refused(answer):
        return REFUSED
    sizes = {output["name"]: output["shape"] for output in content["outputs"]}
    assert sizes["sound"] == [1, FRAMES * HOP]
    client.versions.add(int(content["model_version"]))
    return ANSWERED


def listen_http(client):
    """Hear a sound to the end or, every other client, the beginning only."""
    with contextlib.closing(client.command.connection()) as connection:
        connection.request("POST", "/v1/models/voice:speak", SPEAK)
        answer = connection.getresponse()
        if is_refused(answer):
            return REFUSED
        if client.is_odd:
            assert answer.read(2)
            return LEFT
        assert len(answer.read()) == 2 * SOUND_FRAMES * HOP
        return ANSWERED


def predict_grpc(client):
    answer = predict(client.channel, predict_request())
    assert answer.outputs["sound"].tensor_shape.dim[1].size == FRAMES * HOP
    client.versions.add(answer.model_spec.version.value)
    return ANSWERED


def listen_grpc(client):
    call, count = speak(client.channel), 0
    for chunk in call:
        count += len(chunk.samples) // 4
        if client.is_odd:
            call.cancel()
            return LEFT
    assert count == SOUND_FRAMES * HOP
    return ANSWERED


def forty(command):
    numbers = {predict_http: 16, predict_grpc: 14, listen_http: 5, listen_grpc: 5}
    return [
        Client(command, once, n % 2 == 1) for once, count in numbers.items() for n in range(count)
    ]


@contextlib.contextmanager
def at_work(clients):
    """The clients ask meanwhile; afterwards none of them has failed or hangs."""
    for client in clients:
        client.start()
    try:
        yield
    finally:
        for client in clients:
            client.stopped.set()
        for client in clients:
            client.join(30)
    assert [failure for client in clients for failure in client.failures] == []
    assert not any(client.is_alive() for client in clients)


def totals(clients):
    return sum((client.ended for client in clients), collections.Counter())


def seen(clients):
    """The versions that have answered somebody."""
    return set().union(*(client.versions for client in clients))


def watched(command, models, clients, seconds):
    """A look every few seconds, and the last version; new ones come and old ones go meanwhile."""
    looks, version, start = [], 1, time.monotonic()
    while (now := time.monotonic() - start) < seconds:
        looks.append(look_at(command))
        if now > version * min(SWAP_SECONDS, seconds / 4) and version in seen(clients):
            version += 1
            models.add(version=version, **CONTROL)
            if version > 2:
                shutil.rmtree(models.root / "voice" / str(version - 2))
        time.sleep(LOOK_SECONDS if seconds > 60 else seconds / 50)
    until(lambda: version in seen(clients), PATIENCE_SECONDS)
    until(lambda: all(is_served(client) for client in clients), PATIENCE_SECONDS)
    until(lambda: totals(clients).keys() >= {ANSWERED, REFUSED, LEFT}, PATIENCE_SECONDS)
    return looks, version


def is_served(client):
    return client.ended[ANSWERED] or client.ended[LEFT]


def grown(looks, what):
    """Return by how much the median of the last fifth of the time exceeds the second's."""
    fifth, values = len(looks) // 5, [look[what] for look in looks]
    return statistics.median(values[-fifth:]) - statistics.median(values[fifth : 2 * fifth])


def soak(tmp_path, seconds):
    models = FakeModelStore(tmp_path / "models")
    models.add(**CONTROL)
    with Command(models, *LIMITS) as command:
        before = look_at(command)
        clients = forty(command)
        with at_work(clients):
            looks, version = watched(command, models, clients, seconds)
        ended = totals(clients)
        growth = {what: round(grown(looks, what), 2) for what in before}
        print(f"\n{before}\n{looks[len(looks) // 5]}\n{looks[-1]}")
        print(f"{dict(ended)}, {version} versions, grown by {growth}")
        assert ended.keys() == {ANSWERED, REFUSED, LEFT}
        until(lambda: command.count("fd") <= before["files"] + 4)
        assert command.count("task") <= before["threads"] + 16
        assert "Traceback" not in command.process.output()
        assert seen(clients) == set(range(1, version + 1))
        return growth


@pytest.mark.integration
def test_forty_clients_are_all_answered_while_versions_change(tmp_path):
    soak(tmp_path, 3.0)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 180)
def test_forty_clients_for_minutes_leave_nothing_behind(tmp_path):
    growth = soak(tmp_path, SECONDS)
    assert growth["memory_mib"] < GROWTH_MIB
    assert growth["files"] < MORE_FILES
    assert growth["threads"] < MORE_THREADS
