import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from fake_bundle import FakeModelStore
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

import onepass
from replicator.launch.yaml_text import yaml_text
from serving.deploy import ray_settings
from serving.deploy.ray_settings import RaySettings
from serving.deploy.tensorflow_serving import batching_parameters
from serving.settings import Settings

DOCKER = '#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n'


@pytest.fixture(autouse=True)
def without_tensorflow(monkeypatch):
    monkeypatch.setattr(onepass.command, "_import_tensorflow_quietly", lambda: None)


@pytest.fixture
def models(tmp_path):
    """Bundles `voice`, of lengths and batches to 8, and `shapes`, of batches to 4."""
    store = FakeModelStore(tmp_path / "the models")
    said = {
        "voice": {"allowed_batches": [1, 2, 8, 4], "padded": {"frames": {"buckets": [8]}}},
        "shapes": {"allowed_batches": [1, 2, 4]},
    }
    for name, serving in said.items():
        for version in (1, 3):
            store.add(name, version)
            path = store.root / name / str(version) / "model.json"
            path.write_text(json.dumps({"serving": serving if version == 3 else {}}))
    return store.root


@pytest.fixture
def printed(capsys):
    def printed(*words):
        capsys.readouterr()
        assert onepass.main(["serve", *map(str, words)]) == 0
        return capsys.readouterr().out

    return printed


def messages():
    """The messages of TensorFlow Serving's text files whose stubs are not on the registries.

    From tensorflow_serving/servables/tensorflow/session_bundle_config.proto and
    tensorflow_serving/config/monitoring_config.proto.
    """
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="serving_files.proto", syntax="proto3")
    file.dependency.append("google/protobuf/wrappers.proto")

    def message(name, **fields):
        made = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), 1):
            added = made.field.add(name=field, number=number, label=kinds.LABEL_OPTIONAL)
            if isinstance(kind, str):
                added.type, added.type_name = kinds.TYPE_MESSAGE, kind
            else:
                added.type = abs(kind)
                added.label = kinds.LABEL_REPEATED if kind < 0 else kinds.LABEL_OPTIONAL

    number = ".google.protobuf.Int64Value"
    message(
        "BatchingParameters",
        max_batch_size=number,
        batch_timeout_micros=number,
        max_enqueued_batches=number,
        num_batch_threads=number,
        thread_pool_name=".google.protobuf.StringValue",
        allowed_batch_sizes=-kinds.TYPE_INT64,
        pad_variable_length_inputs=kinds.TYPE_BOOL,
    )
    message("PrometheusConfig", enable=kinds.TYPE_BOOL, path=kinds.TYPE_STRING)
    message("MonitoringConfig", prometheus_config=".PrometheusConfig")
    from google.protobuf import wrappers_pb2

    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
        for name in ("BatchingParameters", "MonitoringConfig")
    }


def run_script(tmp_path, script):
    """What docker would have been asked, and the folder of the files."""
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin" / "docker"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    (tmp_path / "serve.sh").write_text(script)
    words = ["sh", "serve.sh", "my files"]
    environment = {"PATH": f"{docker.parent}:/usr/bin:/bin"}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, timeout=20, check=True
    )
    return done.stdout.decode().splitlines(), tmp_path / "my files"


