"""The server on Ray Serve: replicas that each have all models, behind a proxy per machine.

A Serve config file refers to `app` by `import_path: serving.ray_app:app`, and sets the
number of replicas and their load; docs/deploy/ray.yaml is an example.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ray import serve
from ray.serve import Application

from onepass.bundles.bundle import Servable
from onepass.foundation.model_folders import TOKEN_VARIABLE
from onepass.foundation.rules import UserError, require
from serving import observability
from serving.engine.clients import read_tokens
from serving.engine.fields import adapter, broken_rule
from serving.engine.registry import ModelRegistry
from serving.http.app import make_app
from serving.observability import Metrics
from serving.settings import Settings

NAME = "onepass"  # the deployment's name
ALL_INTERFACES = "0.0.0.0"


class NothingLoaded(RuntimeError):  # noqa: N818 - named as the other errors
    """Error if none of the models can be served."""


@serve.ingress()
class Replica:
    """A process with all models, which answers HTTP itself.

    It accepts requests once every model is warm or known to be broken. When no model is left, it
    becomes unhealthy, and Ray replaces it.
    """

    async def __init__(  # type: ignore[misc] # Ray awaits it
        self, models: str, settings: Settings, load: Callable[[Path], Servable] | None = None
    ):
        if not read_tokens(settings):
            raise UserError(
                f"Ray listens on all interfaces and requires a token: `token_file` or "
                f"{TOKEN_VARIABLE}."
            )
        observability.configure_logging(settings.log_format, settings.log_level)
        observability.configure_tracing()
        self._settings, self._metrics = settings, Metrics()
        self._registry = ModelRegistry(Path(models), settings, load, self._metrics)
        await self._registry.start()
        await self._registry.initial_load_done()
        if not self._registry.ready:
            await self._registry.stop(0.0)
            raise NothingLoaded(f"None of the models in {models} can be loaded.")

    def __serve_build_asgi_app__(self) -> Any:
        return make_app(self._registry, self._settings, self._metrics)

    async def check_health(self) -> None:
        """Raise NothingLoaded if no model is loaded."""
        if not (self._registry.ready or self._registry.draining):
            raise NothingLoaded("No model is loaded.")

    async def __del__(self) -> None:
        """Stop the registry, after Ray has waited for the requests."""
        if hasattr(self, "_registry"):
            await self._registry.stop(self._settings.drain_seconds)


def app(args: Mapping[str, Any]) -> Application:
    """Return the application that a Serve config file describes.

    `args` are `models`, the folder of models; any field of Settings; and `rollout`, any value: Ray
    replaces the replicas when it changes.
    """
    models, settings = from_arguments(args)
    return serve.deployment(name=NAME)(Replica).bind(models, settings)


def from_arguments(args: Mapping[str, Any]) -> tuple[str, Settings]:
    """Return the folder of models and the settings from the arguments of `app`."""
    given = {name: value for name, value in args.items() if name != "rollout"}
    models = given.pop("models", None)
    require(isinstance(models, str), "models", "the path of a folder", repr(models))
    known = [field.name for field in dataclasses.fields(Settings)]
    for name in given:
        if name not in known:
            raise UserError(f"There is no setting `{name}`; there are {', '.join(known)}.")
    try:
        # As JSON, in which lists are tuples' values too, and text is a path's.
        document = json.dumps({"host": ALL_INTERFACES, **given}, default=str)
        settings = adapter(Settings).validate_json(document, strict=True)
    except ValidationError as error:
        raise UserError(broken_rule(error, given)) from error
    return str(Path(models).absolute()), settings
