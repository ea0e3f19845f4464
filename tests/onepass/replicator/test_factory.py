"""Which strategy the environment gives, and the one line where there is none."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from marks import some_slow
from processes import ROOT, SETTINGS, wait_until

from onepass.foundation.rules import UserError
from onepass.replicator import strategies
from onepass.replicator.launch import tf_config
from onepass.replicator.strategies import coordination, synchronous
from onepass.replicator.strategies.coordination import wait_for_all

WORKERS = {"worker": ["a:1", "b:2"]}
FACTORIES = ("single", "local", "multi_worker", "parameter_server", "sharded", "tpu")


@pytest.fixture
def called(monkeypatch):
    """The factories called, with their arguments, in place of their work."""
    calls = []
    for name in FACTORIES:
        monkeypatch.setattr(strategies, name, lambda *args, name=name: calls.append((name, *args)))
        if name in strategies._WITHOUT_ARGUMENT:
            monkeypatch.setitem(strategies._WITHOUT_ARGUMENT, name, getattr(strategies, name))
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(strategies.tf.config, "list_physical_devices", lambda kind: [])
    return calls


def config(addresses, task="worker", index=0):
    return json.dumps({"cluster": addresses, "task": {"type": task, "index": index}})


@pytest.mark.parametrize(
    ("word", "call"),
    [
        ("auto", ("single",)),
        ("single", ("single",)),
        ("local", ("local", None)),
        ("local:4", ("local", 4)),
        ("multi_worker", ("multi_worker",)),
        ("multi_worker:300", ("multi_worker", 300.0)),
        ("parameter_server", ("parameter_server",)),
        ("sharded:2x4", ("sharded", {"batch": 2, "model": 4}, {})),
        ("tpu", ("tpu", "")),
        ("tpu:grpc://h:8470", ("tpu", "grpc://h:8470")),
    ],
)
def test_a_word_names_its_strategy(called, word, call):
    strategies.from_environment(word)
    assert called == [call]


@pytest.mark.parametrize(
    ("addresses", "task", "strategy"),
    [
        (WORKERS, "worker", "multi_worker"),
        ({"chief": ["c:1"], **WORKERS}, "chief", "multi_worker"),
        ({"chief": ["c:1"], "ps": ["p:1"], **WORKERS}, "ps", "parameter_server"),
    ],
)
def test_auto_reads_tf_config_and_else_takes_all_of_several_gpus(
    called, monkeypatch, addresses, task, strategy
):
    monkeypatch.setattr(strategies.tf.config, "list_physical_devices", lambda kind: [kind, kind])
    strategies.from_environment()
    monkeypatch.setenv("TF_CONFIG", config(addresses, task))
    strategies.from_environment()
    assert called == [("local", None), (strategy,)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("", "locl", "single:2", "auto:1"), "must be one of auto, single"),
        (("multi_worker:x", "multi_worker:0", "local:0", "local:x"), "requires a positive number"),
        (("sharded", "sharded:4", "sharded:2x0", "sharded:2x2x2"), "requires two sizes, batch x"),
    ],
)
def test_a_word_that_is_none_is_refused_in_one_line(called, words, said):
    for word in words:
        with pytest.raises(UserError, match=rf"^`--strategy.*{said}.*'{word}'\.$"):
            strategies.from_environment(word)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "TF_CONFIG must look like"),
        ("[]", "TF_CONFIG must look like"),
        ('{"cluster": {"worker": "a:1"}, "task": {}}', "TF_CONFIG must look like"),
        (config({"worker": ["a"]}), "must be HOST:PORT, got 'a'"),
        (config({"wrker": ["a:1"]}, "wrker"), "may have tasks chief, worker, ps, got 'wrker'"),
        (config(WORKERS, index=2), "got worker 2 of 2"),
        (config(WORKERS, "ps"), "got ps 0 of 0"),
        (config({"worker": ["a:1", "b:2", "a:1"]}), "must belong to one task, got 'a:1' twice"),
        (config({"chief": ["a:1"], "worker": ["a:1"]}), "must belong to one task, got 'a:1' twice"),
    ],
)
def test_a_wrong_tf_config_is_refused_in_one_line(monkeypatch, text, says):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(UserError, match=says) as refused:
        tf_config.read_tf_config()
    assert "\n" not in str(refused.value)


def test_a_cluster_reads_back_as_it_was_written_and_its_chief_is_the_first_worker(monkeypatch):
    tasks = tf_config.local_tasks(chief=1, worker=2, ps=1)
    for made in tasks:
        monkeypatch.setenv("TF_CONFIG", made.tf_config)
        assert tf_config.read_tf_config() == made
    assert [task.worker_index for task in tasks[:3]] == [0, 1, 2]
    assert [task.num_workers for task in tasks] == [3] * 4


def test_multi_worker_asks_for_a_cluster_of_workers(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(UserError, match="multi_worker requires TF_CONFIG"):
        strategies.multi_worker()
    monkeypatch.setenv("TF_CONFIG", config({"ps": ["p:1"], **WORKERS}))
    with pytest.raises(UserError, match="use the strategy parameter_server, not multi_worker"):
        strategies.multi_worker()


def test_a_task_that_is_waited_for_and_does_not_come_is_named(monkeypatch, capsys):
    monkeypatch.setattr(coordination, "SAY_SECONDS", 0.0)
    first, second = tf_config.local_tasks(worker=2)
    address = second.cluster["worker"][1]
    with pytest.raises(UserError, match=rf"waited 0.5 s .*; missing: worker 1 \({address}\)\.$"):
        wait_for_all(first, 0.5)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"worker 0 waits for worker 1 ({address}) of TF_CONFIG: ")


WAITING = """
import sys
from onepass.replicator.launch import tf_config
from onepass.replicator.strategies import coordination

