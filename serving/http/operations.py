"""Routes with their description for OpenAPI: methods of `Endpoints`, marked by `get` or `post`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, cast

from msgspec import Meta
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.routing import BaseRoute, Route

from serving.engine.registry import ModelRegistry
from serving.settings import Settings

JSON = "application/json"
Bytes = Annotated[Any, Meta(extra_json_schema={"type": "string", "format": "binary"})]
Handler = TypeVar("Handler", bound=Callable)


class NameConvertor(StringConvertor):
    """A path segment without the colon that starts a verb."""

    regex = "[^/:]+"


register_url_convertor("name", NameConvertor())


@dataclasses.dataclass(frozen=True)
class Operation:
    """A request and its response: types by media type, JSON without one.

    handler: name of the method that answers.
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
    """Return a decorator that marks a method as the handler of a path.

    With `versions` it answers for the versions of a model as well.
    """
    paths = [path, *([path.replace("{name}", "{name}/versions/{version}")] if versions else [])]

    def marked(method: Handler) -> Handler:
        summary = (method.__doc__ or "").partition("\n")[0]
        described = (method.__name__, summary, answer, body)
        cast(Any, method).operations = [Operation(verb, p, *described, **more) for p in paths]
        return method

    return marked


get = functools.partial(operation, "GET")
post = functools.partial(operation, "POST")


class Endpoints:
    """The endpoints of a protocol, for the models of a registry."""

    def __init__(self, registry: ModelRegistry, settings: Settings):
        self._registry, self._settings = registry, settings

    def operations(self) -> list[Operation]:
        """Return what its methods answer, in their order: routes are searched in this order."""
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
