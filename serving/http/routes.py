"""Routes: their bodies, their responses, and their OpenAPI document."""

import asyncio
import contextlib
import functools
import math
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import Field, TypeAdapter, WithJsonSchema, create_model
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from onepass.bundles import errors
from onepass.bundles.manifest import version_problem
from onepass.bundles.signature import MADE
from serving.engine.clients import read_tokens
from serving.engine.fields import Model, as_model, excerpt
from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.settings import Settings

JSON = "application/json"
OPENAI_PATHS = ("/v1/images/", "/v1/audio/")
OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
NO_HEADERS: Mapping[str, str] = {}
Result = TypeVar("Result")
ERROR = create_model("Error", error=str)
REASON = create_model("OpenaiReason", message=str, type=str, param=(None, None), code=str)
OPENAI_ERROR = create_model("OpenaiError", error=REASON)
# Limited because parsing JSON blocks the event loop: 400,000 values take 0.1 to 0.3 s.
MAX_VALUES = 400_000
MAX_LISTS = 100_000  # lists and objects, which are each as slow as several numbers
BODIES_AT_ONCE = 16  # limit of the total size of all bodies, in bodies of the largest size
LARGE_BYTES = 1 << 16
LIMITS, RECEIVED = "onepass.body_limits", "onepass.body_bytes"  # keys in an ASGI scope
DECIMAL = re.compile(r"[0-9]{1,18}")
DESCRIPTION = "The OpenAPI document of all HTTP routes, generated from the models of their bodies."
REFERENCE = "#/components/schemas/{model}"
PATH = {
    "name": Annotated[str, Field(min_length=1, pattern="^[^/:]+$")],
    "version": Annotated[int, Field(ge=0, le=10**18 - 1)],
}
Method = TypeVar("Method", bound=Callable)
Bytes = Annotated[Any, WithJsonSchema({"type": "string", "format": "binary"})]


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] = NO_HEADERS) -> Any:
    """Return a JSON response; NumPy arrays become lists, and non-finite numbers become null."""
    content = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(content, status, {"content-type": JSON, **headers})


def is_openai_path(path: str) -> bool:
    """Return whether a path belongs to OpenAI's protocol; `/v1/models` does."""
    return path == "/v1/models" or path.startswith(OPENAI_PATHS)


def protocol_of(path: str) -> str:
    """Return the protocol of a path: "openai", "v2", "tensorflow-rest" or "onepass"."""
    if is_openai_path(path):
        return "openai"
    if path == "/v2" or path.startswith("/v2/"):
        return "v2"
    is_own = path.endswith((":speak", ":draw", "/examples"))
    return "tensorflow-rest" if path.startswith("/v1/") and not is_own else "onepass"


