"""The files that serve a folder of models on Kubernetes, on Ray, and on Ray on Kubernetes."""

import dataclasses
import importlib.metadata
import math
import shlex
from pathlib import Path
from typing import Any

from replicator.launch.yaml_text import yaml_text
from replicator.runs.errors import UserError
from serving.deploy.ray_settings import (
    EVERY_INTERFACE,
    NAME,
    RaySettings,
    environment,
    options,
    shutdown_seconds,
    to_arguments,
)
from serving.settings import TOKEN_VARIABLE, Settings

DEREGISTER_SECONDS = 5  # that Kubernetes has to stop sending requests to a pod
SPARE_SECONDS = 5
RAY_VERSION = "2.60.0"
SERVE_PORT = 8000  # where KubeRay looks for an application
REPLICAS = 2
PROBE_PORT = 8502
PROBE_SECONDS = 5
USER = 10001
RESOURCES = {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"memory": "8Gi"}}
TOKENS = "/tokens"  # where the Secret lies: each of its keys is a client's token
# Its names within the cluster; Kubernetes puts the variable's value in.
HOSTS = (NAME, *(f"{NAME}.$(NAMESPACE){rest}" for rest in ("", ".svc", ".svc.cluster.local")))
SECRET_HELP = f"kubectl create secret generic {NAME} --from-literal=token=$(openssl rand -hex 32)"


@dataclasses.dataclass(frozen=True)
class ClusterOptions:
    """Where in a cluster: the container image, empty for that of this version, and the claim of the
    volume that holds the models, which appears at the path that is served."""

    image: str = ""
    volume: str = "onepass-models"

    @property
    def pinned_image(self) -> str:
        """The image with its version."""
        return self.image or f"{NAME}:{importlib.metadata.version(NAME)}"


def kubernetes(models: Path, settings: Settings, cluster: ClusterOptions) -> str:
    """A Deployment of the own server and its Service, YAML for `kubectl apply -f`."""
    if settings.grpc_port <= 0 or settings.port == 0:
        raise UserError("`--print kubernetes` needs `--port` and `--grpc-port`, which is asked.")
    if settings.probe_port < 0:
        settings = dataclasses.replace(settings, probe_port=PROBE_PORT)
    labels = {"app": NAME}
    ports = {"http": settings.port, "grpc": settings.grpc_port}
    pod = _pod(models, settings, cluster, {**ports, "probes": settings.probe_port})
    deployment = {
        "replicas": REPLICAS,
        "selector": {"matchLabels": labels},
        "strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    targets = [{"name": name, "port": port, "targetPort": name} for name, port in ports.items()]
    service = _object("v1", "Service", {"selector": labels, "ports": targets})
    return f"# {SECRET_HELP}\n{service}---\n" + _object("apps/v1", "Deployment", deployment)


def ray(models: Path, settings: RaySettings) -> str:
    """A Serve config file, for `serve deploy FILE` on a cluster that has the variables."""
    needed = {**environment(settings), TOKEN_VARIABLE: "...", "RAY_AUTH_TOKEN": "..."}
    lines = "".join(f"#   {name}={shlex.quote(value)}\n" for name, value in needed.items())
    return (
        "# serve deploy FILE. Every machine of the cluster needs onepass, the folder of models, "
        f"and\n{lines}# Another word after `rollout` replaces the replicas one by one.\n"
        + yaml_text(_serve_config(models, settings, settings.port))
    )


def kuberay(models: Path, settings: RaySettings, cluster: ClusterOptions) -> str:
    """A RayService, YAML for `kubectl apply -f` where KubeRay is."""
    head = _ray_pod(models, settings, cluster, {"num-cpus": "0"})
    workers = {
        "groupName": "replicas",
        "replicas": settings.ray_replicas,
        "minReplicas": settings.ray_replicas,
        "maxReplicas": max(settings.ray_replicas, settings.ray_max_replicas) + 1,
        **_ray_pod(models, settings, cluster, {}),
    }
    service = {
        "serveConfigV2": yaml_text(_serve_config(models, settings, SERVE_PORT)),
        "rayClusterConfig": {
            "rayVersion": RAY_VERSION,
            "authOptions": {"mode": "token"},
            "enableInTreeAutoscaling": bool(settings.ray_max_replicas),
            "headGroupSpec": head,
            "workerGroupSpecs": [workers],
        },
    }
    head_line = f"# KubeRay 1.5.1 or newer. {SECRET_HELP}\n"
    return head_line + _object("ray.io/v1", "RayService", service)


def _object(version: str, kind: str, spec: dict[str, Any]) -> str:
    """An object of Kubernetes as YAML."""
    named = {"apiVersion": version, "kind": kind, "metadata": {"name": NAME}}
    return yaml_text({**named, "spec": spec})


def serve_flags(settings: Settings) -> list[str]:
    """The options of `onepass serve` in a pod."""
    said = ["--host", EVERY_INTERFACE]
    for field in dataclasses.fields(Settings):
        value = getattr(settings, field.name)
        flag = field.name.replace("_", "-")
        if value == field.default or field.name in ("host", "token_file", "allowed_hosts"):
            continue
        if isinstance(value, bool):
            said.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            said += [f"--{flag}", *map(str, value if isinstance(value, tuple) else [value])]
    return [*said, "--token-file", TOKENS, "--allowed-hosts", *HOSTS, *settings.allowed_hosts]


def _serve_config(models: Path, settings: RaySettings, port: int) -> dict[str, Any]:
    application = {
        "name": NAME,
        "route_prefix": "/",
        "import_path": "serving.deploy.ray_app:app",
        "args": to_arguments(models, settings),
        "deployments": [{"name": NAME, **options(settings)}],
    }
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": EVERY_INTERFACE, "port": port},
        "logging_config": {"log_level": "WARNING"},
        "applications": [application],
    }


