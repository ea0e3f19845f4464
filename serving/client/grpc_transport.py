"""The client's gRPC transport: TensorFlow Serving's Predict, and the service `onepass.Models`."""

from collections.abc import Generator, Mapping
from typing import Any, NoReturn

import grpc
import numpy as np

from onepass.bundles.errors import GRPC_CODES, ServingError
from onepass.bundles.sampling import condition_rows, image_inputs, scales_of
from onepass.bundles.signature import Arrays, TensorInfo, fastest
from serving.client.calls import (
    ClientError,
    Deadline,
    ImageScale,
    RetryableError,
    Retrying,
    Speech,
    Stream,
    strict_json,
    token_error,
)
from serving.grpc.tensors import DTYPES, decode, encode, message, method_types

PREDICTION = "tensorflow.serving.PredictionService"
MODELS = "onepass.Models"
MAX_RESPONSE_BYTES = 2**30
CODES = {**GRPC_CODES, "UNIMPLEMENTED": "protocol"}
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
)


class GrpcTransport:
    """The methods of the client, implemented over gRPC."""

    def __init__(
        self,
        address: str,
        token: str | None,
        retrying: Retrying,
        proxied: bool,
        authorities: bytes | None = None,
    ):
        self._address, self._retrying = address, retrying
        scheme, _, server = address.partition("://")
        options = (*OPTIONS, ("grpc.enable_http_proxy", int(proxied)))
        if scheme == "grpcs":
            trusted = grpc.ssl_channel_credentials(authorities)
            self._channel = grpc.secure_channel(server, trusted, options)
        else:
            self._channel = grpc.insecure_channel(server, options)
        self._metadata = () if token is None else (("authorization", f"Bearer {token}"),)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def models(self, deadline: Deadline) -> list[dict[str, Any]]:
        """Return model.json of all models that are ready, with `id`, `kind` and `version`."""
        listed = self._call(MODELS, "List", message("onepass.ListRequest")(), deadline)
        try:
            return [
                {**strict_json(m.spec_json), "id": m.name, "kind": m.kind, "version": m.version}
                for m in listed.models
            ]
        except (ValueError, TypeError) as error:
            raise ClientError(f"The response cannot be read: {error}", "protocol") from None

    def spec(self, name: str, deadline: Deadline) -> dict[str, Any]:
        """Return model.json of one model, with `id`, `kind` and `version`."""
        found = [model for model in self.models(deadline) if model["id"] == name]
        if not found:
            raise ClientError(f"There is no model `{name}`.", "not_found")
        return found[0]

    def examples(self, name: str, deadline: Deadline) -> NoReturn:
        """Raise ClientError, since recordings are available only over HTTP."""
        raise _over_http("recordings of the server")

    def signatures(
        self, name: str, version: int | None, deadline: Deadline
    ) -> dict[str, dict[str, TensorInfo]]:
        """Return the inputs of each signature, from GetModelMetadata."""
        make = message("tensorflow.serving.GetModelMetadataRequest")
        request = make(metadata_field=["signature_def"])
        _specify(request.model_spec, name, version)
        response = self._call(PREDICTION, "GetModelMetadata", request, deadline)
        parsed = message("tensorflow.serving.SignatureDefMap")()
        response.metadata["signature_def"].Unpack(parsed)
        return {
            key: {name: _input(info) for name, info in value.inputs.items()}
            for key, value in parsed.signature_def.items()
        }

    def predict(
        self,
        name: str,
        inputs: Mapping[str, np.ndarray],
        signature: str,
        version: int | None,
        deadline: Deadline,
    ) -> Arrays:
        """Call Predict and return the outputs of a signature."""
        request = message("tensorflow.serving.PredictRequest")()
        _specify(request.model_spec, name, version)
        request.model_spec.signature_name = signature
        for key, value in inputs.items():
            try:
                encode(value, request.inputs[key])
            except ServingError as error:
                raise ClientError(f"`{key}`: {error}", "invalid_input") from None
        response = self._call(PREDICTION, "Predict", request, deadline)
        try:
            outputs = response.outputs.items()
            return {key: decode(proto, key, MAX_RESPONSE_BYTES) for key, proto in outputs}
        except ServingError as error:
            raise ClientError(f"The response cannot be read: {error}", "protocol") from None

    def speak(self, name: str, arguments: Mapping[str, Any], deadline: Deadline) -> Speech:
        """Return streamed speech for frames, or from an unconditional model."""
        for other in ("recording", "example", "text", "phonemes", "pronunciations"):
            if other in arguments:
                raise _over_http(f"`{other}`")
        rate_hz = self.spec(name, deadline).get("sample_rate_hz", 0)
        request = _speak_request(name, arguments, rate_hz)
        call, first = self._retrying.do(lambda: self._start_stream(request, deadline), deadline)
        return Speech(self._samples(call, first, deadline), call.cancel, rate_hz)

    def draw(
        self, name: str, arguments: Mapping[str, Any], deadline: Deadline
    ) -> Stream[ImageScale]:
        """Return images; each is drawn by calling Predict when it is requested."""
        if "caption" in arguments:
            raise _over_http("`caption`")
        signatures = self.signatures(name, None, deadline)
        signature = fastest(signatures)
        known = signatures[signature]
        if "temperature" not in known or len(known["temperature"].shape) != len(("row", "scale")):
            raise ClientError(f"The model `{name}` draws no images.", "not_found")
        condition: Arrays = {}
        if "map" in arguments:
            condition["map"] = np.array([arguments["map"]], np.int32)
        seed, heat = arguments["seed"], arguments["temperature"]
        guidance = arguments.get("guidance", 0.0)
        try:
            if "class" in arguments:
                classes = self.spec(name, deadline).get("classes") or []
                condition |= condition_rows("label", [arguments["class"]], classes)
            inputs = image_inputs(known, seed, [0], heat, guidance, condition)
        except ServingError as error:
            raise _invalid(str(error)) from None
        chunks = self._images(name, inputs, signature, arguments["num"], deadline)
        return Stream(chunks, lambda: None)

    def _images(
        self, name: str, inputs: Arrays, signature: str, num: int, deadline: Deadline
    ) -> Generator[ImageScale, None, None]:
        for row in range(num):
            given = {**inputs, "row": np.array([row], np.int32)}
            outputs = self.predict(name, given, signature, None, deadline)
            *smaller, whole = scales_of(outputs, 0)
            for pixels in smaller:
                yield ImageScale(row, len(pixels), False, pixels)
            yield ImageScale(row, len(whole), True, whole)

    def _call(self, service: str, method: str, request: Any, deadline: Deadline) -> Any:
        ask = self._method(service, method)

        def attempt() -> Any:
            try:
                return ask(request, timeout=deadline.count_seconds(), metadata=self._metadata)
            except grpc.RpcError as error:
                raise self._client_error(error, deadline) from None

        return self._retrying.do(attempt, deadline)

    def _method(self, service: str, method: str) -> Any:
        request, response, streams = method_types(service, method)
        kind = self._channel.unary_stream if streams else self._channel.unary_unary
        return kind(f"/{service}/{method}", request.SerializeToString, response.FromString)

    def _start_stream(self, request: Any, deadline: Deadline) -> tuple[Any, Any]:
        ask, left = self._method(MODELS, "Speak"), deadline.count_seconds()
        call = ask(request, timeout=left, metadata=self._metadata)
        try:
            return call, next(call, None)
        except grpc.RpcError as error:
            raise self._client_error(error, deadline) from None

    def _samples(
        self, call: Any, first: Any, deadline: Deadline
    ) -> Generator[np.ndarray, None, None]:
        try:
            part = first
            while part is not None:
                yield np.frombuffer(part.samples, "<f4")
                part = next(call, None)
        except grpc.RpcError as error:
            parsed = self._client_error(error, deadline)
            raise parsed.error if isinstance(parsed, RetryableError) else parsed from None
        finally:
            call.cancel()

    def _client_error(
        self, error: grpc.RpcError, deadline: Deadline
    ) -> ClientError | RetryableError:
        status, words = error.code(), error.details() or ""
        trailing = dict(error.trailing_metadata() or ())
        if status == grpc.StatusCode.DEADLINE_EXCEEDED:
            return deadline.timeout_error()
        if status == grpc.StatusCode.UNAUTHENTICATED:
            return token_error(self._address, bool(self._metadata))
        after = trailing.get("retry-after", "")
        seconds = float(after) if after.isdecimal() else 0.0
        unreachable = status == grpc.StatusCode.UNAVAILABLE
        if unreachable and (problem := _tls_problem(words)):
            return ClientError(f"{self._address} {problem}", "unreachable")
        if unreachable and not after:
            absent = ClientError(f"There is no server at {self._address}.", "unreachable")
            return RetryableError(absent)
        if after:
            limited = status == grpc.StatusCode.RESOURCE_EXHAUSTED
            code = "too_many_requests" if limited else "overloaded"
            return RetryableError(ClientError(words, code), seconds)
        return ClientError(words or status.name, CODES.get(status.name, "internal"))


