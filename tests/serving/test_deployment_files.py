import contextlib
import importlib
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from fake_bundle import FakeModelStore
from google.protobuf import text_format

import onepass
from replicator.launch.cluster_files import yaml_text
from serving.command import ServeArguments
from serving.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "docs" / "deploy"
DOCKER = '#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n'


def test_the_script_for_tensorflow_serving_writes_files_that_it_can_read(tmp_path):
    api = pytest.importorskip("tensorflow_serving", reason="tensorflow-serving-api is missing")
    config = importlib.import_module(f"{api.__name__}.config.model_server_config_pb2")
    store = FakeModelStore(tmp_path / "the models")
    for name, version in (("voice", 1), ("voice", 3), ("shapes", 1)):
        store.add(name, version)
    (store.root / "no bundle").mkdir()
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    done = subprocess.run(
        ["sh", str(FILES / "tensorflow_serving.sh"), "the models", "my files"],
        cwd=tmp_path,
        env={"PATH": f"{docker.parent}:/usr/bin:/bin"},
        capture_output=True,
        timeout=20,
        check=True,
    )
    words, files = done.stdout.decode().splitlines(), tmp_path / "my files"
    read = config.ModelServerConfig()
    text_format.Parse((files / "models.config").read_text(), read)
    found = {(c.name, c.base_path, c.model_platform) for c in read.model_config_list.config}
    assert found == {(name, f"/models/{name}", "tensorflow") for name in ("voice", "shapes")}
    assert words[:2] == ["run", "--rm"] and "tensorflow/serving" in words
    assert f"127.0.0.1:{Settings().grpc_port}:8500" in words
    assert f"127.0.0.1:{Settings().port}:8501" in words
    assert f"{store.root}:/models:ro" in words and f"{files}:/config:ro" in words
    given = {word.partition("=")[2] for word in words if word.startswith("--") and "/" in word}
    assert given == {f"/config/{file.name}" for file in files.iterdir()}


@pytest.fixture
def kubernetes():
    """The objects that `kubectl apply -k` gets, by kind, but for the changes of kustomize."""
    folder = FILES / "kubernetes"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    files = [yaml.safe_load((folder / name).read_text()) for name in kustomization["resources"]]
    return {found["kind"]: found for found in [kustomization, *files]}


def test_kubernetes_reads_the_objects_and_knows_every_field(kubernetes):
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is missing")
    deployment = kubernetes["Deployment"]
    for found in (kubernetes["Service"], deployment):
        validate.validate(found, validate.latest_version(), strict=True)
    deployment["spec"]["template"]["spec"]["containers"][0]["startupprobe"] = {}
    with pytest.raises(validate.ValidationError):
        validate.validate(deployment, validate.latest_version(), strict=True)


