"""Rules for configuration fields; errors contain the field, the rule and the value."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

from onepass.foundation.errors import UserError


def require(holds: bool, field: str, rule: str, value: Any) -> None:
    """Raise UserError with field, rule and value unless the rule holds."""
    if not holds:
        raise UserError(f"`{field}` must be {rule}, got {value}.")


def choices(names: Callable[[], Iterable[str]]) -> Any:
    """Return what `Annotated[str, ...]` needs for one of `names()`, read at every command line."""
    import tyro  # not for every command

    def kind() -> Any:
        return Literal[tuple(names())]

    return tyro.conf.arg(
        constructor_factory=kind,
        help_behavior_hint=lambda default: "(default: " + default.strip("[']") + ")",
    )


def at_least(config: Any, least: float, *fields: str) -> None:
    """Raise UserError if a field is below `least` or NaN."""
    rule = f"at least {least}" if least else "0 or more"
    for field in fields:
        value = getattr(config, field)
        require(value >= least, field, rule, value)
