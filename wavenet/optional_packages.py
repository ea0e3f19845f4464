"""The packages of optional measures, and the extras that install them."""

import functools
import importlib.util
from collections.abc import Sequence

from foundation.errors import UserError

# The packages that a measure imports, and the extra of this project that installs them.
EXTRAS: dict[str, dict[str, tuple[str, ...]]] = {
    "quality": {
        "pesq": ("pesq",),
        "stoi": ("pystoi",),
        "f0_within_50_cents": ("pyworld",),
        "f0_error_cents": ("pyworld",),
        "voicing_error": ("pyworld",),
        "residual_kurtosis": ("pyworld",),
    },
    "listening": {
        "dnsmos_p808": ("speechmos", "onnxruntime"),
        "plcmos": ("speechmos", "onnxruntime"),
    },
}


@functools.cache
def is_installed(package: str) -> bool:
    """Return whether a package can be imported; it is not imported."""
    return importlib.util.find_spec(package) is not None


def available(measure: str) -> bool:
    """Return whether every package that a measure needs is installed."""
    needed = [p for measures in EXTRAS.values() for p in measures.get(measure, ())]
    return all(is_installed(package) for package in needed)


def left_out() -> dict[str, list[str]]:
    """Return the measures that are unavailable, by the extra that would add them."""
    missing = {
        extra: [name for name in measures if not available(name)]
        for extra, measures in EXTRAS.items()
    }
    return {extra: names for extra, names in missing.items() if names}


def left_out_line() -> str:
    """Return a line that names the measures left out and the extras that add them; "" for none."""
    missing = left_out()
    if not missing:
        return ""
    parts = [
        f"{_listed(names)} (pip install 'onepass[{extra}]')" for extra, names in missing.items()
    ]
    return f"Not measured, since a package is missing: {'; '.join(parts)}."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)


def require(package: str, extra: str, purpose: str) -> None:
    """Raise a UserError with the command that installs a package, unless it is installed."""
    if not is_installed(package):
        raise UserError(f"{purpose} needs {package}: pip install 'onepass[{extra}]'.")