def test_kustomize_changes_objects_that_there_are(kubernetes):
    deployment, kustomization = kubernetes["Deployment"], kubernetes["Kustomization"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert [image["name"] for image in kustomization["images"]] == [container["image"]]
    names = {kubernetes[kind]["metadata"]["name"] for kind in ("Deployment", "Service")}
    assert {change["name"] for change in kustomization["replicas"]} == names


def test_the_deployment_starts_this_server_and_the_service_finds_it(kubernetes):
    service, deployment = kubernetes["Service"], kubernetes["Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"][:2] == ["onepass", "serve"]
    read = onepass.command.parse(ServeArguments, container["command"][2:], "test")
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert "persistentVolumeClaim" in volumes[mounted[str(read.models)]]
    assert "secret" in volumes[mounted[str(read.token_file.parent)]]
    name = service["metadata"]["name"]
    inside = ("", ".$(NAMESPACE)", ".$(NAMESPACE).svc", ".$(NAMESPACE).svc.cluster.local")
    assert read.allowed_hosts == tuple(name + rest for rest in inside)
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels == deployment["spec"]["selector"]["matchLabels"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": read.port, "grpc": read.grpc_port, "probes": read.probe_port}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == {"http", "grpc"}
    for kind, path in (("startup", "readyz"), ("readiness", "readyz"), ("liveness", "healthz")):
        assert container[f"{kind}Probe"]["httpGet"] == {"path": f"/{path}", "port": "probes"}
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > read.load_seconds
    before = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > before + read.drain_seconds


def test_a_pod_has_no_rights(kubernetes):
    pod = kubernetes["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["requests"]["memory"]


def read_by_ray(config):
    """The only application and its deployment, checked by Ray's schema where Ray is installed."""
    with contextlib.suppress(ImportError):
        importlib.import_module("ray.serve.schema").ServeDeploySchema.model_validate(config)
    (application,) = config["applications"]
    (deployment,) = application["deployments"]
    assert application["import_path"] == "serving.deploy.ray_app:app"
    assert (ROOT / "serving" / "deploy" / "ray_app.py").exists()
    assert set(application["args"]) <= {"models", "rollout", *Settings.__dataclass_fields__}
    return application, deployment


def test_ray_reads_its_files_and_gives_replicas_their_time():
    config = yaml.safe_load((FILES / "ray.yaml").read_text())
    _, deployment = read_by_ray(config)
    assert config["http_options"]["port"] == Settings().port
    assert deployment["graceful_shutdown_timeout_s"] > Settings().drain_seconds
    service = yaml.safe_load((FILES / "rayservice.yaml").read_text())
    assert service["kind"] == "RayService" and service["apiVersion"] == "ray.io/v1"
    _, in_cluster = read_by_ray(yaml.safe_load(service["spec"]["serveConfigV2"]))
    assert in_cluster.items() <= deployment.items()
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token"}
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["maxReplicas"] == workers["replicas"] + 1  # one more for a redeploy
    said = (FILES / "ray.yaml").read_text()
    for group in (cluster["headGroupSpec"], workers):
        pod = group["template"]["spec"]
        variables = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
        assert variables.pop("ONEPASS_TOKEN") is None
        assert all(f"{name}=" in said for name in variables)
        assert pod["terminationGracePeriodSeconds"] >= deployment["graceful_shutdown_timeout_s"]


@pytest.mark.parametrize(
    "value",
    [
        {"a": {"b": [1, 2.5, None, True, "x"], "c": {}}, "d": [], "e": ""},
        {"words": ["yes", "off", "null", "1", "1.5", "- x", "a: b", "#", "ü", "0x1", "~", "1e3"]},
        {"text": "one\n  two\n\nthree\n", "list": [{"a": 1, "b": [{"c": 2}]}, [1, [2]]]},
        {"y": 1, "key with: colon": {"1": "NaN", "x": ".inf"}, "z": "2026-01-01", "s": "a #b"},
    ],
)
def test_what_is_written_as_yaml_is_read_as_it_was(value):
    assert yaml.safe_load(yaml_text(value)) == value


@pytest.mark.slow
def test_rows_padded_with_their_first_value_as_tensorflow_serving_pads_are_the_rows_alone():
    sound_bundles = pytest.importorskip("sound_bundles")
    made = sound_bundles.bundle("draft")
    counts = [37, 60, 11]
    channels = made.signatures["serving_default"].inputs["frames"].shape[2]
    drawn = np.random.default_rng(1).random([len(counts), max(counts), channels], np.float32)
    spoken = []
    for fill in (0.0, drawn[:, :1, :1]):
        frames = np.broadcast_to(fill, drawn.shape).astype(np.float32)
        for n, count in enumerate(counts):
            frames[n, :count] = drawn[n, :count]
        inputs = {"frames": frames, "num_frames": counts, "seed": [1, 2, 3], "row": [0] * 3}
        checked = made.check("serving_default", inputs)
        spoken.append(made.call("serving_default", checked)["sound"])
    assert np.abs(spoken[0]).max() > 0.01
    np.testing.assert_allclose(*spoken, atol=1 / 2**15)
