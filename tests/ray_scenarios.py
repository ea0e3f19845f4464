"""What happens to a server on Ray, in a network namespace that has loopback alone.

    python ray_scenarios.py MODELS FOLDER [BUNDLE]

Writes FOLDER/results.json: of every scenario what was seen, which the tests check.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from ray_clients import (
    HEADERS,
    Client,
    ask,
    end,
    frames,
    load,
    predict_body,
    rate,
    replicas,
    statuses,
    wait_until,
)

PORT = 8000
SCRIPT = Path(__file__).with_name("ray_process.py")
ON_RAY = ("--ray", "--ray-replicas", "2", "--ray-cpus", "0.5", "--port", str(PORT))
TIMES = ("--drain-seconds", "5", "--ray-deregister-seconds", "2", "--poll-seconds", "0.2")
START_SECONDS = 90
LOAD_SECONDS = 150


class Server:
    """`onepass serve` as a process; `said` is what matched its ready line."""

    def __init__(self, models, log, ready, *words):
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(models), *words],
            stdin=subprocess.DEVNULL,
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
        )
        self.seconds = wait_until(lambda: self._is_ready(ready), START_SECONDS, ready)

    def _is_ready(self, ready):
        text = self.log.read_text(errors="replace")
        if self.process.poll() is not None:
            raise RuntimeError(f"status {self.process.returncode}:\n{text[-3000:]}")
        self.said = re.search(ready, text, re.M)
        return self.said


def redeploy(models, log, *words):
    """Runs the command that deploys to the cluster again; its exit status."""
    with log.open("wb") as output:
        return subprocess.run(
            [sys.executable, str(SCRIPT), str(models), *ON_RAY, *TIMES, *words],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=120,
            check=False,
        ).returncode


def same_answers(own):
    """Of each request whether Ray's answer is the own server's."""
    speak = json.dumps({"frames": frames(40), "seed": 5, "format": "l16"})
    draw = json.dumps({"class": "class 3", "seed": 4, "num": 2})
    requests = {
        "predict": ("POST", "/v1/models/voice:predict", predict_body(11, 9)),
        "speak": ("POST", "/v1/models/stream:speak", speak),
        "draw": ("POST", "/v1/models/shapes:draw", draw),
        "wrong": ("POST", "/v1/models/voice:predict", predict_body("x")),
        "missing": ("POST", "/v1/models/nobody:predict", predict_body()),
        "page": ("GET", "/", None),
        "v2": ("GET", "/v2/models/voice", None),
    }
    seen = {}
    for name, request in requests.items():
        ours, theirs = ask(own, *request), ask(PORT, *request)
        seen[name] = {
            "status": theirs[0],
            "is_same": (ours[0], ours[2]) == (theirs[0], theirs[2]),
            "bytes": len(theirs[2]),
        }
    return seen


def who_may_come_in():
    """Statuses without a token, at the balancer and at the replicas themselves."""
    ports = [PORT, *range(30000, 30002)]
    return {
        "without": [ask(port, "GET", "/v1/models", headers={})[0] for port in ports],
        "with": [ask(port, "GET", "/v1/models")[0] for port in ports],
        "alive": ask(PORT, "GET", "/healthz", headers={})[0],
        "other host": ask(PORT, "GET", "/v1/models", headers={**HEADERS, "Host": "evil.org"})[0],
        "request id": ask(PORT, "GET", "/readyz", headers={**HEADERS, "X-Request-ID": "mine-1"})[1][
            "x-request-id"
        ],
    }


def streamed():
    """Seconds until the first bytes of a sound, and until its last."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=20)
    start = time.time()
    body = json.dumps({"frames": frames(80), "format": "l16"})
    connection.request("POST", "/v1/models/stream:speak", body, HEADERS)
    answer = connection.getresponse()
    first = answer.read1()
    first_seconds = time.time() - start
    rest = answer.read()
    connection.close()
    return {
        "status": answer.status,
        "first_seconds": first_seconds,
        "seconds": time.time() - start,
        "bytes": len(first) + len(rest),
    }


def killed():
    """What clients see when a replica is killed, and how long until there is another one."""
    before = replicas()
    with load(PORT, ["slow"] * 3 + ["voice"] * 3) as answers:
        time.sleep(1.5)
        killed_at = time.time()
        os.kill(before[0], signal.SIGKILL)
        seconds = wait_until(lambda: len(set(replicas()) - set(before)) == 1, 90, "a new replica")
        time.sleep(4.0)
    bad = [answer for answer in answers if answer.status != 200]
    return {
        "clients": 6,
        "before": sum(answer.time + answer.seconds < killed_at for answer in answers),
        "statuses": statuses(answers),
        "in_hand": sum(a.time <= killed_at + 0.05 and a.time + a.seconds >= killed_at for a in bad),
        "recovered_seconds": seconds,
        "last_bad_seconds": max((a.time + a.seconds - killed_at for a in bad), default=0.0),
    }


