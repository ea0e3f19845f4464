"""Within a client's share short requests come first, and long ones are never starved."""

import collections
import threading
import types

import numpy as np
import pytest
from serve_load import until
from test_fair_rows import queue_of

from serving.engine.batching import Fitted, Request
from serving.engine.clients import HEAD_START_SECONDS, FairThreads, Permits, RequestOrder, Use


def ends(arrivals, is_shared=False):
    """Return when requests (arrival, work) end if one processor serves them by rank.

    If it `is_shared`, all that wait have a piece of one unit in turn.
    """
    order, now, ended, left, waiting = RequestOrder(), 0.0, {}, {}, {}
    coming = sorted(range(len(arrivals)), key=lambda n: arrivals[n][0])
    while coming or waiting:
        while coming and (not waiting or arrivals[coming[0]][0] <= now):
            n = coming.pop(0)
            now, left[n] = max(now, arrivals[n][0]), arrivals[n][1]
            waiting[n] = order.join("one", left[n])
        n = next(iter(waiting)) if is_shared else min(waiting, key=waiting.get)
        done = min(1.0, left[n])
        order.advance("one", done)
        now, left[n], rank = now + done, left[n] - done, waiting.pop(n)
        if left[n]:
            waiting[n] = rank
        else:
            order.leave("one")
            ended[n] = now
    return ended


@pytest.mark.parametrize("seed", range(20))
def test_requests_of_one_time_end_no_later_than_in_equal_shares(seed):
    random = np.random.default_rng(seed)
    arrivals = [(0.0, float(work)) for work in random.integers(1, 40, 12)]
    ordered, shared = ends(arrivals), ends(arrivals, is_shared=True)
    # A piece of each that waits may be on the way in another order.
    assert all(ordered[n] <= shared[n] + len(arrivals) for n in shared)
    assert sum(ordered.values()) <= sum(shared.values())


def test_a_short_request_waits_for_one_piece_of_the_long_ones_that_wait():
    arrivals = [(0.0, 100.0)] * 16 + [(50.0, 1.0)]
    assert ends(arrivals)[16] <= 52.0
    assert ends(arrivals, is_shared=True)[16] >= 60.0


@pytest.mark.parametrize("gap", [1.0, 2.0])
def test_a_long_request_ends_however_many_short_ones_keep_coming(gap):
    """One that needs 20, while one that needs 1 comes whenever the processor would be free."""
    arrivals = [(0.0, 20.0)] + [(gap * n, 1.0) for n in range(1000)]
    assert ends(arrivals)[0] <= 3 * 20


def test_ranks_of_one_client_do_not_move_those_of_another():
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


# The queue of rows


def request_of(client, rows, seconds):
    """A request that shares no call with others."""
    fitted = Fitted({"seed": np.zeros(rows, np.uint8)}, {}, (object(),))
    waiting = collections.deque(range(rows))
    return Request(client, "call", fitted, None, 0.0, "", [None] * rows, waiting, seconds)


def taken(queue, count):
    """The requests of the next calls, by their first rows."""
    order = []
    for _ in range(count):
        first = queue.next_request(lambda request: True)
        order.append(first)
        queue.take(first)
    return order


def test_rows_of_short_requests_are_called_first_and_other_clients_keep_their_share():
    long = [request_of("a", 1, 0.5) for _ in range(16)]
    other = [request_of("b", 1, 0.5) for _ in range(4)]
    queue = queue_of([*long, *other])
    begun = taken(queue, 2)
    assert {each.client for each in begun} == {"a", "b"}
    short = request_of("a", 1, 0.01)
    queue.add(short)
    order = taken(queue, 2)
    assert short in order and {each.client for each in order} == {"a", "b"}
    left = taken(queue, 17)
    assert [each for each in left if each.client == "a"] == long[1:]  # in their order
    assert [each.client for each in left[:4]].count("b") == 2
    assert queue.rows == 0 and not queue._order._waiting


def test_a_request_that_leaves_the_queue_leaves_the_order():
    queue = queue_of([])
    kept, gone = request_of("a", 3, 0.1), request_of("a", 1, 0.1)
    for each in (kept, gone):
        queue.add(each)
    for _ in range(2):
        queue.remove(gone)
    assert queue._order._waiting == {"a": 1}
    queue.remove(kept)
    assert not queue._order._waiting and not queue._order._progress


