"""Plans of a step on several devices: laws of the simulation, and uses of a plan."""

import dataclasses
import itertools
import json
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
import tensorflow as tf
import toys

from onepass.foundation.rules import UserError
from onepass.planning import measurement, plan
from onepass.planning.arguments import PlanArguments, check
from onepass.planning.measurement import (
    Measurement,
    Run,
    Store,
    assign_durations,
    needed_bytes,
    paired_seconds,
    this_machine,
    time_rounds,
)
from onepass.planning.pipeline.schedule import BLOCKS, Stages, schedule
from onepass.planning.pipeline.schedule import simulate as pipeline_simulate
from onepass.planning.plan import (
    ModelPrograms,
    Planner,
    cheapest,
    lines,
    to_json,
    write_plot,
    write_trace,
)
from onepass.planning.trainable import Trainable
from onepass.replicator.portable.layouts.simulation import (
    LINK,
    Network,
    Operation,
    asynchronous_rate,
    combine_collectives,
    read_program,
    sent_bytes,
    sharing_scale,
    simulate,
    synchronous,
)
from onepass.replicator.training.config import OptimizerConfig
from onepass.replicator.training.state import TrainState

NETWORK = Network(latency_seconds=1e-3, bytes_per_second=1e6)


def compute(name, seconds, *inputs, size=8.0, kind="add"):
    return Operation(name, kind, size, inputs, seconds=seconds)


def reduce(name, size, *inputs, devices=4):
    return Operation(name, "all-reduce", size, inputs, devices, LINK)


def test_a_ring_takes_what_is_counted_by_hand():
    # 2 x (4 - 1) messages and 1500 bytes; a gather of shards of 1000: 3 messages, 3000 bytes.
    assert NETWORK.seconds("all-reduce", 1000, 4) == pytest.approx(6e-3 + 1.5e-3)
    assert NETWORK.seconds("all-gather", 1000, 4) == pytest.approx(3e-3 + 3e-3)
    assert NETWORK.seconds("reduce-scatter", 1000, 4) == pytest.approx(3e-3 + 0.75e-3)
    assert NETWORK.seconds("collective-permute", 1000, 4) == pytest.approx(2e-3)
    assert [sent_bytes("all-reduce", 1000, n) for n in (1, 2, 4)] == [0, 1000, 1500]
    for kind in ("all-reduce", "all-gather", "all-to-all", "collective-permute"):
        assert NETWORK.seconds(kind, 1000, 1) == 0


def test_one_device_takes_the_sum_of_its_operations():
    program = [compute("a", 1.0), compute("b", 2.0, 0), compute("c", 4.0)]
    assert simulate(program, NETWORK).seconds == 7.0
    assert simulate(program, NETWORK, sharing_scale(4)).seconds == 28.0


def test_a_collective_hides_behind_what_does_not_wait_for_it():
    # 4 devices reduce 4000 bytes: 6 ms of messages and 6 ms of bytes.
    program = [
        compute("last layer", 1e-3),
        reduce("its gradient", 4000.0, 0),
        compute("first layer", 20e-3, 0),
        compute("update", 1e-3, 1, 2),
    ]
    timeline = simulate(program, NETWORK)
    assert timeline.seconds == pytest.approx(22e-3)
    assert timeline.sent_bytes == 6000
    program[2] = dataclasses.replace(program[2], seconds=5e-3)
    assert simulate(program, NETWORK).seconds == pytest.approx(14e-3)  # the network is longer
    timeline = simulate(synchronous(1.0, [1000.0, 10.0], 2), NETWORK)
    assert timeline.seconds == pytest.approx(1.0 + 2 * 2e-3 + 1010 / 1e6)  # computes, then reduces


def random_program(draws):
    program = []
    for index in range(30):
        inputs = tuple({int(i) for i in draws.integers(0, index, size=2)} if index else ())
        if draws.random() < 0.3:
            program.append(reduce(f"r{index}", float(draws.integers(1, 10**5)), *inputs))
        else:
            program.append(compute(f"c{index}", float(draws.random()), *inputs))
    return program


@pytest.mark.parametrize("seed", range(10))
def test_more_bandwidth_or_less_latency_is_never_slower(seed):
    program = random_program(np.random.default_rng(seed))
    slow, wide, near = (Network(*pair) for pair in ((1e-2, 1e5), (1e-2, 2e5), (1e-3, 1e5)))
    seconds = simulate(program, slow).seconds
    assert simulate(program, wide).seconds <= seconds
    assert simulate(program, near).seconds <= seconds
    assert simulate(program, slow, 0.5).seconds <= seconds


