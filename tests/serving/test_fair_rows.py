"""Clients share a model by the rows that they ask for, not by their requests; HTTP and gRPC."""

import collections
import types
from concurrent.futures import ThreadPoolExecutor

import grpc_running
import numpy as np
import pytest
from batch_engine import Engine
from serve_load import until

from onepass.bundles.errors import Overloaded
from serving import Client
from serving.engine.batching import SPARE_PART, Fitted, Padding, Request, RowQueue
from serving.engine.clients import begin_client

HEAVY = [f"127.0.0.{n}" for n in range(10, 15)]
LIGHT = "127.0.0.20"
ROWS = 64


async def asked_by(engine, client, seeds, lengths=3, seconds=None):
    begin_client(client)
    return await engine.asked(seeds, lengths, seconds)


def take_what_is_known(engine):
    """Charge rows by what was known before they were called, whatever they took."""
    engine.batcher._queue.charge = lambda rows, seconds: None


def clients_of(calls):
    """The number of each call's rows by client, whose seeds start at its number times 1,000."""
    return [[sum(seed // 1000 == n for seed in seeds) for n in range(7)] for seeds in calls]


@pytest.mark.parametrize("allowed", [(1,), (1, 2, 4, 8)])
@pytest.mark.parametrize("known", [0.0, 0.001, 0.4])
async def test_one_row_never_waits_for_the_many_of_others(allowed, known):
    engine = Engine(allowed=allowed, rows=1024)
    if known:
        engine.known(3, known)
    first = await engine.hold()
    heavy = [
        await asked_by(engine, address, list(range(1000 * n, 1000 * n + ROWS)))
        for n, address in enumerate(HEAVY, 2)
    ]
    light = await asked_by(engine, LIGHT, [999])
    await engine.go(first, light)
    at = next(n for n, seeds in enumerate(engine.calls) if 999 in seeds)
    # At most one row of each of the others is called before it, or with it.
    assert sum(map(len, engine.calls[1:at])) <= len(HEAVY)
    assert len(set(engine.calls[at])) <= 1 + len(HEAVY)  # more are copies: padding
    await engine.go(*heavy)
    called = {seed for n in range(2, 7) for seed in range(1000 * n, 1000 * n + ROWS)}
    assert set(engine.order) == {1000, 999} | called


async def test_many_requests_of_a_client_get_no_more_rows_than_one_large_one():
    engine = Engine(allowed=[1])
    take_what_is_known(engine)
    first = await engine.hold()
    many = [await asked_by(engine, "many", [2000 + n]) for n in range(12)]
    large = await asked_by(engine, "large", list(range(3000, 3012)))
    await engine.go(first, *many, large)
    for end in range(2, 24, 2):
        counts = clients_of([engine.order[1 : 1 + end]])[0]
        assert abs(counts[2] - counts[3]) <= 1


async def test_costly_rows_count_more_than_cheap_ones():
    """A client whose rows take 4 times as long has fewer of them than another of as many rows."""
    engine = Engine(allowed=[1])
    engine.known(3, 0.1)
    engine.known(400, 0.4)
    take_what_is_known(engine)
    first = await engine.hold()
    costly = await asked_by(engine, "costly", list(range(2000, 2020)), 400)
    cheap = await asked_by(engine, "cheap", list(range(3000, 3020)), 3)
    await engine.go(first, costly, cheap)
    counts = clients_of([engine.order[1:21]])[0]
    assert counts[2] == pytest.approx(4, abs=1) and counts[3] == pytest.approx(16, abs=1)


# A full queue


async def test_a_full_queue_gives_up_requests_of_whoever_fills_it():
    engine = Engine(allowed=[1], rows=8)
    first = await engine.hold()
    heavy = [await asked_by(engine, HEAVY[0], [10 * n, 10 * n + 1]) for n in range(4)]
    light = await asked_by(engine, LIGHT, [99])
    with pytest.raises(Overloaded, match="The queue is full") as refused:
        await heavy[3]  # the last one
    with pytest.raises(Overloaded):
        begin_client(HEAVY[0])
        await engine.ask([50, 51])
    assert refused.value.retry_after_seconds >= 1
    await engine.go(first, light, *heavy[:3])
    assert sorted(engine.order) == [0, 1, 10, 11, 20, 21, 99, 1000]


def request_of(client, rows, begun=0, seconds=0.0):
    """A request of one byte a row, of which some have been taken; it shares no call with others."""
    fitted = Fitted({"seed": np.zeros(begun + rows, np.uint8)}, {}, (object(),))
    waiting = collections.deque(range(begun, begun + rows))
    results = [None] * (begun + rows)
    return Request(client, "call", fitted, None, 0.0, "", results, waiting, seconds)


def queue_of(requests, rows=256, size=2**20):
    limits = types.SimpleNamespace(queue_rows=rows, queue_bytes=size)
    queue = RowQueue(Padding({}), limits, lambda rows: None)
    for request in requests:
        queue.add(request)
    return queue


@pytest.mark.parametrize(
    ("waiting", "new", "given_up"),
    [
        ([("a", 64)] * 3, ("a", 64), []),
        ([("a", 64)] * 4, ("a", 1), None),  # its own
        ([("a", 64)] * 4, ("b", 1), []),  # a few more than the queue has
        ([("a", 64)] * 4, ("b", 17), [3]),  # no longer few
        ([("a", 64)] * 4, ("b", 64), [3]),
        ([("a", 64, 1)] * 4, ("b", 17), None),  # what has begun goes on
        ([("a", 64, 1)] * 3 + [("a", 64)], ("b", 17), [3]),
        ([("a", 64), ("b", 64), ("c", 64), ("d", 64)], ("e", 60), [3]),  # more than a fifth
        ([("a", 64), ("b", 64), ("c", 64), ("d", 64)], ("d", 1), None),
        ([("a", 51)] * 5, ("b", 51), [4]),
        ([("a", 32), ("b", 32)] * 4, ("c", 64), [7, 6]),
        ([("a", 128), ("b", 128)], ("c", 200), None),  # more than theirs
        ([("a", 1)] * 256, ("b", 3), []),
        ([("a", 1)] * 256 + [("b", 16), ("c", 16)], ("d", 1), [255]),  # nor are those many
    ],
)
def test_a_full_queue_makes_room_for_whoever_fills_less_than_its_part(waiting, new, given_up):
    requests = [request_of(*each) for each in waiting]
    found = queue_of(requests).room_for(request_of(*new))
    assert found == (None if given_up is None else [requests[n] for n in given_up])


@pytest.mark.parametrize("seed", range(20))
def test_a_queue_never_holds_more_than_it_may(seed):
    """Random clients; whoever is let in, rows and bytes stay within the limits."""
    random, queue = np.random.default_rng(seed), queue_of([], rows=64, size=40 + 10 * seed)
    for _ in range(200):
        begun = int(random.integers(2))
        new = request_of(f"client {random.integers(4)}", int(random.integers(1, 30)), begun)
        given_up = queue.room_for(new)
        if given_up is None:
            continue
        assert all(len(other.waiting) == len(other.results) for other in given_up)
        assert all(other.client != new.client for other in given_up)
        for other in given_up:
            queue.remove(other)
        queue.add(new)
        assert queue.rows == sum(len(each.waiting) for each in queue) <= 64 + 64 // SPARE_PART
        assert queue.bytes == sum(each.waiting_bytes for each in queue) <= 40 + 10 * seed
        for other in list(queue)[: random.integers(3)]:
            queue.remove(other)
    assert queue.rows >= 0


def taken(queue, count):
    """The requests of the next calls, by their first rows."""
    order = []
    for _ in range(count):
        first = queue.next_request(lambda request: True)
        order.append(first)
        queue.take(first)
    return order


def test_rows_of_short_requests_are_called_first_and_other_clients_keep_their_share():
    long = [request_of("a", 1, seconds=0.5) for _ in range(16)]
    other = [request_of("b", 1, seconds=0.5) for _ in range(4)]
    queue = queue_of([*long, *other])
    begun = taken(queue, 2)
    assert {each.client for each in begun} == {"a", "b"}
    short = request_of("a", 1, seconds=0.01)
    queue.add(short)
    order = taken(queue, 2)
    assert short in order and {each.client for each in order} == {"a", "b"}
    left = taken(queue, 17)
    assert [each for each in left if each.client == "a"] == long[1:]  # in their order
    assert [each.client for each in left[:4]].count("b") == 2
    assert queue.rows == 0 and not queue._order._waiting


def test_a_request_that_leaves_the_queue_leaves_the_order():
    kept, gone = request_of("a", 3), request_of("a", 1)
    queue = queue_of([kept, gone])
    for _ in range(2):
        queue.remove(gone)
    assert queue._order._waiting == {"a": 1}
    queue.remove(kept)
    assert not queue._order._waiting and not queue._order._progress


async def test_the_time_of_a_request_is_estimated_from_the_shares_of_clients():
    engine = Engine(allowed=[1], rows=1024)
    engine.known(3, 0.5)
    engine.control.open.clear()
    many = [await asked_by(engine, HEAVY[0], [n], seconds=600.0) for n in range(40)]
    begin_client(HEAVY[0])
    with pytest.raises(Overloaded, match="takes about 20 seconds"):
        await engine.ask([98], seconds=10.0)
    light = await asked_by(engine, LIGHT, [99], seconds=10.0)  # one row of the other before it
    await engine.go(*many, light)


# Through the server, where each client has its token

TOKENS = [f"the long token of client {n}" for n in range(6)]


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_an_image_of_one_client_comes_before_the_many_of_others(models, tmp_path, scheme):
    (tmp_path / "tokens").write_text("\n".join(TOKENS))
    control = models.controls["shapes", 1]
    more = {"token_file": tmp_path / "tokens", "queue_rows": 1024, "timeout_seconds": 60.0}
    with grpc_running.Both(models, **more) as running, ThreadPoolExecutor(8) as pool:
        control.open.clear()
        control.calls.clear()

        def ask(number, seeds):
            url = running.url if scheme == "http" else f"grpc://{running.address}"
            with Client(url, token=TOKENS[number]) as client:
                return len(client.predict("shapes", {"seed": np.array(seeds, np.int64)})["picture"])

        def asked(number, seeds):
            return pool.submit(ask, number, seeds)

        def wait_for(count):
            value = running.metrics.registry.get_sample_value
            until(lambda: value("onepass_queue_rows", {"model": "shapes"}) == count)

        heavy = [asked(0, [0])]
        until(control.entered.is_set)
        heavy += [asked(n, range(1000 * n, 1000 * n + ROWS)) for n in range(5)]
        wait_for(5 * ROWS)
        light = asked(5, [99])
        wait_for(5 * ROWS + 1)
        control.open.set()
        assert light.result(30) == 1 and [each.result(30) for each in heavy] == [1] + 5 * [ROWS]
    seeds = [set(seeds) for _, _, _, seeds in control.calls]
    at = next(n for n, called in enumerate(seeds) if 99 in called)
    assert at <= 2 and sum(map(len, seeds[1 : at + 1])) <= 6
