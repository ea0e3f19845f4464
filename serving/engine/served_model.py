"""A model being served: it checks inputs, batches calls and streams audio."""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any

import numpy as np

from onepass.bundles.bundle import Servable
from onepass.bundles.errors import (
    DeadlineExceeded,
    InvalidInput,
    ServingError,
    TooLarge,
    shorten_text,
)
from onepass.bundles.frames import check_rows
from onepass.bundles.signature import MADE, PLAIN, SOUND, WHOLE, WITH_LOG_PROB, Signature
from serving import observability
from serving.engine.batching import LARGE_BYTES, Arrays, Batcher, Padding
from serving.engine.streams import Streams
from serving.observability import Metrics
from serving.settings import Settings

LOG = logging.getLogger(__name__)


class ServedModel:
    """One version of a model, already loaded and warmed, with its queue, threads and streams."""

    def __init__(
        self,
        bundle: Servable,
        settings: Settings,
        metrics: Metrics | None = None,
        name: str | None = None,
    ):
        self.bundle = bundle
        self.name: str = name or bundle.name
        self.version: int = bundle.version
        self.kind: str = bundle.kind
        self.spec: dict[str, Any] = bundle.spec
        self.created = _creation_seconds(bundle)
        self.signatures: dict[str, Signature] = bundle.signatures
        self._seconds, self._max_bytes = settings.timeout_seconds, settings.max_body_bytes
        self._metrics = metrics or Metrics()
        self._metrics.add_model(self.name)
        self._batcher = Batcher(
            bundle.call,
            Padding(_serving(bundle)),
            settings,
            self._metrics,
            self.name,
        )
        self._streams = Streams(
            settings.max_streams,
            settings.timeout_seconds,
            self._metrics.streams.labels(self.name).inc,
        )
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
        if self.kind != SOUND:
            raise InvalidInput(f"`{self.name}` draws {MADE[self.kind]}, not sound.")
        return self.bundle

    def signature(self, name: str) -> Signature:
        """Return a signature; raise InvalidInput, naming all signatures, for an unknown name."""
        if name not in self.signatures:
            known = ", ".join(self.signatures)
            raise InvalidInput(f"There is no signature `{shorten_text(name)}`; there are {known}.")
        return self.signatures[name]

    async def wait_idle(self) -> None:
        """Wait until no request is being answered."""
        await self._idle.wait()

    def close(self) -> None:
        """Fail waiting and later requests with NotReady."""
        self._batcher.close()

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
            _check_answer(checked, self._max_bytes)
            return await self._batcher.submit(signature, checked, max(0.0, end - loop.time()))

    async def stream(
        self,
        condition: np.ndarray | None = None,
        *,
        timeout_seconds: float | None = None,
        **options: Any,
    ) -> AsyncGenerator[np.ndarray, None]:
        """Yield one sound in chunks, float32 [samples]; errors are raised when one is requested.

        The time limit of the whole stream is by default STREAM_TIMEOUT_FACTOR times a request's.
        """
        bundle = self.speech_bundle
        count = None if condition is None else len(condition)
        inputs = {"frames": condition, "num_frames": count, "num_samples": options.get("length")}
        given = {**options, **inputs, "speaker": None}  # a name
        checked = await self._checked_row(given)
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
            raise DeadlineExceeded("The deadline of this request has passed.")
        return min(timeout_seconds, self._seconds)

    async def _check_inputs(self, signature: str, inputs: Mapping[str, Any]) -> Arrays:
        self.signature(signature)
        if sum(getattr(value, "nbytes", 0) for value in inputs.values()) > LARGE_BYTES:
            # A check of large inputs would block the event loop.
            checked = await asyncio.to_thread(self.bundle.check, signature, inputs)
        else:
            checked = self.bundle.check(signature, inputs)
        return checked

    async def _checked_row(self, given: Mapping[str, Any]) -> Arrays:
        known = self.signatures[PLAIN].inputs
        inputs = {
            name: np.asarray(value)[None]
            for name, value in given.items()
            if name in known and value is not None
        }
        return await self._check_inputs(PLAIN, inputs)

    @contextlib.contextmanager
    def _count_request(self) -> Iterator[None]:
        self._active += 1
        self._idle.clear()
        status = "cancelled"
        try:
            yield
            status = "ok"
        except ServingError as error:
            status = error.code
            raise
        finally:
            self._metrics.version_requests.labels(self.name, str(self.version), status).inc()
            self._active -= 1
            if not self._active:
                self._idle.set()


def _creation_seconds(bundle: Servable) -> int:
    try:
        return int((bundle.path / "model.json").stat().st_mtime)
    except OSError:
        return int(time.time())


def _serving(bundle: Servable) -> dict[str, Any]:
    """Return `serving` of model.json, with batch size 1 only for `numba`, which goes row by row."""
    serving = bundle.spec.get("serving", {})
    alone = getattr(bundle, "engine", None) == "numba"
    return {**serving, "allowed_batches": [1]} if alone else serving


def _check_answer(inputs: Arrays, max_bytes: int) -> None:
    lengths = inputs.get("num_samples")
    each = 8 if WITH_LOG_PROB in inputs else 4  # with log probabilities
    wanted = 0 if lengths is None else each * len(lengths) * int(lengths.max(initial=0))
    if wanted > max_bytes:
        raise TooLarge(
            f"`num_samples` must amount to at most {max_bytes >> 20} MiB of audio per request, at "
            f"{each} bytes per sample, got {wanted >> 20}."
        )
