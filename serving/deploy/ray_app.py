"""The server on Ray Serve: replicas that each hold all models, behind one balancer a machine.

`app` is what a Serve config file names: `import_path: serving.deploy.ray_app:app`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application

from serving.bundles.protocols import Servable
from serving.deploy.ray_settings import (
    NAME,
    RaySettings,
    from_arguments,
    on_every_interface,
    options,
)
from serving.engine.registry import ModelRegistry
from serving.http.app import make_app
from serving.http.middleware import RewrittenHeaders
from serving.observability import logs, traces
from serving.observability.metrics import Metrics


class NothingLoaded(RuntimeError):  # noqa: N818 - the condition, as the other errors
    """Of all models that were found, none can be served."""


@serve.ingress()
class Replica:
    """A process with all models, that answers HTTP itself: there is no hop behind it.

    It begins to take requests when all models are warm. It is unhealthy, and replaced, when it has
    none any more.

    Args:
      models: folder of them, on this machine.
      settings: of the server; a token must be there.
      load: makes a bundle of a version's folder; None: `serving.bundles.loading.load`.
    """

    async def __init__(  # type: ignore[misc] # which Ray awaits
        self,
        models: str,
        settings: RaySettings,
        load: Callable[[Path], Servable] | None = None,
    ):
        settings = on_every_interface(settings)
        logs.configure(settings.log_format, settings.log_level)
        traces.configure()
        self._settings, self._metrics = settings, Metrics()
        self._registry = ModelRegistry(Path(models), settings, load, self._metrics)
        await self._registry.start()
        await self._registry.initial_load_done()
        if not self._registry.ready:
            await self._registry.stop(0.0)
            raise NothingLoaded(f"None of the models in {models} can be loaded.")

    def __serve_build_asgi_app__(self) -> Any:
        app = make_app(self._registry, self._settings, self._metrics)
        # Ray adds a header X-Request-ID of its own.
        return RewrittenHeaders(app, lambda found: [h for h in found if h[0] != b"x-request-id"])

    async def check_health(self) -> None:
        """Raises NothingLoaded when there is nothing to be served."""
        if not (self._registry.ready or self._registry.draining):
            raise NothingLoaded("No model is loaded.")

    async def __del__(self):
        """Comes after Ray has waited for the requests."""
        if hasattr(self, "_registry"):
            await self._registry.stop(self._settings.drain_seconds)


def application(
    models: Path, settings: RaySettings, load: Callable[[Path], Servable] | None = None
) -> Application:
    """What Ray Serve deploys: the folder's models in as many replicas as the settings say."""
    deployed = serve.deployment(name=NAME, **options(settings))(Replica)
    return deployed.bind(str(Path(models).absolute()), settings, load)


def app(args: Mapping[str, Any]) -> Application:
    """The application that a Serve config file describes.

    Args:
      args: see `serving.deploy.ray_settings.from_arguments`.
    """
    return application(*from_arguments(args))