def rolled_out(models, log):
    """What clients see while every replica is replaced."""
    before = replicas()
    with load(PORT, ["slow"] * 3 + ["voice"] * 3) as answers:
        time.sleep(0.5)
        start = time.time()
        status = redeploy(models, log, "--ray-address", "auto")
        wait_until(lambda: not set(replicas()) & set(before), 60, "the old replicas gone")
        seconds = time.time() - start
        time.sleep(1.0)
    return {
        "exit": status,
        "statuses": statuses(answers),
        "seconds": seconds,
        "replicas": len(replicas()),
        "kept": len(set(before) & set(replicas())),
    }


def pressed(models, log):
    """Statuses when more is asked than may wait."""
    words = ("--ray-address", "auto")
    limits = ("--ray-ongoing-requests", "2", "--ray-queued-requests", "2")
    status = redeploy(models, log, *words, *limits)
    time.sleep(1.0)
    clients = [Client(PORT, "slow", times=3) for _ in range(16)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(60)
    answers = [answer for client in clients for answer in client.answers]
    refused = [answer for answer in answers if answer.status == 503]
    return {
        "exit": status,
        "statuses": statuses(answers),
        "retry_after": sorted({answer.retry_after for answer in refused}),
        "slowest_refusal_seconds": max((a.seconds for a in refused), default=0.0),
    }


def exported(models, bundle, own):
    """A real bundle that comes meanwhile: Ray's answer and the own server's."""
    shutil.copytree(bundle, models / ".coming")
    (models / "digits").mkdir()
    (models / ".coming").rename(models / "digits" / "1")
    body = json.dumps({"instances": [{"seed": 7, "label": 3}]})
    request = ("POST", "/v1/models/digits:predict", body)
    waited = [
        wait_until(lambda: ask(own, *request)[0] == 200, LOAD_SECONDS, "digits here"),
        wait_until(lambda: everywhere(request), LOAD_SECONDS, "digits on Ray"),
    ]
    ours, theirs = ask(own, *request), ask(PORT, *request)
    is_same = json.loads(ours[2]) == json.loads(theirs[2])  # the fields come in any order
    return {"status": theirs[0], "is_same": is_same, "waited_seconds": waited}


def everywhere(request):
    """Whether every replica answers, as far as the balancer shows them all in ten requests."""
    return all(ask(PORT, *request)[0] == 200 for _ in range(10))


def left(server):
    """What clients see when the command gets SIGTERM, and its exit status.

    early: of those that had asked. late: of those that go on asking.
    """
    clients = [Client(PORT, "slow", times=1) for _ in range(3)]
    with load(PORT, ["voice"] * 2) as answers:
        time.sleep(0.5)
        for client in clients:
            client.start()
        time.sleep(0.1)
        signalled_at = time.time()
        status = end(server.process, signal.SIGTERM, 60)
        for client in clients:
            client.join(10)
    return {
        "exit": status,
        "early": statuses([answer for client in clients for answer in client.answers]),
        "late": statuses([answer for answer in answers if answer.time > signalled_at]),
        "replicas": len(replicas()),
    }


def main(models, folder, bundle=None):
    results = {}
    own = Server(
        models,
        folder / "own.log",
        r"http://[^ ]*:(\d+)$",
        *("--no-sandbox", "--port", "0", "--grpc-port", "-1"),  # the fake ones are of its process
        *("--poll-seconds", "0.2", "--log-level", "warning"),
    )
    port = int(own.said[1])
    wait_until(lambda: ask(port, "GET", "/readyz")[0] == 200, LOAD_SECONDS, "its models")
    words = (*ON_RAY, *TIMES, "--log-level", "warning")
    server = Server(models, folder / "ray.log", r"^serving .* on Ray at http://(\S+),", *words)
    results["start"] = {"seconds": server.seconds}
    scenarios = {
        "same": lambda: same_answers(port),
        "access": who_may_come_in,
        "stream": streamed,
        "rate": lambda: {"own": rate(port, "voice"), "ray": rate(PORT, "voice")},
        "killed": killed,
        "rollout": lambda: rolled_out(models, folder / "rollout.log"),
        "pressed": lambda: pressed(models, folder / "pressed.log"),
        "exported": lambda: exported(models, bundle, port) if bundle else None,
        "left": lambda: left(server),
    }
    for name, scenario in scenarios.items():
        start = time.time()
        try:
            results[name] = scenario()
        except Exception as error:
            results[name] = {"failed": repr(error)}
        print(f"{name}: {time.time() - start:.1f} s {results[name]}", flush=True)
        (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    results["own exit"] = end(own.process, signal.SIGTERM, 20)
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
