"""Requests that cost much let others go between, and what cannot end in time is refused."""

import asyncio
import gc
import weakref

import numpy as np
import pytest
from fake_bundle import FakeSound

from serving.engine.batching import CALL_SECONDS, Batcher, CallTimes, Limits
from serving.engine.padding import Padding
from serving.errors import Overloaded, TooLarge
from serving.observability.metrics import Metrics


class Engine:
    """A batcher whose first call is held until `go`; its calls are `bundle.control.calls`."""

    def __init__(self, allowed=(1,), **limits):
        self.bundle = FakeSound(allowed_batches=list(allowed))
        padding = Padding(self.bundle.spec["serving"])
        metrics = Metrics().for_model("voice")
        self.batcher = Batcher(self.bundle.call, padding, Limits(**limits), metrics)
        self.bundle.control.open.clear()

    def inputs(self, seeds, frames):
        given = {
            "frames": np.zeros([len(seeds), frames, 3], np.float32),
            "num_frames": [frames] * len(seeds),
            "seed": seeds,
        }
        return self.bundle.check("serving_default", given)

    async def submitted(self, seeds, frames=3, timeout_seconds=None):
        """The task of a request, once it waits or is refused."""
        inputs = self.inputs(seeds, frames)
        submit = self.batcher.submit("serving_default", inputs, timeout_seconds)
        task = asyncio.create_task(submit)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return task

    def known(self, frames, seconds, count=2):
        """As if rows of so many frames had been called, and had taken so long."""
        fitted = self.batcher._padding.fit("serving_default", self.inputs([0], frames))
        for _ in range(count):
            self.batcher._times.note(fitted.key, "serving_default", fitted.cost, seconds)

    def order(self):
        return [seed for call in self.bundle.control.calls for seed in call[3]]

    async def go(self, *tasks):
        self.bundle.control.open.set()
        return await asyncio.gather(*tasks)


async def test_a_small_request_goes_between_the_rows_of_a_large_one():
    engine = Engine()
    large = await engine.submitted(list(range(20)), 100)
    small = await engine.submitted([99])
    await engine.go(large, small)
    order = engine.order()
    assert order.index(99) <= 2
    assert sorted(order) == [*range(20), 99]


async def test_requests_alternate_and_none_waits_for_all_rows_of_another():
    engine = Engine()
    first = await engine.submitted([1000])
    tasks = [await engine.submitted([10 * n, 10 * n + 1, 10 * n + 2]) for n in range(3)]
    await engine.go(first, *tasks)
    assert engine.order() == [1000, 0, 10, 20, 1, 11, 21, 2, 12, 22]


async def test_a_large_request_ends_however_many_small_ones_keep_coming():
    engine = Engine()
    large = await engine.submitted(list(range(5)))

    async def client(number):
        for _ in range(50):
            await engine.batcher.submit("serving_default", engine.inputs([number], 3))

    clients = [asyncio.create_task(client(number)) for number in (100, 200, 300)]
    await engine.go(large, *clients)
    order = engine.order()
    assert order.index(4) <= 4 * 4  # between two rows of it each client has one turn


async def test_answered_requests_are_released_though_the_queue_never_empties():
    engine, inputs_of_answered = Engine(), []
    control = engine.bundle.control
    waits = await engine.submitted(list(range(64)))

    async def client(number):
        for turn in range(5):
            inputs = engine.inputs([number + turn], 3)
            inputs_of_answered.append(weakref.ref(inputs["frames"]))
            await engine.batcher.submit("serving_default", inputs)

    await engine.go(*(client(number) for number in (100, 200, 300)))
    control.open.clear()
    control.entered.clear()
    while not control.entered.is_set():  # until a call without any of theirs
        await asyncio.sleep(0.001)
    gc.collect()
    alive = [inputs for inputs in inputs_of_answered if inputs() is not None]
    assert not waits.done()
    await engine.go(waits)
    assert (len(inputs_of_answered), len(alive)) == (15, 0)


async def test_a_call_of_several_rows_ends_soon_enough_for_others():
    async def run(seconds):
        engine = Engine(allowed=(1, 2, 4, 8))
        engine.known(3, seconds)
        first = await engine.submitted([1000])
        many = await engine.submitted(list(range(16)))
        await engine.go(first, many)
        return engine.bundle.control.rows[1:3]

    assert await run(CALL_SECONDS / 100) == [8, 8]
    assert await run(CALL_SECONDS / 4.5) == [4, 4]
    assert await run(CALL_SECONDS / 1.5) == [1, 1]


async def test_rows_that_take_long_have_a_thread_of_their_own():
    engine = Engine()
    engine.known(100, 2 * CALL_SECONDS)
    long = [await engine.submitted([n], 100) for n in range(2)]
    short = await engine.submitted([9])
    for _ in range(500):
        if len(engine.bundle.control.calls) == 2:
            break
        await asyncio.sleep(0.01)
    began = engine.order()
    await engine.go(*long, short)
    assert began == [0, 9]


async def test_what_cannot_end_in_time_even_alone_is_refused_with_the_reason():
    engine = Engine()
    engine.known(100, 0.9)
    task = await engine.submitted(list(range(64)), 100, timeout_seconds=50.0)
    with pytest.raises(TooLarge, match=r"about 58 seconds, with a limit of 50: ask for fewer rows"):
        await task
    assert engine.bundle.control.calls == []


async def test_what_cannot_end_in_time_behind_others_learns_when_to_come_again():
    engine = Engine()
    engine.known(100, 0.5)
    waiting = await engine.submitted(list(range(60)), 100, timeout_seconds=60.0)
    with pytest.raises(Overloaded, match="takes about") as refused:
        await (await engine.submitted(list(range(20)), 100, timeout_seconds=15.0))
    served = await engine.submitted([99], 100, timeout_seconds=20.0)
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
