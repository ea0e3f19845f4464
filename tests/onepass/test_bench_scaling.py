"""`onepass bench scaling`: that its rows, fits, simulations and verdicts say what was measured."""

import importlib
import json
import os
import sys
import threading
import types
from multiprocessing.connection import Pipe
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import onepass
from onepass.bench import worker_group as scaling_processes
from onepass.bench.report import Row
from onepass.bench.scaling import command as scaling
from onepass.bench.scaling import keras_fit as scaling_keras
from onepass.bench.scaling import paired_timing as scaling_timing
from onepass.bench.scaling import rows as scaling_rows
from onepass.bench.scaling import targets as scaling_targets
from onepass.bench.scaling import validation
from onepass.bench.scaling.arguments import BenchArguments
from onepass.bench.scaling.models import DENSE_ROWS, Dense, labelled_rows, trainable
from onepass.bench.scaling.plot import write_plot
from onepass.bench.scaling.traffic import Reduced, ReducedCounter
from onepass.bench.scaling.wrapper_overhead import dense_step
from onepass.bench.worker_group import Group, environments_of
from onepass.bench.worker_process import reason, serve
from replicator import strategies
from replicator.runs.errors import UserError

ROOT = Path(__file__).resolve().parents[2]

# Predictions beside measurements

GIVEN = BenchArguments(clips=4, compute_clips=(1, 4), all_sum_kib=(4, 1024), rounds=2)


def row(what, size, batch, unit, *values):
    return Row(what, size, batch, unit, values=list(values))


def measured_rows():
    """Two rounds; in the second all_sums take twice as long."""
    sums = [
        row("all_sum, 2 processes", size, 1, "ms", *(k * (0.5 + 1e3 * n / 1e8) for k in (1, 2)))
        for size, n in (("4 KiB", 4096), ("1 MiB", 2**20))
    ]
    fitted = scaling_rows.fitted_rows(GIVEN, sums)
    return [
        row("one device", "R=1", 2, "ms/step", 20.0, 20.0),
        row("one device", "R=1", 4, "ms/step", 25.0, 25.0),
        row("exchanged, 2 processes", "R=2", 4, "bytes/step", 1e5, 1e5),
        row("collectives, 2 processes", "R=2", 4, "a step", 2.0, 2.0),
        row("exchanged if apart, local:2", "R=2", 4, "bytes/step", 1e5, 1e5),
        row("collectives, local:2", "R=2", 4, "a step", 2.0, 2.0),
        *(
            row(f"{kind}, {name}", f"R={replicas}", 4, "steps/s", 21.0, 21.0)
            for kind in ("strong", "weak")
            for name, replicas in (("single", 1), ("local:2", 2), ("2 processes", 2))
        ),
        *fitted,
    ]


def test_each_round_is_fitted_on_its_own():
    latency, bandwidth = measured_rows()[-2:]
    assert latency.values == pytest.approx([250.0, 500.0])
    assert bandwidth.values == pytest.approx([0.8, 0.4])


def test_replicas_are_predicted_as_is_counted_by_hand():
    rows = {row.what: row for row in validation.replica_predictions(measured_rows())}
    assert rows.keys() == {
        f"{kind}, {name}, predicted"
        for kind in ("strong", "weak")
        for name in ("local:2", "2 processes")
    }
    # Two replicas share the cores; the medians are 375 us a message and 0.6 Gbit/s.
    assert rows["strong, local:2, predicted"].value == pytest.approx(1 / 40e-3)
    assert rows["weak, local:2, predicted"].value == pytest.approx(1 / 50e-3)
    exchange = 4 * 375e-6 + 1e5 * 8 / 0.6e9
    assert rows["weak, 2 processes, predicted"].value == pytest.approx(1 / (50e-3 + exchange))
    assert rows["weak, 2 processes, predicted"].against == "weak, 2 processes"


def test_replicas_take_what_copies_side_by_side_have_taken():
    beside = row("one device beside another", "R=1", 2, "ms/step", 30.0, 30.0)
    rows = validation.replica_predictions([*measured_rows(), beside])
    found = {row.what: row.value for row in rows}
    assert found["strong, local:2, predicted"] == pytest.approx(1 / 30e-3)
    assert found["weak, local:2, predicted"] == pytest.approx(1 / 50e-3)  # not measured beside one


def test_stored_measurements_are_predicted_within_an_eighth():
    """With all cores for every replica they were 54 to 209 percent too fast.

    The bench has the median of the rounds' errors, 10.0 percent; medians alone are stored.
    """
    stored = json.loads((ROOT / "docs" / "bench_scaling.json").read_text())["rows"]
    rows = [
        Row(r["what"], r["size"], r["batch"], r["unit"], r["against"], values=[r["value"]])
        for r in stored
        if "predicted" not in r["what"]
    ]
    predicted = validation.replica_predictions(rows)
    assert len(predicted) == 6
    assert validation.median_error([*rows, *predicted], "steps/s") < 0.125


