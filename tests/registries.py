"""A registry of models under the test's own hand."""

import asyncio
import contextlib

from serving.engine.registry import ModelRegistry
from serving.settings import Settings


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
