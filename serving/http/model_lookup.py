"""Lookups of models in the registry by the names and versions in requests."""

import contextlib

from starlette.requests import Request

from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.engine.version_scanner import VERSION
from serving.errors import InvalidInput, NotFound, ServingError

OUTPUTS = {"sound": "sound", "picture": "images", "array": "arrays"}  # by kind, for messages


def model_from_path(registry: ModelRegistry, request: Request) -> ServedModel:
    """Return the model in the path, at the version in the path or the current one."""
    return registry.get(request.path_params["name"], version_at(request))


def version_at(request: Request) -> int | None:
    """Return the version in the path, None without one; raise NotFound if it is not a number."""
    version = request.path_params.get("version")
    if version is None:
        return None
    if not VERSION.fullmatch(version):
        raise NotFound("A version must be a number.")
    return int(version)


def model_named(registry: ModelRegistry, name: str | None, kind: str) -> ServedModel:
    """Return the model that a body names, which must be of the given kind.

    The only model of a kind need not be named.
    """
    if name is None:
        found = [served for served in available_models(registry) if served.kind == kind]
        if len(found) == 1:
            return registry.get(found[0].name)
        raise InvalidInput("`model` must be given: there are several.")
    return require_kind(registry.get(name), kind)


def require_kind(served: ServedModel, kind: str) -> ServedModel:
    """Return the model; raise NotFound if it is of another kind."""
    if served.kind != kind:
        raise NotFound(
            f"The model `{served.name}` makes {OUTPUTS[served.kind]}, not {OUTPUTS[kind]}."
        )
    return served


def available_models(registry: ModelRegistry) -> list[ServedModel]:
    """Return the current version of each model that is ready, sorted by name."""
    found = []
    for name in sorted(registry.names()):
        with contextlib.suppress(ServingError):  # loading, or just removed
            found.append(registry.get(name))
    return found
