"""Every setting that `onepass serve --ray` has beyond those of one process."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicator.runs.errors import UserError
from replicator.runs.field_rules import at_least, require
from serving.engine.tokens import read_tokens
from serving.errors import InvalidInput
from serving.settings import TOKEN_VARIABLE, Settings

EVERY_INTERFACE = "0.0.0.0"
NAME = "onepass"  # of the application, and of its only deployment
HEALTH_SECONDS = 5.0
SPARE_SECONDS = 5.0  # for a replica to leave, beyond the time its requests have
SCALE_DOWN_SECONDS = 120.0
SURGE_PERCENT = 1  # rounded up to one replica more than wanted, so that none leaves too early
CONSTRUCTOR_TRIES = 3
CLUSTER = {  # variables that every machine of the cluster must have
    "RAY_AUTH_MODE": "token",
    "RAY_DEDUP_LOGS": "0",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_HAPROXY_RETRIES": "1",  # a request that ends processes must not end them all
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
ELSEWHERE = {"host", "port", "grpc_port", "probe_port"}  # than in the arguments of the application


@dataclasses.dataclass(frozen=True)
class RaySettings(Settings):
    """How many replicas on Ray Serve, and what each of them takes."""

    ray: bool = False
    """Serve on Ray, over HTTP: several processes, on one machine or many. Ray listens on every
    interface, whatever `host` says, so that it needs a token."""
    ray_address: str = ""
    """A Ray cluster to deploy to and leave alone, such as auto; empty: start one on this machine
    and stay. Every machine of it needs the folder of models at the same path, and the token."""
    ray_replicas: int = 1
    """Processes that hold all models; the fewest with `ray_max_replicas`."""
    ray_max_replicas: int = 0
    """Most replicas, started and stopped with the load; 0: always `ray_replicas`."""
    ray_target_requests: float = 4.0
    """Requests in hand for each replica that starting and stopping aims at."""
    ray_ongoing_requests: int = 64
    """Requests that each replica works on at the same time."""
    ray_queued_requests: int = 64
    """Requests that may wait for each replica beyond that; the next is answered 503."""
    ray_cpus: float = 1.0
    """CPU cores that each replica reserves."""
    ray_gpus: float = 0.0
    """GPUs that each replica reserves."""
    ray_deregister_seconds: float = 10.0
    """Seconds that a replica goes on answering after it was taken out of the balancers' lists,
    before it has `drain_seconds` for what is left."""

    def __post_init__(self):
        super().__post_init__()
        at_least(self, 1, "ray_replicas", "ray_ongoing_requests", "ray_queued_requests")
        at_least(self, 0, "ray_max_replicas", "ray_cpus", "ray_gpus", "ray_deregister_seconds")
        at_least(self, 0.1, "ray_target_requests")
        for name in ("target_requests", "cpus", "gpus", "deregister_seconds"):
            value = getattr(self, f"ray_{name}")
            require(math.isfinite(value), f"ray_{name}", "finite", value)
        if self.ray_max_replicas and self.ray_max_replicas < self.ray_replicas:
            raise UserError(
                f"`ray_max_replicas` must be at least `ray_replicas` ({self.ray_replicas}), got "
                f"{self.ray_max_replicas}."
            )
        if self.ray and self.tls_certificate:
            raise UserError("`tls_certificate` cannot be had on Ray: put a proxy in front.")
        if self.ray and self.requests_per_minute_per_client:
            raise UserError(
                "`requests_per_minute_per_client` cannot be counted on Ray, where all come by the "
                "balancer; limit it there."
            )


def environment(settings: RaySettings) -> dict[str, str]:
    """Variables that every machine of the cluster must have; Ray reads them when it is imported.

    HAProxy in front, which hands requests straight to the replicas, and once more to another one if
    a replica ends before it has begun to answer: the same request has the same answer. A token that
    Ray asks of its own processes, and no usage report is sent.
    """
    seconds = f"{settings.ray_deregister_seconds:g}"
    return {**CLUSTER, "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": seconds}


def on_every_interface(settings: RaySettings) -> RaySettings:
    """The settings as a replica has them; UserError without a token."""
    given = {field.name: getattr(settings, field.name) for field in dataclasses.fields(RaySettings)}
    settings = RaySettings(**{**given, "host": EVERY_INTERFACE, "ray": True})
    if not read_tokens(settings):
        raise UserError(
            "Ray listens on every interface, which others can reach, and needs a token: "
            f"--token-file FILE or {TOKEN_VARIABLE}."
        )
    return settings


def shutdown_seconds(settings: RaySettings) -> float:
    """Seconds after which a replica that leaves is ended, whatever it has in hand."""
    return settings.ray_deregister_seconds + settings.drain_seconds + SPARE_SECONDS


def options(settings: RaySettings) -> dict[str, Any]:
    """Of the deployment, see ray.serve.deployment."""
    return {
        **_count(settings),
        "max_ongoing_requests": settings.ray_ongoing_requests,
        "max_queued_requests": settings.ray_queued_requests,
        "backpressure_config": {"status_code": 503, "retry_after_s": 1.0},
        "ray_actor_options": {"num_cpus": settings.ray_cpus, "num_gpus": settings.ray_gpus},
        "health_check_period_s": HEALTH_SECONDS,
        "health_check_timeout_s": 6 * HEALTH_SECONDS,
        "graceful_shutdown_wait_loop_s": 0.5,
        "graceful_shutdown_timeout_s": shutdown_seconds(settings),
        "max_constructor_retry_count": CONSTRUCTOR_TRIES,
        "max_surge_percent": SURGE_PERCENT,
        "logging_config": {"enable_access_log": False, "log_level": "WARNING"},
    }


def from_arguments(arguments: Mapping[str, Any]) -> tuple[Path, RaySettings]:
    """The folder of models and the settings that the `args` of a Serve config file hold.

    Args:
      arguments: `models`; any field of RaySettings by its name; and `rollout`, any word: Ray
        replaces the replicas of an application whose arguments have changed.

    Raises UserError for a name that is none, or a value of another kind.
    """
    from serving.http.fields import as_model  # which needs the extra `serve`, as no help text does

    given = {name: value for name, value in arguments.items() if name != "rollout"}
    models = given.pop("models", None)
    if not isinstance(models, str):
        raise UserError(f"`models` must be the path of a folder, got {models!r}.")
    known = ["models", "rollout", *(field.name for field in dataclasses.fields(RaySettings))]
    for name in given:
        if name not in known:
            raise UserError(f"There is no setting `{name}`; there are {', '.join(known)}.")
    try:
        return Path(models), as_model(given, RaySettings)
    except InvalidInput as error:
        raise UserError(str(error)) from error


def to_arguments(models: Path, settings: RaySettings) -> dict[str, Any]:
    """The `args` that `from_arguments` reads: fields that are not their defaults, and not in
    `options`."""
    said: dict[str, Any] = {"models": str(models), "rollout": "1"}
    kept = {field.name for field in dataclasses.fields(Settings)} | {"ray_deregister_seconds"}
    for field in dataclasses.fields(RaySettings):
        value = getattr(settings, field.name)
        if field.name in kept - ELSEWHERE and value != field.default:
            said[field.name] = _yaml_value(value)
    return said


def _count(settings: RaySettings) -> dict[str, Any]:
    if not settings.ray_max_replicas:
        return {"num_replicas": settings.ray_replicas}
    return {
        "autoscaling_config": {
            "min_replicas": settings.ray_replicas,
            "max_replicas": settings.ray_max_replicas,
            "target_ongoing_requests": settings.ray_target_requests,
            "downscale_delay_s": SCALE_DOWN_SECONDS,
        }
    }


def _yaml_value(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value
