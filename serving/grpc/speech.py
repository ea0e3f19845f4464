"""The gRPC service `onepass.Models`: the list of models, and streamed speech."""

import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import Message

from onepass.bundles.errors import InvalidInput, ServingError
from onepass.bundles.frames import check_convention
from onepass.bundles.signature import check_input
from serving.engine.fields import as_model
from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.engine.speech import SynthesisFields, is_conditional, signature, synthesis
from serving.engine.streams import STREAM_TIMEOUT_FACTOR
from serving.grpc.interceptor import seconds_left
from serving.grpc.prediction import resolve_model
from serving.grpc.tensors import decode, message
from serving.settings import Settings


class Speech:
    """The methods of the service `onepass.Models`."""

    def __init__(self, registry: ModelRegistry, settings: Settings):
        self._registry, self._settings = registry, settings

    async def list(self, request: Message, context: grpc.aio.ServicerContext) -> Any:
        """Return all models that are ready, with their model.json."""
        response = message("onepass.ListResponse")()
        for name in self._registry.names():
            with contextlib.suppress(ServingError):  # skips models that are still loading
                served = self._registry.get(name)
                response.models.add(
                    name=name,
                    version=served.version,
                    kind=served.kind,
                    spec_json=json.dumps(served.spec),
                )
        return response

    async def speak(
        self, request: Message, context: grpc.aio.ServicerContext
    ) -> AsyncGenerator[Any, None]:
        """Yield responses with chunks of audio, whose samples are little-endian float32 bytes."""
        served = resolve_model(self._registry, request.model_spec)
        rate_hz = served.speech_bundle.spec["sample_rate_hz"]
        fields, frames = _parse_request(served, request, self._settings.max_body_bytes)
        seconds = seconds_left(context, self._settings, STREAM_TIMEOUT_FACTOR)
        _, chunks = synthesis(served, fields, frames, timeout_seconds=seconds)
        response = message("onepass.SpeakResponse")
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                samples = np.asarray(chunk, "<f4").tobytes()
                yield response(samples=samples, sample_rate_hz=rate_hz)


def _parse_request(
    served: ServedModel, request: Message, limit_bytes: int
) -> tuple[SynthesisFields, np.ndarray | None]:
    frames = None
    if request.HasField("frames") != is_conditional(served):
        rule = "be given" if is_conditional(served) else "not be given: the model is unconditional"
        raise InvalidInput(f"`frames` must {rule}.")
    if request.num_samples < 0:
        raise InvalidInput(f"`num_samples` must be at least 0, got {request.num_samples}.")
    if request.HasField("frames"):
        given = decode(request.frames, "frames", limit_bytes)[None]
        frames = check_input("frames", signature(served).inputs["frames"], given)[0]
        if not request.force:
            check_convention(served.spec, frames)
    fields = {
        "seed": request.seed,
        "row": request.row,
        "speaker": request.speaker or None,
        "temperature": request.temperature if request.HasField("temperature") else None,
        "seconds": request.num_samples / served.spec["sample_rate_hz"] or None,
    }
    return as_model(fields, SynthesisFields), frames
