"""The rows of the GPU benchmark: what is exported, what is timed, what is compared with what."""

import dataclasses
from typing import Any

BENCH = "gpu"
BATCHES = (1, 8, 64, 256)
RATE_HZ, HOP = 22_050, 256  # of the students and of HiFi-GAN V1
HIFIGAN, HIFIGAN_GRAPH = "HiFi-GAN V1", "HiFi-GAN V1, CUDA graph"
VOCODER_PEER = "wavenet_vocoder"
TRANSFORMERS, TRANSFORMERS_GRAPH = "transformers", "transformers, CUDA graph"
STEP, CACHED, NAIVE = "derived step", "cached", "naive"
FIRST = "first chunk of "
KEYS = "keys/"  # begins the name of an input that starts as zeros
GPT, GPT_2 = "GPT 3x64", "GPT-2 small"
WAVENET, TEACHER = "24x128", "shipped-teacher"
PEERS = (
    HIFIGAN, HIFIGAN_GRAPH, FIRST + HIFIGAN_GRAPH,
    VOCODER_PEER, TRANSFORMERS, TRANSFORMERS_GRAPH,
)  # fmt: skip
MULTISCALE, PIXELCNN = "shipped-digits", "shipped-digits-teacher"


@dataclasses.dataclass(frozen=True)
class Job:
    """A row, and how it is measured.

    Attributes:
      what, size, batch, unit: these fields of the `benchmarks.report.Row` that is measured.
      against: the `what` of each row of the same size and batch that it is compared with.
      function: exported function that is timed; "": a peer, which `peers` makes.
      weights: file of its weights, or "random".
      units: produced by a call, in the row's unit times seconds: samples, tokens, images, seconds.
      steps: of the network one after the other in a call.
      step_bytes: that a step must read: weights once, and the past of every row.
      latency: report the milliseconds of a call instead.
      reason: why the function could not be exported.
    """

    what: str
    size: str
    batch: int
    unit: str
    against: tuple[str, ...] = ()
    function: str = ""
    weights: str = "random"
    units: float = 1.0
    steps: int = 1
    step_bytes: float = 0.0
    latency: bool = False
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        """The name of the row."""
        return self.what, self.size, self.batch


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Lengths of what a call makes; those of `QUICK` are for tests."""

    batches: tuple[int, ...] = BATCHES
    naive_batches: tuple[int, ...] = (1, 64)
    samples: int = 512
    naive_samples: int = 4
    peer_samples: int = 48
    seconds: float = 5.0
    student_batches: tuple[int, ...] = (1, 8, 64)
    first_frames: int = 7
    naive_pixels: int = 8
    tokens: int = 128
    horizon: int = 256
    naive_tokens: int = 4
    # layers, width, heads, vocabulary
    gpts: tuple[tuple[str, tuple[int, int, int, int]], ...] = (
        (GPT, (3, 64, 4, 256)),
        (GPT_2, (12, 768, 12, 50_257)),
    )


QUICK = Sizes(
    batches=(1, 2),
    naive_batches=(1,),
    samples=32,
    naive_samples=2,
    peer_samples=4,
    seconds=0.1,
    student_batches=(1,),
    first_frames=3,
    naive_pixels=2,
    tokens=8,
    horizon=64,
    naive_tokens=2,
    gpts=((GPT, (1, 16, 2, 32)),),
)


def jobs(sizes: Sizes, rate_hz: int = RATE_HZ) -> list[Job]:
    """Return the rows in the order of measuring; bytes and units are set by the export."""
    found = [*_sound(sizes), *_students(sizes, rate_hz), *_images(sizes), *_tokens(sizes)]
    return [job if job.function == "" else _named(job) for job in found]


def _named(job: Job) -> Job:
    words = f"{job.what} {job.size} {job.batch}".lower()
    name = "".join(c if c.isalnum() else "_" for c in words)
    return dataclasses.replace(job, function=name)


def _sound(sizes: Sizes):
    for size, peers in ((WAVENET, (VOCODER_PEER,)), (TEACHER, ())):
        for batch in sizes.batches:
            row: Any = {"size": size, "batch": batch, "unit": "samples/s"}
            made: Any = {"units": float(batch * sizes.samples), "steps": sizes.samples}
            yield Job(CACHED, **row, against=(NAIVE, *peers), function="?", **made)
            if batch in sizes.naive_batches:
                made = {"units": float(batch * sizes.naive_samples), "steps": sizes.naive_samples}
                yield Job(NAIVE, **row, function="?", **made)
            for peer in peers:
                yield Job(peer, **row, units=float(batch * sizes.peer_samples))


def _students(sizes: Sizes, rate_hz: int):
    size = f"{sizes.seconds:g} s"
    for batch in sizes.student_batches:
        row: Any = {"batch": batch, "unit": "times real time"}
        row |= {"size": size, "units": batch * sizes.seconds}
        for name in ("shipped", "shipped-small"):
            yield Job(name, **row, against=(HIFIGAN, HIFIGAN_GRAPH), function="?")
        for name in (HIFIGAN, HIFIGAN_GRAPH):
            yield Job(name, **row)
    first = f"{1000 * sizes.first_frames * HOP / rate_hz:.0f} ms"
    row = {"size": first, "batch": 1, "unit": "ms to the first chunk", "latency": True}
    for name in ("shipped", "shipped-small"):
        yield Job(FIRST + name, **row, function="?")
    yield Job(FIRST + HIFIGAN_GRAPH, **row)


def _images(sizes: Sizes):
    for batch in sizes.batches:
        yield Job("multiscale", "digits 32x32", batch, "images/s", (CACHED,), "?", units=batch)
        if batch in sizes.naive_batches:
            row: Any = {"size": "digits 32x32", "batch": batch, "unit": "images/s"}
            yield Job(CACHED, **row, against=(NAIVE,), function="?", units=batch, steps=1024)
            share = batch * sizes.naive_pixels / 1024
            yield Job(NAIVE, **row, function="?", units=share, steps=sizes.naive_pixels)


def _tokens(sizes: Sizes):
    for size, _ in sizes.gpts:
        peers = (TRANSFORMERS, TRANSFORMERS_GRAPH) if size == GPT_2 else ()
        for batch in sizes.batches:
            row: Any = {"size": size, "batch": batch, "unit": "tokens/s"}
            made: Any = {"units": float(batch * sizes.tokens), "steps": sizes.tokens}
            yield Job(STEP, **row, against=(NAIVE, *peers), function="?", **made)
            if batch in sizes.naive_batches:
                made = {"units": float(batch * sizes.naive_tokens), "steps": sizes.naive_tokens}
                yield Job(NAIVE, **row, function="?", **made)
            for peer in peers:
                yield Job(peer, **row, units=float(batch * sizes.tokens))
