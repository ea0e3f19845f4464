"""How a server loads a bundle: in a process of its own, or in that of the server."""

import importlib
from collections.abc import Callable
from pathlib import Path

from replicator.runs.errors import UserError
from serving.bundles.protocols import Servable
from serving.bundles.signing import public_key, signed_manifest
from serving.sandbox.confinement import check_available
from serving.sandbox.fork_server import MOST_CONNECTIONS
from serving.sandbox.processes import ForkServer
from serving.sandbox.sandboxed_bundle import SandboxedBundle, SandboxLimits
from serving.settings import Settings

SPARE_CONNECTIONS = 2  # beside those of calls and streams: for features of recordings


def bundle_loader(settings: Settings) -> Callable[[Path], Servable]:
    """What makes a bundle of a version's folder, as the settings say.

    What a trusted key has signed runs in this process, all else in one of its own, or not at all.

    Raises UserError for a key that cannot be read, where processes cannot be confined, or where
    one would need more connections than a message of the kernel's can carry.
    """
    keys = [public_key(Path(path)) for path in settings.trust]
    if settings.sandbox:
        check_available()
        _check_connections(settings)
    fork_server, limits = ForkServer(), sandbox_limits(settings)

    def load(path: Path) -> Servable:
        signed = signed_manifest(path, keys) if keys else ""
        if keys and not (signed or settings.sandbox):
            raise UserError(f"{path} is not signed, as it must be without a sandbox.")
        if not signed and settings.sandbox:
            return SandboxedBundle(path, fork_server, limits, {"backend": settings.backend})
        # Looked up at each call: it is imported late, and tests put another one in its place.
        loading = importlib.import_module("serving.bundles.loading")
        return loading.load(path, settings.backend, *([signed] if signed else []))

    return load


def _check_connections(settings: Settings) -> None:
    most = MOST_CONNECTIONS - 1 - SPARE_CONNECTIONS - settings.threads
    if settings.max_streams > most:
        raise UserError(
            f"`--max-streams` must be at most {most} in a sandbox (with `--threads` "
            f"{settings.threads}), got {settings.max_streams}: start more servers, or serve "
            "bundles that you trust with `--no-sandbox`."
        )


def sandbox_limits(settings: Settings) -> SandboxLimits:
    """What the process of a model may take."""
    return SandboxLimits(
        memory_bytes=int(settings.sandbox_memory_gib * 2**30),
        load_seconds=settings.load_seconds,
        call_seconds=settings.call_seconds,
        connections=settings.threads + settings.max_streams + SPARE_CONNECTIONS,
    )
