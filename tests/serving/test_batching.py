"""Requests share calls, wait in turns and within limits, and fail alone."""

import asyncio
import collections
import gc
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import grpc_running
import numpy as np
import pytest
import serve_load
from fake_bundle import HOP, SOUND, FakeImages, FakeSound
from loops import until

from onepass.bundles.errors import (
    DeadlineExceeded,
    Internal,
    InvalidInput,
    Overloaded,
    TooLarge,
)
from serving import Client
from serving.engine.batching import (
    CALL_SECONDS,
    SPARE_PART,
    Batcher,
    CallTimes,
    Fitted,
    Padding,
    Request,
    RowQueue,
)
from serving.engine.clients import begin_client
from serving.engine.served_model import ServedModel
from serving.observability import Metrics
from serving.settings import Settings

PLAIN = "serving_default"


def limits_of(rows=256, bytes=2**28, request_rows=64, delay_seconds=0.001, threads=1):
    """The settings that a batcher reads, some of them smaller than a server's may be."""
    return types.SimpleNamespace(
        queue_rows=rows,
        queue_bytes=bytes,
        max_rows=request_rows,
        batch_delay_ms=1000 * delay_seconds,
        threads=threads,
    )


class Engine:
    """A batcher of a fake bundle, whose calls are `calls`; `hold` and `go` hold them and let go."""

    def __init__(self, bundle=None, allowed=(1, 2, 4, 8), **limits):
        self.bundle = bundle or FakeSound(allowed_batches=list(allowed))
        self.control, self.metrics = self.bundle.control, Metrics()
        padding, limits = (
            Padding(self.bundle.spec["serving"], self.bundle.signatures),
            limits_of(**limits),
        )
        self.batcher = Batcher(self.bundle.call, padding, limits, self.metrics, "voice")

    def inputs(self, seeds, lengths=3, signature=PLAIN):
        """Checked inputs: a row for each seed, as many frames as its length, or as one for all."""
        lengths = [lengths] * len(seeds) if isinstance(lengths, int) else lengths
        frames = np.zeros([len(seeds), max(lengths), 3], np.float32)
        for n, length in enumerate(lengths):
            frames[n, :length] = np.random.default_rng(n).normal(size=[length, 3])
        given = {"frames": frames, "num_frames": lengths, "seed": seeds}
        return self.bundle.check(signature, given)

    async def ask(self, seeds, lengths=3, seconds=None):
        return await self.batcher.submit(PLAIN, self.inputs(seeds, lengths), seconds)

    async def asked(self, seeds, lengths=3, seconds=None, client=""):
        """The task of a client's request, once it waits or is refused."""
        begin_client(client)
        return await begun(self.ask(seeds, lengths, seconds))

    async def hold(self, signature=PLAIN):
        """A request whose call is held, in the only thread, until `go`."""
        self.control.open.clear()
        self.control.entered.clear()
        submit = self.batcher.submit(signature, self.inputs([1000], signature=signature))
        task = asyncio.create_task(submit)
        await until(self.control.entered.is_set)
        return task

    async def go(self, *tasks, **options):
        self.control.open.set()
        return await asyncio.gather(*tasks, **options)

    async def ask_together(self, *requests, **options):
        """The answers to requests that all wait while a call is held."""
        first = await self.hold()
        tasks = [await self.asked(*request) for request in requests]
        return (await self.go(first, *tasks, **options))[1:]

    def known(self, frames, seconds):
        """Note that rows of so many frames took so long, as if they had been called."""
        fitted = self.batcher._padding.fit(PLAIN, self.inputs([0], frames))
        for _ in range(2):
            self.batcher._times.note(fitted.key, PLAIN, fitted.cost, seconds)

    @property
    def calls(self):
        """The seeds of each call."""
        return [call[3] for call in self.control.calls]

    @property
    def order(self):
        return [seed for seeds in self.calls for seed in seeds]


async def begun(work):
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


