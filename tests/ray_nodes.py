"""Ray on two nodes, each in a network namespace of its own, one of which is killed under load.

    python ray_nodes.py MODELS FOLDER

Writes FOLDER/results.json: what was seen, which a test checks.
"""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ray_clients import REPLICA, ask, load, predict_body, rate, replicas, statuses, wait_until
from ray_scenarios import PORT, SCRIPT

from serving.deploy.ray_settings import RaySettings, environment

HEAD, OTHER = "10.9.0.1", "10.9.0.2"
GCS_PORT = 6379
SECONDS = 120
DEPLOY = ("--ray", "--ray-address", f"{HEAD}:{GCS_PORT}", "--ray-replicas", "2", "--ray-cpus", "1")
PREDICT = ("POST", "/v1/models/voice:predict", predict_body())


def ran(*words):
    """Runs a command to its end, what it says among our own."""
    subprocess.run(words, timeout=SECONDS, check=True)


def second_machine():
    """A process whose network namespace is the second machine's, with a cable to this one."""
    place = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    own = os.readlink("/proc/self/ns/net")
    wait_until(lambda: namespace(place.pid) not in (own, None), 10, "a namespace")
    inside = ("nsenter", "-t", str(place.pid), "-n")
    ran("ip", "link", "add", "here", "type", "veth", "peer", "name", "there")
    ran("ip", "link", "set", "there", "netns", str(place.pid))
    ran("ip", "addr", "add", f"{HEAD}/24", "dev", "here")
    ran("ip", "link", "set", "here", "up")
    ran(*inside, "ip", "addr", "add", f"{OTHER}/24", "dev", "there")
    for name in ("there", "lo"):
        ran(*inside, "ip", "link", "set", name, "up")
    return place


def namespace(process):
    """The network namespace of a process; None of one that has gone."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{process}/ns/net")


def start_node(address, *words, before=()):
    """`ray start`, of one processor."""
    ray = Path(sys.executable).with_name("ray")
    line = (ray, "start", f"--node-ip-address={address}", "--num-cpus=1", *words)
    memory = ("--object-store-memory=100000000", "--disable-usage-stats")
    ran(*before, *map(str, (*line, *memory)))


def join(place):
    """The second machine becomes a node of the cluster."""
    inside = ("nsenter", "-t", str(place.pid), "-n")
    start_node(OTHER, f"--address={HEAD}:{GCS_PORT}", before=inside)


def of_node(place):
    """The processes of the second machine."""
    there = namespace(place.pid)
    found = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdecimal()]
    return [process for process in found if process != place.pid and namespace(process) == there]


def kill(processes):
    """Kills them all."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def failed_node(fail):
    """What clients see when the second machine fails."""
    with load(PORT, ["slow"] * 3 + ["voice"] * 3) as answers:
        time.sleep(3.0)
        failed_at = time.time()
        fail()
        failed_by = time.time()
        time.sleep(8.0)
    bad = [answer for answer in answers if answer.status != 200]
    ends = [a.time + a.seconds - failed_at for a in answers if a.status == 200]
    later = [a.seconds for a in answers if a.time > failed_at and a.status == 200]
    return {
        "clients": 6,
        "before": sum(end < 0 for end in ends),
        "after": len(later),
        "slowest_after_seconds": max(later),
        "statuses": statuses(answers),
        "in_hand": sum(a.time <= failed_by + 0.05 and a.time + a.seconds >= failed_at for a in bad),
        "last_bad_seconds": max((a.time + a.seconds - failed_at for a in bad), default=0.0),
    }


def main(models, folder):
    os.environ.update(environment(RaySettings()))
    place = second_machine()
    start_node(HEAD, "--head", f"--port={GCS_PORT}", "--include-dashboard=false")
    join(place)
    words = ("--port", PORT, "--drain-seconds", "5", "--poll-seconds", "0.2")
    ran(*map(str, (sys.executable, SCRIPT, models, *DEPLOY, *words)))
    wait_until(lambda: ask(PORT, *PREDICT)[0] == 200, SECONDS, "an answer")
    there = [process for process in replicas() if process in of_node(place)]
    results = {"replicas": len(replicas()), "there": len(there), "name": REPLICA}
    results["rate"] = rate(PORT, "voice")
    results["killed"] = failed_node(functools.partial(kill, of_node(place)))
    results["left"] = len(replicas())
    results["rate_left"] = rate(PORT, "voice")
    start = time.time()
    join(place)
    wait_until(lambda: len(replicas()) == 2, SECONDS, "the second replica")
    results["back_seconds"] = time.time() - start
    results["rate_back"] = rate(PORT, "voice")
    results["cut"] = failed_node(lambda: ran("ip", "link", "set", "here", "down"))
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
