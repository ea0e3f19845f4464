"""The files that run a server on a machine are what their programs, and the command, can read."""

import configparser
import contextlib
import http.client
import importlib
import json
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from fake_bundle import FakeModelStore
from google.protobuf import text_format
from serve_command import Command
from serve_load import INFER

from onepass.command.arguments import parse
from serving.command import ServeArguments
from serving.observability import Metrics
from serving.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "docs" / "deploy"
PAGES = ("serving_deployment.md", "launch.md")
METRICS = "/monitoring/prometheus/metrics"
TOKEN = "a-token-of-some-length"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
TESTED = "X-Tested-Address"  # that a client at 127.0.0.1 has, for nginx
SLOW = json.dumps({"frames": [[0.5] * 3] * 600, "format": "l16"})  # minutes of work
STALLED = "POST /v2/models/voice/infer HTTP/1.1\r\nHost: models.example\r\n"
STALLED += f"Authorization: Bearer {TOKEN}\r\n"
RECEIVED = 'onepass_bytes_total{direction="received",protocol="v2"}'
DOCKER = '#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n'


def served(words):
    """The arguments of `onepass serve`, read as the command reads them."""
    assert words[0] == "serve"
    return parse(ServeArguments, words[1:], "onepass serve")


def test_the_container_runs_the_command_as_a_user_without_rights():
    text = (ROOT / "Containerfile").read_text()
    steps = re.findall(r"^([A-Z]+) ((?:.*\\\n)*.*)$", text, re.M)
    last = max(n for n, (word, _) in enumerate(steps) if word == "FROM")
    final = dict(steps[last:])
    assert int(final["USER"]) > 0 and "apt-get install" in final["RUN"]
    assert not re.search(r"gcc|g\+\+|build-essential", text)
    given = served(json.loads(final["CMD"]))
    ports = {given.port, given.grpc_port, given.probe_port}
    assert ports == set(map(int, final["EXPOSE"].split()))
    assert json.loads(final["ENTRYPOINT"]) == ["onepass"]


@pytest.mark.integration
def test_compose_starts_the_same_container_read_only_and_reads_its_metrics():
    compose = yaml.safe_load((FILES / "compose.yaml").read_text())
    server = compose["services"]["onepass"]
    given = served(server["command"])
    assert (FILES / server["build"]["context"] / server["build"]["dockerfile"]).resolve().exists()
    assert server["read_only"] and server["cap_drop"] == ["ALL"] and int(server["user"]) > 0
    assert str(given.token_file) == f"/run/secrets/{server['secrets'][0]}"
    assert int(server["stop_grace_period"][:-1]) > given.drain_seconds
    assert int(server["healthcheck"]["start_period"][:-1]) >= given.load_seconds
    assert f":{given.probe_port}/readyz" in server["healthcheck"]["test"][-1]
    assert all(port.startswith("127.0.0.1:") for port in server["ports"])
    for name, service in compose["services"].items():
        assert "build" in service or re.search(r":v?\d+\.\d+\.\d+$", service["image"]), name
        used = {config["source"] for config in service.get("configs", ())}
        assert used <= set(compose["configs"])
    (scraped,) = yaml.safe_load(compose["configs"]["prometheus"]["content"])["scrape_configs"]
    assert scraped["static_configs"][0]["targets"] == [f"onepass:{given.probe_port}"]
    assert scraped["metrics_path"] == METRICS
    for name in ("datasource", "provider"):
        assert yaml.safe_load(compose["configs"][name]["content"])["apiVersion"] == 1
    assert (FILES / compose["configs"]["dashboard"]["file"]).exists()