def error_response(
    error: errors.ServingError, path: str, headers: Mapping[str, str] = NO_HEADERS
) -> Response:
    """Return the response for an error, in the format of the path's protocol."""
    status, message = error.http_status, str(error)
    if error.retry_after_seconds is not None:
        headers = {**headers, "retry-after": str(max(1, math.ceil(error.retry_after_seconds)))}
    if not is_openai_path(path):
        return json_response({"error": message}, status, headers)
    kind = OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    reason = {"message": message, "type": kind, "param": None, "code": error.code}
    return json_response({"error": reason}, status, headers)


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of `work`, cancelled if the client leaves; the body must be read before."""

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(wait_for_disconnect())
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise errors.Cancelled("The client disconnected.")
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class HttpError(errors.ServingError):
    """Error that only HTTP has, with its own status and code."""

    def __init__(self, status: int, code: str, message: str):
        super().__init__(message)
        self.http_status, self.code = status, code  # type: ignore[misc] # of this error alone


class StreamedResponse:
    """An ASGI response that consists of chunks of bytes, each sent as soon as it is available.

    Nothing is sent before the first chunk is available, so an earlier error can still set the
    status. The generator is closed if the client disconnects, or stops reading for `stall_seconds`.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        media_type: str,
        stall_seconds: float,
        headers: Mapping[str, str] = NO_HEADERS,
    ):
        self._chunks, self._stall_seconds = chunks, stall_seconds
        # x-accel-buffering tells nginx not to buffer the response.
        named = {"content-type": media_type, "x-accel-buffering": "no", **headers}
        self._headers = [(name.encode(), value.encode()) for name, value in named.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the chunks; raise Cancelled or DeadlineExceeded if the client does not read them."""
        await cancel_on_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        start: Any = {"type": "http.response.start", "status": 200, "headers": self._headers}
        try:
            chunk = await anext(self._chunks, None)
            await send(start)
            while chunk is not None:
                async with asyncio.timeout(self._stall_seconds):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await anext(self._chunks, None)
        except TimeoutError as error:
            raise errors.DeadlineExceeded("The client does not read the response.") from error
        finally:
            await self._chunks.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class BodyLimits:
    """The limits on a body's size and duration, and the number of bytes `used` by all bodies."""

    def __init__(self, max_bytes: int, seconds: float):
        self.max_bytes, self.seconds, self.used = max_bytes, seconds, 0

    async def read(self, request: Request) -> bytes:
        """Return the whole body; its bytes count as used until the request ends."""
        declared = request.headers.get("content-length", "0")
        if not DECIMAL.fullmatch(declared):
            raise errors.InvalidInput("`Content-Length` must be a number of bytes.")
        parts = []
        try:
            async with asyncio.timeout(self.seconds):
                self._check_size(int(declared))
                async for part in request.stream():
                    self._check_size(request.scope[RECEIVED] + len(part))
                    if self.used + len(part) > BODIES_AT_ONCE * self.max_bytes:
                        raise errors.Overloaded("All request bodies together are too large now.")
                    self.used += len(part)
                    request.scope[RECEIVED] += len(part)
                    parts.append(part)
        except TimeoutError as error:
            message = f"The body must arrive within {self.seconds:g} seconds."
            raise HttpError(408, "body_too_slow", message) from error
        except ClientDisconnect as error:
            raise errors.Cancelled("The client disconnected.") from error
        return b"".join(parts)

    def _check_size(self, count: int) -> None:
        if count > self.max_bytes:
            raise errors.TooLarge(f"The body must have at most {self.max_bytes:,} bytes.")


async def read_body(request: Request, function: Callable[..., Result], *arguments: Any) -> Result:
    """Read the body and return `function(body, *arguments)`, run in a thread if it is large."""
    limits: BodyLimits = request.scope[LIMITS]
    body = await limits.read(request)
    if len(body) > LARGE_BYTES:
        return await asyncio.to_thread(function, body, *arguments)
    return function(body, *arguments)


def json_object(body: bytes | memoryview) -> dict[str, Any]:
    """Return the JSON object in a body; NaN, infinity and too many values are InvalidInput."""
    text = bytes(body)
    if text.count(b"[") + text.count(b"{") > MAX_LISTS:
        raise errors.InvalidInput(f"The body must have at most {MAX_LISTS:,} lists and objects.")
    if text.count(b",") + text.count(b":") > MAX_VALUES:
        raise errors.InvalidInput(
            f"JSON must have at most {MAX_VALUES:,} values: send more as binary tensors (v2, gRPC)."
        )
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise errors.InvalidInput(f"The body must be JSON: {error}.") from error
    if not isinstance(value, dict):
        raise errors.InvalidInput(f"The body must be a JSON object, got {excerpt(value)}.")
    return value


def json_model(body: bytes | memoryview, model: type[Model]) -> Model:
    """Return the JSON object in a body as a model."""
    return as_model(json_object(body), model)


class NameConvertor(StringConvertor):
    """A path segment, which ends before a colon and verb such as `:predict`."""

    regex = "[^/:]+"


register_url_convertor("name", NameConvertor())


class Operation(Route):
    """A route, with the types of its request and response.

    `answer` and `body` have types by media type, or one type for JSON (None: no body); `parameters`
    by location, "header" or "query", and name.
    """

    answer: Any = dict
    body: Any = None

    def __init__(self, verb: str, path: str, handler: Any, parameters: Any, **types: Any):
        path = path.replace("{name}", "{name:name}").replace("{version}", "{version:name}")
        super().__init__(path, handler, methods=[verb])
        self.verb, self.parameters = verb.lower(), parameters
        vars(self).update(types)


def operation(
    verb: str, path: str, *types: Any, versions: bool = False, **parameters: Any
) -> Callable[[Method], Method]:
    """Return a decorator that marks a method as the handler of an `Operation`.

    `types` are its `answer` and its `body`. With `versions`, it also handles the path with a
    version after the model's name.
    """
    named = dict(zip(("answer", "body"), types, strict=False))
    paths = [path, *([path.replace("{name}", "{name}/versions/{version}")] if versions else [])]

    def mark_handler(method: Any) -> Any:
        made = functools.partial(Operation, verb, parameters=parameters, **named)
        method.operations = [functools.partial(made, each) for each in paths]
        return method

    return mark_handler


get = functools.partial(operation, "GET")
post = functools.partial(operation, "POST")


class Endpoints:
    """Base class of the endpoints of a protocol, for the models of a registry."""

    def __init__(self, registry: ModelRegistry, settings: Settings):
        self._registry, self._settings = registry, settings

    def routes(self) -> list[BaseRoute]:
        """Return the operations of the decorated methods, in the order in which routes match."""
        methods = [getattr(self, name) for name in vars(type(self))]
        return [make(handler=m) for m in methods for make in getattr(m, "operations", ())]

    def _model_at(self, request: Request, kind: str | None = None) -> ServedModel:
        served = self._registry.get(request.path_params["name"], version_at(request))
        if kind is not None and served.kind != kind:
            raise errors.NotFound(
                f"The model `{served.name}` makes {MADE[served.kind]}, not {MADE[kind]}."
            )
        return served

    def _model_named(self, request: Request, name: str | None, kind: str) -> ServedModel:
        found = [] if name is None else [name]
        for each in self._registry.names() if name is None else ():
            with contextlib.suppress(errors.ServingError):  # skips models that are loading
                found += [each] if self._registry.get(each).kind == kind else []
        if len(found) != 1:
            raise errors.InvalidInput("`model` must be given: there are several.")
        request.path_params["name"] = found[0]
        return self._model_at(request, kind)


def version_at(request: Request) -> int | None:
    """Return the version in the path, None if there is none; raise NotFound if it is invalid."""
    version = request.path_params.get("version")
    if version is not None and (problem := version_problem(version)):
        raise errors.NotFound(f"A version {problem}.")
    return None if version is None else int(version)


class OpenApi(Endpoints):
    """The endpoint for the OpenAPI document of routes, its own among them."""

    def __init__(self, settings: Settings, routes: Sequence[BaseRoute]):
        operations = [each for each in (*routes, *self.routes()) if isinstance(each, Operation)]
        make = functools.partial(document, operations, bool(read_tokens(settings)))
        self._document = functools.cache(make)  # for the first client who asks

    @get("/openapi.json")
    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI document."""
        return json_response(await asyncio.to_thread(self._document))


def document(operations: Iterable[Operation], needs_token: bool) -> dict[str, Any]:
    """Return the OpenAPI document of operations, which declares the token if one is needed."""
    components: dict[str, Any] = {"schemas": {}}
    paths: dict[str, Any] = {}
    for operation in operations:
        described = _describe_operation(operation, components["schemas"])
        paths.setdefault(operation.path_format, {})[operation.verb] = described
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "onepass", "version": "1", "description": DESCRIPTION},
        "servers": [{"url": "."}],  # relative to this document, which a proxy may have in a folder
        "paths": paths,
        "components": components,
    }
    if needs_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
        paths["/healthz"]["get"]["security"] = []
    return found


def _describe_operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    def schema(kind: Any) -> Any:
        found = TypeAdapter(list[kind]).json_schema(ref_template=REFERENCE)
        schemas.update(found.get("$defs", {}))
        return found["items"]

    def content(kinds: Any) -> dict[str, Any]:
        by_type = kinds if isinstance(kinds, dict) else {JSON: kinds}
        return {"content": {kind: {"schema": schema(each)} for kind, each in by_type.items()}}

    path = {name: PATH[name] for name in PATH if name in operation.param_convertors}
    parameters = [
        {"name": name, "in": location, "required": location == "path", "schema": schema(kind)}
        for location, kinds in {"path": path, **operation.parameters}.items()
        for name, kind in kinds.items()
    ]
    error = OPENAI_ERROR if is_openai_path(operation.path) else ERROR
    responses = {"200": operation.answer, "default": error}
    body = {} if operation.body is None else {"required": True, **content(operation.body)}
    return {
        "summary": (operation.endpoint.__doc__ or "").partition("\n")[0],
        "parameters": parameters,
        "responses": {
            status: {"description": "OK" if status == "200" else "An error.", **content(kinds)}
            for status, kinds in responses.items()
        },
        **({"requestBody": body} if body else {}),
    }
