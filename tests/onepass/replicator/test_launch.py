"""`onepass launch`: one cluster, one output, one end, nothing left behind; other machines."""

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from processes import ROOT, Process, wait_until

import onepass
from onepass.replicator.launch.tf_config import (
    gpu_shares,
    local_tasks,
    task_counts,
    tasks_at,
    with_strategy,
)

pytestmark = pytest.mark.integration

COMMAND = ROOT / "onepass" / "__main__.py"
DEPLOY = ROOT / "docs" / "deploy"
LIMIT_SECONDS = 60  # of each process; they need a second on a machine that is not busy
HEADER = "import json, os, sys; config = json.loads(os.environ['TF_CONFIG'])\nme = config['task']\n"
READY = "os.write(1, b'ready\\n')\n"
SLEEP = READY + "import time; time.sleep(600)\n"
STUBBORN = """import signal
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
"""


def with_word(word):
    """The processes that run with this word in their command line, reapers left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
            state = path.with_name("stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        is_reaper = any(w.endswith("reaper.py") for w in words) or "launch" in words
        if any(word in w for w in words) and state not in "ZX" and not is_reaper:
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def launch(tmp_path):
    """Starts `onepass launch OPTIONS -- python taskN.py`, a file with the program given."""
    started = []

    def launch(program, *options):
        script = tmp_path / f"task{len(started)}.py"
        script.write_text(HEADER + program)
        log = tmp_path / f"launch{len(started)}.log"
        command = [*options, "--", sys.executable, "-S", script]
        started.append(Process(COMMAND, log, "launch", *command))
        return started[-1]

    yield launch
    for process in started:
        process.kill()
    try:
        wait_until(lambda: not with_word(str(tmp_path / "task")))
    finally:
        for left in with_word(str(tmp_path / "task")):
            os.kill(left, signal.SIGKILL)


def ready(process, count):
    wait_until(lambda: process.output().count("ready") == count)


def test_every_task_is_given_the_same_cluster_and_its_own_place(launch, tmp_path):
    program = "print(json.dumps(config), flush=True)"
    process = launch(program, "--workers", "3", "--log-dir", tmp_path)
    assert process.ended(LIMIT_SECONDS) == 0
    lines = dict(line[1:].split("] ") for line in process.output().splitlines())
    configs = {name: json.loads(text) for name, text in lines.items()}
    addresses = configs["worker 0"]["cluster"]["worker"]
    assert len(set(addresses)) == 3
    assert configs == {
        f"worker {i}": {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}}
        for i in range(3)
    }
    assert (tmp_path / "worker-2.log").read_text() == lines["worker 2"] + "\n"


def test_lines_are_never_torn(launch):
    program = """
for i in range(300):
    for part in (str(me["index"]) * 500, str(me["index"]) * 500 + "\\n"):
        sys.stdout.write(part)
        sys.stdout.flush()
sys.stderr.write("no end")
"""
    process = launch(program, "--workers", "3")
    assert process.ended(LIMIT_SECONDS) == 0
    wanted = [
        f"[worker {i}] {line}" for i in range(3) for line in [str(i) * 1000] * 300 + ["no end"]
    ]
    assert sorted(process.output().splitlines()) == sorted(wanted)


@pytest.mark.parametrize(
    ("program", "seconds", "status", "said"),
    [
        (
            f"if me['index'] == 1: sys.exit(7)\n{SLEEP}", 10, 7,
            ["worker 1 exited with status 7; the others are ended within 10 s."],
        ),
        (
            f"{STUBBORN}if me['index'] == 1: os.kill(os.getpid(), 9)\n{SLEEP}", 4, 137,
            [
                "worker 1 was ended by SIGKILL (status 137); the others are ended within 4 s.",
                "worker 0 did not end within 4 s and was killed.",
            ],
        ),
    ],
    ids=["exit", "killed"],
)  # fmt: skip
def test_the_first_failure_ends_all_in_time_and_is_named(launch, program, seconds, status, said):
    process = launch(program, "--grace-seconds", str(seconds))
    assert process.ended(LIMIT_SECONDS) == status
    lines = [line for line in process.output().splitlines() if "launch" in line]
    assert lines == [f"onepass launch: {line}" for line in said]


COUNTED = """
import signal, sys
def note(number, frame):
    os.write(1, signal.Signals(number).name.encode() + b" x\\n")
    time.sleep(1)  # a second signal would come now
    sys.exit(128 + number)