def assert_alone(answer, seeds, lengths=3):
    """The answer is that of the rows in a call of their own."""
    quiet = Engine()
    expected = quiet.bundle.call(PLAIN, quiet.inputs(seeds, lengths))
    for name in ("sound", "num_samples"):
        np.testing.assert_array_equal(answer[name], expected[name])


# Sharing calls


async def test_a_row_in_a_batch_equals_the_row_alone():
    engine, lengths = Engine(), [3, 7, 8, 9, 30, 5, 2, 31]
    answers = await engine.ask_together(*(([n], length) for n, length in enumerate(lengths)))
    assert sorted(engine.control.rows) == [1, 1, 4, 4]
    for seed, (length, answer) in enumerate(zip(lengths, answers, strict=True)):
        assert answer["sound"].shape == (1, length * HOP)
        assert_alone(answer, [seed], length)


async def test_only_rows_of_one_bucket_share_a_call():
    engine = Engine(FakeSound(buckets=[4, 16]))
    await engine.ask_together(([0], 3), ([1], 9), ([2], 4), ([3], 16))
    calls = {(length, tuple(seeds)) for _, _, length, seeds in engine.control.calls[1:]}
    assert calls == {(4, (0, 2)), (16, (1, 3))}


async def test_the_calls_have_allowed_numbers_of_rows():
    engine = Engine(FakeImages(allowed_batches=[2, 4]))
    inputs = engine.bundle.check(PLAIN, {"seed": np.arange(7)})
    drawn = (await engine.batcher.submit(PLAIN, inputs))["picture"]
    assert engine.control.rows == [4, 4]
    np.testing.assert_array_equal(drawn[:, 0, 0, 0], np.arange(7) % 7)


@pytest.mark.parametrize(
    ("waiting", "rows"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 4), (6, 8), (8, 8), (30, 8)]
)
def test_a_call_is_padded_only_where_a_quarter_suffices(waiting, rows):
    assert Padding({"allowed_batches": [1, 2, 4, 8]}).size(waiting) == rows


async def test_a_request_of_many_rows_is_split_and_put_together_again():
    engine, seeds, lengths = Engine(), list(range(19)), [n % 5 + 1 for n in range(19)]
    assert_alone(await engine.ask(seeds, lengths), seeds, lengths)
    assert engine.control.rows == [8, 8, 4]


async def test_what_lies_behind_the_longest_row_neither_costs_nor_comes_back():
    engine = Engine()
    inputs = engine.inputs([1, 2], [4, 6])
    inputs["frames"] = np.pad(inputs["frames"], [(0, 0), (0, 900), (0, 0)])
    assert (await engine.batcher.submit(PLAIN, inputs))["sound"].shape == (2, 6 * HOP)
    assert engine.control.calls[0][2] == 8


async def test_stretches_of_streams_share_no_call_and_keep_their_neighbours():
    engine = Engine(FakeSound(signatures={"chunk": SOUND}))
    first, tasks = await engine.hold("chunk"), []
    for seed in (1, 2):
        inputs = engine.inputs([seed, seed], 4, "chunk")
        inputs["frames"] = np.pad(inputs["frames"], [(0, 0), (2, 3), (0, 0)])
        tasks.append(await begun(engine.batcher.submit("chunk", inputs)))
    await engine.go(first, *tasks)
    assert engine.control.calls[1:] == [("chunk", 2, 9, [1, 1]), ("chunk", 2, 9, [2, 2])]


@pytest.mark.parametrize(
    ("frames", "length", "rule"),
    [(4, 9, "at most the 4 of `frames`"), (2000, 2000, "at most 1024, got 2000")],
)
async def test_a_length_beyond_the_frames_is_refused(frames, length, rule):
    engine = Engine(FakeSound(buckets=[8, 1024]))
    inputs = engine.inputs([1], frames) | {"num_frames": np.array([length], np.int32)}
    with pytest.raises(InvalidInput, match=rule):
        await engine.batcher.submit(PLAIN, inputs)
    assert engine.calls == []


async def test_a_lone_request_does_not_wait_for_others():
    engine = Engine(delay_seconds=1000.0)
    async with asyncio.timeout(10):
        for seed in range(5):
            await engine.ask([seed])
    assert engine.control.rows == [1] * 5


