"""The files that put a folder of bundles under stock TensorFlow Serving."""

import json
import shlex
from pathlib import Path
from typing import Any

from replicator.runs.errors import UserError
from serving.engine.version_scanner import scan
from serving.settings import Settings

IMAGE = "tensorflow/serving"
MONITORING = 'prometheus_config { enable: true, path: "/monitoring/prometheus/metrics" }\n'


def tensorflow_serving(models: Path, settings: Settings, image: str = IMAGE) -> str:
    """A shell script that writes the files into a folder, and starts the container with them.

    Raises UserError if no bundle is there.
    """
    specs = bundles(models)
    batching = batching_parameters(specs, settings)
    files = {"models.config": model_config(list(specs)), "monitoring.config": MONITORING}
    flags = [
        "--model_config_file=/config/models.config",
        "--monitoring_config_file=/config/monitoring.config",
        f"--file_system_poll_wait_seconds={max(1, round(settings.poll_seconds))}",
        f"--rest_api_timeout_in_ms={round(1000 * settings.timeout_seconds)}",
    ]
    if batching:
        files["batching_parameters.txt"] = batching
        flags += [
            "--enable_batching=true",
            "--batching_parameters_file=/config/batching_parameters.txt",
        ]
    return SCRIPT.format(
        grpc=settings.grpc_port,
        rest=settings.port,
        files="".join(FILE.format(name=name, text=text) for name, text in files.items()),
        models=shlex.quote(f"{Path(models).resolve()}:/models:ro"),
        image=shlex.quote(image),
        flags="".join(f" \\\n  {flag}" for flag in flags),
    )


def bundles(models: Path) -> dict[str, dict[str, Any]]:
    """What model.json of each model's highest version says of serving it, by name."""
    seen = scan(models)
    if seen.error:
        raise UserError(f"{models}: {seen.error}.")
    specs = {}
    for name, versions in seen.versions.items():
        if versions:
            path = versions[0].path / "model.json"
            try:
                specs[name] = json.loads(path.read_text(encoding="utf-8"))["serving"]
            except (OSError, ValueError, KeyError) as error:
                raise UserError(f"{path} cannot be read: {error!r}.") from error
    if not specs:
        raise UserError(f"There is no bundle in {models}; onepass export RUN makes one.")
    return specs


def model_config(names: list[str]) -> str:
    """A ModelServerConfig in text form: of every model the highest version."""
    configs = (
        f'  config {{ name: "{name}", base_path: "/models/{name}", model_platform: "tensorflow" }}'
        for name in names
    )
    return "\n".join(["model_config_list {", *configs, "}"]) + "\n"


def batching_parameters(specs: dict[str, dict[str, Any]], settings: Settings) -> str:
    """BatchingParameters in text form, which hold for all models: the batches that all allow.

    Empty if that is only one row: then batching would do nothing but wait.
    """
    allowed = set.intersection(*(set(spec["allowed_batches"]) for spec in specs.values()))
    largest = max(allowed, default=1)
    if largest == 1:
        return ""
    lines = [
        f"max_batch_size {{ value: {largest} }}",
        f"batch_timeout_micros {{ value: {round(1000 * settings.batch_delay_ms)} }}",
        f"max_enqueued_batches {{ value: {max(1, settings.queue_rows // largest)} }}",
        f"num_batch_threads {{ value: {settings.threads} }}",
        *(f"allowed_batch_sizes: {size}" for size in sorted(allowed)),
    ]
    if any(spec.get("padded") for spec in specs.values()):
        lines.append("pad_variable_length_inputs: true")
    return "\n".join(lines) + "\n"


FILE = """\
cat > "$folder/{name}" <<'END'
{text}END
"""

SCRIPT = """\
#!/bin/sh
# sh FILE [FOLDER]: writes the files into FOLDER, then serves by stock TensorFlow Serving: gRPC on
# port {grpc}, REST on port {rest}. It knows no token and checks no input: keep it on this machine.
set -eu
folder=${{1:-tensorflow-serving}}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
{files}\
exec docker run --rm \\
  -p 127.0.0.1:{grpc}:8500 -p 127.0.0.1:{rest}:8501 \\
  -v {models} -v "$folder:/config:ro" \\
  {image}{flags}
"""