import os, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, note)
os.write(1, b"ready\\n")
time.sleep(600)
"""


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGTERM", 0)])
def test_a_signal_is_handed_on_once_and_waited_for(launch, name, status):
    process = launch(COUNTED if status else COUNTED.replace("128 + number", "0"))
    ready(process, 2)
    process.signal(signal.Signals[name])  # to the whole group, as a terminal does
    assert process.ended(LIMIT_SECONDS) == status
    assert process.output().count(f"{name} x") == 2


def test_patience_with_the_stubborn_ends_after_a_signal_or_with_a_second_ctrl_c(launch):
    one, other = launch(STUBBORN + SLEEP, "--grace-seconds", "1"), launch(STUBBORN + SLEEP)
    ready(one, 2)
    one.signal(signal.SIGTERM)
    ready(other, 2)
    other.signal(signal.SIGINT)
    wait_until(lambda: "SIGINT forwarded" in other.output())
    other.signal(signal.SIGINT)
    assert other.ended(15) == 130
    assert one.ended(LIMIT_SECONDS) == 137
    assert "worker 1 did not end within 1 s and was killed." in one.output()


def test_servers_end_when_the_chief_is_done(launch):
    process = launch(f"{READY}if me['type'] == 'chief': sys.exit(0)\n{SLEEP}", "--servers", "2")
    assert process.ended(LIMIT_SECONDS) == 0
    assert "[chief] ready" in process.output() and "launch" not in process.output()


def test_servers_outlive_a_chief_that_saves(launch):
    process = launch(COUNTED.replace("time.sleep(1)", "time.sleep(2)"), "--servers", "1")
    ready(process, 4)
    process.signal(signal.SIGTERM)
    assert process.ended(LIMIT_SECONDS) == 143
    signalled = [line for line in process.output().splitlines() if " x" in line]
    assert signalled[0] == "[chief] SIGTERM x" and len(signalled) == 4


@pytest.mark.parametrize("index", [0, 1])
def test_a_cluster_starts_again_as_often_as_it_may(launch, tmp_path, index):
    program = f"""
from pathlib import Path
count = Path({str(tmp_path)!r}, f"starts{{me['index']}}")
count.write_text(count.read_text() + "x" if count.exists() else "x")
if me["index"] == {index} and len(count.read_text()) < 3: os.kill(os.getpid(), 9)
if len(count.read_text()) < 3: {SLEEP.splitlines()[1]}
"""
    process = launch(program, "--restarts", "2", "--grace-seconds", "2")
    assert process.ended(LIMIT_SECONDS) == 0
    assert (tmp_path / f"starts{index}").read_text() == "xxx"
    assert "all tasks restart (restart 2 of 2)." in process.output()


def test_restarts_are_counted_and_a_mistake_is_no_reason_for_one(launch):
    killed = launch("os.kill(os.getpid(), 9)", "--workers", "1", "--restarts", "1")
    mistaken = launch("sys.exit(2)", "--workers", "1", "--restarts", "1")
    assert killed.ended(LIMIT_SECONDS) == 137
    assert killed.output().count("restart 1 of 1") == 1
    assert mistaken.ended(LIMIT_SECONDS) == 2
    assert "restart" not in mistaken.output()


def test_a_worker_of_a_chief_starts_again_alone(launch, tmp_path):
    program = f"""
import time
from pathlib import Path
again = Path({str(tmp_path)!r}, "again")
starts = Path({str(tmp_path)!r}, me["type"] + str(me["index"]))
starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
if starts.name == "worker1":
    if len(starts.read_text()) == 1: os.kill(os.getpid(), 9)
    again.touch()
while not again.exists() or me["type"] != "chief": time.sleep(0.01)
"""
    process = launch(program, "--servers", "1", "--restarts", "1")
    assert process.ended(LIMIT_SECONDS) == 0
    said = "worker 1 was ended by SIGKILL (status 137); it restarts (restart 1 of 1)."
    assert said in process.output()
    assert (tmp_path / "worker1").read_text() == "xx"
    assert (tmp_path / "chief0").read_text() == "x"


FAMILY = f"""{STUBBORN}
import subprocess, time
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, "-S", __file__, "child"])
    subprocess.Popen([sys.executable, "-S", __file__, "daemon"], start_new_session=True)
