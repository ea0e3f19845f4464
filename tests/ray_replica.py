"""A replica on Ray Serve over a FakeModelStore, asked with and without the token.

    python ray_replica.py FOLDER

The last line says the status of every answer. To be run where no other machine reaches it.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

import fake_bundle
import ray
from ray import serve

from serving import ray_app

PORT = 8000
PREDICT = json.dumps({"instances": [{"frames": [[0.0] * 3] * 3, "num_frames": 3}]}).encode()


def status(path, body=None, token=True):
    headers = {"Authorization": f"Bearer {os.environ['ONEPASS_TOKEN']}"} if token else {}
    request = urllib.request.Request(f"http://localhost:{PORT}{path}", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def main(folder):
    store = fake_bundle.FakeModelStore(folder / "models")
    store.add("voice")
    ray.init(address="local", include_dashboard=False, object_store_memory=100 * 2**20)
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    given = ray_app.from_arguments({"models": str(store.root), "drain_seconds": 5.0})
    deployed = serve.deployment(name=ray_app.NAME, ray_actor_options={"num_cpus": 0.5})
    replica = deployed(ray_app.Replica).bind(*given, fake_bundle.load_from_disk)
    serve.run(replica, name=ray_app.NAME, route_prefix="/")
    predict = "/v1/models/voice:predict"
    answers = status(predict, PREDICT), status(predict, PREDICT, token=False), status("/nothing")
    serve.delete(ray_app.NAME)
    serve.shutdown()
    ray.shutdown()
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
