"""Requests that cost much let others go between, and what cannot end in time is refused."""

import asyncio

import numpy as np
import pytest
from fake_bundle import FakeSound

from serving.engine.batching import CALL_SECONDS, Batcher, Limits
from serving.engine.call_times import CallTimes
from serving.engine.clients import begin_client
from serving.engine.padding import Padding
from serving.errors import Overloaded, TooLarge
from serving.observability.metrics import Metrics

ANNA, BEN = "10.0.0.1", "10.0.0.2"


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

    async def submitted(self, address, seeds, frames=3, timeout_seconds=None):
        """The task of a request of a client, once it waits or is refused."""

        async def submit():
            begin_client((address, 1))
            inputs = self.inputs(seeds, frames)
            return await self.batcher.submit("serving_default", inputs, timeout_seconds)

        task = asyncio.create_task(submit())
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


@pytest.mark.parametrize("address", [ANNA, BEN], ids=["of another client", "of the same client"])
def test_a_small_request_goes_between_the_rows_of_a_large_one(address):
    async def run():
        engine = Engine()
        large = await engine.submitted(BEN, list(range(20)), 100)
        small = await engine.submitted(address, [99])
        await engine.go(large, small)
        return engine.order()

    order = asyncio.run(run())
    assert order.index(99) <= 2
    assert sorted(order) == [*range(20), 99]


def test_a_client_with_many_requests_has_no_more_than_one_with_few():
    async def run():
        engine = Engine()
        greedy = [await engine.submitted(BEN, [n]) for n in range(20)]
        modest = [await engine.submitted(ANNA, [n]) for n in (100, 101)]
        await engine.go(*greedy, *modest)
        return engine.order()

    order = asyncio.run(run())
    assert order.index(100) <= 2 and order.index(101) <= 4


def test_costs_and_not_rows_are_shared_fairly():
    async def run():
        engine = Engine()
        long = await engine.submitted(BEN, list(range(6)), 120)
        short = await engine.submitted(ANNA, list(range(100, 110)), 8)
        await engine.go(long, short)
        return engine.order()

    order = asyncio.run(run())
    assert order.index(109) < order.index(2)  # ten rows of 8 frames cost less than one of 128


def test_a_call_of_several_rows_ends_soon_enough_for_others():
    async def run(seconds):
        engine = Engine(allowed=(1, 2, 4, 8))
        engine.known(3, seconds)
        first = await engine.submitted(BEN, [1000])
        many = await engine.submitted(BEN, list(range(16)))
        await engine.go(first, many)
        return engine.bundle.control.rows[1:3]

    assert asyncio.run(run(CALL_SECONDS / 100)) == [8, 8]
    assert asyncio.run(run(CALL_SECONDS / 4.5)) == [4, 4]
    assert asyncio.run(run(CALL_SECONDS / 1.5)) == [1, 1]


def test_rows_that_take_long_have_a_thread_of_their_own():
    async def run():
        engine = Engine()
        engine.known(100, 2 * CALL_SECONDS)
        long = [await engine.submitted(BEN, [n], 100) for n in range(2)]
        short = await engine.submitted(ANNA, [9])
        for _ in range(500):
            if len(engine.bundle.control.calls) == 2:
                break
            await asyncio.sleep(0.01)
        began = engine.order()
        await engine.go(*long, short)
        return began

    assert asyncio.run(run()) == [0, 9]


def test_what_cannot_end_in_time_even_alone_is_refused_with_the_reason():
    async def run():
        engine = Engine()
        engine.known(100, 0.9)
        task = await engine.submitted(BEN, list(range(64)), 100, timeout_seconds=50.0)
        with pytest.raises(TooLarge, match=r"about 58 seconds, and has 50: ask for fewer rows"):
            await task
        return engine.bundle.control.calls

    assert asyncio.run(run()) == []


def test_what_cannot_end_in_time_behind_others_learns_when_to_come_again():
    async def run():
        engine = Engine()
        engine.known(100, 0.5)
        waiting = await engine.submitted(BEN, list(range(60)), 100, timeout_seconds=60.0)
        with pytest.raises(Overloaded, match="takes about") as refused:
            await (await engine.submitted(BEN, list(range(20)), 100, timeout_seconds=20.0))
        served = await engine.submitted(ANNA, [99], 100, timeout_seconds=20.0)
        await engine.go(waiting, served)
        return refused.value.retry_after_seconds

    assert 5.0 < asyncio.run(run()) < 30.0


def test_one_client_cannot_fill_the_queue():
    async def run():
        engine = Engine(rows=8)
        first = await engine.submitted(BEN, [0])
        own = [await engine.submitted(BEN, [n]) for n in range(1, 7)]
        with pytest.raises(Overloaded, match="6 rows of yours wait"):
            await (await engine.submitted(BEN, [7]))
        other = await engine.submitted(ANNA, [8])
        await engine.go(first, *own, other)

    asyncio.run(run())


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
