"""Failures of a process of a cluster: training goes on, or ends in time with one line."""

import os
import random
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from processes import ROOT, Process, Started, wait_until
from runs import assert_same, newest, steps_of

from onepass.replicator.launch.tf_config import local_tasks, task_counts

pytestmark = pytest.mark.integration

COMMAND = ROOT / "onepass" / "__main__.py"
SCRIPT = ROOT / "tests" / "line_run.py"
START_SECONDS = 120  # of TensorFlow in every process, on a machine that has other things to do
STEPS, STEP_SECONDS = 40, 0.1
GONE_SECONDS, STOPPED_SECONDS = 30, 100  # to notice that a peer is gone, or does not answer


def step_of(run):
    """The newest step in the metrics of a run, 0 before the first."""
    if not (run / "metrics.jsonl").exists():
        return 0
    numbers = re.findall(r'^\{"step": (\d+).*\}$', (run / "metrics.jsonl").read_text(), re.M)
    return int(numbers[-1]) if numbers else 0


def reach(run, step):
    wait_until(lambda: step_of(run) >= step)


def messages(process):
    """The lines of a process that its person is meant to read."""
    kept = r"^(?:\[[^]]+\] )?(onepass.*|left .*|no more .*|Traceback.*)$"
    return re.findall(kept, process.output(), re.M)


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts the tasks of a cluster, each a process of its own that runs `line_run.py WORDS`."""
    with Started(tmp_path_factory.mktemp("logs")) as group:
        yield lambda counts, *words: group.start_tasks(local_tasks(**counts), SCRIPT, *words)


@pytest.fixture
def launch(tmp_path):
    """Starts `onepass launch OPTIONS -- python line_run.py auto RUN STEPS SECONDS`."""
    started = []

    def launch(run, *options, steps=STEPS):
        command = [sys.executable, SCRIPT, "auto", run, steps, STEP_SECONDS]
        log = tmp_path / f"launch{len(started)}.log"
        started.append(Process(COMMAND, log, "launch", *options, "--", *command))
        return started[-1]

    yield launch
    for process in started:
        if process.is_running():
            process.signal(signal.SIGTERM)
            process.ended(START_SECONDS)


def process_of(launched, task, count=1):
    """The id of a task's process, once it was started `count` times."""

    def found():
        return re.findall(rf"^\[{task}\] process (\d+)$", launched.output(), re.M)

    wait_until(lambda: len(found()) >= count)
    return int(found()[count - 1])


def kill(launched, task):
    os.kill(process_of(launched, task), signal.SIGKILL)


@pytest.fixture(scope="module")
def whole(start, tmp_path_factory):
    """A run of two workers to which nothing happens."""
    run = tmp_path_factory.mktemp("whole")
    processes = start(task_counts(2), "auto", run, STEPS, 0)
    assert [p.ended(START_SECONDS) for p in processes] == [0, 0]
    return run


def test_sigterm_to_one_worker_saves_at_one_step_from_which_all_go_on_as_if_it_had_not_come(
    start, whole, tmp_path
):
    run = tmp_path / "run"
    processes = start(task_counts(2), "auto", run, STEPS, STEP_SECONDS)
    reach(run, 5)
    processes[1].signal(signal.SIGTERM)
    assert [process.ended(GONE_SECONDS) for process in processes] == [143, 143]
    step = int(newest(run)["step"])
    assert 5 <= step < STEPS
    assert [messages(p)[-1] for p in processes] == [f"left at step {step} (SIGTERM)"] * 2
    processes = start(task_counts(2), "auto", run, STEPS, 0)
    assert [p.ended(START_SECONDS) for p in processes] == [0, 0]
    assert_same(newest(run), newest(whole))
    assert steps_of(run) == list(range(1, STEPS + 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "task", "gone", "count"),
    [
        ([], "worker 1", r"^onepass: Another process .* is gone .*; step \d+ is saved in", 2),
        (
            *(["--servers", "1", "--workers", "1"], "ps 0"),
            *(r"^onepass: Parameter server 0 .* is gone.* step \d+", 1),
        ),
    ],
    ids=["worker", "server"],
)
def test_a_killed_task_ends_the_others_in_one_line_and_all_start_again(
    launch, whole, tmp_path, options, task, gone, count
):
    run = tmp_path / "run"
    launched = launch(run, *options, "--restarts", "1", "--grace-seconds", GONE_SECONDS)
    reach(run, 5)
    kill(launched, task)
    assert launched.ended(2 * START_SECONDS) == 0
    lines = messages(launched)
    # The launcher and the process that is left notice at about the same time.
    noticed = sorted(lines[:2], key=lambda line: line.startswith("onepass:"))
    assert noticed[0].startswith(f"onepass launch: {task} was ended by SIGKILL (status 137)")
    assert re.search(gone, noticed[1])
    assert lines[2:] == [
        "onepass launch: all tasks restart (restart 1 of 1).",
        *[f"left at step {STEPS} (done)"] * count,
    ]
    assert newest(run)["step"] == STEPS
    if not options:  # in lockstep
        assert_same(newest(run), newest(whole))


