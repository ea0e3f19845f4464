"""`onepass serve MODELS --ray`: deploys to a Ray cluster, or starts one until a signal stops it."""

import importlib.util
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from replicator.runs.errors import UserError
from serving.bundles.protocols import Servable
from serving.deploy.ray_settings import (
    EVERY_INTERFACE,
    NAME,
    RaySettings,
    environment,
    on_every_interface,
    shutdown_seconds,
)

OBJECT_STORE_BYTES = 100 * 2**20  # requests do not go through it
SPARE_SECONDS = 10.0  # for Ray to notice that all replicas have left
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_ray(
    settings: RaySettings, models: Path, load: Callable[[Path], Servable] | None = None
) -> int:
    """The exit status: 0, or 1 if requests were left without an answer.

    Args:
      settings, models: of the command line, already checked.
      load: makes a bundle of a version's folder; None: `serving.bundles.loading.load`.
    """
    settings = on_every_interface(settings)
    if importlib.util.find_spec("ray") is None:
        raise UserError("Serving on Ray needs one more package: pip install 'onepass[ray]'")
    for name, value in environment(settings).items():
        os.environ.setdefault(name, value)
    if not settings.ray_address and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # no other process needs it
    _connect(settings)
    _deploy(settings, models, load)
    if settings.ray_address:
        print(f"deployed {models} to Ray, {_replicas(settings)}", flush=True)
        return 0
    shutdown = _shutdown_on_signal()
    print(
        f"serving {models} on Ray at http://{EVERY_INTERFACE}:{settings.port}, "
        f"{_replicas(settings)}",
        flush=True,
    )
    shutdown.wait()
    return 0 if _undeploy(settings) else 1


def _connect(settings: RaySettings) -> None:
    import ray

    if settings.ray_address:
        try:
            ray.init(address=settings.ray_address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            first = str(error).strip().splitlines()[0]
            raise UserError(f"No Ray cluster at {settings.ray_address}: {first}") from error
    else:
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            logging_level=logging.ERROR,
        )


def _deploy(settings: RaySettings, models: Path, load: Callable[[Path], Servable] | None) -> None:
    from ray import serve

    from serving.deploy.ray_app import application

    serve.start(
        http_options={"host": EVERY_INTERFACE, "port": settings.port},
        logging_config={"log_level": "WARNING"},
    )
    try:
        serve.run(application(models, settings, load), name=NAME, route_prefix="/")
    except RuntimeError as error:
        raise UserError(f"Ray could not deploy {models}: {str(error).splitlines()[0]}") from error


def _undeploy(settings: RaySettings) -> bool:
    """Takes the application away, which lets its replicas answer what they have; whether they did.

    `serve.shutdown` alone would cut them off.
    """
    import ray
    from ray import serve

    try:
        end = time.monotonic() + shutdown_seconds(settings) + SPARE_SECONDS
        serve.delete(NAME, _blocking=False)
        while NAME in serve.status().applications:
            if time.monotonic() > end:
                return False
            time.sleep(0.2)
        return True
    finally:
        serve.shutdown()
        ray.shutdown()


def _shutdown_on_signal() -> threading.Event:
    """Is set by the first signal; the second one ends the process at once."""
    shutdown = threading.Event()

    def take(number: int, frame: Any) -> None:
        if shutdown.is_set():
            os._exit(128 + number)
        shutdown.set()

    for number in SIGNALS:
        signal.signal(number, take)
    return shutdown


def _replicas(settings: RaySettings) -> str:
    most = settings.ray_max_replicas
    if most:
        return f"{settings.ray_replicas} to {most} replicas"
    return f"{settings.ray_replicas} replica{'s' * (settings.ray_replicas > 1)}"