# The threads before and after a model's call


class Held:
    """Jobs that begin in `order` and wait until `go`."""

    def __init__(self, threads):
        self.threads, self.order, self.jobs = threads, [], []
        self.begun, self.go = threading.Semaphore(0), threading.Event()

    def submit(self, client, name, size):
        def job():
            self.order.append(name)
            self.begun.release()
            assert self.go.wait(30)

        self.jobs.append(self.threads.submit(client, job, size))
        return self.jobs[-1]

    def wait(self, count):
        for _ in range(count):
            assert self.begun.acquire(timeout=30)

    def end(self):
        self.go.set()
        for job in self.jobs:
            job.result(30)


def test_shorter_jobs_of_a_client_begin_first():
    held = Held(FairThreads(1, 1))
    held.submit("a", "first", 50.0)
    held.wait(1)
    for size in (40.0, 30.0, 35.0, 20.0):
        held.submit("a", size, size)
    held.end()
    assert held.order == ["first", 20.0, 30.0, 35.0, 40.0]


def test_a_client_whose_threads_are_taken_has_one_more_for_a_short_job():
    held = Held(FairThreads(8, 2))
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


def test_a_cancelled_job_leaves_the_order():
    threads = FairThreads(1, 1)
    held = Held(threads)
    held.submit("a", "first", 1.0)
    held.wait(1)
    gone = held.submit("a", "gone", 1.0)
    held.jobs.remove(gone)
    assert gone.cancel()
    assert not threads._order._waiting and not threads._order._progress
    held.end()
    assert held.order == ["first"]


# The processors


def granted(permits, clock, asked):
    """The names of `asked`, of (name, client, seconds held before, when), as they get a permit."""
    order, threads = [], []

    def work(name, client, held):
        with permits.permit(client, Use(held)):
            order.append(name)

    with permits.permit("first"):
        for name, client, held, when in asked:
            clock.now = when
            threads.append(threading.Thread(target=work, args=(name, client, held)))
            threads[-1].start()
            until(lambda: len(permits._waiting) == len(threads))
    for thread in threads:
        thread.join(30)
    return order


@pytest.fixture
def clock(monkeypatch):
    made = types.SimpleNamespace(now=0.0, monotonic=lambda: made.now)
    monkeypatch.setattr("serving.engine.clients.time", made)
    return made


def test_work_that_has_held_no_permit_gets_one_before_long_work_of_its_client(clock):
    asked = [("long", "a", 50.0, 0.0), ("longer", "a", 90.0, 0.1), ("short", "a", 0.02, 0.5)]
    assert granted(Permits(1), clock, asked) == ["short", "long", "longer"]


def test_permits_are_given_in_the_order_in_which_they_are_asked_for(clock):
    assert granted(Permits(1), clock, [(name, "a", 0.0, 0.0) for name in "wxyz"]) == [*"wxyz"]


def test_the_next_permit_is_for_the_client_that_has_held_them_least(clock):
    permits = Permits(1)
    for _ in range(2):
        permits._shares.charge("many", 1.0)
    asked = [
        *((n, "many", 0.0, 0.0) for n in range(3)),
        *(("x", "one", 0.0, 0.0), ("y", "two", 0.0, 0.0)),
    ]
    assert granted(permits, clock, asked) == ["x", "y", 0, 1, 2]


def test_long_work_waits_for_no_work_that_comes_a_second_later(clock):
    asked = [("long", "a", 50.0, 0.0), ("new", "a", 0.0, HEAD_START_SECONDS + 0.1)]
    assert granted(Permits(1), clock, asked) == ["long", "new"]


def test_short_work_of_one_client_takes_no_permit_of_another(clock):
    permits = Permits(1)
    permits._shares.charge("a", 5.0)
    asked = [("short", "a", 0.0, 0.0), ("long", "b", 50.0, 0.1)]
    assert granted(permits, clock, asked) == ["long", "short"]


def test_the_use_of_a_permit_is_added_to_that_of_the_work(clock):
    use = Use()
    for seconds in (0.25, 0.5):
        with Permits(1).permit("a", use):
            clock.now += seconds
    assert use.seconds == 0.75
