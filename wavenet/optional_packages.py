"""Optional packages that some measures need, and the extras that install them."""

import functools
import importlib.util

from onepass.foundation.rules import UserError

OF_F0 = ("f0_within_50_cents", "f0_error_cents", "voicing_error", "residual_kurtosis")
# {extra of this project: {measure: packages that it imports}}
EXTRAS: dict[str, dict[str, tuple[str, ...]]] = {
    "quality": {"pesq": ("pesq",), "stoi": ("pystoi",), **dict.fromkeys(OF_F0, ("pyworld",))},
    "listening": dict.fromkeys(("dnsmos_p808", "plcmos"), ("speechmos", "onnxruntime")),
}


@functools.cache
def is_installed(package: str) -> bool:
    """Return whether a package is installed, without importing it."""
    return importlib.util.find_spec(package) is not None


def available(measure: str) -> bool:
    """Return whether every package that a measure needs is installed."""
    needed = [p for measures in EXTRAS.values() for p in measures.get(measure, ())]
    return all(is_installed(package) for package in needed)


def list_unavailable() -> dict[str, list[str]]:
    """Return the unavailable measures as {extra that installs their packages: measures}."""
    missing = {
        extra: [name for name in measures if not available(name)]
        for extra, measures in EXTRAS.items()
    }
    return {extra: names for extra, names in missing.items() if names}


def describe_unavailable() -> str:
    """Return a line of text about unavailable measures and how to install them; "" if none are."""
    missing = list_unavailable()
    if not missing:
        return ""
    parts = [
        f"{', '.join(names).replace('_', ' ')} (pip install 'onepass[{extra}]')"
        for extra, names in missing.items()
    ]
    return f"Not measured, since a package is missing: {'; '.join(parts)}."


def require(package: str, extra: str, purpose: str) -> None:
    """Raise a UserError with the installation command if a package is not installed."""
    if not is_installed(package):
        raise UserError(f"{purpose} needs {package}: pip install 'onepass[{extra}]'.")