def _input(info: Any) -> TensorInfo:
    sides = [dim.size for dim in info.tensor_shape.dim]
    return TensorInfo(DTYPES[info.dtype], tuple(None if side < 0 else side for side in sides))


def _specify(spec: Any, name: str, version: int | None) -> None:
    spec.name = name
    if version is not None:
        spec.version.value = version


def _speak_request(name: str, arguments: Mapping[str, Any], rate_hz: int) -> Any:
    try:
        request = message("onepass.SpeakRequest")(
            seed=arguments["seed"],
            row=arguments["row"],
            temperature=arguments.get("temperature"),
            speaker=arguments.get("speaker", ""),
            force=arguments.get("force", False),
        )
    except (ValueError, TypeError) as error:
        raise ClientError(f"The request cannot be sent: {error}", "invalid_input") from None
    if "seconds" in arguments:
        request.num_samples = max(1, round(arguments["seconds"] * rate_hz))
    if "frames" in arguments:
        encode(arguments["frames"], request.frames)
    _specify(request.model_spec, name, None)
    return request


def _tls_problem(details: str) -> str:
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return "has an untrusted certificate."
    if "handshake failed" in details:
        return "does not use TLS; its address begins with grpc://."
    return ""


def _invalid(message: str) -> ClientError:
    return ClientError(message, "invalid_input")


def _over_http(what: str) -> ClientError:
    return _invalid(f"{what} must be requested over http://, not grpc://.")
