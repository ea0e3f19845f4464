"""A registry of models under the test's own hand."""

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
