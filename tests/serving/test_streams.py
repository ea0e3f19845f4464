import asyncio

import numpy as np
import pytest
from fake_bundle import HOP, FakeSound
from loops import until

from onepass.bundles.errors import DeadlineExceeded, Internal, Overloaded
from serving.engine.clients import begin_client
from serving.engine.served_model import LOOKAHEAD, ServedModel, Streams
from serving.settings import Settings

FRAMES = np.random.default_rng(0).normal(size=[200, 3]).astype(np.float32)
CHUNKS = 200 * HOP // 16


def served(bundle, **settings):
    return ServedModel(bundle, Settings(**settings))


async def collected(stream):
    return [chunk async for chunk in stream]


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
                assert "streams are open already" in str(refused)
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


async def test_an_iterator_that_cannot_be_made_is_the_streams_error():
    streams = Streams(1, 5.0)
    for _ in range(2):  # the place of the first is free again
        with pytest.raises(Internal):
            await anext(streams.stream(lambda: 1 / 0))
        await until(lambda: not streams.running)
