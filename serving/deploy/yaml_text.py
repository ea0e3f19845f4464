"""Plain values as YAML that a person can read and change."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

INDENT = "  "
PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}  # which YAML reads otherwise


def yaml_text(value: Any) -> str:
    """The lines of a value: mappings, lists, texts, numbers, None and bools in one another."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _entry(f"{_scalar(key)}:", inner)
    elif isinstance(value, list | tuple) and value:
        for inner in value:
            first, *rest = _lines(inner)
            yield f"- {first}"
            yield from (f"{INDENT}{line}".rstrip() for line in rest)
    else:
        yield _scalar(value)


def _entry(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, str) and "\n" in value:
        yield f"{key} |"
        yield from (f"{INDENT}{line}".rstrip() for line in value.splitlines())
    elif isinstance(value, Mapping | list | tuple) and value:
        yield key
        yield from (f"{INDENT}{line}".rstrip() for line in _lines(value))
    else:
        yield f"{key} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in WORDS:
        return value
    return json.dumps(value)
