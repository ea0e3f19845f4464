import asyncio
import time

import numpy as np
import pytest
from fake_bundle import HOP, SOUND, FakeImages, FakeSound
from registries import until

from serving.engine.batching import Batcher, Limits
from serving.engine.padding import Padding
from serving.engine.served_model import ServedModel
from serving.errors import DeadlineExceeded, Internal, InvalidInput, NotReady, Overloaded, TooLarge
from serving.observability.metrics import Metrics
from serving.settings import Settings


def batcher(bundle, watch=None, **limits):
    padding = Padding(bundle.spec["serving"])
    return Batcher(bundle.call, padding, Limits(**limits), watch or Metrics().for_model("voice"))


def sound(bundle, seeds, lengths, rows=0, signature="serving_default"):
    """Checked inputs: a row for each seed, as many frames as its length."""
    frames = np.zeros([len(seeds), max(lengths), 3], np.float32)
    for n, length in enumerate(lengths):
        frames[n, :length] = np.random.default_rng(n).normal(size=[length, 3])
    given = {"frames": frames, "num_frames": lengths, "seed": seeds, "row": [rows] * len(seeds)}
    return bundle.check(signature, given)


async def held(bundle, engine, seed=1000, signature="serving_default"):
    """A request whose call is held in the only thread until `control.open` is set."""
    bundle.control.open.clear()
    bundle.control.entered.clear()
    inputs = sound(bundle, [seed], [3], signature=signature)
    task = asyncio.create_task(engine.submit(signature, inputs))
    await until(bundle.control.entered.is_set)
    return task


def submitted(engine, bundle, seed, length=3, **rest):
    inputs = sound(bundle, [seed], [length])
    return asyncio.create_task(engine.submit("serving_default", inputs, **rest))


async def test_a_row_in_a_batch_equals_the_row_alone():
    bundle, quiet = FakeSound(), FakeSound()
    lengths = [3, 7, 8, 9, 30, 5, 2, 31]
    engine = batcher(bundle)
    first = await held(bundle, engine)
    tasks = [submitted(engine, bundle, seed, n) for seed, n in enumerate(lengths)]
    await asyncio.sleep(0)
    bundle.control.open.set()
    await first
    answers = await asyncio.gather(*tasks)
    assert sorted(bundle.control.rows) == [1, 1, 4, 4]
    for seed, (length, answer) in enumerate(zip(lengths, answers, strict=True)):
        alone = quiet.call("serving_default", sound(quiet, [seed], [length]))
        assert answer["sound"].shape == (1, length * HOP)
        np.testing.assert_array_equal(answer["sound"], alone["sound"])


async def test_only_rows_of_one_bucket_share_a_call():
    bundle = FakeSound(padded={"frames": {"axis": 1, "length": "num_frames", "buckets": [4, 16]}})
    engine = batcher(bundle)
    first = await held(bundle, engine)
    tasks = [submitted(engine, bundle, seed, n) for seed, n in enumerate([3, 9, 4, 16])]
    await asyncio.sleep(0)
    bundle.control.open.set()
    await asyncio.gather(first, *tasks)
    calls = {(length, tuple(seeds)) for _, _, length, seeds in bundle.control.calls[1:]}
    assert calls == {(4, (0, 2)), (16, (1, 3))}


async def test_the_calls_have_allowed_numbers_of_rows():
    bundle = FakeImages(allowed_batches=[2, 4])
    engine = batcher(bundle)
    inputs = bundle.check("serving_default", {"seed": np.arange(7)})
    drawn = (await engine.submit("serving_default", inputs))["picture"]
    assert bundle.control.rows == [4, 4]
    np.testing.assert_array_equal(drawn[:, 0, 0, 0], np.arange(7) % 7)


@pytest.mark.parametrize(
    ("waiting", "rows"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 4), (6, 8), (8, 8), (30, 8)]
)
def test_a_call_is_padded_only_where_a_quarter_suffices(waiting, rows):
    assert Padding({"allowed_batches": [1, 2, 4, 8]}).size(waiting) == rows


def test_the_limit_of_a_batch_holds_over_the_allowed_ones():
    assert Padding({"allowed_batches": [1, 4, 16], "limits": {"max_batch": 4}}).max_batch == 4


async def test_a_request_of_many_rows_is_split_and_put_together_again():
    bundle, quiet = FakeSound(), FakeSound()
    seeds, lengths = list(range(19)), [n % 5 + 1 for n in range(19)]
    answer = await batcher(bundle).submit("serving_default", sound(bundle, seeds, lengths))
    assert bundle.control.rows == [8, 8, 4]
    expected = quiet.call("serving_default", sound(quiet, seeds, lengths))
    np.testing.assert_array_equal(answer["sound"], expected["sound"])
    np.testing.assert_array_equal(answer["num_samples"], expected["num_samples"])


