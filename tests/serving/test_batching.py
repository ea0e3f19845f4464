"""Requests share calls, wait in turns and within limits, and fail alone."""

import asyncio
import gc
import weakref

import numpy as np
import pytest
from batch_engine import PLAIN, Engine, begun
from fake_bundle import HOP, SOUND, FakeImages, FakeSound
from registries import until

from onepass.bundles.errors import (
    DeadlineExceeded,
    Internal,
    InvalidInput,
    Overloaded,
    TooLarge,
)
from serving.engine.batching import CALL_SECONDS, CallTimes, Padding
from serving.engine.served_model import ServedModel
from serving.settings import Settings


def assert_alone(answer, seeds, lengths=3):
    """The answer is that of the rows in a call of their own."""
    quiet = Engine()
    expected = quiet.bundle.call(PLAIN, quiet.inputs(seeds, lengths))
    for name in ("sound", "num_samples"):
        np.testing.assert_array_equal(answer[name], expected[name])


# Sharing calls


async def test_a_row_in_a_batch_equals_the_row_alone():
    engine, lengths = Engine(), [3, 7, 8, 9, 30, 5, 2, 31]
    first = await engine.hold()
    tasks = [await engine.asked([seed], length) for seed, length in enumerate(lengths)]
    _, *answers = await engine.go(first, *tasks)
    assert sorted(engine.control.rows) == [1, 1, 4, 4]
    for seed, (length, answer) in enumerate(zip(lengths, answers, strict=True)):
        assert answer["sound"].shape == (1, length * HOP)
        assert_alone(answer, [seed], length)


async def test_only_rows_of_one_bucket_share_a_call():
    engine = Engine(FakeSound(buckets=[4, 16]))
    first = await engine.hold()
    tasks = [await engine.asked([seed], length) for seed, length in enumerate([3, 9, 4, 16])]
    await engine.go(first, *tasks)
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
    first = await engine.hold()
    await engine.go(first, *[await engine.asked([seed]) for seed in range(2)])
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


async def test_a_deadline_passes_during_the_call():
    engine = Engine()
    engine.control.open.clear()
    with pytest.raises(DeadlineExceeded):
        await engine.ask([5], seconds=0.02)
    engine.control.open.set()
    assert_alone(await engine.ask([6], seconds=5.0), [6])


async def test_a_cancelled_request_never_reaches_the_call_and_frees_its_place():
    engine = Engine(rows=2)
    first = await engine.hold()
    left, stays = await engine.asked([1]), await engine.asked([2])
    left.cancel()
    await asyncio.wait([left])
    await engine.go(first, stays, await engine.asked([3]))
    assert left.cancelled()
    assert sorted(engine.order) == [2, 3, 1000]


# Failures


async def test_one_bad_row_fails_alone(caplog):
    engine = Engine()
    engine.control.fails_on = 13
    first = await engine.hold()
    tasks = [await engine.asked([seed]) for seed in (11, 12, 13, 14)]
    _, *answers = await engine.go(first, *tasks, return_exceptions=True)
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
    first = await engine.hold()
    tasks = [await engine.asked([10 * n, 10 * n + 1, 10 * n + 2]) for n in range(3)]
    tasks += [await engine.asked([98, 99]), await engine.asked([97])]
    await engine.go(first, *tasks)
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
    first = await engine.hold()
    await engine.go(first, await engine.asked(list(range(16))))
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