print("ready", flush=True)
"""


def test_nothing_outlives_a_launcher_that_is_killed(launch, tmp_path):
    process = launch(FAMILY + "time.sleep(600)", "--grace-seconds", "1")
    ready(process, 6)
    assert len(with_word(str(tmp_path / "task"))) == 6
    process.signal(signal.SIGKILL)
    process.ended(10)
    wait_until(lambda: not with_word(str(tmp_path / "task")), seconds=15)


def test_a_launcher_that_is_killed_lets_its_tasks_save(launch, tmp_path):
    saved = tmp_path / "saved"
    program = COUNTED.replace("sys.exit(128", f"open({str(saved)!r}, 'a').write('x'); sys.exit(128")
    process = launch(program.replace("os.write(1, sig", "pass  # "))
    ready(process, 2)
    process.signal(signal.SIGKILL)
    process.ended(10)
    wait_until(lambda: saved.exists() and saved.read_text() == "xx")


def test_what_a_command_leaves_running_is_ended(launch, tmp_path):
    program = FAMILY + "if len(sys.argv) > 1: time.sleep(600)\ntime.sleep(2)\n"
    process = launch(program, "--grace-seconds", "1", "--workers", "1")
    ready(process, 3)
    assert process.ended(LIMIT_SECONDS) == 0
    assert with_word(str(tmp_path / "task")) == []


def test_a_task_does_not_outlive_its_guard(launch, tmp_path):
    process = launch(f"print('guard', os.getppid(), flush=True)\n{SLEEP}", "--workers", "1")
    ready(process, 1)
    guard = int(process.output().split("guard ")[1].split()[0])
    os.kill(guard, signal.SIGKILL)
    assert process.ended(LIMIT_SECONDS) == 137
    wait_until(lambda: not with_word(str(tmp_path / "task")), seconds=5)


def test_all_end_when_nobody_listens(tmp_path):
    endless = "import itertools\nfor i in itertools.count(): print(i)"
    command = [sys.executable, str(COMMAND), "launch", "--grace-seconds", "5", "--"]
    reader = subprocess.Popen([*command, sys.executable, "-c", endless], stdout=subprocess.PIPE)
    reader.stdout.readline()
    reader.stdout.close()
    assert reader.wait(LIMIT_SECONDS) == 143


def test_mistakes_are_said_in_one_line(mistake):
    train = ["--", "onepass", "train"]
    assert mistake("launch").startswith("The command must follow ` -- `")
    assert mistake("launch", "--", "nosuch") == "There is no program `nosuch`."
    assert "did you mean --workers" in mistake("launch", "--worker", "2", *train)
    assert mistake("launch", "--workers", "0", *train) == "`--workers` must be at least 1, got 0."
    assert "`--grace-seconds` must be" in mistake("launch", "--grace-seconds", "0", *train)
    assert "`--restarts` must be at least 0" in mistake("launch", "--restarts", "-1", *train)
    hosts = ["launch", "--servers", "1", "--workers", "2", "--hosts"]
    assert "must have 4 addresses" in mistake(*hosts, "a:1,b:2", *train)
    assert "got 'a:x'" in mistake(*hosts, "a:x", *train)


def test_a_training_is_given_its_strategy_unless_it_says_so():
    ours, two, served = ["onepass", "train", "x"], task_counts(2), task_counts(2, 1)
    assert with_strategy(ours, two) == [*ours, "--strategy", "multi_worker"]
    assert with_strategy(ours, served)[-1] == "parameter_server"
    assert with_strategy(["python", "-m", "onepass", "distill"], two)[-1] == "multi_worker"
    for words in (
        [*ours, "--strategy", "auto"],
        [*ours, "--strategy=auto"],
        ["onepass", "sample", "x"],
        ["python", "own.py"],
    ):
        assert with_strategy(words, two) == words


def test_gpus_are_shared_evenly_among_those_who_compute(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7,8")
    shares = [e["CUDA_VISIBLE_DEVICES"] for e in gpu_shares(local_tasks(**task_counts(2, 1)))]
    assert shares == ["", "4,5", "6,7", ""]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    assert {e["CUDA_VISIBLE_DEVICES"] for e in gpu_shares(local_tasks(**task_counts(2)))} == {""}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_shares(local_tasks(**task_counts(2))) == [{}, {}]


SHOW = """import os, sys
line = "|".join([os.environ["TF_CONFIG"], *sys.argv[1:]])
os.write(1, line.encode() + b"\\n")"""
WORDS = ["a b", "it's", '"', "$(HOME)", "$HOME", "\\", "ä"]


def printed(capsys, *options):
    assert onepass.main(["launch", *options, "--", sys.executable, "-Sc", SHOW, *WORDS]) == 0
    return capsys.readouterr().out


def shown(text):
    """The TF_CONFIGs of processes that ran SHOW and got WORDS."""
    configs, words = zip(*(line.split("|", 1) for line in text.splitlines()), strict=True)
    assert set(words) == {"|".join(WORDS)}
    return [json.loads(config) for config in configs]


def run(command, environment=None):
    return subprocess.run(
        command, env={**os.environ, **(environment or {})}, capture_output=True, text=True,
        timeout=LIMIT_SECONDS,
    )  # fmt: skip


@pytest.mark.parametrize("counts", [task_counts(2), task_counts(3, 2)], ids=["workers", "servers"])
def test_printed_commands_run_each_task(capsys, counts):
    addresses = [f"host{i}:{4000 + i}" for i in range(sum(counts.values()))]
    options = ["--hosts", ",".join(addresses), "--servers", str(counts.get("ps", 0))]
    text = printed(capsys, *options)
    assert shown(run(["sh", "-c", text]).stdout) == [
        json.loads(task.tf_config) for task in tasks_at(counts, addresses)
    ]
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert comments[-1] == f"# on {addresses[-1]}: {tasks_at(counts, addresses)[-1].name}"


def test_the_kubernetes_file_starts_every_pod_as_its_task():
    service, job = yaml.safe_load_all((DEPLOY / "training-job.yaml").read_text())
    assert (service["kind"], service["spec"]["clusterIP"]) == ("Service", "None")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert (pod["subdomain"], pod["restartPolicy"]) == (service["metadata"]["name"], "OnFailure")
    assert spec["template"]["metadata"]["labels"] == service["spec"]["selector"]
    container = pod["containers"][0]
    assert pod["volumes"][0]["name"] == container["volumeMounts"][0]["name"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert int(environment["WORKERS"]) == spec["completions"] == spec["parallelism"] == 4
    start, words = container["command"][:4], container["command"][4:]
    assert not any("$(" in word for word in container["command"])  # which Kubernetes would expand
    assert with_strategy(words, task_counts(4)) == words
    addresses = [f"training-{i}.training:2222" for i in range(4)]
    for number, task in enumerate(tasks_at(task_counts(4), addresses)):
        shows = [*start, sys.executable, "-Sc", SHOW, *WORDS]
        ran = run(shows, environment | {"JOB_COMPLETION_INDEX": str(number)})
        assert shown(ran.stdout) == [json.loads(task.tf_config)], ran.stderr


FAKE_SRUN = f"""#!{sys.executable} -S
import os, signal, subprocess, sys, time
words, options = sys.argv[1:], {{}}
while words[0].startswith("--"):
    name, _, value = words.pop(0)[2:].partition("=")
    options[name] = value