@pytest.mark.parametrize(
    ("given", "scale"),
    [
        # Replicas share the cores that one keeps busy.
        *(((4, 1.0), 4.0), ((4, 0.5), 2.0), ((4, 0.1), 1.0)),
        # What two lose to each other more replicas lose too,
        *(((1, 0.6, 1.8), 1.0), ((2, 0.6, 1.8), 1.8), ((4, 0.6, 1.8), 3.6)),
        ((4, 0.1, 1.05), 1.05),  # of many cores, that no replica has to wait for
    ],
)
def test_replicas_slow_each_other_down_by_the_cores_that_they_share(given, scale):
    assert sharing_scale(*given) == pytest.approx(scale)


@pytest.mark.parametrize(
    ("handling_seconds", "seconds"),
    [(0.0, 3.002), (0.25, 4.002)],  # 1.001 s each way; both ends handle, both ways
)
def test_one_worker_reads_computes_and_adds_in_turn(handling_seconds, seconds):
    options = {"handling_seconds": handling_seconds}
    rate, _ = asynchronous_rate(1.0, 1e6, 1, 1, NETWORK, **options)
    assert rate == pytest.approx(1 / seconds)


def test_many_workers_wait_for_the_server():
    rates = [asynchronous_rate(1.0, 1e6, n, 1, NETWORK)[0] for n in (1, 2, 16)]
    assert rates[0] < rates[1] < rates[2] <= 1 / 2.002 * (1 + 1e-9)
    for seconds in (0.0, 4.0):  # servers share what is to be handled, too
        options = {"handling_seconds": seconds}
        one, two = (asynchronous_rate(1.0, 1e6, 16, n, NETWORK, **options)[0] for n in (1, 2))
        assert two > 1.5 * one


TEXT = """HloModule m, is_scheduled=true, num_partitions=4

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%fused (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0} parameter(0)
  ROOT %t = f32[8,4]{1,0} tanh(%p)
}

ENTRY %main (x: f32[8,4], w: bf16[4]) -> (f32[8,4], bf16[4]) {
  %x = f32[8,4]{1,0} parameter(0), sharding={devices=[4,1]<=[4]}
  %w = bf16[4]{0} parameter(1)
  %y = f32[8,4]{1,0} fusion(%x), kind=kLoop, calls=%fused, metadata={op_name="f(a)/b"}
  %z = bf16[4]{0} negate(%w)
  %r = (f32[8,4]{1,0}, /*index=1*/bf16[4]{0}) all-reduce(%y, %z), GROUPS, to_apply=%sum
  %g0 = f32[8,4]{1,0} get-tuple-element(%r), index=0
  %g1 = bf16[4]{0} get-tuple-element(%r), index=1
  %u = bf16[4]{0} negate(%g1)
  ROOT %out = (f32[8,4]{1,0}, bf16[4]{0}) tuple(%g0, %u)
}
"""


@pytest.mark.parametrize(
    ("groups", "devices"),
    [
        ("replica_groups={{0,1},{2,3}}", 2),
        ("replica_groups=[2,2]<=[4]", 2),
        ("replica_groups=mesh['a'=4,'b'=1] {'a'}", 4),
        ("replica_groups={}", 4),
    ],
)
def test_a_program_is_its_operations_and_what_they_wait_for(groups, devices):
    program = read_program(TEXT.replace("GROUPS", groups), 4)
    assert [o.name for o in program] == ["y", "z", "r", "r", "u"]
    assert [o.inputs for o in program] == [(), (), (0,), (1,), (3,)]
    assert [o.size_bytes for o in program] == [256, 16, 128, 8, 16]
    assert [o.devices for o in program if o.is_collective] == [devices] * 2
    assert program[1].kind == program[4].kind == "negate"


def test_a_kind_does_not_depend_on_shapes_or_names():
    other = TEXT.replace("8,4", "16,4").replace("fused", "fused.7")
    assert read_program(other, 4)[0].kind == read_program(TEXT, 4)[0].kind
    assert read_program(TEXT.replace("tanh", "exponential"), 4)[0].kind != (
        read_program(TEXT, 4)[0].kind
    )


