"""Fields of requests and settings as typed models, with one wording of the rules they break."""

import functools
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, cast

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
)

from onepass.bundles.errors import InvalidInput

SHOWN_CHARACTERS = 80
MAX_NAME_CHARACTERS = 200
# Rules by the type of pydantic's error; of any other type, the message is the rule.
RULES = {
    "missing": "given",
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size"), "an integer"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "an object"),
    "finite_number": "a finite number",
    "string_type": "a text",
    "string_pattern_mismatch": "a text that matches {pattern}",
    "string_too_long": "a text of at most {max_length} characters",
    "string_too_short": "a text of at least {min_length} characters",
    "bool_type": "true or false",
    **dict.fromkeys(("list_type", "tuple_type"), "a list"),
    "too_short": "of length at least {min_length}",
    "too_long": "of length at most {max_length}",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "literal_error": "one of {expected}",
    "none_required": "null",
}
Model = TypeVar("Model")


class Fields(BaseModel):
    """Fields of a request, of which unknown ones are ignored; no value is made another type.

    Lists and objects of a field fail at their first wrong value (`fail_fast`): an error about each
    of many would take a kilobyte of memory.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False, defer_build=True)


SEED_RULE = "an integer in [0, 2^64)"
Seed = Annotated[int, Field(ge=0, le=2**64 - 1)]
Name = Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)]
adapter: Any = functools.cache(TypeAdapter)


def as_model(fields: Mapping[str, Any], model: type[Model], *, are_texts: bool = False) -> Model:
    """Return known fields as a model; raise InvalidInput for the first that breaks a rule.

    With `are_texts`, all values are text, as in a query, and are read as the fields' types.
    """
    validate = adapter(model).validate_strings if are_texts else adapter(model).validate_python
    try:
        return validate(fields)
    except ValidationError as error:
        raise InvalidInput(broken_rule(error, fields)) from error


def broken_rule(error: ValidationError, fields: Mapping[str, Any]) -> str:
    """Return the message for the first field that broke a rule: its name, the rule, its value."""
    errors = error.errors(include_url=False)
    first, value = errors[0], cast(Any, fields)
    path: list[int | str] = []
    for step in first["loc"]:
        if step not in (range(len(value)) if isinstance(value, list) else value or ()):
            break  # which of a union's types it is, or a field that is missing
        path, value = [*path, step], value[step]
        if not isinstance(value, list | dict):
            break
    if first["type"] == "value_error":  # a rule of the model itself
        return str(first["ctx"]["error"])
    if first["type"] == "missing":
        return f"`{_dotted(first['loc'])}` must be given."
    same = [each for each in errors if list(each["loc"][: len(path)]) == path]
    rules = [SEED_RULE] if path == ["seed"] else dict.fromkeys(_rule(each) for each in same)
    return f"`{_dotted(path)}` must be {' or '.join(rules)}, got {excerpt(value)}."


def _rule(error: Any) -> str:
    context = dict(error.get("ctx", {}))
    for name, value in context.items():
        if name == "expected":  # the names in a Literal, as 'a', 'b' or 'c'
            context[name] = value.replace("'", "").replace(" or ", ", ")
        elif isinstance(value, float):
            context[name] = f"{value:g}"
    return RULES[error["type"]].format(**context) if error["type"] in RULES else error["msg"]


def _dotted(path: Any) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def invalid_field(name: str, rule: str, value: object) -> InvalidInput:
    """Return the error that names a field, its rule and its value."""
    return InvalidInput(f"`{name}` must be {rule}, got {excerpt(value)}.")


def excerpt(value: object) -> str:
    """Return a value for a message: as JSON, shortened if it is long; "a list" or "an object"."""
    if isinstance(value, list | dict):
        kind = "list" if isinstance(value, list) else "object"
        return f"an empty {kind}" if not value else f"{'a' if kind == 'list' else 'an'} {kind}"
    if isinstance(value, str):
        value = value[: SHOWN_CHARACTERS + 1]
    text = orjson.dumps(value).decode()
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