async def test_what_lies_behind_the_longest_row_neither_costs_nor_comes_back():
    bundle = FakeSound()
    inputs = sound(bundle, [1, 2], [4, 6])
    inputs["frames"] = np.pad(inputs["frames"], [(0, 0), (0, 900), (0, 0)])
    assert (await batcher(bundle).submit("serving_default", inputs))["sound"].shape == (2, 6 * HOP)
    assert bundle.control.calls[0][2] == 8


async def test_stretches_of_streams_share_no_call_and_keep_their_neighbours():
    bundle = FakeSound(signatures={"chunk": SOUND}, streaming={"signature": "chunk"})
    engine = batcher(bundle)
    first = await held(bundle, engine, signature="chunk")
    inputs = [sound(bundle, [seed, seed], [4, 4], signature="chunk") for seed in (1, 2)]
    for given in inputs:
        given["frames"] = np.pad(given["frames"], [(0, 0), (2, 3), (0, 0)])
    tasks = [asyncio.create_task(engine.submit("chunk", given)) for given in inputs]
    await asyncio.sleep(0)
    bundle.control.open.set()
    await asyncio.gather(first, *tasks)
    assert bundle.control.calls[1:] == [("chunk", 2, 9, [1, 1]), ("chunk", 2, 9, [2, 2])]


@pytest.mark.parametrize(("length", "rule"), [(9, "at most the 4 of `frames`"), (0, "")])
async def test_a_length_beyond_the_frames_is_refused(length, rule):
    bundle = FakeSound()
    with pytest.raises(InvalidInput, match=rule or "at most 1024, got 2000"):
        inputs = sound(bundle, [1], [4])
        inputs["num_frames"] = np.array([length or 2000], np.int32)
        if not length:
            inputs["frames"] = np.zeros([1, 2000, 3], np.float32)
        await batcher(bundle).submit("serving_default", inputs)
    assert bundle.control.calls == []


@pytest.mark.parametrize("limits", [{"rows": 3}, {"bytes": 250}], ids=["rows", "bytes"])
async def test_a_full_queue_answers_overloaded_and_recovers(limits):
    bundle = FakeSound()
    size = sum(array.nbytes for array in sound(bundle, [0], [3]).values())
    if "bytes" in limits:
        limits["bytes"] = 3 * size + 1
    engine = batcher(bundle, **limits)
    first = await held(bundle, engine)
    waiting = [submitted(engine, bundle, seed) for seed in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="3 rows wait") as refused:
        await engine.submit("serving_default", sound(bundle, [3], [3]))
    bundle.control.open.set()
    await asyncio.gather(first, *waiting)
    await engine.submit("serving_default", sound(bundle, [4], [3]))
    assert 1 <= refused.value.retry_after_seconds <= 60


async def test_what_could_never_be_queued_is_too_large():
    bundle = FakeSound()

    async def run(limits):
        await batcher(bundle, **limits).submit("serving_default", sound(bundle, [1, 2], [3, 3]))

    for limits in ({"rows": 1}, {"request_rows": 1}, {"bytes": 10}):
        with pytest.raises(TooLarge):
            await run(limits)


async def test_forty_clients_at_a_small_queue_are_all_answered():
    bundle = FakeSound()
    bundle.control.seconds = 0.002
    most = []

    class Peak:
        rows = 0

        def inc(self, rows):
            self.rows += rows
            most.append(self.rows)

    async def client(engine, number):
        results = []
        for turn in range(10):
            seed = number * 100 + turn
            try:
                answer = await engine.submit("serving_default", sound(bundle, [seed], [3]), 5.0)
                results.append(answer["num_samples"][0])
            except Overloaded as error:
                results.append(error.retry_after_seconds)
                await asyncio.sleep(0.001)
        return results

    metrics = Metrics().for_model("voice")
    metrics.queue_rows = Peak()
    engine = batcher(bundle, metrics, rows=16)
    results = [
        answer
        for answers in (await asyncio.gather(*(client(engine, number) for number in range(40))))
        for answer in answers
    ]
    assert len(results) == 400
    assert {3 * HOP, 1.0} == set(results)
    assert max(most) <= 16 and most[-1] == 0
    assert max(bundle.control.rows) == 8


async def test_a_deadline_passes_while_waiting_and_the_row_never_reaches_the_call():
    bundle = FakeSound()
    engine = batcher(bundle)
    first = await held(bundle, engine)
    with pytest.raises(DeadlineExceeded, match=r"No answer within 0\.02 seconds"):
        await engine.submit("serving_default", sound(bundle, [5], [3]), 0.02)
    bundle.control.open.set()
    await first
    assert [call[3] for call in bundle.control.calls] == [[1000]]


async def test_a_deadline_passes_during_the_call():
    bundle = FakeSound()
    engine = batcher(bundle)
    bundle.control.open.clear()
    with pytest.raises(DeadlineExceeded):
        await engine.submit("serving_default", sound(bundle, [5], [3]), 0.02)
    bundle.control.open.set()
    answer = await engine.submit("serving_default", sound(bundle, [6], [3]), 5.0)
    assert answer["sound"].shape == (1, 3 * HOP)


