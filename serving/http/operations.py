"""Routes and their OpenAPI document, made from methods that are decorated by `get` or `post`."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from onepass.bundles.errors import InvalidInput, NotFound, ServingError
from onepass.bundles.manifest import version_problem
from onepass.bundles.signature import MADE
from serving.engine.auth import read_tokens
from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.http.responses import Error, OpenaiError, is_openai_path, json_response
from serving.settings import Settings

JSON = "application/json"
DESCRIPTION = "The OpenAPI document of all HTTP routes, generated from the models of their bodies."
REFERENCE = "#/components/schemas/{name}"
PATH = {
    "name": Annotated[str, Meta(min_length=1, pattern="^[^/:]+$")],
    "version": Annotated[int, Meta(ge=0, le=10**18 - 1)],
}
Schema = dict[str, Any]
Bytes = Annotated[Any, Meta(extra_json_schema={"type": "string", "format": "binary"})]
Handler = TypeVar("Handler", bound=Callable)


class NameConvertor(StringConvertor):
    """A path segment, which ends before a colon and verb such as `:predict`."""

    regex = "[^/:]+"


register_url_convertor("name", NameConvertor())


@dataclasses.dataclass(frozen=True)
class Operation:
    """An HTTP method and path, with the types of its request and response.

    Attributes:
      answer: types of the response by media type, or one type for JSON.
      body: types of the request's body by media type, or one type for JSON; None: no body.
    """

    verb: str
    path: str
    handler: str
    summary: str
    answer: Any
    body: Any = None
    header: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    query: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def operation(
    verb: str,
    path: str,
    answer: Any = dict,
    body: Any = None,
    *,
    versions: bool = False,
    **more: Any,
) -> Callable[[Handler], Handler]:
    """Return a decorator that marks a method as the handler of an `Operation`.

    With `versions`, it also handles the path with a version after the model's name.
    """
    paths = [path, *([path.replace("{name}", "{name}/versions/{version}")] if versions else [])]

    def mark_handler(method: Handler) -> Handler:
        summary = (method.__doc__ or "").partition("\n")[0]
        cast(Any, method).operations = [
            Operation(verb, p, method.__name__, summary, answer, body, **more) for p in paths
        ]
        return method

    return mark_handler


get = functools.partial(operation, "GET")
post = functools.partial(operation, "POST")


class Endpoints:
    """Base class of the endpoints of a protocol, for the models of a registry."""

    def __init__(self, registry: ModelRegistry, settings: Settings):
        self._registry, self._settings = registry, settings

    def operations(self) -> list[Operation]:
        """Return the operations of the decorated methods, in the order in which routes match."""
        names = dict.fromkeys(name for kind in reversed(type(self).__mro__) for name in vars(kind))
        methods = [getattr(type(self), name) for name in names]
        return [each for method in methods for each in getattr(method, "operations", ())]

    def routes(self) -> list[BaseRoute]:
        """Return the routes of all operations."""
        return [
            Route(
                each.path.replace("{name}", "{name:name}").replace("{version}", "{version:name}"),
                getattr(self, each.handler),
                methods=[each.verb],
            )
            for each in self.operations()
        ]

    def _model_at(self, request: Request, kind: str | None = None) -> ServedModel:
        served = self._registry.get(request.path_params["name"], version_at(request))
        if kind is not None and served.kind != kind:
            raise NotFound(
                f"The model `{served.name}` makes {MADE[served.kind]}, not {MADE[kind]}."
            )
        return served

    def _model_named(self, request: Request, name: str | None, kind: str) -> ServedModel:
        if name is None:
            found = []
            for known in self._registry.names():
                with contextlib.suppress(ServingError):  # skips models that are loading
                    found += [known] if self._registry.get(known).kind == kind else []
            if len(found) != 1:
                raise InvalidInput("`model` must be given: there are several.")
            name = found[0]
        request.path_params["name"] = name
        return self._model_at(request, kind)


def version_at(request: Request) -> int | None:
    """Return the version in the path, None if there is none; raise NotFound if it is invalid."""
    version = request.path_params.get("version")
    if version is None:
        return None
    if problem := version_problem(version):
        raise NotFound(f"A version {problem}.")
    return int(version)


class OpenApi(Endpoints):
    """The endpoint for the OpenAPI document of all other operations."""

    def __init__(self, settings: Settings, operations: Sequence[Operation]):
        needs_token = bool(read_tokens(settings))
        self._document = document([*operations, *self.operations()], needs_token)

    @get("/openapi.json")
    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI document."""
        return json_response(self._document)


def document(operations: Sequence[Operation], needs_token: bool) -> dict[str, Any]:
    """Return the OpenAPI document of operations, which declares the token if one is needed."""
    components: dict[str, Schema] = {}
    paths: dict[str, Any] = {}
    for operation in operations:
        described = _describe_operation(operation, components)
        paths.setdefault(operation.path, {})[operation.verb.lower()] = described
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "onepass", "version": "1", "description": DESCRIPTION},
        "servers": [{"url": "."}],  # relative to this document, which a proxy may have in a folder
        "paths": paths,
        "components": {"schemas": components},
    }
    if needs_token:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
        paths["/healthz"]["get"]["security"] = []
    return found


def _describe_operation(operation: Operation, components: dict[str, Schema]) -> dict[str, Any]:
    def schema(kind: Any) -> Schema:
        (found,), new = msgspec.json.schema_components([kind], ref_template=REFERENCE)
        components.update(new)
        return found

    def content(kinds: Any) -> dict[str, Any]:
        by_type = kinds if isinstance(kinds, dict) else {JSON: kinds}
        return {media_type: {"schema": schema(kind)} for media_type, kind in by_type.items()}

    path = {name: kind for name, kind in PATH.items() if f"{{{name}}}" in operation.path}
    parameters = [
        {"name": name, "in": location, "required": location == "path", "schema": schema(kind)}
        for location in ("path", "query", "header")
        for name, kind in (path if location == "path" else getattr(operation, location)).items()
    ]
    error = OpenaiError if is_openai_path(operation.path) else Error
    described = {
        "summary": operation.summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "OK", "content": content(operation.answer)},
            "default": {"description": "An error.", "content": content(error)},
        },
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": content(operation.body)}
    return described