def test_the_script_for_tensorflow_serving_writes_files_that_it_can_read(models, printed, tmp_path):
    pytest.importorskip("tensorflow_serving", reason="tensorflow-serving-api is not installed")
    from tensorflow_serving.config import model_server_config_pb2

    words, files = run_script(tmp_path, printed(models, "--print", "tensorflow-serving"))
    config = model_server_config_pb2.ModelServerConfig()
    text_format.Parse((files / "models.config").read_text(), config)
    found = {(c.name, c.base_path, c.model_platform) for c in config.model_config_list.config}
    assert found == {(name, f"/models/{name}", "tensorflow") for name in ("voice", "shapes")}
    known = messages()
    batching = text_format.Parse(
        (files / "batching_parameters.txt").read_text(), known["BatchingParameters"]()
    )
    assert list(batching.allowed_batch_sizes) == [1, 2, 4] and batching.max_batch_size.value == 4
    assert batching.batch_timeout_micros.value == 1000
    assert batching.max_enqueued_batches.value == 64
    assert batching.num_batch_threads.value == 1 and batching.pad_variable_length_inputs
    monitoring = text_format.Parse(
        (files / "monitoring.config").read_text(), known["MonitoringConfig"]()
    )
    assert monitoring.prometheus_config.enable
    assert {file.name for file in files.iterdir()} == {
        "models.config",
        "batching_parameters.txt",
        "monitoring.config",
    }
    assert words[:2] == ["run", "--rm"] and "tensorflow/serving" in words
    assert "127.0.0.1:8500:8500" in words and "127.0.0.1:8501:8501" in words
    assert f"{models}:/models:ro" in words and f"{files}:/config:ro" in words
    given = {word.partition("=")[2] for word in words if word.startswith("--") and "/" in word}
    assert given == {f"/config/{file.name}" for file in files.iterdir()}


def test_batching_is_left_out_where_a_model_takes_one_row_alone():
    specs = {"a": {"allowed_batches": [1, 2]}, "b": {"allowed_batches": [1]}}
    assert batching_parameters(specs, Settings()) == ""
    assert "max_batch_size { value: 2 }" in batching_parameters({"a": specs["a"]}, Settings())


def test_a_folder_without_bundles_is_one_line(mistake, tmp_path):
    assert "There is no bundle in" in mistake("serve", tmp_path, "--print", "tensorflow-serving")


def objects_of(printed, *words):
    service, deployment = yaml.safe_load_all(printed("/m", "--print", "kubernetes", *words))
    return service, deployment, deployment["spec"]["template"]["spec"]


