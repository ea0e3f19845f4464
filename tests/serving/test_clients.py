"""Clients have fair shares, and of a client's work what is short comes first."""

import threading
import types

import pytest
from serve_load import until

from serving.engine.clients import (
    HEAD_START_SECONDS,
    MAX_ACCOUNTS,
    FairShares,
    FairThreads,
    Permits,
    RequestOrder,
    Use,
    client_of_address,
)


@pytest.mark.parametrize(
    ("address", "client"),
    [
        *(("127.0.0.7", "127.0.0.7"), ("::ffff:10.0.0.1", "10.0.0.1")),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        *(("[2001:db8:1:2::9]", "2001:db8:1:2::/64"), ("fe80::1%eth0", "fe80::/64")),
        *(("unix", "unix"), ("", "")),
    ],
)
def test_a_client_is_an_address_or_the_network_of_one(address, client):
    assert client_of_address(address) == client


def test_who_comes_late_neither_waits_for_the_past_of_others_nor_makes_up_for_its_own():
    shares = FairShares()
    for _ in range(100):
        shares.serve("early")
        shares.charge("early", 1.0)
    served = []
    for _ in range(6):
        client = shares.next_of(["early", "late"])
        shares.serve(client)
        shares.charge(client, 1.0)
        served.append(client)
    assert served[0] == "late" and served.count("late") == 3 + (served[-1] == "late")


def test_accounts_are_forgotten_once_they_no_longer_matter():
    shares = FairShares()
    for n in range(2 * MAX_ACCOUNTS):
        shares.serve(f"client {n}")
        shares.charge(f"client {n}", 1e-9)
        shares.charge("busy", 1.0)
        shares.serve("busy")
    assert len(shares._accounts) <= MAX_ACCOUNTS + 2


def test_work_that_is_done_raises_the_ranks_of_what_its_client_asks_for_later():
    order = RequestOrder()
    assert order.join("a", 5.0) == 5.0
    order.advance("a", 4.0)
    assert order.join("b", 5.0) == 5.0 and order.join("a", 5.0) == 9.0
    order.advance("a", 4.0)  # of two requests
    assert order.join("a", 0.0) == 6.0
    for _ in range(3):
        order.leave("a")
    assert order.join("a", 1.0) == 1.0  # nothing is kept of who waits no more
    order.leave("a")
    order.leave("b")
    assert not order._progress and not order._waiting


class Held:
    """Jobs that begin in `order` and wait until `go`."""

    def __init__(self, *most):
        self.threads, self.order, self.jobs = FairThreads(*most), [], []
        self.begun, self.go = threading.Semaphore(0), threading.Event()

    def submit(self, client, name, size=1.0):
        def job():
            self.order.append(name)
            self.begun.release()
            assert self.go.wait(30)

        self.jobs.append(self.threads.submit(client, job, size))

    def wait(self, count):
        for _ in range(count):
            assert self.begun.acquire(timeout=30)

    def cancel_last(self):
        assert self.jobs.pop().cancel()

    def end(self):
        self.go.set()
        for job in self.jobs:
            job.result(30)
        until(lambda: not self.threads._running)
        order = self.threads._order
        assert not self.threads._waiting and not order._waiting and not order._progress


def test_threads_are_shared_by_clients_and_never_more_than_there_may_be():
    held = Held(4, 2)
    for client in ("a", "a", "a", "a", "a", "b", "b", "b"):
        held.submit(client, client)
    held.wait(4)
    assert sorted(held.order) == ["a", "a", "b", "b"]
    held.submit("c", "c")
    held.submit("a", "gone")
    held.cancel_last()
    assert not held.begun.acquire(timeout=0.02)
    held.end()
    assert sorted(held.order) == [*"aaaaabbbc"]


def test_shorter_jobs_of_a_client_begin_first():
    held = Held(1, 1)
    held.submit("a", "first", 50.0)
    held.wait(1)
    for size in (40.0, 30.0, 35.0, 20.0):
        held.submit("a", size, size)
    held.end()
    assert held.order == ["first", 20.0, 30.0, 35.0, 40.0]


def test_a_client_whose_threads_are_taken_has_one_more_for_a_short_job():
    held = Held(8, 2)
    for name in "xyz":
        held.submit("a", name, 100.0)
    held.wait(2)
    held.submit("a", "not short", 20.0)
    held.submit("a", "short", 1.0)
    held.wait(1)
    held.submit("a", "shorter", 0.01)
    held.submit("b", "other", 100.0)
    held.wait(1)
    assert held.order == ["x", "y", "short", "other"]
    held.end()
    assert sorted(held.order[4:]) == ["not short", "shorter", "z"]
    assert held.order.index("z") == 6


def test_a_job_that_fails_gives_its_thread_back():
    threads = FairThreads(1, 1)
    failed = [threads.submit("a", lambda: 1 / 0) for _ in range(3)]
    assert all(isinstance(each.exception(30), ZeroDivisionError) for each in failed)
    assert threads.submit("a", lambda: 7).result(30) == 7


@pytest.fixture
def clock(monkeypatch):
    made = types.SimpleNamespace(now=0.0, monotonic=lambda: made.now)
    monkeypatch.setattr("serving.engine.clients.time", made)
    return made


LATE = HEAD_START_SECONDS + 0.1


@pytest.mark.parametrize(
    ("used", "asked", "order"),
    [
        # (name, client, seconds that its work has held permits, when it asks)
        ({}, [(name, "a", 0.0, 0.0) for name in "wxyz"], [*"wxyz"]),
        (
            {},
            [("long", "a", 50.0, 0.0), ("longer", "a", 90.0, 0.1), ("short", "a", 0.02, 0.5)],
            ["short", "long", "longer"],
        ),
        ({}, [("long", "a", 50.0, 0.0), ("new", "a", 0.0, LATE)], ["long", "new"]),
        (
            {"a": 2.0},
            [("1", "a", 0.0, 0.0), ("2", "a", 0.0, 0.0), ("x", "b", 0.0, 0.0), ("y", "c", 0.0, 0)],
            ["x", "y", "1", "2"],
        ),
        ({"a": 5.0}, [("short", "a", 0.0, 0.0), ("long", "b", 50.0, 0.1)], ["long", "short"]),
    ],
    ids=["in turn", "short ones first", "a second later", "least used first", "other clients"],
)
def test_the_next_permit_is_for_who_has_used_least_and_there_for_new_work(
    clock, used, asked, order
):
    permits, granted, threads = Permits(1), [], []
    for client, seconds in used.items():
        permits._shares.charge(client, seconds)

    def work(name, client, held):
        with permits.permit(client, Use(held)):
            granted.append(name)

    with permits.permit("first"):
        for name, client, held, when in asked:
            clock.now = when
            threads.append(threading.Thread(target=work, args=(name, client, held)))
            threads[-1].start()
            until(lambda: len(permits._waiting) == len(threads))
    for thread in threads:
        thread.join(30)
    assert granted == order


def test_the_use_of_a_permit_is_added_to_that_of_the_work(clock):
    use = Use()
    for seconds in (0.25, 0.5):
        with Permits(1).permit("a", use):
            clock.now += seconds
    assert use.seconds == 0.75


def test_a_permit_that_never_ends_keeps_nobody_for_ever():
    permits = Permits(1, patience_seconds=0.01)
    with permits.permit(), permits.permit():
        pass
    with permits.permit():
        pass
    assert permits._free == 1 and not permits._waiting
