"""A batcher of a fake bundle, whose calls a test holds and looks at."""

import asyncio
import types

import numpy as np
from fake_bundle import FakeSound
from registries import until

from serving.engine.batching import Batcher, Padding
from serving.observability import Metrics

PLAIN = "serving_default"


def limits_of(rows=256, bytes=2**28, request_rows=64, delay_seconds=0.001, threads=1):
    """The settings that a batcher reads, some of them smaller than a server's may be."""
    return types.SimpleNamespace(
        queue_rows=rows,
        queue_bytes=bytes,
        max_rows=request_rows,
        batch_delay_ms=1000 * delay_seconds,
        threads=threads,
    )


class Engine:
    """A batcher of a fake bundle, whose calls are `calls`; `hold` and `go` hold them and let go."""

    def __init__(self, bundle=None, allowed=(1, 2, 4, 8), metrics=None, **limits):
        self.bundle = bundle or FakeSound(allowed_batches=list(allowed))
        self.control, self.metrics = self.bundle.control, metrics or Metrics()
        padding = Padding(self.bundle.spec["serving"], self.bundle.signatures)
        settings = limits_of(**limits)
        self.batcher = Batcher(self.bundle.call, padding, settings, self.metrics, "voice")

    def inputs(self, seeds, lengths=3, signature=PLAIN):
        """Checked inputs: a row for each seed, as many frames as its length, or as one for all."""
        lengths = [lengths] * len(seeds) if isinstance(lengths, int) else lengths
        frames = np.zeros([len(seeds), max(lengths), 3], np.float32)
        for n, length in enumerate(lengths):
            frames[n, :length] = np.random.default_rng(n).normal(size=[length, 3])
        given = {"frames": frames, "num_frames": lengths, "seed": seeds}
        return self.bundle.check(signature, given)

    async def ask(self, seeds, lengths=3, seconds=None):
        return await self.batcher.submit(PLAIN, self.inputs(seeds, lengths), seconds)

    async def asked(self, seeds, lengths=3, seconds=None):
        """The task of a request, once it waits or is refused."""
        return await begun(self.ask(seeds, lengths, seconds))

    async def hold(self, signature=PLAIN):
        """A request whose call is held, in the only thread, until `go`."""
        self.control.open.clear()
        self.control.entered.clear()
        submit = self.batcher.submit(signature, self.inputs([1000], signature=signature))
        task = asyncio.create_task(submit)
        await until(self.control.entered.is_set)
        return task

    async def go(self, *tasks, **options):
        self.control.open.set()
        return await asyncio.gather(*tasks, **options)

    def known(self, frames, seconds):
        """Note that rows of so many frames took so long, as if they had been called."""
        fitted = self.batcher._padding.fit(PLAIN, self.inputs([0], frames))
        for _ in range(2):
            self.batcher._times.note(fitted.key, PLAIN, fitted.cost, seconds)

    @property
    def calls(self):
        """The seeds of each call."""
        return [call[3] for call in self.control.calls]

    @property
    def order(self):
        return [seed for seeds in self.calls for seed in seeds]


async def begun(work):
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task
