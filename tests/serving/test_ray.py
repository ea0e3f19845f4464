"""The application that a Serve config file names; run where Ray is installed."""

import pytest

from replicator.runs.errors import UserError

ray_app = pytest.importorskip("serving.deploy.ray_app", reason="Ray is not installed")
pytestmark = pytest.mark.slow  # Ray takes its time


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
