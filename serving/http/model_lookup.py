"""Names, versions and signatures as requests say them, looked up in the model registry."""

import contextlib

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request

from serving.engine.registry import ModelRegistry
from serving.engine.served_model import ServedModel
from serving.engine.version_scanner import VERSION
from serving.errors import InvalidInput, NotFound, ServingError

OUTPUTS = {
    "sound": "sound",
    "picture": "images",
    "array": "arrays",
}  # what a kind of model makes, in words


class NameConvertor(Convertor[str]):
    """A part of a path without the colon that begins a verb."""

    regex = "[^/:]+"

    def convert(self, value: str) -> str:
        """Itself."""
        return value

    def to_string(self, value: str) -> str:
        """Itself."""
        return value


register_url_convertor("name", NameConvertor())


def model_from_path(registry: ModelRegistry, request: Request) -> ServedModel:
    """The model that the path names, at the version that it names or that is served."""
    return registry.get(request.path_params["name"], version_at(request))


def version_at(request: Request) -> int | None:
    """The version in the path; None where it names none. NotFound for what is no number."""
    said = request.path_params.get("version")
    if said is None:
        return None
    if not VERSION.fullmatch(said):
        raise NotFound("A version must be a number.")
    return int(said)


def model_named(registry: ModelRegistry, name: str | None, kind: str) -> ServedModel:
    """The model that a body names, which must be of the kind that is given.

    Where there is one of that kind only, it need not be named.
    """
    if name is None:
        found = [served for served in available_models(registry) if served.kind == kind]
        if len(found) == 1:
            return registry.get(found[0].name)
        raise InvalidInput("`model` must be given: there are several.")
    return require_kind(registry.get(name), kind)


def require_kind(served: ServedModel, kind: str) -> ServedModel:
    """The same model; NotFound if it makes something else."""
    if served.kind != kind:
        raise NotFound(
            f"The model `{served.name}` makes {OUTPUTS[served.kind]}, not {OUTPUTS[kind]}."
        )
    return served


def available_models(registry: ModelRegistry) -> list[ServedModel]:
    """The highest version of every model that has one ready, by name."""
    found = []
    for name in sorted(registry.names()):
        with contextlib.suppress(ServingError):  # one that is loading, or has just gone
            found.append(registry.get(name))
    return found
