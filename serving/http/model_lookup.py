"""Names, versions and signatures as requests say them, looked up in the table of models."""

import contextlib
import re

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request

from serving.engine.registry import Served, Table
from serving.errors import NotFound, ServingError
from serving.http.fields import Fields, required_text, text

MAX_NAME_CHARACTERS = 200
VERSION = re.compile(r"[0-9]{1,18}")
COMPILED, DEFAULT = "compiled", "serving_default"


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


def served_at(table: Table, request: Request) -> Served:
    """The model that the path names, at the version that it names or the highest one."""
    return table.get(request.path_params["name"], version_at(request))


def version_at(request: Request) -> int | None:
    """The version in the path; None where it names none. NotFound for what is no number."""
    said = request.path_params.get("version")
    if said is None:
        return None
    if not VERSION.fullmatch(said):
        raise NotFound("A version must be a number.")
    return int(said)


def served_in(table: Table, fields: Fields, kind: str) -> Served:
    """The model that the field `model` names, which must be of the kind "sound" or "picture".

    Where there is one of that kind only, it need not be named.
    """
    named = text(fields, "model", MAX_NAME_CHARACTERS)
    if named is None:
        found = [served for served in available(table) if served.kind == kind]
        if len(found) == 1:
            return found[0]
        named = required_text(fields, "model", MAX_NAME_CHARACTERS)
    return of_kind(table.get(named), kind)


def of_kind(served: Served, kind: str) -> Served:
    """The same model; NotFound if it makes something else."""
    if served.kind != kind:
        raise NotFound(f"The model `{served.name}` makes no {kind}s, but {served.kind}s.")
    return served


def available(table: Table) -> list[Served]:
    """The highest version of every model that has one ready, by name."""
    found = []
    for name in sorted(table.names()):
        with contextlib.suppress(ServingError):  # one that is loading, or has just gone
            found.append(table.get(name))
    return found


def fastest(served: Served) -> str:
    """The signature to draw with: the compiled one, where there is one."""
    return COMPILED if COMPILED in served.signatures else DEFAULT