@pytest.mark.slow
def test_a_stopped_worker_ends_the_other_in_one_line_in_time(start, tmp_path):
    run = tmp_path / "run"
    chief, worker = start(task_counts(2), "auto", run, STEPS, STEP_SECONDS)
    reach(run, 5)
    worker.signal(signal.SIGSTOP)
    assert chief.ended(STOPPED_SECONDS) == 2
    (line,) = messages(chief)
    assert "gone or does not answer" in line
    assert f"step {newest(run)['step']} is saved" in line


@pytest.mark.slow
def test_training_goes_on_when_a_worker_of_a_chief_is_killed_and_is_back(launch, tmp_path):
    run = tmp_path / "run"
    launched = launch(run, "--servers", "1", "--workers", "1", "--restarts", "1")
    reach(run, 5)
    kill(launched, "worker 0")
    assert launched.ended(2 * START_SECONDS) == 0
    assert messages(launched) == [
        "onepass launch: worker 0 was ended by SIGKILL (status 137); it restarts (restart 1 of 1).",
        f"left at step {STEPS} (done)",
    ]
    assert newest(run)["step"] == STEPS
    assert process_of(launched, "worker 0", count=2)


@pytest.mark.slow
def test_uneven_input_ends_in_one_line_in_time(start):
    longer, shorter = start(task_counts(2), "uneven")
    assert shorter.ended(START_SECONDS) == 0
    assert longer.ended(GONE_SECONDS) == 2
    assert messages(shorter) == ["no more data after 3 steps"]
    (line,) = messages(longer)
    assert line.startswith("onepass: Another process of this run is gone or does not answer")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_random_kills_lose_no_checkpointed_step(start, launch, tmp_path):
    kills, steps, draws = 20, 500, random.Random(7)
    run, other = tmp_path / "run", tmp_path / "other"
    launched = launch(run, "--restarts", kills, "--grace-seconds", "15", steps=steps)
    saved = []
    for count in range(1, kills + 1):
        worker = f"worker {draws.randrange(2)}"
        pid = process_of(launched, worker, count)
        if count % 4:  # every fourth one at some moment of the start
            reach(run, step_of(run) + 1)
            time.sleep(draws.uniform(0, 1.5))
        else:
            time.sleep(draws.uniform(0, 8))
        saved.append((len(resumptions(launched)), newest_step(run)))
        os.kill(pid, signal.SIGKILL)
    assert launched.ended(4 * START_SECONDS) == 0
    assert f"(restart {kills} of {kills})" in launched.output()
    for before, step in saved:
        assert all(resumed >= step for resumed in resumptions(launched)[before:])
    undisturbed = start(task_counts(2), "auto", other, steps, 0)
    assert [p.ended(START_SECONDS) for p in undisturbed] == [0, 0]
    assert_same(newest(run), newest(other))
    logged = steps_of(run)  # a step may be cut off between being made and being reported
    assert logged == sorted(set(logged)) and len(logged) >= steps - kills


def newest_step(run):
    return max((int(p.stem[5:]) for p in Path(run, "checkpoints").glob("step_*.npz")), default=0)


def resumptions(launched):
    """The steps that the first worker went on from, one for each start that came so far."""
    found = re.findall(r"^.worker 0. going on from step (\d+)$", launched.output(), re.M)
    return [int(step) for step in found]