def _ray_pod(
    models: Path, settings: RaySettings, cluster: ClusterOptions, parameters: dict[str, str]
) -> dict[str, Any]:
    cpus, gpus = max(1, round(settings.ray_cpus + 0.5)), settings.ray_gpus
    resources = {"cpu": str(cpus), "memory": "4Gi"}
    if gpus and not parameters:
        resources["nvidia.com/gpu"] = str(max(1, round(gpus)))
    container = {
        "name": "ray",
        "image": cluster.pinned_image,
        "env": [
            *({"name": name, "value": value} for name, value in environment(settings).items()),
            _token(),
        ],
        "ports": [{"name": "serve", "containerPort": SERVE_PORT}],
        "resources": {"limits": resources, "requests": resources},
        "volumeMounts": [_mount(models)],
    }
    pod = {
        "terminationGracePeriodSeconds": round(shutdown_seconds(settings)),
        "containers": [container],
        "volumes": [_volume(cluster)],
    }
    return {"rayStartParams": parameters, "template": {"spec": pod}}


def _pod(
    models: Path, settings: Settings, cluster: ClusterOptions, ports: dict[str, int]
) -> dict[str, Any]:
    """A pod that listens on the ports, by their names, without any rights."""
    starting = max(PROBE_SECONDS, settings.load_seconds)
    return {
        "terminationGracePeriodSeconds": _grace(settings),
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": NAME,
                "image": cluster.pinned_image,
                "command": ["onepass", "serve", str(models), *serve_flags(settings)],
                "env": [_namespace()],
                "ports": [{"name": n, "containerPort": port} for n, port in ports.items()],
                "resources": RESOURCES,
                "startupProbe": {
                    **_probe("/readyz", PROBE_SECONDS),
                    "failureThreshold": math.ceil(starting / PROBE_SECONDS) + 1,
                },
                "readinessProbe": _probe("/readyz", 2),
                "livenessProbe": {**_probe("/healthz", 10), "failureThreshold": 6},
                "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(DEREGISTER_SECONDS)]}}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    _mount(models),
                    {"name": "tokens", "mountPath": TOKENS, "readOnly": True},
                    {"name": "tmp", "mountPath": "/tmp"},
                ],
            }
        ],
        "volumes": [
            _volume(cluster),
            {"name": "tokens", "secret": {"secretName": NAME}},
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        ],
    }


def _probe(path: str, seconds: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "probes"},
        "periodSeconds": seconds,
        "timeoutSeconds": 5,
    }


def _grace(settings: Settings) -> int:
    return DEREGISTER_SECONDS + round(settings.drain_seconds) + SPARE_SECONDS


def _namespace() -> dict[str, Any]:
    return {"name": "NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}


def _token() -> dict[str, Any]:
    return {
        "name": TOKEN_VARIABLE,
        "valueFrom": {"secretKeyRef": {"name": NAME, "key": "token"}},
    }


def _mount(models: Path) -> dict[str, Any]:
    return {"name": "models", "mountPath": str(models), "readOnly": True}


def _volume(cluster: ClusterOptions) -> dict[str, Any]:
    return {
        "name": "models",
        "persistentVolumeClaim": {"claimName": cluster.volume, "readOnly": True},
    }