async def test_clients_that_came_together_are_waited_for_once():
    engine = Engine(delay_seconds=1000.0)
    await engine.ask_together([[0]], [[1]])
    await engine.go(await engine.asked([2]), await engine.asked([3]))  # as many as before
    gone = await engine.asked([4])
    assert engine.control.rows == [1, 2, 2]
    engine.batcher._delay_until = 0.0  # the delay is over
    engine.batcher._dispatch()
    await gone
    async with asyncio.timeout(10):
        await engine.ask([5])
    assert engine.control.rows == [1, 2, 2, 1, 1]


async def test_as_many_calls_run_at_once_as_there_are_threads():
    engine = Engine(threads=2)
    engine.control.open.clear()
    tasks = [await engine.asked([seed]) for seed in range(2)]
    await until(lambda: len(engine.calls) == 2)
    tasks.append(await engine.asked([2]))
    assert len(engine.calls) == 2 and engine.batcher.running == 2
    await engine.go(*tasks)


async def test_an_engine_that_makes_rows_one_by_one_gets_them_one_by_one():
    engine = Engine()
    engine.bundle.engine = "numba"
    served = ServedModel(engine.bundle, Settings())
    assert_alone(await served.predict(engine.inputs([1, 2, 3])), [1, 2, 3])
    assert engine.control.rows == [1, 1, 1]


# Limits


@pytest.mark.parametrize("limit", ["rows", "bytes"])
async def test_a_full_queue_answers_overloaded_and_recovers(limit):
    size = sum(array.nbytes for array in Engine().inputs([0]).values())
    engine = Engine(**{limit: 3 if limit == "rows" else 3 * size + 1})
    first = await engine.hold()
    waiting = [await engine.asked([seed]) for seed in range(3)]
    with pytest.raises(Overloaded, match="3 rows wait") as refused:
        await engine.ask([3])
    await engine.go(first, *waiting)
    await engine.ask([4])
    assert 1 <= refused.value.retry_after_seconds <= 60


@pytest.mark.parametrize("limits", [{"rows": 1}, {"request_rows": 1}, {"bytes": 10}])
async def test_what_could_never_be_queued_is_too_large(limits):
    with pytest.raises(TooLarge):
        await Engine(**limits).ask([1, 2])


async def test_a_deadline_passes_while_waiting_and_the_row_never_reaches_the_call():
    engine = Engine()
    first = await engine.hold()
    with pytest.raises(DeadlineExceeded, match=r"No answer within 0\.02 seconds"):
        await engine.ask([5], seconds=0.02)
    await engine.go(first)
    assert engine.calls == [[1000]]


# Failures


async def test_one_bad_row_fails_alone(caplog):
    engine = Engine()
    engine.control.fails_on = 13
    answers = await engine.ask_together(*([[n]] for n in (11, 12, 13, 14)), return_exceptions=True)
    assert isinstance(answers.pop(2), Internal)
    for seed, answer in zip((11, 12, 14), answers, strict=True):
        assert_alone(answer, [seed])
    assert engine.control.rows == [1, 4, 1, 1, 1, 1]
    retried = engine.metrics.registry.get_sample_value
    assert retried("onepass_batches_retried_total", {"model": "voice"}) == 1
    assert "secret detail" in caplog.text  # the log has what the answer has not


async def test_a_row_that_was_given_up_is_not_tried_again():
    engine = Engine()
    engine.control.fails_on = 13
    first = await engine.hold()
    bad, left = await engine.asked([13]), await engine.asked([14])
    engine.control.entered.clear()
    engine.control.seconds = 0.05  # time for the client to leave during the shared call
    await engine.go(first)
    await until(engine.control.entered.is_set)
    left.cancel()
    await asyncio.wait([left, bad])
    assert engine.calls[1:] == [[13, 14], [13]]


# Turns, and time