def test_buckets_are_exchanged_as_soon_as_they_are_there():
    program = read_program(TEXT, 4)
    whole, cut = combine_collectives(program), combine_collectives(program, 100.0)
    assert [o.size_bytes for o in whole if o.is_collective] == [136]
    assert [o.inputs for o in whole] == [(), (), (0, 1), (2,)]
    assert [o.size_bytes for o in cut if o.is_collective] == [128, 8]
    assert cut[-1].inputs == (3,)


def profile(*operations, seconds=1.0, device="cpu", memory=None):
    traced = {operation.name: operation.seconds for operation in operations}
    run = Run([seconds], 1.0, None, traced, device)
    return Measurement([*operations], memory or {"temporaries": 100}, run)


@pytest.mark.parametrize(
    ("first", "second", "sizes"), [(2.0, 6.0, (8.0, 3.0)), (0.0, 0.0, (10.0, 30.0))],
    ids=["traced", "by bytes"],
)  # fmt: skip
def test_the_profiled_program_takes_its_step(first, second, sizes):
    operations = compute("a", first, size=sizes[0]), compute("b", second, size=sizes[1])
    found = profile(*operations, seconds=4.0)
    assert [o.seconds for o in assign_durations(found.program, found)] == pytest.approx([1.0, 3.0])


@pytest.mark.parametrize(
    ("size", "seconds"), [(10, 1.0), (20, 2.0), (15, 1.5), (40, 4.0), (5, 0.5)]
)
def test_an_operation_takes_what_its_kind_took_at_its_size(size, seconds):
    found = profile(compute("a", 1.0, size=10), compute("b", 2.0, size=20), seconds=3.0)
    (operation,) = assign_durations([compute("c", 0.0, size=size)], found)
    assert operation.seconds == pytest.approx(seconds)


def test_what_is_far_larger_than_any_of_its_kind_takes_what_bytes_take_on_average():
    """An operation of a few bytes takes its time to begin: not a thousandth of that of 8,000."""
    seen = [
        compute("a", 1.0, size=8, kind="fusion-1"),
        compute("b", 3.0, size=3992, kind="fusion-2"),
    ]
    found = profile(*seen, seconds=4.0)
    (operation,) = assign_durations([compute("c", 0.0, size=8008, kind="fusion-1")], found)
    assert operation.seconds == pytest.approx(1.0 + 8000 * 4.0 / 4000)


def test_a_measurement_is_made_once(tmp_path):
    made = []

    def measure():
        made.append(1)
        return {"seconds": len(made)}

    assert [Store(tmp_path).load_or_measure("a", measure) for _ in range(2)] == [{"seconds": 1}] * 2
    fresh = Store(tmp_path, fresh=True)
    assert [fresh.load_or_measure("a", measure) for _ in range(2)] == [{"seconds": 2}] * 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            json.dumps({"machine": this_machine() | {"processor": "Z80", "cores": 1}, "found": {}}),
            r"is from another machine \(processor Z80, this one .*cores 1, ",
        ),
        ('{"mach', r"a.json cannot be read: .*`--fresh`"),
    ],
    ids=["another machine", "damaged"],
)
def test_a_profile_that_cannot_be_used_is_refused_in_one_line(tmp_path, text, said):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=said):
        Store(tmp_path).load_or_measure("a", dict)


