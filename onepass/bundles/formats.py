"""The formats of an export, and what writes each; a format is added here and in its own module.

A bundle has functions for rows of any length. The other formats have those of one size: `write`
takes a folder, the name of a function, the function, and the variables that it reads, by name; it
returns what manifest.json says of it, and raises a UserError if the format cannot express it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from onepass.bundles.function import Function

FormatName = Literal["bundle", "stablehlo", "tflite"]
BUNDLE = "bundle"
Write = Callable[[Path, str, "Function", Mapping[str, Any]], dict[str, Any]]


def _stablehlo(*given: Any) -> dict[str, Any]:
    from onepass.bundles.stablehlo import write

    return write(*given)


def _tflite(*given: Any) -> dict[str, Any]:
    from onepass.bundles.tflite import write

    return write(*given)


FORMATS: dict[str, Write] = {"stablehlo": _stablehlo, "tflite": _tflite}
