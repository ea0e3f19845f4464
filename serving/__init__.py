"""The process boundary: exported models, loading, sampling and serving them."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serving.bundles.loading import load as load
    from serving.client.client import Client as Client

# Imported on first use, so that importing one does not wait for the dependencies of the other.
_HOMES = {"Client": "serving.client.client", "load": "serving.bundles.loading"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
