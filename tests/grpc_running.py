"""A gRPC server of fake bundles on loopback, in a thread of its own."""

import asyncio
import contextlib
import threading
from pathlib import Path

import grpc
import numpy as np
from fake_bundle import CHANNELS, FakeImages, FakeModelStore
from loops import end_loop

from serving.engine.registry import ModelRegistry
from serving.grpc.server import make_server
from serving.observability import Metrics
from serving.settings import Settings

ROOT = str(Path(__file__).resolve().parent.parent)


def store(root):
    """`voice` and `digits`, whose controls are `store.controls[name, 1]`."""
    made = FakeModelStore(root)
    made.add("voice")
    made.add("digits", kind=FakeImages)
    return made


class Running:
    """`with Running(store) as running`: its `address`, `registry`, `metrics` and `server`."""

    def __init__(self, store, **settings):
        self.store = store
        self.settings = Settings(**{"timeout_seconds": 10.0, "batch_delay_ms": 0.0, **settings})
        self.metrics, self.complaints = Metrics(), []

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self._complain(str(context)))
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.do(self._start())
        return self

    def _complain(self, context):
        # grpc has one poller a process, which may still know the loop of a server before.
        if "PollerCompletionQueue" not in context or "Event loop is closed" not in context:
            self.complaints.append(context)

    async def _start(self):
        self.registry = ModelRegistry(self.store.root, self.settings, self.store.load, self.metrics)
        await self.registry.start()
        await self.registry.initial_load_done()
        self.server = make_server(self.registry, self.settings, self.metrics)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.port}"
        await self.server.start()

    def do(self, coroutine, seconds=120):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)

    def channel(self, **options):
        return grpc.insecure_channel(self.address, [(f"grpc.{k}", n) for k, n in options.items()])

    def counted(self, status):
        return sum(
            sample.value
            for family in self.metrics.registry.collect()
            for sample in family.samples
            if sample.name == "onepass_requests_total" and sample.labels["status"] == status
        )

    def __exit__(self, kind, error, traceback):
        self.do(self.server.stop(0))
        self.do(self.registry.stop(5))
        end_loop(self._loop, self._thread)
        if kind is None:
            assert not self.complaints, self.complaints


@contextlib.contextmanager
def refused(status, words=""):
    """Expects a call that ends with this status and these words; yields a list with the error."""
    caught = []
    try:
        yield caught
    except grpc.RpcError as error:
        caught.append(error)
        assert error.code().name == status, f"{error.code()}: {error.details()}"
        assert words in error.details(), error.details()
        assert is_discreet(error.details())
    else:
        raise AssertionError(f"the call was answered instead of ending with {status}")


def is_discreet(words):
    return not any(hint in words for hint in ("Traceback", 'File "', ".py", "secret", ROOT))


def frames(rows=1, length=5):
    values = np.arange(rows * length * CHANNELS, dtype=np.float32)
    return values.reshape(rows, length, CHANNELS) / values.size