def test_the_kubernetes_file_starts_this_server_with_these_settings(printed, monkeypatch):
    words = ["--queue-rows", 7, "--allowed-hosts", "a.example"]
    service, deployment, pod = objects_of(printed, *words, "--image", "a/b:1", "--volume", "c")
    container = pod["containers"][0]
    assert container["image"] == "a/b:1"
    assert container["command"][:2] == ["onepass", "serve"]
    read = onepass.command.parse(RaySettings, container["command"][3:], "test")
    assert read.host == "0.0.0.0" and read.queue_rows == 7
    name = service["metadata"]["name"]
    inside = ("", ".$(NAMESPACE)", ".$(NAMESPACE).svc", ".$(NAMESPACE).svc.cluster.local")
    assert read.allowed_hosts == (*(name + rest for rest in inside), "a.example")
    (variable,) = container["env"]
    assert variable["name"] == "NAMESPACE" and "fieldRef" in variable["valueFrom"]
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert container["command"][2] == "/m"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[mounted["/m"]]["persistentVolumeClaim"]["claimName"] == "c"
    assert volumes[mounted[str(read.token_file)]]["secret"]["secretName"] == name
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels == deployment["spec"]["selector"]["matchLabels"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": read.port, "grpc": read.grpc_port, "probes": read.probe_port}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == {"http", "grpc"}
    asked = {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}
    for kind, path in asked.items():
        assert container[f"{kind}Probe"]["httpGet"] == {"path": path, "port": "probes"}


def test_kubernetes_reads_the_objects_and_knows_every_field(printed):
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is missing")
    service, deployment, _ = objects_of(printed, "--load-seconds", 900, "--max-rows", 8)
    for found in (service, deployment):
        validate.validate(found, validate.latest_version(), strict=True)
    deployment["spec"]["template"]["spec"]["containers"][0]["startupprobe"] = {}
    with pytest.raises(validate.ValidationError):
        validate.validate(deployment, validate.latest_version(), strict=True)


def test_an_image_that_is_not_named_is_that_of_this_version(printed):
    _, _, pod = objects_of(printed)
    assert pod["containers"][0]["image"] == f"onepass:{onepass.__version__}"


def test_kubernetes_gives_a_pod_the_time_to_load_and_no_rights(printed):
    _, _, pod = objects_of(printed, "--load-seconds", 900, "--no-sandbox", "--trust", "/k", "/l")
    container = pod["containers"][0]
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > 900
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["requests"]["memory"]
    read = onepass.command.parse(RaySettings, container["command"][3:], "test")
    assert not read.sandbox and read.trust == ("/k", "/l")


def test_kubernetes_kills_no_pod_before_its_requests_had_their_time(printed):
    _, _, pod = objects_of(printed, "--drain-seconds", 90)
    before = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > before + 90


def test_kubernetes_without_grpc_is_refused(mistake):
    assert "needs `--port` and `--grpc-port`" in mistake(
        "serve", "/m", "--print", "kubernetes", "--grpc-port", -1
    )


def checked_by_ray(config):
    schema = pytest.importorskip("ray.serve.schema", reason="Ray is not installed")
    return schema.ServeDeploySchema.model_validate(config)


def test_ray_reads_its_config_file_and_the_application_its_arguments(printed):
    text = printed("/m", "--print", "ray", "--ray-max-replicas", 4, "--queue-rows", 5)
    config = yaml.safe_load(text)
    schema = checked_by_ray(config)
    application = schema.applications[0]
    models, settings = ray_settings.from_arguments(application.args)
    assert (str(models), settings.queue_rows) == ("/m", 5)
    assert application.import_path == "serving.deploy.ray_app:app"
    deployment = application.deployments[0]
    assert deployment.name == ray_settings.NAME
    assert deployment.autoscaling_config["max_replicas"] == 4
    assert schema.http_options.port == Settings().port
    for name, value in ray_settings.environment(settings).items():
        assert re.search(rf"^#   {name}='?{re.escape(value)}'?$", text, re.M)


def test_kuberay_gets_a_cluster_with_the_variables_and_the_token(printed):
    text = printed("/m", "--print", "kuberay", "--ray-replicas", 2, "--ray-gpus", 1)
    service = yaml.safe_load(text)
    assert service["kind"] == "RayService" and service["apiVersion"] == "ray.io/v1"
    checked_by_ray(yaml.safe_load(service["spec"]["serveConfigV2"]))
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token"}
    workers = cluster["workerGroupSpecs"][0]
    assert workers["replicas"] == 2 and workers["maxReplicas"] == 3  # one more for a redeploy
    for group in (cluster["headGroupSpec"], workers):
        pod = group["template"]["spec"]
        container = pod["containers"][0]
        variables = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert ray_settings.environment(RaySettings()).items() <= variables.items()
        assert "ONEPASS_TOKEN" in variables and variables["ONEPASS_TOKEN"] is None
        assert pod["terminationGracePeriodSeconds"] >= ray_settings.shutdown_seconds(RaySettings())
        assert container["ports"] == [{"name": "serve", "containerPort": 8000}]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"


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


def test_the_documentation_names_what_there_is():
    folder = Path(__file__).resolve().parents[2] / "docs"
    for name in ("ray.md", "tensorflow_serving.md"):
        text = (folder / name).read_text(encoding="utf-8")
        flags = set(re.findall(r"`(--ray[a-z-]*)", text))
        known = {f"--{f.replace('_', '-')}" for f in RaySettings.__dataclass_fields__}
        assert flags <= known, flags - known
        for block in re.findall(r"```yaml\n(.*?)```", text, re.S):
            for document in yaml.safe_load_all(block):
                if "applications" in document:
                    checked_by_ray(document)
                    ray_settings.from_arguments(document["applications"][0]["args"])
                if document.get("kind") == "RayService":
                    checked_by_ray(yaml.safe_load(document["spec"]["serveConfigV2"]))


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
