"""Rules for the fields of configurations; an error gives the field, the rule and the value."""

from typing import Any

from replicator.runs.errors import UserError


def require(holds: bool, field: str, rule: str, value: Any) -> None:
    """Returns nothing; raises ValueError, with name, rule and value, unless the rule holds."""
    if not holds:
        raise UserError(f"`{field}` must be {rule}, got {value}.")


def at_least(config: Any, least: float, *fields: str) -> None:
    """Returns nothing; raises ValueError for a field that is below `least`, or no number (NaN)."""
    rule = f"at least {least}" if least else "0 or more"
    for field in fields:
        value = getattr(config, field)
        require(value >= least, field, rule, value)
