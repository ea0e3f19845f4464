import asyncio
import threading

import numpy as np
import pytest
from fake_bundle import HOP, FakeImages, FakeSound
from registries import until

from onepass.bundles.errors import DeadlineExceeded, Internal, InvalidInput, Overloaded
from serving.engine.clients import Permits, begin_client
from serving.engine.served_model import LOOKAHEAD, ServedModel, Streams
from serving.settings import Settings

FRAMES = np.random.default_rng(0).normal(size=[200, 3]).astype(np.float32)
CHUNKS = 200 * HOP // 16


def served(bundle, **settings):
    return ServedModel(bundle, Settings(**settings))


async def collected(stream):
    return [chunk async for chunk in stream]


async def test_the_chunks_together_are_the_whole():
    bundle = FakeSound()
    chunks = await collected(served(bundle).stream(FRAMES, seed=3, row=2, length=777))
    whole = FakeSound().sample(condition=FRAMES, seed=3, row=2, length=777)[0]
    np.testing.assert_array_equal(np.concatenate(chunks), whole)
    assert len(chunks) > 10
    assert {chunk.ndim for chunk in chunks} == {1}


async def test_the_first_chunk_comes_before_the_second_is_made():
    bundle = FakeSound()
    made = threading.Semaphore(1)
    bundle.control.chunk = lambda seed: made.acquire(timeout=5)
    stream = served(bundle).stream(FRAMES)
    async with asyncio.timeout(2):
        first = await anext(stream)
    made.release(1000)
    await stream.aclose()
    assert first.shape == (16,)


async def test_a_slow_reader_is_not_overtaken():
    bundle = FakeSound()
    stream = served(bundle).stream(FRAMES)
    for taken in range(1, 6):
        await anext(stream)
        await until(lambda taken=taken: bundle.control.chunks == taken + LOOKAHEAD)
        await asyncio.sleep(0.01)
        assert bundle.control.chunks == taken + LOOKAHEAD
    await stream.aclose()


async def test_a_slow_reader_holds_up_nobody_else():
    bundle = FakeSound()
    model = served(bundle)
    slow = model.stream(FRAMES, seed=1)
    await anext(slow)
    others = await asyncio.gather(
        *(collected(model.stream(FRAMES, seed=seed)) for seed in (2, 3)),
        model.predict({"frames": FRAMES[None], "num_frames": np.array([200], np.int32)}),
    )
    assert [len(chunks) for chunks in others[:2]] == [CHUNKS, CHUNKS]
    assert len(await collected(slow)) == CHUNKS - 1


async def test_a_closed_stream_stops_the_work_and_gives_its_place_back():
    bundle = FakeSound()
    model = served(bundle, max_streams=1)
    stream = model.stream(FRAMES)
    await anext(stream)
    await stream.aclose()
    await until(lambda: not model.is_busy)
    made = bundle.control.chunks
    assert bundle.control.closed == 1 and made <= 1 + LOOKAHEAD
    await asyncio.sleep(0.02)
    assert bundle.control.chunks == made
    assert len(await collected(model.stream(FRAMES))) == CHUNKS


async def test_a_reader_that_is_cancelled_stops_the_work():
    bundle = FakeSound()
    model = served(bundle)
    bundle.control.open.clear()
    reader = asyncio.create_task(collected(model.stream(FRAMES)))
    await until(bundle.control.entered.is_set)
    reader.cancel()
    await asyncio.wait([reader])
    assert model.is_busy  # the chunk at hand
    bundle.control.open.set()
    await until(lambda: not model.is_busy)
    assert bundle.control.chunks == 1


async def test_more_streams_than_allowed_are_refused_at_once():
    model = served(FakeSound(), max_streams=2)
    streams = []
    for address in ("127.0.0.2", "127.0.0.3"):
        begin_client(address)
        streams.append(model.stream(FRAMES))
        await anext(streams[-1])
    begin_client("127.0.0.4")
    with pytest.raises(Overloaded, match="2 streams are open already") as refused:
        await anext(model.stream(FRAMES))
    assert refused.value.retry_after_seconds >= 1
    for stream in streams:
        await stream.aclose()


