"""A model being served: it checks inputs, batches calls and streams chunks."""

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from onepass.bundles import errors
from onepass.bundles.bundle import Servable
from onepass.bundles.sampling import check_rows
from onepass.bundles.signature import MADE, PLAIN, WHOLE, Arrays, Signature
from onepass.foundation.rules import UserError
from serving import observability
from serving.engine.batching import LARGE_BYTES, Batcher, Padding
from serving.engine.clients import PROCESSORS, ClientSlots, Use, current_client
from serving.engine.prefix_states import ContinuedCalls, StateCache
from serving.observability import Metrics, request_id
from serving.settings import Settings

LOG = logging.getLogger(__name__)
LOOKAHEAD = 2  # chunks computed before they are requested
STREAM_TIMEOUT_FACTOR = 10  # time limit of a stream, relative to the limit of a chunk

Chunk = TypeVar("Chunk")
_END = object()  # marks the end of a stream


class Streams:
    """A limited number of streams, shared among clients by the rule of `ClientSlots`.

    `seconds` limit computing a chunk, and reading it; `changed` is called with +1 and -1 for each.
    """

    def __init__(self, most: int, seconds: float, changed: Callable[[int], None] = lambda n: None):
        self._client_slots, self.seconds, self._changed = ClientSlots(most), seconds, changed

    @property
    def running(self) -> int:
        """Number of open streams."""
        return self._client_slots.taken

    async def stream(
        self, make: Callable[[], Iterator[Chunk]], timeout_seconds: float | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of an iterator, which `make` returns in the stream's own thread.

        Closing the generator stops the work after the current chunk. The default time limit of the
        whole stream is STREAM_TIMEOUT_FACTOR times the limit of a chunk. An iterator's UserError is
        raised as InvalidInput, errors other than ServingError as Internal.
        """
        if timeout_seconds is None:
            timeout_seconds = STREAM_TIMEOUT_FACTOR * self.seconds
        client = current_client()
        if not self._client_slots.has_one_for(client):
            own = self._client_slots.taken_by(client)
            yours = f", {own} of them yours" if own else ""
            raise errors.Overloaded(f"{self.running} streams are open already{yours}.")
        work = _StreamThread(self, make, client)
        self._client_slots.take(client)
        self._changed(1)
        # A daemon, so hanging work does not keep the process alive.
        threading.Thread(target=work.run, name="stream", daemon=True).start()
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_seconds
        try:
            while (chunk := await work.next(min(end, loop.time() + self.seconds))) is not _END:
                yield chunk
        finally:
            work.stop()

    def end(self, client: str) -> None:
        """Record that a client's stream has ended."""
        self._client_slots.leave(client)
        self._changed(-1)


class _StreamThread:
    def __init__(self, streams: Streams, make: Callable[[], Iterator[Any]], client: str):
        self._streams, self._make, self._client, self._use = streams, make, client, Use()
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[Any] = asyncio.Queue()
        self._slots = threading.Semaphore(LOOKAHEAD)
        self._stopped = threading.Event()
        self._request = request_id()

    def stop(self) -> None:
        self._stopped.set()
        self._slots.release()

    async def next(self, end: float) -> Any:
        """Return the next chunk or _END, or raise the thread's error, or DeadlineExceeded."""
        try:
            async with asyncio.timeout_at(end):
                chunk = await self._chunks.get()
        except TimeoutError as error:
            raise errors.DeadlineExceeded("The stream did not end in time.") from error
        if isinstance(chunk, errors.ServingError):
            raise chunk
        self._slots.release()
        return chunk

    def run(self) -> None:
        last: Any = _END
        try:
            with contextlib.ExitStack() as stack:
                iterator = self._make()
                if isinstance(iterator, Generator):
                    stack.callback(iterator.close)
                while self._slots.acquire(timeout=self._streams.seconds):
                    if self._stopped.is_set():
                        break
                    with PROCESSORS.permit(self._client, self._use):
                        chunk = next(iterator, _END)
                    if chunk is _END:
                        break
                    self._call_in_loop(self._chunks.put_nowait, chunk)
                else:
                    raise errors.DeadlineExceeded("The client does not read the stream.")
        except errors.ServingError as error:
            last = error
        except UserError as error:
            last = errors.InvalidInput(str(error))
        except Exception as error:
            LOG.error("a stream failed", exc_info=error, extra={"request": self._request})
            last = errors.Internal()
        self._call_in_loop(self._chunks.put_nowait, last)
        self._call_in_loop(self._streams.end, self._client)

    def _call_in_loop(self, function: Callable[..., Any], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed and has no reader
            self._loop.call_soon_threadsafe(function, *arguments)


class ServedModel:
    """One version of a model, already loaded and warmed, with its queue, threads and streams."""

    def __init__(
        self,
        bundle: Servable,
        settings: Settings,
        metrics: Metrics | None = None,
        name: str | None = None,
        states: StateCache | None = None,
    ):
        self.bundle = bundle
        self.name: str = name or bundle.name
        self.version: int = bundle.version
        self.kind: str = bundle.kind
        self.spec: dict[str, Any] = bundle.spec
        self.created = int(time.time())
        with contextlib.suppress(OSError):
            self.created = int((bundle.path / "model.json").stat().st_mtime)
        self.signatures: dict[str, Signature] = bundle.signatures
        self._seconds, self._max_bytes = settings.timeout_seconds, settings.max_body_bytes
        self._metrics = metrics or Metrics()
        self._metrics.add_model(self.name)
        serving, count = self.spec.get("serving", {}), self._metrics.streams.labels(self.name).inc
        if getattr(bundle, "engine", None) == "numba":  # which goes row by row
            serving = {**serving, "allowed_batches": [1]}
        padding = Padding(serving, self.signatures)
        states = states or StateCache(settings.prefix_bytes, self._metrics)
        self._call = ContinuedCalls(bundle, states, self._metrics, self.name)
        self._batcher = Batcher(self._call, padding, settings, self._metrics, self.name)
        self._streams = Streams(settings.max_streams, settings.timeout_seconds, count)
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_busy(self) -> bool:
        """True if a request is being answered, or a thread works on an abandoned request."""
        return bool(self._active or self._batcher.running or self._streams.running)

    @property
    def speech_bundle(self) -> Servable:
        """The bundle of a speech model; raises InvalidInput for any other model."""
        if self.kind != "sound":
            raise errors.InvalidInput(f"`{self.name}` draws {MADE[self.kind]}, not sound.")
        return self.bundle

    def signature(self, name: str) -> Signature:
        """Return a signature; raise InvalidInput, naming all signatures, for an unknown name."""
        if name not in self.signatures:
            known = ", ".join(self.signatures)
            raise errors.InvalidInput(
                f"There is no signature `{errors.shorten_text(name)}`; there are {known}."
            )
        return self.signatures[name]

    async def wait_idle(self) -> None:
        """Wait until no request is being answered."""
        await self._idle.wait()

    def close(self) -> None:
        """Fail waiting and later requests with NotReady."""
        self._batcher.close()

    def forget_states(self) -> None:
        """Keep no state after a prefix any longer."""
        self._call.forget_states()

    async def predict(
        self,
        inputs: Mapping[str, Any],
        signature: str = PLAIN,
        *,
        timeout_seconds: float | None = None,
    ) -> Arrays:
        """Return the outputs of a signature by name, with the batch axis first.

        Rows share calls with rows of other requests; the result of a row does not depend on other
        rows. When the awaiting task is cancelled, its waiting rows are dropped.
        """
        seconds = self._limit(timeout_seconds)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        with (
            observability.span(
                "predict", model=self.name, version=self.version, signature=signature
            ),
            self._count_request(),
        ):
            checked = await self._check_inputs(signature, inputs)
            if signature in WHOLE and "frames" in checked:
                await asyncio.to_thread(check_rows, self.spec, checked)
            lengths = checked.get("num_samples")
            each = 8 if "return_log_prob" in checked else 4  # with log probabilities
            wanted = 0 if lengths is None else each * len(lengths) * int(lengths.max(initial=0))
            if wanted > self._max_bytes:
                raise errors.TooLarge(
                    f"`num_samples` must amount to at most {self._max_bytes >> 20} MiB of audio"
                    f" per request, at {each} bytes per sample, got {wanted >> 20}."
                )
            return await self._batcher.submit(signature, checked, max(0.0, end - loop.time()))

    async def stream(
        self,
        condition: np.ndarray | None = None,
        *,
        timeout_seconds: float | None = None,
        **options: Any,
    ) -> AsyncGenerator[np.ndarray, None]:
        """Yield one sound in chunks, float32 [samples]; errors are raised when one is requested."""
        bundle = self.speech_bundle
        count = None if condition is None else len(condition)
        inputs = {"frames": condition, "num_frames": count, "num_samples": options.get("length")}
        given = {**options, **inputs, "speaker": None}  # a name
        known = self.signatures[PLAIN].inputs
        given = {n: v for n, v in given.items() if n in known and v is not None}
        rows = {name: np.asarray(value)[None] for name, value in given.items()}
        checked = await self._check_inputs(PLAIN, rows)
        if condition is not None:
            condition = checked.get("frames", [condition])[0]
        self._limit(timeout_seconds)
        make = functools.partial(bundle.stream, condition=condition, **options)
        with (
            observability.span("stream", model=self.name, version=self.version),
            self._count_request(),
        ):
            async with contextlib.aclosing(self._streams.stream(make, timeout_seconds)) as chunks:
                async for chunk in chunks:
                    yield chunk[0]

    def _limit(self, timeout_seconds: float | None) -> float:
        if timeout_seconds is None:
            return self._seconds
        if not timeout_seconds > 0:  # or NaN
            raise errors.DeadlineExceeded("The deadline of this request has passed.")
        return min(timeout_seconds, self._seconds)

    async def _check_inputs(self, signature: str, inputs: Mapping[str, Any]) -> Arrays:
        self.signature(signature)
        if sum(getattr(value, "nbytes", 0) for value in inputs.values()) > LARGE_BYTES:
            # A check of large inputs would block the event loop.
            return await asyncio.to_thread(self.bundle.check, signature, inputs)
        return self.bundle.check(signature, inputs)

    @contextlib.contextmanager
    def _count_request(self) -> Iterator[None]:
        self._active += 1
        self._idle.clear()
        status = "cancelled"
        try:
            yield
            status = "ok"
        except errors.ServingError as error:
            status = error.code
            raise
        finally:
            self._metrics.version_requests.labels(self.name, str(self.version), status).inc()
            self._active -= 1
            if not self._active:
                self._idle.set()
