"""Exported models: loading them, sampling from them and serving them."""

from typing import TYPE_CHECKING

from onepass.foundation.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from onepass.bundles.bundle import load as load
    from serving.client.client import Client as Client

# Imported on first use, so that the client does not import the dependencies of `load`.
__getattr__ = lazy_exports(
    __name__, {"Client": "serving.client.client", "load": "onepass.bundles.bundle"}, prefix=""
)