@pytest.mark.integration
def test_the_dashboard_asks_for_metrics_and_labels_that_there_are():
    labels = {
        name: set(getattr(collector, "_labelnames", ()))
        for collector, names in Metrics().registry._collector_to_names.items()
        for name in names
    }
    panels = json.loads((FILES / "dashboard.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(asked) >= 8
    for expression in asked:
        (name,) = re.findall(r"onepass_\w+", expression)
        assert name in labels, name
        by = re.search(r"by \(([^)]*)\)", expression)
        wanted = set(by[1].replace(" ", "").split(",")) - {"le"} if by else set()
        assert wanted <= labels[name], expression


@pytest.mark.integration
def test_the_unit_of_systemd_starts_the_command_without_rights():
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str
    unit.read(FILES / "onepass.service")
    service = unit["Service"]
    given = served(shlex.split(service["ExecStart"])[1:])
    assert str(given.token_file) == "${CREDENTIALS_DIRECTORY}/token"
    assert service["LoadCredential"].startswith("token:") and service["DynamicUser"] == "yes"
    assert int(service["TimeoutStopSec"]) > given.drain_seconds
    if shutil.which("systemd-analyze"):
        words = ["systemd-analyze", "verify", str(FILES / "onepass.service")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        said = [line for line in done.stderr.splitlines() if "onepass" in line]
        assert all("is not executable" in line for line in said), said


@pytest.mark.integration
def test_the_file_of_caddy_names_the_ports_and_is_read_by_caddy():
    text = (FILES / "Caddyfile").read_text()
    for address in (f" 127.0.0.1:{Settings().port} ", f"h2c://127.0.0.1:{Settings().grpc_port}\n"):
        assert address in text
    if shutil.which("caddy"):
        words = ["caddy", "adapt", "--config", str(FILES / "Caddyfile")]
        assert subprocess.run(words, capture_output=True, timeout=60, check=False).returncode == 0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    store = FakeModelStore(tmp_path_factory.mktemp("machine") / "models")
    store.root.mkdir()
    store.add("voice")
    store.add("endless", endless=True)
    store.add("slow", chunk_seconds=0.2)
    options = ("--probe-port", 0, "--max-streams", 20, "--allowed-hosts", "models.example")
    environment = {"ONEPASS_TOKEN": TOKEN}
    with Command(store, *options, environment=environment) as command:
        yield command


@pytest.mark.integration
def test_probes_need_no_token_at_their_own_port_and_find_nothing_else_there(server):
    def asked(path):
        with contextlib.closing(http.client.HTTPConnection(server.probe_address)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    assert asked("/healthz")[0] == 200
    assert asked("/readyz") == (200, '{"status":"ready"}')
    assert "onepass_requests" in asked(METRICS)[1]
    for path in ("/v1/models", "/v2/models/voice", "/", "/openapi.json"):
        assert asked(path)[0] == 404
    assert server.asked("GET", "/readyz")[0] == 401
    assert server.asked("GET", METRICS)[0] == 401


@pytest.fixture(scope="module")
def proxy(server, tmp_path_factory):
    """The port at which nginx has TLS, with the file of the documentation."""
    if not shutil.which("nginx"):
        pytest.skip("nginx is not installed")
    folder = tmp_path_factory.mktemp("nginx")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as two:
        port, plain_port = one.getsockname()[1], two.getsockname()[1]
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    words += ["-subj", "/CN=models.example", "-addext", "subjectAltName=DNS:models.example"]
    words += ["-keyout", "models.example.key", "-out", "models.example.pem"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    text = (FILES / "nginx.conf").read_text().replace("/etc/ssl", str(folder))
    text = text.replace("listen 443", f"listen 127.0.0.1:{port}")
    text = text.replace("rate=20r/s", "rate=1r/m")  # so that no busy machine is too slow for it
    text = re.sub(r"client_(header|body)_timeout 10s", r"client_\1_timeout 1s", text)
    text = text.replace("127.0.0.1:8501", f"127.0.0.1:{server.port}")
    text = text.replace("127.0.0.1:8500", server.grpc_address)
    text += f"server {{ listen 127.0.0.1:{plain_port};\n"
    text += f"location / {{ proxy_pass http://127.0.0.1:{server.port}; }} }}\n"
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "all.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/log; events {{}}\n"
        f"http {{ access_log off; set_real_ip_from 127.0.0.1; real_ip_header {TESTED};\n"
        f"{paths}{text} }}"
    )
    process = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "all.conf")])
    try:
        yield port, plain_port, folder / "models.example.pem"
    finally:
        process.terminate()
        process.wait(20)


def connected(port, source):
    """A socket to nginx, once it is there."""
    end = time.monotonic() + 20
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), 20, source_address=(source, 0))
        assert time.monotonic() < end
        time.sleep(0.02)


def encrypted(proxy, source):
    """A socket to nginx, over TLS."""
    port, _, certificate = proxy
    context = ssl.create_default_context(cafile=certificate)
    return context.wrap_socket(connected(port, source), server_hostname="models.example")


def through(proxy, method, path, body=None, tls=True, source="127.0.0.2", **headers):
    """An answer by way of the proxy, while it comes."""
    _, plain_port, _ = proxy
    connection = http.client.HTTPConnection("models.example", timeout=20)
    connection.sock = encrypted(proxy, source) if tls else connected(plain_port, source)
    headers = {"Host": "models.example", **BEARER, **headers}
    connection.request(method, path, body, headers)
    return connection, connection.getresponse()


def status_of(*given, **rest):
    connection, answer = through(*given, **rest)
    with contextlib.closing(connection):
        return answer.status


@pytest.mark.integration
def test_nginx_passes_on_requests_pages_and_refusals(proxy):
    infer, own = "/v2/models/voice/infer", {"Origin": "https://models.example"}
    for given, status in ((own, 200), ({"Origin": "https://evil.example"}, 403), ({}, 200)):
        assert status_of(proxy, "POST", infer, INFER, **given) == status
    assert status_of(proxy, "POST", infer, INFER, Authorization="Bearer wrong") == 401
    assert status_of(proxy, "POST", infer, b"x" * (17 * 2**20)) == 413
    for site, status in (("models.example", 200), ("evil.example", 403)):  # by proxy_pass alone
        origin = {"Origin": f"https://{site}"}
        assert status_of(proxy, "POST", infer, INFER, tls=False, **origin) == status