def test_the_median_error_is_that_of_the_pairs():
    rows = []
    for name, value in (("a", 1.1), ("b", 0.7), ("c", 2.0)):
        rows += validation.pair_rows(GIVEN, name, "m:f", [(1.0, value), (2.0, 2 * value)], [(0, 0)])
    assert validation.median_error(rows, "ms/step") == pytest.approx(0.3)
    assert validation.median_error(rows, "MB/device") is None
    verdicts = scaling_targets.verdicts(rows, ())
    assert verdicts[-3] == "NOT MET       median error of predicted times at most 10%: 30.0%"


@pytest.mark.parametrize(
    ("model", "name"), [("wavenet-smoke", "wavenet-smoke"), ("examples.resnet50:f", "resnet50")]
)
def test_a_model_is_called_by_its_last_word(model, name):
    assert validation.short(model) == name


# Counted bytes


def test_what_the_replicas_of_a_process_reduce_is_counted_once_a_trace():
    replicator = types.SimpleNamespace(num_replicas=4, num_workers=2, _sum=lambda tensors: tensors)
    counter = ReducedCounter(replicator)

    def step(rows):
        for _ in range(2):  # replicas of this process
            replicator._sum([tf.zeros([rows, 3]), tf.zeros([5], tf.int64)])
            replicator._sum([tf.zeros([])])
        return 0

    tf.function(step).get_concrete_function(7)
    tf.function(step).get_concrete_function(2)
    assert counter.last() == Reduced(2 * 3 * 4 + 5 * 8 + 4, 2)


# PairedTiming


def test_two_calls_alternate_and_the_median_of_each_is_kept(monkeypatch):
    now, made = [0.0], []

    def call(name, durations):
        def run():
            made.append(name)
            now[0] += durations.pop(0)

        return run

    monkeypatch.setattr(scaling_timing.time, "perf_counter", lambda: now[0])
    timings = scaling_timing.PairedTiming(call("a", [1, 1, 1, 90]), call("b", [2, 8, 2, 4]), 20.0)
    assert timings.measure() == (1.0, 3.0)
    assert "".join(made) == "abbaabba"


# What is compared


def test_the_wrapped_dense_step_moves_the_network_as_the_plain_one_does():
    replicator, networks = strategies.single(), (Dense(), Dense())
    batches = labelled_rows(2)
    reduce = types.SimpleNamespace(mean=lambda value: replicator.all_reduce(value, "mean"))
    wrapped = replicator.compile(
        lambda batch: dense_step(networks[0], batch, reduce.mean, replicator.update)
    )
    iterator, start = iter(replicator.batches(batches)), networks[0].kernels[0].numpy()
    losses = [float(wrapped(iterator)) for _ in range(2)]

    def assign(variables, values):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    plain = [
        float(dense_step(networks[1], batch, lambda value: value, assign))
        for batch in batches.take(2)
    ]
    assert losses == pytest.approx(plain)
    for mine, other in zip(networks[0].variables, networks[1].variables, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)
    assert not np.allclose(networks[0].kernels[0], start, atol=1e-6)


@pytest.mark.parametrize("module", scaling_keras.LIBRARIES.values())
def test_both_loops_of_keras_models_make_as_many_updates(module, monkeypatch):
    optimizers, make = [], scaling_keras._compiled_parts

    def parts(keras):
        made = make(keras)
        optimizers.append(made[-1])
        return made

    monkeypatch.setattr(scaling_keras, "_compiled_parts", parts)
    keras = importlib.import_module(module)
    losses = [scaling_keras.own_loop(keras, 2)(4), scaling_keras.fit_loop(keras, 2)(4)]
    assert [int(optimizer.iterations) for optimizer in optimizers] == [4, 4]
    assert all(1.0 < loss < 5.0 for loss in losses)


