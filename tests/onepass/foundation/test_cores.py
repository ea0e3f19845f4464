"""Threads that work at the same time start on cores of their own, and are not bound to them."""

import os
import threading

import pytest

from onepass.foundation import runtime
from onepass.foundation.runtime import Apart


@pytest.fixture
def moves(monkeypatch):
    """The cores 0 to 3, all threads woken on core 2, and the moves that were asked for."""
    here, moved, masks = threading.local(), [], threading.local()

    def move(_, allowed):
        moved.append(set(allowed))
        masks.allowed = set(allowed)
        if getattr(here, "core", 2) not in allowed:
            here.core = min(allowed)

    monkeypatch.setattr(runtime, "_HAS_AFFINITY", True)
    monkeypatch.setattr(runtime, "_core_of_thread", lambda: lambda: getattr(here, "core", 2))
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda _: getattr(masks, "allowed", {0, 1, 2, 3}), raising=False
    )
    monkeypatch.setattr(os, "sched_setaffinity", move, raising=False)
    return moved


def in_threads(apart, count):
    """The core of each of so many threads that start one after the other, and what they may use."""
    found = []

    def work():
        found.append((runtime._core_of_thread()(), os.sched_getaffinity(0)))

    for _ in range(count):
        thread = threading.Thread(target=apart.run, args=(work,))
        thread.start()
        thread.join()
    return found


def test_threads_that_were_woken_on_one_core_spread_and_stay_free(moves):
    found = in_threads(Apart(), 4)
    assert sorted(core for core, _ in found) == [0, 1, 2, 3]
    assert all(allowed == {0, 1, 2, 3} for _, allowed in found)
    assert moves[0] == {0, 1, 3}


def test_more_threads_than_cores_stay_where_they_are(moves):
    found = in_threads(Apart(), 6)
    assert [core for core, _ in found[4:]] == [2, 2]
    assert len(moves) == 2 * 3


def test_a_system_that_forbids_it_runs_all_the_same(moves, monkeypatch):
    def forbidden(*_):
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setaffinity", forbidden, raising=False)
    assert [core for core, _ in in_threads(Apart(), 2)] == [2, 2]


def test_what_is_run_gives_its_result_and_raises_its_error():
    assert Apart().run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        Apart().run(divmod, 7, 0)
