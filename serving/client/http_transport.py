"""The client's HTTP transport: v2 inference protocol with binary tensors, and onepass's routes."""

import base64
import contextlib
import io
import json
import ssl
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NoReturn

import httpx
import numpy as np
from PIL import Image

from onepass.bundles.errors import HTTP_CODES
from onepass.bundles.signature import TENSORFLOW_DTYPES, V2_DTYPES, V2_NAMES, Arrays, TensorInfo
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

HEADER = "Inference-Header-Content-Length"
MAX_ERROR_BYTES = 64 * 1024
MAX_SIDE = 8192  # largest height and width of an image to decode
MIN_SAMPLE_BYTES = 2


class HttpTransport:
    """The methods of `Client` over HTTP/1.1."""

    def __init__(
        self,
        address: str,
        token: str | None,
        retrying: Retrying,
        proxied: bool,
        authorities: bytes | None = None,
    ):
        self._address, self._retrying, self._has_token = address, retrying, token is not None
        headers = {"accept-encoding": "identity"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        trusted: Any = True
        if authorities is not None:
            trusted = ssl.create_default_context(cadata=authorities.decode())
        elif not address.lower().startswith("https:"):
            # Reading the system's authorities, which plain HTTP does not need, takes 40 ms.
            trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client = httpx.Client(
            base_url=address, headers=headers, trust_env=proxied, verify=trusted
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def models(self, deadline: Deadline) -> list[dict[str, Any]]:
        """See `Client.models`; `GET /v1/models`."""
        return self._field("data", "/v1/models", deadline)

    def spec(self, name: str, deadline: Deadline) -> dict[str, Any]:
        """Return the server's description of a model, from `GET /v1/models/NAME`."""
        return self._json(f"/v1/models/{name}", deadline)

    def examples(self, name: str, deadline: Deadline) -> list[dict[str, Any]]:
        """Return the server's example recordings, from `GET /v1/models/NAME/examples`."""
        return self._field("examples", f"/v1/models/{name}/examples", deadline)

    def signatures(
        self, name: str, version: int | None, deadline: Deadline
    ) -> dict[str, dict[str, TensorInfo]]:
        """Return the inputs of each signature, from TensorFlow Serving's metadata."""
        parsed = self._json(f"/v1/models/{_versioned_path(name, version)}/metadata", deadline)
        try:
            signatures = parsed["metadata"]["signature_def"]["signature_def"]
            return {key: _inputs(value["inputs"]) for key, value in signatures.items()}
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            self._unexpected_server()

    def predict(
        self,
        name: str,
        inputs: Mapping[str, np.ndarray],
        signature: str,
        version: int | None,
        deadline: Deadline,
    ) -> Arrays:
        """Return the outputs of a signature, by the v2 inference protocol with binary tensors."""
        described, tail = [], []
        for key, value in inputs.items():
            data = value.astype(value.dtype.newbyteorder("<"), copy=False)
            if data.dtype not in V2_NAMES:
                raise ClientError(f"`{key}` cannot be {value.dtype}.", "invalid_input")
            tail.append(data.tobytes())
            tensor = {"name": key, "datatype": V2_NAMES[data.dtype], "shape": list(data.shape)}
            described.append({**tensor, "parameters": {"binary_data_size": len(tail[-1])}})
        parameters = {"signature_name": signature, "binary_data_output": True}

        # Built for every attempt, as the remaining time decreases.
        def content() -> tuple[bytes, dict[str, str]]:
            timed = parameters | {"timeout": int(1e6 * deadline.count_seconds()) + 1}
            head = json.dumps({"inputs": described, "parameters": timed}).encode()
            headers = {HEADER: str(len(head)), "content-type": "application/octet-stream"}
            return b"".join([head, *tail]), headers

        path = f"/v2/models/{_versioned_path(name, version)}/infer"
        with self._open_response("POST", path, deadline, content) as response:
            body = self._whole(response, deadline)
            return self._outputs(body, response.headers.get(HEADER))

    def speak(self, name: str, arguments: Mapping[str, Any], deadline: Deadline) -> Speech:
        """Return speech, from `POST /v1/models/NAME:speak` as raw big-endian 16-bit samples."""
        fields = {**arguments, "format": "l16"}
        if "frames" in arguments:
            fields["frames"] = arguments["frames"].tolist()
        if "recording" in arguments:
            fields["recording"] = base64.b64encode(arguments["recording"]).decode()
        with contextlib.ExitStack() as stack:
            path = f"/v1/models/{name}:speak"
            opening = self._open_response("POST", path, deadline, _json_of(fields))
            response = stack.enter_context(opening)
            rate_hz = self._rate(response)
            kept = stack.pop_all()
        return Speech(self._samples(kept, response, deadline), kept.close, rate_hz)

    def draw(
        self, name: str, arguments: Mapping[str, Any], deadline: Deadline
    ) -> Stream[ImageScale]:
        """Return images, from `POST /v1/models/NAME:draw`, which sends one JSON line per scale."""
        opened, path = contextlib.ExitStack(), f"/v1/models/{name}:draw"
        opening = self._open_response("POST", path, deadline, _json_of(arguments))
        response = opened.enter_context(opening)
        return Stream(self._images(opened, response, arguments["num"], deadline), opened.close)

    @contextlib.contextmanager
    def _open_response(
        self, method: str, path: str, deadline: Deadline, content: Any = None
    ) -> Iterator[httpx.Response]:
        attempt = lambda: self._attempt(method, path, deadline, content)  # noqa: E731
        response = self._retrying.do(attempt, deadline)
        try:
            yield response
        except httpx.TimeoutException:
            raise deadline.timeout_error() from None
        except httpx.HTTPError:
            raise ClientError(f"{self._address} broke off its response.", "broken_off") from None
        finally:
            response.close()

    def _attempt(self, method: str, path: str, deadline: Deadline, content: Any) -> httpx.Response:
        body, headers = content() if content is not None else (None, {})
        options: Any = {"headers": headers, "timeout": deadline.count_seconds()}
        request = self._client.build_request(method, path, content=body, **options)
        try:
            response = self._client.send(request, stream=True)
        except httpx.TimeoutException:
            raise deadline.timeout_error() from None
        except httpx.ConnectError as error:
            if problem := _tls_problem(error):
                raise ClientError(f"{self._address} {problem}", "unreachable") from None
            unreachable = ClientError(f"There is no server at {self._address}.", "unreachable")
            # A refused connection may be fixed by a retry, unlike an unknown host.
            if any(isinstance(cause, ConnectionError) for cause in _causes(error)):
                raise RetryableError(unreachable) from None
            raise unreachable from None
        except httpx.HTTPError:  # the connection ended before the response began
            raise RetryableError(ClientError(f"{self._address} broke off.", "broken_off")) from None
        if response.status_code != httpx.codes.OK:
            self._raise_refusal(response)
        return response

    def _raise_refusal(self, response: httpx.Response) -> NoReturn:
        status = response.status_code
        try:
            words = _words(response)
        finally:
            response.close()
        if status == httpx.codes.UNAUTHORIZED:
            raise token_error(self._address, self._has_token)
        if not words:
            self._unexpected_server(status)
        error = ClientError(words, HTTP_CODES.get(status, "internal"))
        if status in (429, 503):
            after = response.headers.get("retry-after", "")
            raise RetryableError(error, float(after) if after.isdecimal() else 0.0)
        raise error

    def _unexpected_server(self, status: int = 200) -> NoReturn:
        raise ClientError(
            f"{self._address} is not a server of these models (status {status}).", "protocol"
        )

    def _whole(self, response: httpx.Response, deadline: Deadline) -> bytes:
        parts = []
        for part in response.iter_raw():
            deadline.count_seconds()
            parts.append(part)
        return b"".join(parts)

    def _json(self, path: str, deadline: Deadline) -> dict[str, Any]:
        with self._open_response("GET", path, deadline) as response:
            body = self._whole(response, deadline)
        with contextlib.suppress(ValueError):
            parsed = strict_json(body)
            if isinstance(parsed, dict):
                return parsed
        self._unexpected_server()

    def _field(self, field: str, path: str, deadline: Deadline) -> list[dict[str, Any]]:
        value = self._json(path, deadline).get(field)
        if not isinstance(value, list):
            self._unexpected_server()
        return value

    def _outputs(self, body: bytes, length: str | None) -> Arrays:
        try:
            start = int(length or "")
            outputs = {}
            for tensor in strict_json(body[:start])["outputs"]:
                size = tensor["parameters"]["binary_data_size"]
                flat = np.frombuffer(body[start : start + size], V2_DTYPES[tensor["datatype"]])
                outputs[tensor["name"]] = flat.reshape(tensor["shape"])
                start += size
            return outputs
        except (KeyError, TypeError, ValueError):
            self._unexpected_server()

    def _rate(self, response: httpx.Response) -> int:
        kind, *parameters = response.headers.get("content-type", "").split(";")
        rates = [word.strip()[5:] for word in parameters if word.strip().startswith("rate=")]
        if kind.strip().lower() != "audio/l16" or len(rates) != 1 or not rates[0].isdecimal():
            self._unexpected_server()
        return int(rates[0])

    def _samples(
        self, opened: contextlib.ExitStack, response: httpx.Response, deadline: Deadline
    ) -> Generator[np.ndarray, None, None]:
        rest = b""
        with opened:
            for part in response.iter_raw():
                deadline.count_seconds()
                data = rest + part
                whole = len(data) - len(data) % MIN_SAMPLE_BYTES
                rest = data[whole:]
                if whole:
                    samples = np.frombuffer(data[:whole], ">i2").astype(np.float64)
                    yield ((2.0 * samples + 1.0) / 65535.0).astype(np.float32)

    def _images(
        self, opened: contextlib.ExitStack, response: httpx.Response, num: int, deadline: Deadline
    ) -> Generator[ImageScale, None, None]:
        done = 0
        with opened:
            for line in response.iter_lines():
                deadline.count_seconds()
                scale = self._image_scale(line)
                done += scale.last
                yield scale
            if done != num:
                raise ClientError(f"{self._address} drew {done} of {num} images.", "broken_off")

    def _image_scale(self, line: str) -> ImageScale:
        try:
            parsed = strict_json(line)
            if "error" not in parsed:
                side = int(parsed["side"])
                pixels = _pixels(base64.b64decode(parsed["png"], validate=True), side)
                return ImageScale(int(parsed["picture"]), side, bool(parsed["last"]), pixels)
        except (KeyError, TypeError, ValueError, OSError, SyntaxError):  # PIL raises any of these
            self._unexpected_server()
        raise ClientError(str(parsed["error"]), "internal")


def _json_of(fields: Mapping[str, Any]) -> Any:
    content = json.dumps(fields, allow_nan=False).encode()
    return lambda: (content, {"content-type": "application/json"})


def _inputs(parsed: Mapping[str, Any]) -> dict[str, TensorInfo]:
    inputs = {}
    for name, info in parsed.items():
        sides = [int(dim["size"]) for dim in info["tensor_shape"]["dim"]]
        shape = tuple(None if side < 0 else side for side in sides)
        inputs[name] = TensorInfo(TENSORFLOW_DTYPES[info["dtype"]], shape)
    return inputs


def _versioned_path(name: str, version: int | None) -> str:
    return name if version is None else f"{name}/versions/{version}"


def _tls_problem(error: BaseException) -> str:
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"has an untrusted certificate: {cause.verify_message}."
        if isinstance(cause, ssl.SSLError):
            return "does not use TLS; its address begins with http://."
    return ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _words(response: httpx.Response) -> str:
    body = b""
    with contextlib.suppress(httpx.HTTPError):
        for part in response.iter_raw():
            body += part
            if len(body) > MAX_ERROR_BYTES:
                return ""
    with contextlib.suppress(ValueError, AttributeError):
        parsed = strict_json(body)["error"] if body else ""
        words = parsed.get("message", "") if isinstance(parsed, dict) else parsed
        return words if isinstance(words, str) else ""
    return ""


def _pixels(png: bytes, side: int) -> np.ndarray:
    size = int.from_bytes(png[16:20]), int.from_bytes(png[20:24])
    if size != (side, side) or side > MAX_SIDE:
        raise ValueError(f"an image of {size} pixels")
    with Image.open(io.BytesIO(png), formats=["PNG"]) as image:
        levels = np.asarray(image.convert("L" if image.mode in ("L", "1") else "RGB"))
    return levels[..., None] if levels.ndim == 2 else levels