def test_what_a_loop_needs_to_start_is_not_counted(monkeypatch):
    now = [0.0]

    def loop_of(start, each):
        def run(steps):
            now[0] += start + each * steps

        return lambda keras, count: run

    monkeypatch.setattr(scaling_timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(scaling_keras, "own_loop", loop_of(0.0, 2.0))
    monkeypatch.setattr(scaling_keras, "fit_loop", loop_of(50.0, 3.0))
    assert scaling_keras.Loops(None, 10, 95, 1.0).measure() == (2.0, 3.0)


# Processes

STAND_IN = """
import json, os, sys, time
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
while True:
    request = json.loads(pipe.recv_bytes())
    if request["do"] == "end":
        os.write(2, b"out of luck\\n")  # at once, as another process writes there too
        sys.exit(1)
    if request["do"] == "sleep":
        time.sleep(600)
    pipe.send_bytes(json.dumps(request["answer"]).encode())
"""


@pytest.fixture
def group(tmp_path, monkeypatch):
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    group = Group("local:4", environments_of("local:4", 1) * 2, 20.0, "stand_in")
    yield group
    group.stop()
    assert all(process.returncode is not None for process in group._processes)


def test_every_process_answers(group):
    assert group.ask(do="say", answer={"seconds": 2.0}) == [{"seconds": 2.0}] * 2


def test_a_process_that_ends_is_reported_with_its_last_words(group):
    with pytest.raises(UserError, match=r"^A process of local:4 ended: out of luck$"):
        group.ask(do="end")


def test_a_process_that_fails_is_reported_with_its_error(group):
    with pytest.raises(UserError, match=r"^local:4 failed: ValueError: no$"):
        group.ask(do="say", answer={"error": "ValueError: no"})


def test_a_process_that_does_not_answer_in_time_is_reported(group):
    group._limit_seconds = 0.2
    with pytest.raises(UserError, match=r"^local:4 gave no answer within 0.2 s; a larger `--lim"):
        group.ask(do="sleep")


def test_only_the_chief_of_parameter_servers_answers(group):
    group._answering = 1
    assert group.ask(do="say", answer={"seconds": 2.0}) == [{"seconds": 2.0}]


def test_only_processes_of_a_cluster_have_tf_config(monkeypatch):
    assert environments_of("local:2", 1) == [{}]
    tasks = [json.loads(env["TF_CONFIG"]) for env in environments_of("parameter_server", 2)]
    assert [task["task"]["type"] for task in tasks] == ["chief", "ps", "worker", "worker"]
    tasks = [json.loads(env["TF_CONFIG"]) for env in environments_of("multi_worker", 2)]
    assert [task["task"]["index"] for task in tasks] == [0, 1]
    assert tasks[0]["cluster"] == tasks[1]["cluster"]


def test_a_worker_tells_errors_and_ends_with_its_pipe():
    class Made:
        def __init__(self, base):
            self.base = base

        def add(self, number):
            return {"sum": self.base + number}

    ours, theirs = Pipe()
    thread = threading.Thread(target=serve, args=(theirs, Made), daemon=True)
    thread.start()

    def ask(**request):
        ours.send_bytes(json.dumps(request).encode())
        assert ours.poll(10)
        return json.loads(ours.recv_bytes())

    assert ask(base=1) == {}
    assert ask(do="add", number=2) == {"sum": 3}
    assert ask(do="add", number=None)["error"].startswith("TypeError: unsupported operand")
    ours.close()
    thread.join(10)
    assert not thread.is_alive()


def test_the_stack_in_an_error_of_tensorflow_is_left_out():
    @tf.function
    def bad(x):
        tf.debugging.assert_positive(x, "not positive")
        return x

    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        bad(tf.constant(-1))
    assert "File" in str(raised.value)
    assert "File" not in reason(raised.value) and "not positive" in reason(raised.value)
    assert "\n" not in reason(raised.value)


# Verdicts


def pair(what, size, value, peer, other):
    return [
        Row(what, size, 4, "ms/step", peer, values=[value]),
        Row(peer, size, 4, "ms/step", values=[other]),
    ]


@pytest.mark.parametrize(("value", "word"), [(1.029, "met  "), (1.031, "NOT MET")])
def test_three_percent_are_the_most_that_the_wrapper_may_add(value, word):
    lines = scaling_targets.verdicts(pair("wrapped step", "dense", value, "plain step", 1.0), ())
    assert lines[0].startswith("not measured") and lines[1].startswith(word)


@pytest.mark.parametrize(("value", "word"), [(1.019, "met  "), (1.021, "NOT MET")])
def test_a_fit_that_is_faster_misses_the_target(value, word):
    rows = pair("replicator, 10 steps a call", "tf_keras", value, "fit, 10 steps a call", 1.0)
    lines = scaling_targets.verdicts(rows, (1, 10))
    assert [line[:7] for line in lines[2:6]] == ["not mea"] * 3 + [word.ljust(7)]


def test_bytes_that_nothing_carried_say_so():
    titles = {name: scaling_rows.bytes_title(name) for name in ("local:2", "2 processes")}
    assert titles["local:2"].startswith("exchanged if apart")
    assert titles["2 processes"] == "exchanged, 2 processes"


# A run


def children():
    """The command lines of this process's children that a bench has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            mine = f"PPid:\t{os.getpid()}\n" in status.read_text()
            command = status.with_name("cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if mine and scaling_processes.MODULE in command:
            found.append(command)
    return found


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """One run of one device and two processes: its rows."""
    folder = tmp_path_factory.mktemp("bench")
    json_ = folder / "rows.json"
    options = "--parts replicas collective --preset wavenet-smoke --clip-samples 256 --clips 4 "
    options += "--compute-clips 1 --all-sum-kib 4 64 --least-seconds 0.01 --rounds 1"
    some = {name: scaling_rows.STRATEGIES[name] for name in ("single", "2 processes")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaling_rows, "STRATEGIES", some)
        words = [*options.split(), "--json", str(json_)]
        assert scaling.run(onepass.command.parse(BenchArguments, words, "onepass bench")) == 0
    return types.SimpleNamespace(output=json.loads(json_.read_text()))


def value_of(bench, what, batch=4):
    (value,) = [
        row["value"] for row in bench.output["rows"] if (row["what"], row["batch"]) == (what, batch)
    ]
    return value


@pytest.mark.slow
def test_json_keeps_the_contract(bench):
    assert set(bench.output) == {"machine", "rows"}
    keys = {"what", "size", "batch", "value", "unit", "against", "ratio", "spread"}
    assert all(keys <= set(row) for row in bench.output["rows"])
    assert all(row["value"] > 0 for row in bench.output["rows"])
    assert all(row["ratio"] > 0 for row in bench.output["rows"] if row["against"])


@pytest.mark.slow
def test_the_gradients_of_a_step_are_the_bytes_counted(bench):
    weights = sum(np.prod(w.shape) for w in trainable("wavenet-smoke").state.weights)
    beside = value_of(bench, "exchanged, 2 processes") - 4 * weights
    assert 0 < beside < 100  # loss, metrics and what the loss divides by


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts of the loopback")
@pytest.mark.slow
def test_the_bytes_counted_went_over_the_loopback(bench):
    counted = value_of(bench, "exchanged, 2 processes")
    assert value_of(bench, "loopback, 2 processes") > 0.99 * counted


@pytest.mark.slow
def test_strong_and_weak_scaling_are_predicted_beside_what_was_measured(bench):
    ratios = {row["what"]: row["ratio"] for row in bench.output["rows"] if row["against"]}
    # The share of two clips is not measured on one device, so that only weak scaling is predicted.
    assert ratios["weak, 2 processes, predicted"] > 0
    assert "strong, 2 processes, predicted" not in ratios


def test_the_plot_is_an_image(tmp_path):
    rows = validation.pair_rows(GIVEN, "local:2", "m", [(1e-3, 1.1e-3)], [(1.0, 1.0)])
    write_plot(tmp_path / "p.png", rows)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_no_process_is_left(bench):
    assert children() == []


# Mistakes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--parts", "wraper"], "there is no part `wraper`; there are wrapper, keras, replicas, "),
        (["--parts"], "`--parts` must leave something to measure"),
        (["--preset", "wavenet"], "there is no preset `wavenet`; there are wavenet-smoke, "),
        (["--rounds", "0"], "`--rounds` must be at least 1, got 0"),
        (["--clips", "6"], "`--clips` must be a multiple of 4, got 6"),
        (["--clip-samples", "1000"], "`--clip-samples` must be a multiple of the hop, 256, got 1"),
        (["--compute-clips", "0", "4"], "`--compute-clips` must be at least 1, got 0"),
        (["--fit-steps", "10"], "`--fit-steps` must be above 10, got 10"),
        (["--steps-per-call"], "`--steps-per-call` must name at least one number"),
        (["--all-sum-kib", "4", "4"], "`--all-sum-kib` must name at least two sizes"),
        (["--models", "wavenet"], "there is no model `wavenet`; there are wavenet-smoke, "),
        (["--models"], "`--models` must leave something to measure"),
        (["--limit-seconds", "inf"], "`--limit-seconds` must be above 0, got inf"),
        (["--plot", "curve.gif"], "`--plot` must end in .png, .pdf or .svg, got curve.gif"),
        (["--plot", "c.png", "--parts", "keras"], "`--plot` shows the plan, which `--parts` leave"),
        (["--json", "nowhere/rows.json"], "there is no folder nowhere to write rows.json to"),
        (["--least-seconds", "soon"], "--least-seconds must be a number, got 'soon'"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(options, said, mistake, monkeypatch):
    monkeypatch.setattr(onepass.command, "_import_tensorflow_quietly", lambda: None)
    assert said in mistake("bench", "scaling", *options)


def test_the_batch_of_the_dense_network_is_that_of_its_rows():
    rows, labels = next(iter(labelled_rows(1)))
    assert rows.shape[0] == labels.shape[0] == DENSE_ROWS