async def test_no_client_takes_the_last_stream_that_others_have():
    model, open_streams = served(FakeSound(), max_streams=8), []

    async def opened(address):
        """Count the streams that the client gets before it is refused."""
        begin_client(address)
        for count in range(9):
            stream = model.stream(FRAMES)
            try:
                await anext(stream)
            except Overloaded as refused:
                assert refused.retry_after_seconds >= 1
                return count
            open_streams.append(stream)

    assert [await opened(f"127.0.0.{n}") for n in range(2, 7)] == [4, 2, 1, 1, 0]
    for stream in open_streams:
        await stream.aclose()
    await until(lambda: not model.is_busy)
    assert await opened("127.0.0.9") == 4
    for stream in open_streams[8:]:
        await stream.aclose()


async def test_a_stream_whose_time_is_over_ends_and_stops_the_work():
    bundle = FakeSound()

    async def run(**limits):
        model = served(bundle, timeout_seconds=limits.pop("settings", 60))
        bundle.control.open.clear()
        with pytest.raises(DeadlineExceeded):
            await collected(model.stream(FRAMES, **limits))
        bundle.control.open.set()
        await until(lambda: not model.is_busy)

    await run(timeout_seconds=0.02)
    await run(settings=0.02)
    assert bundle.control.chunks == 2
    with pytest.raises(DeadlineExceeded):
        await collected(served(bundle).stream(FRAMES, timeout_seconds=-1.0))


async def test_a_reader_that_never_comes_back_loses_its_place():
    bundle = FakeSound()
    model = served(bundle, timeout_seconds=0.05)
    stream = model.stream(FRAMES)
    await anext(stream)
    await until(lambda: not model._streams.running)
    with pytest.raises(DeadlineExceeded):
        await collected(stream)
    assert bundle.control.closed == 1


async def test_a_failure_in_the_middle_comes_after_what_was_made(caplog):
    bundle = FakeSound()
    chunks = []
    stream = served(bundle).stream(FRAMES, seed=5)
    chunks.append(await anext(stream))
    bundle.control.fails_on = 5
    with pytest.raises(Internal) as failed:
        async for chunk in stream:
            chunks.append(chunk)
    assert "secret" not in str(failed.value)
    assert 1 <= len(chunks) <= 1 + LOOKAHEAD + 1
    assert "secret detail" in caplog.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"condition": FRAMES * np.nan}, "`frames` must be finite"),
        ({"condition": FRAMES[:, :2]}, "`frames` must have the shape"),
        ({"condition": FRAMES, "temperature": 9.0}, "`temperature` must be between 0 and 2"),
        ({"condition": FRAMES, "row": -1}, "`row` must be"),
    ],
)
async def test_what_breaks_a_rule_is_refused_before_a_thread_is_taken(given, words):
    bundle = FakeSound()
    with pytest.raises(InvalidInput, match=words):
        await collected(served(bundle).stream(**given))
    assert bundle.control.chunks == 0


async def test_a_model_of_images_streams_no_sound():
    with pytest.raises(InvalidInput, match="draws images"):
        await collected(served(FakeImages()).stream())


async def test_an_iterator_that_cannot_be_made_is_the_streams_error():
    streams = Streams(1, 5.0)
    for _ in range(2):  # the place of the first is free again
        with pytest.raises(Internal):
            await anext(streams.stream(lambda: 1 / 0))
        await until(lambda: not streams.running)


def test_permits_are_given_in_the_order_in_which_they_are_asked_for():
    permits, order, pause = Permits(1), [], threading.Event()

    def work(number):
        with permits.permit():
            order.append(number)

    with permits.permit():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for waiting, thread in enumerate(threads, 1):
            thread.start()
            while len(permits._waiting) < waiting:
                pause.wait(0.001)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3]


def test_the_next_permit_is_for_the_client_that_has_held_them_least():
    permits, order, pause, threads = Permits(1), [], threading.Event(), []

    def work(client):
        with permits.permit(client):
            order.append(client)
            pause.wait(0.001)

    with permits.permit("many"):
        for waiting, client in enumerate(["many"] * 5 + ["one", "other"], 1):
            threads.append(threading.Thread(target=work, args=(client,)))
            threads[-1].start()
            while len(permits._waiting) < waiting:
                pause.wait(0.001)
    for thread in threads:
        thread.join()
    assert order[:2] == ["one", "other"]  # "many" has held one before


def test_a_permit_that_never_ends_keeps_nobody_for_ever():
    permits = Permits(1, patience_seconds=0.01)
    with permits.permit(), permits.permit():
        pass
    with permits.permit():
        pass
    assert permits._free == 1 and not permits._waiting