async def test_short_requests_come_before_longer_ones_and_equal_ones_in_their_order():
    engine = Engine(allowed=[1])
    long = [[[n, n + 1, n + 2]] for n in (0, 10, 20)]
    await engine.ask_together(*long, [[98, 99]], [[97]])
    assert engine.order == [1000, 97, 98, 99, 0, 1, 2, 10, 11, 12, 20, 21, 22]


async def test_a_large_request_ends_however_many_small_ones_keep_coming():
    engine = Engine(allowed=[1])
    engine.control.open.clear()
    large = await engine.asked(list(range(5)))

    async def client(number):
        for _ in range(50):
            await engine.ask([number])

    await engine.go(large, *map(client, (100, 200, 300)))
    # No later than if each of the others had a turn between two rows of it.
    assert engine.order.index(4) <= 4 * 5


async def test_answered_requests_are_released_though_the_queue_never_empties():
    engine, answered = Engine(allowed=[1]), []
    control = engine.control
    control.open.clear()
    waits = await engine.asked(list(range(64)))

    async def client(number):
        for turn in range(5):
            inputs = engine.inputs([number + turn])
            answered.append(weakref.ref(inputs["frames"]))
            await engine.batcher.submit(PLAIN, inputs)

    await engine.go(*map(client, (100, 200, 300)))
    control.open.clear()
    control.entered.clear()
    await until(control.entered.is_set)  # a call without any of theirs
    gc.collect()
    alive = [inputs for inputs in answered if inputs() is not None]
    assert not waits.done()
    await engine.go(waits)
    assert (len(answered), len(alive)) == (15, 0)


@pytest.mark.parametrize(("calls", "rows"), [(100, 8), (4.5, 4), (1.5, 1)])
async def test_a_call_of_several_rows_ends_soon_enough_for_others(calls, rows):
    engine = Engine()
    engine.known(3, CALL_SECONDS / calls)
    await engine.ask_together([list(range(16))])
    assert engine.control.rows[1:3] == [rows, rows]


async def test_rows_that_take_long_have_a_thread_of_their_own():
    engine = Engine(allowed=[1])
    engine.known(100, 2 * CALL_SECONDS)
    engine.control.open.clear()
    long = [await engine.asked([n], 100) for n in range(2)]
    short = await engine.asked([9])
    await until(lambda: len(engine.calls) == 2)
    assert engine.calls == [[0], [9]]
    await engine.go(*long, short)


async def test_what_cannot_end_in_time_even_alone_is_refused_with_the_reason():
    engine = Engine(allowed=[1])
    engine.known(100, 0.9)
    words = "about 58 seconds, with a limit of 50: ask for fewer rows"
    with pytest.raises(TooLarge, match=words):
        await engine.ask(list(range(64)), 100, seconds=50.0)
    assert engine.calls == []


async def test_what_cannot_end_in_time_behind_others_learns_when_to_come_again():
    engine = Engine(allowed=[1])
    engine.known(100, 0.5)
    engine.control.open.clear()
    waiting = await engine.asked(list(range(60)), 100, seconds=60.0)
    with pytest.raises(Overloaded, match="takes about") as refused:
        await engine.ask(list(range(20)), 100, seconds=15.0)
    served = await engine.asked([99], 100, seconds=20.0)
    await engine.go(waiting, served)
    assert refused.value.retry_after_seconds == 6.0  # 20 s in turns, and one more, for 15


def test_times_are_known_of_what_was_called_and_guessed_of_what_is_a_little_larger():
    times = CallTimes()
    assert times.seconds_per_row("a", "sound", 10.0) == 0.0
    times.note("a", "sound", 10.0, 3.0)
    assert times.seconds_per_row("a", "sound", 10.0) == 0.0  # it may have compiled
    assert times.seconds_per_row("b", "sound", 40.0) == 0.0
    times.note("a", "sound", 10.0, 1.0)
    assert times.seconds_per_row("a", "sound", 10.0) == 1.0
    assert times.seconds_per_row("b", "sound", 40.0) == 4.0
    assert times.seconds_per_row("b", "sound", 1000.0) == 0.0
    assert times.seconds_per_row("b", "sound", 5.0) == 0.0
    assert times.seconds_per_row("b", "images", 40.0) == 0.0
    for seconds in (9.0, 1.5):
        times.note("c", "sound", 20.0, seconds)
    assert times.seconds_per_row("b", "sound", 40.0) == 3.0


