"""The application that a Serve config file names; run where Ray is installed."""

import json
import os
import subprocess
import sys
import tempfile

import pytest
from processes import ROOT

from onepass.foundation.rules import UserError

ray_app = pytest.importorskip("serving.ray_app", reason="Ray is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # Ray takes its time
NAMESPACE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
LOOPBACK = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "`models` must be the path of a folder, got None"),
        ({"models": "/m", "replicas": 2}, "There is no setting `replicas`"),
        ({"models": "/m", "max_rows": "2"}, '`max_rows` must be an integer, got "2"'),
        ({"models": "/m", "log_format": "xml"}, "`log_format` must be one of json, text"),
        ({"models": "/m", "allowed_hosts": "a"}, "`allowed_hosts` must be a list"),
    ],
)
def test_a_config_file_that_cannot_be_is_refused_by_name(arguments, said):
    with pytest.raises(UserError) as raised:
        ray_app.from_arguments(arguments)
    assert said in str(raised.value)


def test_a_config_file_builds_the_application():
    built = ray_app.app({"models": "/m", "rollout": "2", "queue_rows": 7})
    assert built._bound_deployment.name == ray_app.NAME
    models, settings = ray_app.from_arguments({"models": "/m", "queue_rows": 7})
    assert models == "/m" and settings.queue_rows == 7 and not settings.is_loopback


def test_a_replica_answers_whoever_has_the_token():
    """Ray listens on every interface, so that it gets a network that has loopback alone."""
    if subprocess.run([*NAMESPACE, *LOOPBACK, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a network namespace cannot be made here")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests"), *sys.path]),
        "ONEPASS_TOKEN": "a-token-of-enough-letters",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    # Not the folder of pytest: the path of a socket may have 97 characters.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        environment["RAY_TMPDIR"] = folder
        words = [sys.executable, str(ROOT / "tests" / "ray_replica.py"), folder]
        done = subprocess.run(
            [*NAMESPACE, *LOOPBACK, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [200, 401, 404]
