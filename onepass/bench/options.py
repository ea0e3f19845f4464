"""The options that every bench has, and what it refuses before it measures anything."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from replicator.runs.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The options of every bench."""

    json: Path | None = None
    """File for the rows as JSON."""
    rounds: int = 3
    """Times that everything is measured; medians are shown."""

    def check_files(self, plot: Path | None = None) -> None:
        """Raises UserError for rounds, or for files to write, that cannot be."""
        self.check_numbers("rounds")
        if plot and plot.suffix not in (".png", ".pdf", ".svg"):
            raise UserError(f"`--plot` must end in .png, .pdf or .svg, got {plot}.")
        for path in (self.json, plot):
            if path and not path.parent.is_dir():  # said now, not after minutes of measuring
                raise UserError(f"there is no folder {path.parent} to write {path.name} to.")

    def check_numbers(self, *names: str, least: float = 1, above: bool = False) -> None:
        """Raises UserError unless these options are finite and at least, or above, `least`.

        One that is None is left out; of one with several numbers each counts.
        """
        for name in names:
            given = getattr(self, name)
            for value in given if isinstance(given, tuple) else [given]:
                small = value is not None and (value <= least if above else value < least)
                if small or not (value is None or value < math.inf):
                    rule = "above" if above else "at least"
                    option = name.replace("_", "-")
                    raise UserError(f"`--{option}` must be {rule} {least:g}, got {value:g}.")


def check_names(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    """Raises UserError, with those there are, for a name that is not known."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UserError(f"there is no {what} `{unknown[0]}`; there are {', '.join(known)}.")


def check_some(option: str, names: Sequence[str]) -> None:
    """Raises UserError where an option leaves nothing to measure."""
    if not names:
        raise UserError(f"`--{option}` must leave something to measure.")
