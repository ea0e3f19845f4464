"""Routes and their OpenAPI document, made from methods that are decorated by `get` or `post`."""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, WithJsonSchema
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
from serving.http.responses import ERROR, JSON, OPENAI_ERROR, is_openai_path, json_response
from serving.settings import Settings

DESCRIPTION = "The OpenAPI document of all HTTP routes, generated from the models of their bodies."
REFERENCE = "#/components/schemas/{model}"
PATH = {
    "name": Annotated[str, Field(min_length=1, pattern="^[^/:]+$")],
    "version": Annotated[int, Field(ge=0, le=10**18 - 1)],
}
Method = TypeVar("Method", bound=Callable)
Bytes = Annotated[Any, WithJsonSchema({"type": "string", "format": "binary"})]


class NameConvertor(StringConvertor):
    """A path segment, which ends before a colon and verb such as `:predict`."""

    regex = "[^/:]+"


register_url_convertor("name", NameConvertor())


class Operation(Route):
    """A route, with the types of its request and response.

    Attributes:
      answer: types of the response by media type, or one type for JSON.
      body: types of the request's body by media type, or one type for JSON; None: no body.
      parameters: types of the parameters by location, "header" or "query", and name.
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
            raise NotFound(
                f"The model `{served.name}` makes {MADE[served.kind]}, not {MADE[kind]}."
            )
        return served

    def _model_named(self, request: Request, name: str | None, kind: str) -> ServedModel:
        request.path_params["name"] = self._only_model(kind) if name is None else name
        return self._model_at(request, kind)

    def _only_model(self, kind: str) -> str:
        found = []
        for name in self._registry.names():
            with contextlib.suppress(ServingError):  # skips models that are loading
                found += [name] if self._registry.get(name).kind == kind else []
        if len(found) != 1:
            raise InvalidInput("`model` must be given: there are several.")
        return found[0]


def version_at(request: Request) -> int | None:
    """Return the version in the path, None if there is none; raise NotFound if it is invalid."""
    version = request.path_params.get("version")
    if version is not None and (problem := version_problem(version)):
        raise NotFound(f"A version {problem}.")
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