async def test_a_cancelled_request_never_reaches_the_call_and_frees_its_place():
    bundle = FakeSound()
    engine = batcher(bundle, rows=2)
    first = await held(bundle, engine)
    left, stays = submitted(engine, bundle, 1), submitted(engine, bundle, 2)
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait([left])
    new = submitted(engine, bundle, 3)
    await asyncio.sleep(0)
    bundle.control.open.set()
    await asyncio.gather(first, stays, new)
    assert left.cancelled()
    assert sorted(seed for call in bundle.control.calls for seed in call[3]) == [2, 3, 1000]


async def test_one_bad_row_fails_alone(caplog):
    bundle, quiet = FakeSound(), FakeSound()
    bundle.control.fails_on = 13

    metrics = Metrics()
    engine = batcher(bundle, metrics.for_model("voice"))
    first = await held(bundle, engine)
    tasks = [submitted(engine, bundle, seed) for seed in (11, 12, 13, 14)]
    await asyncio.sleep(0)
    bundle.control.open.set()
    await first
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(answers.pop(2), Internal)
    for seed, answer in zip((11, 12, 14), answers, strict=True):
        alone = quiet.call("serving_default", sound(quiet, [seed], [3]))
        np.testing.assert_array_equal(answer["sound"], alone["sound"])
    assert bundle.control.rows == [1, 4, 1, 1, 1, 1]
    assert (
        metrics.registry.get_sample_value("onepass_batches_retried_total", {"model": "voice"}) == 1
    )
    assert "secret detail" in caplog.text  # the log has what the answer has not


async def test_a_row_that_was_given_up_is_not_tried_again():
    bundle = FakeSound()
    bundle.control.fails_on = 13
    engine = batcher(bundle)
    first = await held(bundle, engine)
    bad, left = submitted(engine, bundle, 13), submitted(engine, bundle, 14)
    await asyncio.sleep(0)
    bundle.control.entered.clear()
    bundle.control.seconds = 0.05  # time for the client to leave during the shared call
    bundle.control.open.set()
    await first
    await until(bundle.control.entered.is_set)
    left.cancel()
    await asyncio.wait([left, bad])
    assert [call[3] for call in bundle.control.calls[1:]] == [[13, 14], [13]]


async def test_a_lone_request_does_not_wait_for_others():
    bundle = FakeSound()
    engine = batcher(bundle, delay_seconds=1000.0)
    async with asyncio.timeout(10):
        for seed in range(5):
            await engine.submit("serving_default", sound(bundle, [seed], [3]))
    assert bundle.control.rows == [1] * 5


async def test_clients_side_by_side_are_gathered_again():
    bundle = FakeSound()

    async def client(engine, number):
        for turn in range(6):
            await engine.submit("serving_default", sound(bundle, [number * 10 + turn], [3]))
            await asyncio.sleep(0.002 * (number % 3))  # they do not come back at once

    engine = batcher(bundle, delay_seconds=0.1)
    await asyncio.gather(*(client(engine, number) for number in range(4)))
    assert bundle.control.rows.count(4) >= 4


async def test_a_crowd_that_has_gone_is_waited_for_once_at_most():
    bundle = FakeSound()
    engine = batcher(bundle, delay_seconds=0.5)
    first = await held(bundle, engine)
    crowd = [submitted(engine, bundle, seed) for seed in range(4)]
    await asyncio.sleep(0)
    bundle.control.open.set()
    await asyncio.gather(first, *crowd)
    times = []
    for seed in range(3):
        start = time.perf_counter()
        await engine.submit("serving_default", sound(bundle, [seed], [3]))
        times.append(time.perf_counter() - start)
    first, *others = times
    assert first > 0.25 and sum(others) < 0.5


async def test_as_many_calls_run_at_once_as_there_are_threads():
    bundle = FakeSound()
    engine = batcher(bundle, threads=2)
    bundle.control.open.clear()
    tasks = [submitted(engine, bundle, seed) for seed in range(2)]
    await until(lambda: len(bundle.control.calls) == 2)
    tasks.append(submitted(engine, bundle, 2))
    await asyncio.sleep(0.02)
    assert len(bundle.control.calls) == 2 and engine.running == 2
    bundle.control.open.set()
    await asyncio.gather(*tasks)


async def test_closing_answers_what_waits():
    bundle = FakeSound()
    engine = batcher(bundle)
    first = await held(bundle, engine)
    waiting = submitted(engine, bundle, 1)
    await asyncio.sleep(0)
    engine.close()
    with pytest.raises(NotReady):
        await waiting
    with pytest.raises(NotReady):
        await engine.submit("serving_default", sound(bundle, [2], [3]))
    bundle.control.open.set()
    await first
    assert len(bundle.control.calls) == 1


async def test_an_engine_that_makes_rows_one_by_one_gets_them_one_by_one():
    bundle = FakeSound()
    bundle.engine = "numba"
    assert (await ServedModel(bundle, Settings()).predict(sound(bundle, [1, 2, 3], [3, 3, 3])))[
        "sound"
    ].shape == (3, 3 * HOP)
    assert bundle.control.rows == [1, 1, 1]