count = int(options.get("ntasks", os.environ["SLURM_NNODES"]))
numbered = [{{**os.environ, "SLURM_PROCID": str(i)}} for i in range(count)]
tasks = [subprocess.Popen(words, env=environment) for environment in numbered]
def hand_on(number, frame):
    for task in tasks:
        task.send_signal(number)
signal.signal(signal.SIGTERM, hand_on)
sys.exit(max(task.wait() for task in tasks))
"""
FAKE_SCONTROL = """#!/bin/sh
if [ "$1" = show ]; then
    for i in 0 1; do echo node$i; done
else
    echo "$@" >> "$CALLS"
fi
"""


@pytest.fixture
def slurm(tmp_path):
    """Runs a command by the file for Slurm, where scontrol and srun are small programs."""
    for name, text in {"srun": FAKE_SRUN, "scontrol": FAKE_SCONTROL}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(stat.S_IRWXU)

    def slurm(*command):
        environment = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}", "CALLS": str(tmp_path / "calls"),
            "SLURM_JOB_ID": "12345", "SLURM_JOB_NODELIST": "node[0-1]", "SLURM_NNODES": "2",
        }  # fmt: skip
        jobs.append(subprocess.Popen(
            ["bash", str(DEPLOY / "training.sbatch"), *command], env={**os.environ, **environment},
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        ))  # fmt: skip
        return jobs[-1]

    jobs = []
    yield slurm
    for job in jobs:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        job.stdout.close()


def test_the_slurm_file_starts_every_node_as_its_task(slurm):
    job = slurm(sys.executable, "-Sc", SHOW, *WORDS)
    output, _ = job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 0, output
    tasks = tasks_at(task_counts(2), [f"node{i}:22345" for i in range(2)])
    assert {json.dumps(config) for config in shown(output)} == {task.tf_config for task in tasks}
    lines = (DEPLOY / "training.sbatch").read_text().splitlines()
    assert {"#SBATCH --requeue", "#SBATCH --signal=B:USR1@60"} < set(lines)


@pytest.mark.parametrize(
    ("number", "requeued"), [(signal.SIGUSR1, "requeue 12345\n"), (signal.SIGTERM, "")],
    ids=["time limit", "cancelled"],
)  # fmt: skip
def test_a_slurm_job_saves_and_queues_again_where_its_time_is_up(slurm, tmp_path, number, requeued):
    script = tmp_path / "task.py"
    script.write_text(COUNTED)
    job = slurm(sys.executable, "-S", str(script))
    for _ in range(2):
        assert job.stdout.readline() == "ready\n"
    job.send_signal(number)
    output, _ = job.communicate(timeout=LIMIT_SECONDS)
    assert (output.count("SIGTERM x"), job.returncode) == (2, 143)
    calls = tmp_path / "calls"
    assert (calls.read_text() if calls.exists() else "") == requeued


def test_a_slurm_job_that_fails_is_not_queued_again(slurm, tmp_path):
    job = slurm("sh", "-c", 'exit "$SLURM_PROCID"')
    job.communicate(timeout=LIMIT_SECONDS)
    assert job.returncode == 1 and not (tmp_path / "calls").exists()
