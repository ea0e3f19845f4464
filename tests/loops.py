"""A registry of models in the loop of a test, or with a server in a thread of its own."""

import asyncio
import contextlib
import threading

from serving.engine.registry import ModelRegistry
from serving.observability import Metrics
from serving.settings import Settings


def settings_of(**given):
    return Settings(**{"timeout_seconds": 10.0, "batch_delay_ms": 0.0, **given})


@contextlib.asynccontextmanager
async def running(store, metrics=None, **settings):
    """A registry that scans when asked to, with all loaded that lies there."""
    settings.setdefault("poll_seconds", 1000.0)
    registry = ModelRegistry(store.root, Settings(**settings), store.load, metrics)
    await registry.start()
    await registry.rescan()
    try:
        yield registry
    finally:
        await registry.stop(1.0)


async def until(condition):
    """Waits for what other tasks and threads bring about."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


class InThread:
    """`with Running(store) as running`: its `registry`, `metrics` and `complaints` of the loop."""

    def __init__(self, store, **settings):
        self.store, self.settings = store, settings_of(**settings)
        self.metrics, self.complaints = Metrics(), []

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self.complain(str(context)))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.do(self._begin())
        return self

    async def _begin(self):
        self.registry = ModelRegistry(self.store.root, self.settings, self.store.load, self.metrics)
        await self.registry.start()
        await self.registry.initial_load_done()
        await self.start()

    def complain(self, context):
        self.complaints.append(context)

    def do(self, coroutine, seconds=120):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)

    async def _end(self):
        """Ends the loop as `asyncio.run` does: no task outlives it."""
        await self.stop()
        await self.registry.stop(5)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __exit__(self, kind, error, traceback):
        self.do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
        if kind is None:
            assert not self.complaints, self.complaints
