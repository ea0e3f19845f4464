"""Rules for configuration fields; errors contain the field, the rule and the value."""

from typing import Any

from foundation.errors import UserError


def require(holds: bool, field: str, rule: str, value: Any) -> None:
    """Raise UserError with field, rule and value unless the rule holds.

    Args:
      holds: whether the rule holds.
      field: the field's name.
      rule: what the value must be, in words.
      value: the value that was given.
    """
    if not holds:
        raise UserError(f"`{field}` must be {rule}, got {value}.")


def at_least(config: Any, least: float, *fields: str) -> None:
    """Raise UserError if a field is below `least` or NaN."""
    rule = f"at least {least}" if least else "0 or more"
    for field in fields:
        value = getattr(config, field)
        require(value >= least, field, rule, value)
