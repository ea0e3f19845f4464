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
from onepass.bench.scaling import simulation as scaling_simulation
from onepass.bench.scaling import targets as scaling_targets
from onepass.bench.scaling.arguments import BenchArguments
from onepass.bench.scaling.models import DENSE_ROWS, Dense, labelled_rows, teacher
from onepass.bench.scaling.plot import clips_per_second, lines_of
from onepass.bench.scaling.ring import (
    Network,
    Reduced,
    compute_seconds,
    exchange_seconds,
    exchanged_bytes,
    fitted,
)
from onepass.bench.scaling.traffic import ReducedCounter
from onepass.bench.scaling.wrapper_overhead import dense_step
from onepass.bench.worker_group import Group, environments_of
from onepass.bench.worker_process import reason, serve
from replicator import strategies
from replicator.runs.errors import UserError

ROOT = Path(__file__).resolve().parents[2]

# The ring


@pytest.mark.parametrize("replicas", [2, 4])
def test_a_fit_finds_the_network_that_the_times_were_made_with(replicas):
    network = Network(2e-4, 1.25e9)
    sizes = [4**k * 1024 for k in range(1, 9)]
    times = {n: exchange_seconds(network, replicas, Reduced(n, 1)) for n in sizes}
    found = fitted(times, replicas)
    assert found.latency_seconds == pytest.approx(2e-4)
    assert found.bytes_per_second == pytest.approx(1.25e9)


def test_a_fit_lets_small_sizes_count_as_much_as_large_ones():
    times = {n: 1e-3 + 1e-9 * n for n in (2**12, 2**14, 2**16, 2**18, 2**24, 2**26)}
    times[2**24] *= 1.2  # 3.6 ms, most of which absolute errors would put into the latency
    assert fitted(times).latency_seconds == pytest.approx(0.5e-3, rel=0.05)


def test_times_that_fall_with_the_size_give_no_negative_network():
    found = fitted({4096: 3e-3, 65536: 1e-3})
    assert 0 < found.latency_seconds < 2e-3 and 0 < found.bytes_per_second < np.inf


def test_two_replicas_send_each_byte_once_and_four_half_as_much_again():
    assert [exchanged_bytes(replicas, 1000) for replicas in (1, 2, 4)] == [0, 1000, 1500]


def test_an_exchange_takes_what_is_counted_by_hand():
    network = Network(latency_seconds=1e-3, bytes_per_second=1e6)
    # 2 x (4 - 1) messages for each of 2 collectives, and 1500 bytes.
    assert exchange_seconds(network, 4, Reduced(1000, 2)) == pytest.approx(12e-3 + 1.5e-3)
    assert exchange_seconds(network, 1, Reduced(1000, 2)) == 0


@pytest.mark.parametrize(("rows", "seconds"), [(1, 1.0), (2, 1.5), (3, 2.0), (5, 4.0), (6, 4.8)])
def test_compute_is_on_the_line_between_sizes_and_in_proportion_beyond(rows, seconds):
    assert compute_seconds({1: 1.0, 3: 2.0, 5: 4.0}, rows) == pytest.approx(seconds)


def test_compute_of_less_than_was_measured_is_refused():
    with pytest.raises(ValueError, match="`rows` must be at least 2, got 1"):
        compute_seconds({2: 1.0, 4: 2.0}, 1)


# The simulation

GIVEN = BenchArguments(
    clips=4, compute_clips=(1, 4), simulated_clips=16, all_sum_kib=(4, 1024), rounds=2
)


def measured_rows(given=GIVEN):
    """Two rounds; the second takes twice as long as the first."""

    def row(what, size, batch, unit, value):
        return Row(what, size, batch, unit, values=[value, 2 * value])

    return [
        row("one device", "R=1", 1, "ms/step", 10.0),
        row("one device", "R=1", 4, "ms/step", 25.0),
        Row("exchanged, 2 processes", "R=2", 4, "bytes/step", values=[1e5, 1e5]),
        Row("collectives, 2 processes", "R=2", 4, "a step", values=[3.0, 3.0]),
        *(
            row("all_sum, 2 processes", size, 1, "ms", 2 * 0.25 + 1e3 * n / 1e8)
            for size, n in (("4 KiB", 4096), ("1 MiB", 2**20))
        ),
    ]


def simulated(what, replicas, batch, given=GIVEN):
    rows = scaling_simulation.simulated_rows(given, measured_rows(given))
    (row,) = [r for r in rows if (r.what, r.size, r.batch) == (what, f"R={replicas}", batch)]
    return row


def test_each_round_is_fitted_on_its_own():
    latency, bandwidth = scaling_simulation.fitted_rows(GIVEN, measured_rows())
    assert latency.values == pytest.approx([250.0, 500.0])
    assert bandwidth.values == pytest.approx([0.8, 0.4])


def test_simulated_steps_take_what_is_counted_by_hand():
    # 8 replicas: 14 messages for each of 3 collectives, 7/4 of the bytes; 4 clips take 25 ms.
    seconds = 25e-3 + 42 * 0.25e-3 + 1.75 * 1e5 / 1e8
    assert simulated("simulated weak", 8, 4).values == pytest.approx([1 / seconds, 0.5 / seconds])
    seconds += 15e-3 - 25e-3  # 2 clips each
    assert simulated("simulated strong", 8, 16).values[0] == pytest.approx(1 / seconds)


def test_one_replica_exchanges_nothing():
    assert simulated("simulated weak", 1, 4).values[0] == pytest.approx(1 / 25e-3)
    assert simulated("simulated strong", 1, 16).values[0] == pytest.approx(1 / 100e-3)


