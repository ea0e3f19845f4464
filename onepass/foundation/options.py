"""Functions whose keyword options are the fields of a dataclass."""

import dataclasses
import difflib
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def takes(options: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for a function whose `**options` are the fields of a dataclass.

    The decorated function's signature and docstring, which `help` shows, list the fields, which
    have defaults and are described under `Args:`. Those that the function names itself stay where
    they are. An unknown option raises a TypeError that suggests the closest known one.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        named = {each.name for each in own}
        fields = [field for field in dataclasses.fields(options) if field.name not in named]
        known = [*named, *(field.name for field in fields)]

        @functools.wraps(function)
        def check_and_call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs.keys() - set(known):
                close = difflib.get_close_matches(name, known, 1)
                meant = f" Did you mean {close[0]!r}?" if close else ""
                raise TypeError(f"{function.__name__}() has no argument {name!r}.{meant}")
            return function(*args, **kwargs)

        kind = inspect.Parameter.KEYWORD_ONLY
        more = [
            inspect.Parameter(field.name, kind, default=_default(field), annotation=field.type)
            for field in fields
        ]
        check_and_call.__doc__ = _merge_docstrings(function, options)
        check_and_call.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return check_and_call

    return decorate


def entries_of(options: type) -> dict[str, str]:
    """Return the text of each field in the docstring of a dataclass, on one line, by name."""
    entries, found = _entries(options), {}
    for entry in re.findall(r"^  (\w.*(?:\n    .*)*)", entries, re.M):
        name, _, text = entry.partition(": ")
        found[name] = " ".join(text.split())
    return found


def _entries(options: type) -> str:
    entries = re.search(r"^Args:\n((?:  .*\n?)*)", inspect.getdoc(options) or "", re.M)
    return "" if entries is None else entries[1].rstrip()


def _merge_docstrings(function: Callable, options: type) -> str:
    entries, own = _entries(options), inspect.getdoc(function) or ""
    if not entries:
        return own
    return re.sub(r"^  \*\*options:.*(?:\n    .*)*", lambda _: entries, own, flags=re.M)


def _default(field: dataclasses.Field) -> Any:
    made = field.default_factory
    return field.default if made is dataclasses.MISSING else made()