class Fake:
    """Programs and store of a step of 1 s a row whose memory is 100 bytes a row and 60 of state."""

    batch, microbatches, is_fixed = 8, 1, False

    def __init__(self, free_share=1.0, stages=None):
        self.free_share, self.stages = free_share, stages
        self.model = types.SimpleNamespace(reduced_bytes=20, state_bytes=60, num_variables=5)

    def folder(self, rows, microbatches):
        return rows, microbatches

    def run(self, store, rows, compiles=True):
        """A step that XLA makes twice as fast as TensorFlow."""
        seconds = float(rows) if compiles else 2.0 * rows
        return Run([seconds], 1.0, 100.0 * rows, {}, "cpu")

    def measure_profiled(self, folder):
        rows, microbatches = folder
        return self._of(rows, microbatches, 1)

    def measure_compiled(self, folder, rows, model):
        found = self._of(folder[0] // rows, folder[1], model)
        found.program.append(reduce("gradients", 40.0, 0, devices=rows))
        return found

    def _of(self, rows, microbatches, model):
        memory = {"temporaries": 100 * rows // microbatches, "arguments": 60 // model}
        found = profile(compute("a", 1.0, size=rows), seconds=rows, memory=memory)
        run = dataclasses.replace(found.run, free_share=self.free_share)
        return dataclasses.replace(found, run=run)


def planner(stages=None, **options):
    given = PlanArguments("fake", **{"devices": 4, "latency_us": 0.0, **options})
    check(given)
    return Planner(given, Fake(stages=stages), Fake())


def gib(size):
    return size / 2**30


def test_devices_of_their_own_divide_the_step_and_shared_cores_do_not():
    alone = planner(shared_cores="no").predictions()
    assert [p.devices for p in alone] == [1, 2, 4]
    assert [p.step_seconds for p in alone] == pytest.approx([8, 4, 2], rel=1e-6)
    assert [p.efficiency for p in alone] == pytest.approx([1, 1, 1], rel=1e-6)
    shared = planner().predictions()  # a processor was profiled
    assert [p.step_seconds for p in shared] == pytest.approx([8, 8, 8], rel=1e-6)
    assert [p.efficiency for p in shared] == pytest.approx([1, 0.5, 0.25], rel=1e-6)


def test_a_worker_of_a_parameter_server_takes_the_step_that_xla_does_not_make():
    options = {"strategy": "parameter_server", "devices": 1, "link": 1e9}
    (fast,) = planner(message_us=0, **options).predictions()
    (slow,) = planner(message_us=1e5, **options).predictions()
    assert fast.step_seconds == pytest.approx(16)
    assert slow.step_seconds == pytest.approx(16 + 4 * 5 * 0.1)


def test_replicas_hold_what_they_exchange():
    one, two, _ = planner(strategy="replicas").predictions()
    assert (one.memory_bytes, two.memory_bytes) == (800, 400 + 2 * 20)


def test_the_cheapest_is_the_least_that_fits():
    plan = planner(shared_cores="no", memory=gib(500), link=1e-9)
    found = plan.predictions()
    assert [plan.fits(p) for p in found] == [False, True, True]
    assert cheapest([p for p in found if plan.fits(p)]).devices == 2
    assert [p.sent_bytes for p in found] == [0, 40, 60]


def test_microbatches_come_before_cuts_of_the_state():
    found = planner(memory=gib(170)).predictions()[-1]
    assert (found.rows, found.model, found.microbatches) == (4, 1, 2)
    found = planner(memory=gib(135), batch=None).predictions
    with pytest.raises(UserError, match=r"No configuration of 4 devices fits in .* GiB: the sma"):
        found()


@pytest.mark.parametrize("options", [{"devices": 3}, {"devices": 6, "mesh": "3x2"}])
def test_a_mesh_or_devices_that_do_not_divide_the_batch_are_refused(options):
    with pytest.raises(UserError, match=r"^A batch of 8 rows cannot be divided by 3 devices"):
        planner(**options).predictions()


def test_a_table_json_trace_and_plot_say_the_same(tmp_path):
    plan = planner(shared_cores="no", memory=gib(500))
    found = plan.predictions()
    fitting = [p for p in found if plan.fits(p)]
    text, stored = "\n".join(lines(found, fitting)), to_json(found, fitting)
    assert text.count(" *\n") == 1 and "fastest that fits: 4 devices, mesh 4x1" in text
    assert [c["fits"] for c in stored["configurations"]] == [False, True, True]
    assert (stored["fastest"], stored["cheapest"]) == (2, 1)
    write_trace(tmp_path / "t.json", found[-1].timeline)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X"] == ["a", "gradients"]
    assert sum(e.get("dur", 0) for e in events) == pytest.approx(1e6 * found[-1].step_seconds)
    write_plot(tmp_path / "p.png", found, None)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def pipelines(work=(1.0,) * 4, passed_bytes=0.0, **options):
    found = planner(Stages(work, passed_bytes), **{"shared_cores": "no", **options}).predictions()
    return {(p.devices, p.schedule): p for p in found if p.schedule}


def test_a_pipeline_takes_and_holds_what_is_counted_by_hand():
    found = pipelines()
    # Four stages are enough for two devices of two, and for four of one.
    assert found.keys() == {*((2, name) for name in BLOCKS), (4, "1f1b")}
    best = found[4, "1f1b"]  # 8 microbatches of 1/4 s a device, three devices wait at the ends
    assert best.microbatches == 8 and best.step_seconds == pytest.approx(8 * 11 / 32)
    assert best.bubble == pytest.approx(3 / 11) and best.efficiency == pytest.approx(8 / 11)
    # A quarter of the state, and four microbatches of a quarter of the activations.
    assert best.memory_bytes == pytest.approx(60 / 4 + 4 * 800 / 8 / 4)
    for name in BLOCKS:
        expected = pipeline_simulate(schedule(name, 2, 8))
        assert found[2, name].bubble == pytest.approx(expected.bubble)
        assert found[2, name].memory_bytes == pytest.approx(30 + max(expected.peaks) * 50)


def test_what_stages_pass_on_takes_time_and_is_sent():
    slow = pipelines(passed_bytes=1000.0, link=8e-6)  # one second for a row
    assert slow[4, "1f1b"].sent_bytes == 2 * 8000.0  # of a device in the middle, both ways
    assert slow[4, "1f1b"].step_seconds > 8 * 11 / 32 + 6  # to the last device and back


def test_stages_are_joined_so_that_the_largest_is_smallest():
    assert Stages((1.0, 1.0, 1.0, 3.0), 0.0).join_stages(2) == [3.0, 3.0]
    uneven, even = pipelines((10.0, 10.0, 10.0, 30.0)), pipelines()
    assert uneven[4, "1f1b"].step_seconds > 1.5 * even[4, "1f1b"].step_seconds


@pytest.mark.parametrize("seed", range(20))
def test_stages_are_joined_as_trying_every_way_would_join_them(seed):
    draw = np.random.default_rng(seed)
    whole = draw.integers(1, 4, 7).astype(float)  # many ways are equally good
    for work in (whole, draw.random(7)):
        ends = [0.0, *itertools.accumulate(work)]
        for count in range(1, 8):
            cuts = itertools.combinations(range(1, 7), count - 1)
            runs = [[0, *cut, 7] for cut in cuts]
            shares = [[ends[b] - ends[a] for a, b in itertools.pairwise(run)] for run in runs]
            assert Stages(tuple(work), 0.0).join_stages(count) == min(shares, key=max)


def test_forty_stages_are_joined_for_twenty_devices():
    assert Stages((1.0,) * 40, 0.0).join_stages(20) == [2.0] * 20
    found = Stages((1.0, 2.0, 3.0, 2.0) * 10, 0.0).join_stages(20)
    assert len(found) == 20 and sum(found) == 80.0 and max(found) == 5.0  # 1 + 2, 3 + 2
    with pytest.raises(ValueError, match="`count` must be between 1 and 40, got 41"):
        Stages((1.0,) * 40, 0.0).join_stages(41)


def test_where_memory_is_short_a_pipeline_is_chosen_that_fits():
    plan = planner(Stages((1.0,) * 4, 0.0), memory=gib(120), shared_cores="no")
    found = plan.predictions()
    assert [p.schedule for p in found if plan.fits(p)] == ["1f1b"]
    text = "\n".join(lines(found, [p for p in found if plan.fits(p)]))
    assert "cheapest that fits: 4 devices, pipeline 1f1b, 8 microbatches" in text


def test_a_step_that_only_computes_keeps_at_most_all_cores_busy_and_a_long_one_is_timed_once():
    found = time_rounds(lambda: np.ones(2**20).sum(), 2, 0.01)
    assert len(found["seconds"]) in (1, 2) and min(found["seconds"]) > 0
    assert 0 < found["busy_share"] <= 1 and found["free_share"] > 0
    assert len(time_rounds(lambda: None, 3, 0.0)["seconds"]) == 1


def test_paired_steps_start_together_and_all_run():
    together, made = threading.Barrier(2, timeout=60), []

    def step(name):
        together.wait()
        made.append(name)

    seconds = paired_seconds([lambda: step("a"), lambda: step("b")], 0.0)
    assert seconds > 0 and sorted(made) == ["a", "b"]


@pytest.mark.integration
def test_neither_a_folders_plan_nor_its_programs_import_tensorflow():
    blocked = "import sys; sys.modules['tensorflow'] = None\n"
    modules = "import onepass.planning.plan, onepass.planning.device_program"
    subprocess.run([sys.executable, "-c", blocked + modules], check=True)


def test_a_profile_of_a_busy_machine_is_said_to_be_one(capsys, monkeypatch, tmp_path):
    given = PlanArguments("fake", 4, profiles=tmp_path)
    for share, warns in ((0.95, False), (0.4, True)):
        monkeypatch.setattr(plan, "Store", lambda *_, share=share, **__: Fake(share))
        assert plan.run(given, Fake()) == 0
        assert ("left 40% of the processor time" in capsys.readouterr().out) is warns


def test_a_home_that_cannot_be_written_names_the_option(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").write_text("no folder")
    rest = r".* Choose another folder with `--profiles`\.$"
    with pytest.raises(UserError, match=r"^Cannot create the folder .*/home/\.cache/" + rest):
        plan.run(PlanArguments("fake", 4), Fake())
    full = Store(tmp_path / "full", fresh=True)
    (full.folder / "key.json").mkdir()
    with pytest.raises(UserError, match=r"^Cannot write .*/full/key\.json" + rest):
        full.load_or_measure("key", dict)


def test_what_a_step_allocates_is_what_it_needs():
    def step():
        np.ones(2**25, np.uint8).sum()

    assert needed_bytes(step, 1000) == pytest.approx(2**25, rel=0.2)


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    """The programs of a line with four weights, and a store."""
    model = toys.Line()
    batch = {name: tf.TensorSpec(v.shape, v.dtype) for name, v in toys.line_batch(0).items()}
    state = TrainState(model, OptimizerConfig(), 10)
    programs = ModelPrograms(
        Trainable(state, model.loss, batch), 8, 1, tmp_path_factory.mktemp("steps")
    )
    return programs, Store(tmp_path_factory.mktemp("profiles"), rounds=1, seconds=0.01)


@pytest.mark.slow
def test_a_compiled_step_on_two_devices_reduces_its_gradients(line):
    programs, store = line
    plan = Planner(PlanArguments("line", 2), programs, store)
    one, two = plan.predictions()
    assert (one.sent_bytes, two.sent_bytes) == (0, 4 * 4 + 4)  # four gradients and the loss
    folder = programs.folder(8, 1)
    whole, half = store.measure_profiled(folder).memory, store.measure_compiled(folder, 2).memory
    assert whole["arguments"] - half["arguments"] == 8 * 4 * 4 / 2  # each has half of the rows
    assert one.step_seconds == pytest.approx(
        store.measure_profiled(programs.folder(8, 1)).run.step_seconds
    )


@pytest.mark.integration
def test_a_measurement_without_end_is_one_line(monkeypatch):
    monkeypatch.setattr(measurement, "LIMIT_SECONDS", 0.001)  # a process takes longer to begin
    with pytest.raises(UserError, match=r"^JAX did not .* on 6 devices within 0\.001 seconds\.$"):
        measurement.ask({"rows": 3, "model": 2})


@pytest.mark.slow
def test_a_second_plan_measures_nothing(line, monkeypatch):
    programs, store = line
    before = Planner(PlanArguments("line", 2), programs, store).predictions()
    monkeypatch.setattr(measurement, "ask", None)
    assert Planner(PlanArguments("line", 2), programs, store).predictions() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--devices 0", "`--devices` must be at least 1, got 0"),
        ("--devices 4 --mesh 4", "`--mesh` needs two sizes, rows x model, as in 4x2"),
        ("--devices 4 --mesh 3x2", "`--mesh` 3x2 has 6 devices, but `--devices` is 4"),
        ("--devices 4 --memory 0", "`--memory` must be above 0, got 0"),
        ("--devices 4 --link inf", "`--link` must be above 0, got inf"),
        ("--devices 4 --plot a.gif", "`--plot` must end in .png, .pdf or .svg, got a"),
        ("--devices 4 --trace nowhere/a", "The folder nowhere for a does not exist"),
        ("--devices 2 --mesh 2x1 --strategy replicas", "`--mesh` requires `--strat"),
    ],
)
def test_what_cannot_be_planned_is_refused_in_one_line(words, said, mistake):
    assert said in mistake("plan", "wavenet-smoke", *words.split())


def test_a_model_that_cannot_be_planned_has_advice(mistake, tmp_path):
    assert "did you mean `wavenet-smoke`?" in mistake("plan", "wavenet-smok", "--devices", "2")
    (tmp_path / "config.json").write_text('{"kind": "student"}')
    assert "export it with `--portable FOLDER`" in mistake("plan", tmp_path, "--devices", "2")