# Clients share a model by the rows that they ask for, not by their requests

HEAVY = [f"127.0.0.{n}" for n in range(10, 15)]
LIGHT = "127.0.0.20"
ROWS = 64


@pytest.mark.parametrize("allowed", [(1,), (1, 2, 4, 8)])
@pytest.mark.parametrize("known", [0.0, 0.001, 0.4])
async def test_one_row_never_waits_for_the_many_of_others(allowed, known):
    engine = Engine(allowed=allowed, rows=1024)
    if known:
        engine.known(3, known)
    first = await engine.hold()
    heavy = [
        await engine.asked(list(range(1000 * n, 1000 * n + ROWS)), client=address)
        for n, address in enumerate(HEAVY, 2)
    ]
    light = await engine.asked([999], client=LIGHT)
    await engine.go(first, light)
    at = next(n for n, seeds in enumerate(engine.calls) if 999 in seeds)
    # At most one row of each of the others is called before it, or with it.
    assert sum(map(len, engine.calls[1:at])) <= len(HEAVY)
    assert len(set(engine.calls[at])) <= 1 + len(HEAVY)  # more are copies: padding
    await engine.go(*heavy)
    called = {seed for n in range(2, 7) for seed in range(1000 * n, 1000 * n + ROWS)}
    assert set(engine.order) == {1000, 999} | called


@pytest.mark.parametrize(("frames", "share"), [(3, 1 / 2), (400, 1 / 5)])
async def test_a_client_has_its_share_by_the_time_of_its_rows_not_by_its_requests(frames, share):
    """One of many requests, whose rows of 400 frames take 4 times as long as those of another."""
    engine, many, large = Engine(allowed=[1]), list(range(20)), list(range(20, 40))
    engine.known(3, 0.1)
    engine.known(400, 0.4)
    engine.batcher._queue.charge = lambda rows, seconds: None  # what is known of rows is charged
    first = await engine.hold()
    tasks = [await engine.asked([seed], frames, client="many") for seed in many]
    tasks.append(await engine.asked(large, client="large"))
    await engine.go(first, *tasks)
    for end in range(5, 21, 5):
        called = sum(seed in many for seed in engine.order[1 : 1 + end])
        assert called == pytest.approx(share * end, abs=1)


# A full queue


async def test_a_full_queue_gives_up_requests_of_whoever_fills_it():
    engine = Engine(allowed=[1], rows=8)
    first = await engine.hold()
    heavy = [await engine.asked([10 * n, 10 * n + 1], client=HEAVY[0]) for n in range(4)]
    light = await engine.asked([99], client=LIGHT)
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
    queue = RowQueue(Padding({}), limits_of(rows, size), lambda rows: None)
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
    many = [await engine.asked([n], seconds=600.0, client=HEAVY[0]) for n in range(40)]
    begin_client(HEAVY[0])
    with pytest.raises(Overloaded, match="takes about 20 seconds"):
        await engine.ask([98], seconds=10.0)
    light = await engine.asked([99], seconds=10.0, client=LIGHT)  # one row of the other before it
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
            serve_load.until(lambda: value("onepass_queue_rows", {"model": "shapes"}) == count)

        heavy = [asked(0, [0])]
        serve_load.until(control.entered.is_set)
        heavy += [asked(n, range(1000 * n, 1000 * n + ROWS)) for n in range(5)]
        wait_for(5 * ROWS)
        light = asked(5, [99])
        wait_for(5 * ROWS + 1)
        control.open.set()
        assert light.result(30) == 1 and [each.result(30) for each in heavy] == [1] + 5 * [ROWS]
    seeds = [set(seeds) for _, _, _, seeds in control.calls]
    at = next(n for n, called in enumerate(seeds) if 99 in called)
    assert at <= 2 and sum(map(len, seeds[1 : at + 1])) <= 6
