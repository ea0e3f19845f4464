"""Loading of bundles in a process of their own, or in the server's."""

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

SPARE_CONNECTIONS = 2  # for features of recordings, next to calls and streams


def bundle_loader(settings: Settings) -> Callable[[Path], Servable]:
    """Return a function that loads the bundle of a version's folder, as the settings say.

    Bundles signed by a trusted key run in this process, others in their own, or not at all.

    Raises:
      UserError: a key cannot be read, processes cannot be confined, or one would need more
        connections than a message of the kernel can carry.
    """
    keys = [public_key(Path(path)) for path in settings.trust]
    if settings.sandbox:
        check_available()
        _check_connections(settings)
    limits = SandboxLimits(
        memory_bytes=int(settings.sandbox_memory_gib * 2**30),
        load_seconds=settings.load_seconds,
        call_seconds=settings.call_seconds,
        connections=settings.threads + settings.max_streams + SPARE_CONNECTIONS,
    )
    fork_server = ForkServer()

    def load(path: Path) -> Servable:
        signed = signed_manifest(path, keys) if keys else ""
        if keys and not (signed or settings.sandbox):
            raise UserError(f"{path} must be signed to be loaded without a sandbox.")
        if not signed and settings.sandbox:
            return SandboxedBundle(path, fork_server, limits, {"backend": settings.backend})
        # Imported at the call, since it imports TensorFlow; tests replace it.
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