@pytest.mark.integration
def test_nginx_says_who_asks_whatever_the_client_says(server, proxy):
    named = {"X-Request-ID": "who-asks", "X-Forwarded-For": "10.9.9.9"}
    assert status_of(proxy, "GET", "/v1/models", source="127.0.0.3", **named) == 200
    end = time.monotonic() + 20  # a thread of the server writes the log
    while not (line := re.search(r"^.* request=who-asks .*$", server.process.output(), re.M)):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert "client=127.0.0.3" in line[0]


@pytest.mark.integration
@pytest.mark.parametrize("tls", [True, False])
def test_nginx_passes_on_sound_while_it_is_made(proxy, tls):
    body = json.dumps({"frames": [[0.5] * 3], "format": "l16"})
    connection, answer = through(proxy, "POST", "/v1/models/endless:speak", body, tls)
    assert answer.status == 200
    assert len(answer.read(2**18)) == 2**18  # of a sound that never ends
    connection.close()


def statuses(proxy, count, source, network=None):
    """Return the results of requests from one address, or each from another one of a network."""
    named = [{TESTED: f"{network}{n + 1:x}"} if network else {} for n in range(count)]
    return [status_of(proxy, "GET", "/v1/models", source=source, **each) for each in named]


@pytest.mark.integration
def test_nginx_speaks_tls_alone(proxy):
    port = proxy[0]
    with connected(port, "127.0.0.4") as plain:
        plain.sendall(b"GET /v1/models HTTP/1.1\r\nHost: models.example\r\n\r\n")
        assert plain.recv(100).startswith(b"HTTP/1.1 400")
    with connected(port, "127.0.0.4") as tcp, pytest.raises(ssl.SSLCertVerificationError):
        ssl.create_default_context().wrap_socket(tcp, server_hostname="models.example")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("source", "network", "other"),
    [("127.0.0.5", None, ("127.0.0.6", None)),
     ("127.0.0.1", "2001:db8:0:1::", ("127.0.0.1", "2001:db8:0:2::"))],
)  # fmt: skip
def test_nginx_limits_how_often_an_address_or_a_network_of_a_customer_asks(
    proxy, source, network, other
):
    found = statuses(proxy, 45, source, network)
    assert found[:41] == [200] * 41 and set(found[41:]) == {429}
    assert statuses(proxy, 1, *other) == [200]


@pytest.mark.integration
def test_nginx_ends_clients_that_send_slowly_which_the_server_never_sees(server, proxy):
    before = server.metric(RECEIVED, **BEARER)
    for sent in (STALLED, f"{STALLED}Content-Length: 99\r\n\r\n{{"):
        with encrypted(proxy, "127.0.0.7") as connection:
            connection.sendall(sent.encode())
            while connection.recv(4096):  # it ends
                pass
    after = server.metric(RECEIVED, **BEARER)
    assert after == before


@pytest.mark.slow
def test_nginx_limits_how_many_requests_an_address_has_at_a_time(proxy):
    with contextlib.ExitStack() as stack:
        for _ in range(16):
            listening = through(proxy, "POST", "/v1/models/slow:speak", SLOW, source="127.0.0.8")
            stack.enter_context(contextlib.closing(listening[0]))
            assert listening[1].status == 200
        assert statuses(proxy, 1, "127.0.0.8") == [429]
        assert statuses(proxy, 1, "127.0.0.6") == [200]


def test_the_documentation_names_every_file():
    text = "".join((ROOT / "docs" / page).read_text() for page in PAGES)
    assert not [
        name for name in (*FILES.iterdir(), ROOT / "Containerfile") if name.name not in text
    ]


@pytest.mark.integration
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
    for kind in ("Service", "Deployment"):
        validate.validate(kubernetes[kind], validate.latest_version(), strict=True)


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
    assert container["command"][0] == "onepass"
    read = served(container["command"][1:])
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
    assert application["import_path"] == "serving.ray_app:app"
    assert (ROOT / "serving" / "ray_app.py").exists()
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


@pytest.mark.slow
def test_rows_padded_with_their_first_value_as_tensorflow_serving_pads_are_the_rows_alone():
    made, counts = pytest.importorskip("sound_bundles").bundle("plain"), [37, 60, 11]
    channels = made.signatures["serving_default"].inputs["frames"].shape[2]
    drawn = np.random.default_rng(1).random([len(counts), max(counts), channels], np.float32)
    is_given, spoken = np.arange(max(counts))[:, None] < np.array(counts)[:, None, None], []
    for fill in (0.0, drawn[:, :1, :1]):
        frames = np.where(is_given, drawn, fill).astype(np.float32)
        inputs = {"frames": frames, "num_frames": counts, "seed": [1, 2, 3], "row": [0] * 3}
        checked = made.check("serving_default", inputs)
        spoken.append(made.call("serving_default", checked)["sound"])
    assert np.abs(spoken[0]).max() > 0.01
    np.testing.assert_allclose(*spoken, atol=1 / 2**15)
