"""Forty clients for minutes: nobody is left without an answer, and nothing grows."""

import asyncio
import dataclasses
import gc
import os
import shutil
import statistics
import time
from pathlib import Path

import numpy as np
import pytest
from fake_bundle import FakeModelStore, FakeSound
from serve_command import Command
from serve_load import (
    ANSWERED,
    LEFT,
    REFUSED,
    GrpcClient,
    GrpcListener,
    HttpClient,
    HttpListener,
    at_work,
    totals,
    until,
)

from serving.engine.batching import Batcher, Padding, Request
from serving.observability import Metrics
from serving.settings import Settings

SECONDS = float(os.environ.get("ONEPASS_SOAK_SECONDS", "600"))
LOOK_SECONDS = 2.0
SWAP_SECONDS = 20.0
GROWTH_MIB = 8.0  # of the last fifth of the time over the second
MORE_FILES = 24  # connections that are being opened and closed differ from look to look
MORE_THREADS = 8
PATIENCE_SECONDS = 120.0
LIMITS = ("--queue-rows", 8, "--max-streams", 4, "--log-level", "warning", "--poll-seconds", 0.5)
CONTROL = {"seconds": 0.04, "chunk_seconds": 0.002}


@dataclasses.dataclass(frozen=True)
class Look:
    """The process at one moment."""

    seconds: float
    memory_mib: float
    files: int
    threads: int


def forty(command):
    clients = [HttpClient(command, number % 2 == 0) for number in range(16)]
    clients += [GrpcClient(command) for _ in range(14)]
    for kind in (HttpListener, GrpcListener):
        clients += [kind(command, hasty=number % 2 == 0) for number in range(5)]
    return clients


def seen(clients):
    """The versions that have answered somebody."""
    return set().union(*(client.versions for client in clients))


def watched(command, models, clients, seconds):
    """A Look every few seconds, and the last version; new ones come and old ones go meanwhile."""
    looks, version, start = [], 1, time.monotonic()
    while (now := time.monotonic() - start) < seconds:
        memory_mib, files = command.memory_mib(), command.count("fd")
        looks.append(Look(now, memory_mib, files, command.count("task")))
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
    fifth = len(looks) // 5
    last, second = looks[-fifth:], looks[fifth : 2 * fifth]
    of_last, of_second = ([getattr(rescan, what) for rescan in part] for part in (last, second))
    return statistics.median(of_last) - statistics.median(of_second)


def soak(tmp_path, seconds):
    models = FakeModelStore(tmp_path / "models")
    models.add(**CONTROL)
    with Command(models, *LIMITS) as command:
        before = Look(0.0, command.memory_mib(), command.count("fd"), command.count("task"))
        clients = forty(command)
        with at_work(clients):
            looks, version = watched(command, models, clients, seconds)
        ended = totals(clients)
        growth = {what: round(grown(looks, what), 2) for what in ("memory_mib", "files", "threads")}
        print(f"\n{before}\n{looks[len(looks) // 5]}\n{looks[-1]}")
        print(f"{dict(ended)}, {version} versions, grown by {growth}")
        assert ended.keys() == {ANSWERED, REFUSED, LEFT}
        until(lambda: command.count("fd") <= before.files + 4)
        assert command.count("task") <= before.threads + 16
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


CLOSED_LOOP_SECONDS = 60.0
CLOSED_LOOP_CLIENTS = 24


def resident_mib():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
@pytest.mark.timeout(CLOSED_LOOP_SECONDS + 180)
def test_a_minute_of_clients_that_ask_again_at_once_takes_constant_memory():
    """The queue is never empty: each client's next request waits before the others are answered."""
    bundle = FakeSound()
    padding = Padding(bundle.spec["serving"], bundle.signatures)
    batcher = Batcher(bundle.call, padding, Settings(), Metrics())
    end, looks = time.monotonic() + CLOSED_LOOP_SECONDS, []

    async def client(number):
        frames = np.zeros([1, 20 + number % 3, 3], np.float32)
        given = {"frames": frames, "num_frames": [frames.shape[1]], "seed": [number]}
        while time.monotonic() < end:
            await batcher.submit("serving_default", bundle.check("serving_default", given))

    async def watch():
        while time.monotonic() < end:
            bundle.control.calls.clear()
            looks.append(Look(time.monotonic(), resident_mib(), 0, 0))
            await asyncio.sleep(LOOK_SECONDS)

    async def run():
        await asyncio.gather(watch(), *(client(number) for number in range(CLOSED_LOOP_CLIENTS)))

    asyncio.run(run())
    gc.collect()
    requests = sum(isinstance(each, Request) for each in gc.get_objects())
    print(f"\n{looks[len(looks) // 5]}\n{looks[-1]}, {requests} requests")
    assert requests == 0
    assert grown(looks, "memory_mib") < GROWTH_MIB