def test_no_replica_is_left_without_a_clip():
    rows = scaling_simulation.simulated_rows(GIVEN, measured_rows())
    sizes = {}
    for row in rows:
        sizes.setdefault((row.what, row.batch), []).append(int(row.size.removeprefix("R=")))
    assert max(sizes["simulated weak", 4]) == 1024
    assert max(sizes["simulated strong", 4]) == 4
    assert max(sizes["simulated strong", 16]) == 16
    assert {row.what.split()[0] for row in rows} == {"simulated"}


def test_a_real_network_takes_the_place_of_the_fitted_one():
    given = BenchArguments(**{**vars(GIVEN), "latency_us": 5.0, "bandwidth_gbit": 100.0})
    seconds = 25e-3 + 42 * 5e-6 + 1.75 * 1e5 / 12.5e9
    assert simulated("simulated weak", 8, 4, given).values[0] == pytest.approx(1 / seconds)
    given = BenchArguments(**{**vars(GIVEN), "latency_us": 0.0})
    seconds = 25e-3 + 1.75 * 1e5 / 1e8
    assert simulated("simulated weak", 8, 4, given).values[0] == pytest.approx(1 / seconds)


def test_nothing_is_simulated_on_an_unknown_network():
    given = BenchArguments(**{**vars(GIVEN), "parts": ("replicas",), "latency_us": 5.0})
    assert scaling_simulation.simulated_rows(given, measured_rows()) == []
    assert "nothing is simulated" in scaling_targets.notes(given, measured_rows())[-1]


def test_the_plot_counts_the_clips_of_all_replicas():
    weak = Row("weak, local:4", "R=4", 8, "steps/s", values=[2.0])
    strong = Row("simulated strong", "R=4", 8, "steps/s", values=[2.0])
    assert (clips_per_second(weak), clips_per_second(strong)) == (64.0, 16.0)
    assert lines_of([weak, strong]) == {("simulated strong", 8): [(4, 16.0)]}


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
import json, sys, time
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
while True:
    request = json.loads(pipe.recv_bytes())
    if request["do"] == "end":
        sys.exit("out of luck")
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


def test_only_processes_of_a_cluster_have_tf_config(monkeypatch):
    assert environments_of("local:2", 1) == [{}]
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
    assert [line[:7] for line in lines[2:]] == ["not mea"] * 3 + [word.ljust(7)]


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
    """One run of one device and two processes: its rows, its output and its plot."""
    folder = tmp_path_factory.mktemp("bench")
    json_, plot = folder / "rows.json", folder / "p.png"
    options = "--parts replicas collective --preset wavenet-smoke --clip-samples 256 --clips 4 "
    options += "--compute-clips 1 --all-sum-kib 4 64 --least-seconds 0.01 --rounds 1"
    some = {name: scaling_rows.STRATEGIES[name] for name in ("single", "2 processes")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaling_rows, "STRATEGIES", some)
        words = [*options.split(), "--json", str(json_), "--plot", str(plot)]
        assert scaling.run(onepass.command.parse(BenchArguments, words, "onepass bench")) == 0
    return types.SimpleNamespace(output=json.loads(json_.read_text()), plot=plot)


def value_of(bench, what, batch=4):
    (value,) = [
        row["value"] for row in bench.output["rows"] if (row["what"], row["batch"]) == (what, batch)
    ]
    return value


def test_json_keeps_the_contract(bench):
    assert set(bench.output) == {"machine", "rows"}
    keys = {"what", "size", "batch", "value", "unit", "against", "ratio", "spread"}
    assert all(keys <= set(row) for row in bench.output["rows"])
    assert all(row["value"] > 0 for row in bench.output["rows"])
    assert all(row["ratio"] > 0 for row in bench.output["rows"] if row["against"])


def test_the_gradients_of_a_step_are_the_bytes_counted(bench):
    weights = sum(np.prod(w.shape) for w in teacher("wavenet-smoke").state.weights)
    beside = value_of(bench, "exchanged, 2 processes") - 4 * weights
    assert 0 < beside < 100  # loss, metrics and what the loss divides by


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts of the loopback")
def test_the_bytes_counted_went_over_the_loopback(bench):
    counted = value_of(bench, "exchanged, 2 processes")
    assert value_of(bench, "loopback, 2 processes") > 0.99 * counted


def test_two_replicas_are_simulated_as_the_measured_collectives_have_it(bench):
    sizes = {row["size"]: row["value"] for row in bench.output["rows"] if "all_sum" in row["what"]}
    assert set(sizes) == {"4 KiB", "64 KiB"}
    known = {(r["what"], r["size"], r["batch"]): r["value"] for r in bench.output["rows"]}
    exchange = 1 / known["simulated weak", "R=2", 4] - 1 / known["simulated weak", "R=1", 4]
    network = Network(
        known["fitted latency", "R=2", 1] / 1e6, known["fitted bandwidth", "R=2", 1] / 8e-9
    )
    reduced = Reduced(
        known["exchanged, 2 processes", "R=2", 4], known["collectives, 2 processes", "R=2", 4]
    )
    assert exchange == pytest.approx(exchange_seconds(network, 2, reduced))


def test_the_plot_is_an_image(bench):
    assert bench.plot.read_bytes().startswith(b"\x89PNG")


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
        (["--latency-us", "-1"], "`--latency-us` must be at least 0, got -1"),
        (["--bandwidth-gbit", "0"], "`--bandwidth-gbit` must be above 0, got 0"),
        (["--limit-seconds", "inf"], "`--limit-seconds` must be above 0, got inf"),
        (["--plot", "curve.gif"], "`--plot` must end in .png, .pdf or .svg, got curve.gif"),
        (["--plot", "c.png", "--parts", "keras"], "`--plot` shows replicas, which `--parts` leav"),
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
