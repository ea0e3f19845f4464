"""Our own gRPC service, `onepass.Models`: which models there are, and sound as it is made."""

import contextlib
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import Message

from serving.bundles.frame_convention import check_convention
from serving.bundles.signature import checked
from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.engine.streams import STREAM_TIMEOUT_FACTOR
from serving.errors import InvalidInput, ServingError
from serving.grpc.interceptor import seconds_left
from serving.grpc.messages import message
from serving.grpc.prediction import resolve_model
from serving.grpc.tensors import decode
from serving.http.fields import as_model
from serving.http.synthesis_requests import (
    SynthesisFields,
    SynthesisRequest,
    is_conditional,
    signature,
    synthesis_request,
    synthesize,
)
from serving.settings import Settings


class Speech:
    """Lists the models and streams sound."""

    def __init__(self, registry: ModelRegistry, settings: Settings):
        self._registry, self._settings = registry, settings

    def methods(self) -> dict[str, Callable]:
        """Every method by its name."""
        return {"List": self.list_models, "Speak": self.speak}

    async def list_models(self, request: Message, context: grpc.aio.ServicerContext) -> Any:
        """Every model that is served now, with its model.json."""
        response = message("onepass.ListResponse")()
        for name in self._registry.names():
            with contextlib.suppress(ServingError):  # one that is loading or has just gone
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
        """Samples, float32 in the order of little-endian bytes, chunk by chunk."""
        served = resolve_model(self._registry, request.model_spec)
        if served.kind != "sound":
            makes = "draws images" if served.kind == "picture" else "makes arrays"
            raise InvalidInput(f"`{served.name}` {makes}, it does not speak.")
        rate_hz = served.spec["sample_rate_hz"]
        synthesis = _synthesis_request(served, request, self._settings.max_body_bytes)
        seconds = seconds_left(context, self._settings, STREAM_TIMEOUT_FACTOR)
        chunks = synthesize(served, synthesis, seconds)
        response = message("onepass.SpeakResponse")
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                samples = np.asarray(chunk, "<f4").tobytes()
                yield response(samples=samples, sample_rate_hz=rate_hz)


def _synthesis_request(served: ServedModel, request: Message, limit_bytes: int) -> SynthesisRequest:
    """The sound that a request asks for, checked as over HTTP."""
    frames = _frames(request, limit_bytes)
    if (frames is not None) != is_conditional(served):
        rule = "must not be given: the model needs none" if frames is not None else "must be given"
        raise InvalidInput(f"`frames` {rule}.")
    if request.num_samples < 0:
        raise InvalidInput(f"`num_samples` must be at least 0, got {request.num_samples}.")
    if frames is not None:
        checked("frames", signature(served).inputs["frames"], frames[None])
        if not request.force:
            check_convention(served.spec, frames)
    given = {
        "seed": request.seed,
        "row": request.row,
        "speaker": request.speaker or None,
        "temperature": request.temperature if request.HasField("temperature") else None,
        "seconds": request.num_samples / served.spec["sample_rate_hz"] or None,
    }
    return synthesis_request(served, as_model(given, SynthesisFields), frames)


def _frames(request: Message, limit_bytes: int) -> np.ndarray | None:
    """The frames to speak, float32 [frames, channels]; None for a model without."""
    if not request.HasField("frames"):
        return None
    frames = decode(request.frames, "frames", limit_bytes)
    if frames.ndim != 2 or frames.dtype != np.float32:
        raise InvalidInput(
            f"`frames` must be float32 [frames, channels], got {frames.dtype} of shape "
            f"{list(frames.shape)}."
        )
    return frames