coordination.SAY_SECONDS = 0.0
first, second = tf_config.local_tasks(worker=2)
try:
    coordination.wait_for_all(first, 600)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("number", "status"),
    some_slow([(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)], [(signal.SIGINT, 130)]),
)
def test_a_task_that_waits_for_others_heeds_signals(number, status):
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        while not process.stderr.readline().startswith("worker 0 waits for worker 1 "):
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(60) == status
    finally:
        process.kill()
        process.communicate()


CONNECTING = """
from onepass.replicator.strategies import synchronous
synchronous.multi_worker()
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_task_that_tensorflow_connects_heeds_signals(number):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(300)
        first = f"127.0.0.1:{silent.getsockname()[1]}"
        (own,) = tf_config.local_tasks(worker=1)
        cluster = {"worker": [first, own.address]}
        text = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 1}})
        environment = {**os.environ, **SETTINGS, "TF_CONFIG": text}
        process = subprocess.Popen([sys.executable, "-c", CONNECTING], env=environment)
        try:
            silent.accept()[0].close()  # the task's own question whether the other one is there
            with silent.accept()[0] as connection:  # TensorFlow's, which is never answered
                assert connection.recv(3) == b"PRI"

                def ended():
                    process.send_signal(number)
                    return process.poll() is not None

                wait_until(ended)
        finally:
            process.kill()
        assert process.wait() == -number


def test_tensorflow_takes_no_signal_for_longer_than_it_connects(monkeypatch):
    seen = []

    def connect(**options):
        seen.append(signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGTERM, lambda *_: None)  # as TensorFlow does
        raise RuntimeError("must be at program startup")

    monkeypatch.setattr(coordination, "wait_for_all", lambda *_: None)
    monkeypatch.setattr(synchronous.tf.distribute, "MultiWorkerMirroredStrategy", connect)
    monkeypatch.setenv("TF_CONFIG", config(WORKERS))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(UserError, match="before TensorFlow does anything else"):
        strategies.multi_worker()
    assert seen == [signal.SIG_DFL]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_port_that_is_taken_is_named():
    first, _ = tf_config.local_tasks(worker=2)
    address = first.cluster["worker"][0]
    with (
        socket.create_server(("", int(address.split(":")[1]))),
        pytest.raises(UserError, match=f"Cannot listen at this task's address {address}"),
    ):
        wait_for_all(first, 5)


def test_devices_that_are_not_there_or_cannot_be_divided_are_refused():
    strategies.tf.constant(0)  # TensorFlow starts, so that no more logical CPUs can be made
    with pytest.raises(UserError, match=r"^`devices` must be 1 to \d+ \(\w+\), got 1000"):
        strategies.local(1000)
    with pytest.raises(UserError, match="`devices_per_replica` must divide the number of devices"):
        strategies.local(["CPU:0", "CPU:1", "CPU:2"], devices_per_replica=2)


@pytest.mark.integration
@pytest.mark.four_devices("tensorflow")
@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("tpu", "the environment's address"),
        ("tpu:localhost:1", "`localhost:1`"),
        ("tpu:grpc://localhost:1", "`grpc://localhost:1`"),
        ("tpu:local", "`local`"),
    ],
)
def test_without_a_tpu_there_is_one_clear_line(word, name):
    with pytest.raises(UserError, match=f"^There is no TPU at {name}: .") as caught:
        strategies.from_environment(word)
    assert "\n" not in str(caught.value)
