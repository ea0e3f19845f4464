"""The formats of an export, and what writes each; a format is added here and in its own module.

A bundle has functions for rows of any length. The other formats have those of one size, one file
for each; `write` takes a folder, the functions and the variables that they read, by name, and
returns what manifest.json says of each.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from onepass.bundles.function import Function

FormatName = Literal["bundle", "stablehlo"]
BUNDLE = "bundle"
Write = Callable[[Path, "Mapping[str, Function]", Mapping[str, Any]], dict[str, dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class Format:
    """A format with functions of one size: what runs it, and what writes it."""

    runs: str
    write: Write


def _stablehlo(*given: Any) -> dict[str, dict[str, Any]]:
    from onepass.bundles.stablehlo import write

    return write(*given)


FORMATS = {
    "stablehlo": Format("JAX, without TensorFlow", _stablehlo),
}
