"""Pipeline schedules keep their laws, hold what the paper says, and wait as long as it says."""

import dataclasses
import itertools
import json

import pytest

import onepass
from onepass.foundation.rules import UserError
from onepass.planning.pipeline import schedule
from onepass.planning.pipeline.command import write_plot, write_trace
from onepass.planning.pipeline.schedule import BLOCKS, Pass

DEVICES = (1, 2, 3, 4, 5, 6, 8, 11)
UNEVEN = schedule.Durations(forward=2.0, backward=3.0, weights=1.0, communication=0.5)


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("devices", DEVICES)
def test_every_schedule_keeps_the_laws(name, devices):
    for microbatches in (1, 2, devices, 2 * devices + 1):
        block = BLOCKS[name](devices)
        repeated = schedule.repeat(name, block, microbatches)
        repeated.check()
        made = schedule.schedule(name, devices, microbatches)
        made.check()
        assert len(made.slots) == 3 * microbatches * len(made.devices)
        assert max(made.slots.values()) <= max(repeated.slots.values())
        assert max(made.peaks()) <= max(repeated.peaks())


def test_broken_laws_are_found():
    made = schedule.schedule("v-min", 3, 4)
    one, other = Pass("B", 2, 1), Pass("F", 2, 3)
    slots = dict(made.slots)
    for change in (
        {each: slot for each, slot in slots.items() if each != one},
        slots | {Pass("F", 6, 0): 1000},
        slots | {one: slots[other]},
        slots | {one: -1},
        slots | {Pass("W", 2, 1): slots[one]},
    ):
        with pytest.raises(ValueError, match="`slots` must"):
            dataclasses.replace(made, slots=change).check()


@pytest.mark.parametrize("devices", DEVICES)
def test_activations_are_those_of_the_paper(devices):
    d = devices
    expected = {
        "1f1b": d, "interleaved": d + (d - 1) / 2, "v-half": (d + 2) // 2, "v-min": (d + 4) // 3,
        "v-zb": d,
    }  # fmt: skip
    found = {each.schedule.name: each.peaks for each in schedule.compare(d, 4 * d)}
    assert {name: max(peaks) for name, peaks in found.items()} == expected
    assert found["1f1b"] == tuple(range(d, 0, -1))
    assert len(set(found["v-zb"])) == 1  # and they are balanced


@pytest.mark.parametrize("devices", (2, 3, 4, 8))
@pytest.mark.parametrize("groups", (2, 5))
def test_bubbles_are_those_of_the_formulas(devices, groups):
    d, m = devices, groups * devices
    found = {each.schedule.name: each.bubble for each in schedule.compare(d, m)}
    assert found["1f1b"] == pytest.approx((d - 1) / (m + d - 1))
    assert found["interleaved"] == pytest.approx((d - 1) / (2 * m + d - 1))
    # All that is left is the way of the first microbatch to the last device.
    assert found["v-zb"] == pytest.approx((d - 1) / (6 * m + d - 1))
    assert max(found["v-half"], found["v-min"]) < found["1f1b"]


def test_a_fused_backward_pass_takes_both_durations():
    d, m = 5, 9
    made = schedule.schedule("1f1b", d, m)
    still = dataclasses.replace(UNEVEN, communication=0.0)
    assert schedule.simulate(made, still).makespan == pytest.approx((m + d - 1) * 6.0)
    alone = schedule.schedule("1f1b", d, 1)
    assert schedule.simulate(alone, UNEVEN).makespan == pytest.approx(d * 6.0 + 2 * (d - 1) * 0.5)


@pytest.mark.parametrize("name", BLOCKS)
def test_simulated_passes_wait_for_what_they_need_and_no_longer(name):
    made = schedule.schedule(name, 4, 9)
    shares = [0.5 + 0.1 * stage for stage in range(len(made.devices))]
    found = schedule.simulate(made, UNEVEN, shares)
    before = {}
    for device, _, each in made.rows():
        ends = [found.spans[before[device]][1]] if device in before else [0.0]
        for need in made.needs(each):
            way = 0.5 if made.devices[need.stage] != device else 0.0
            ends.append(found.spans[need][1] + way)
        start, end = found.spans[each]
        assert start == max(ends)
        assert end - start == pytest.approx(UNEVEN.of(each.kind) * shares[each.stage])
        before[device] = each
    assert found.makespan == max(end for _, end in found.spans.values())
    assert found.peaks == pytest.approx(counted(found, shares))


def counted(found, shares):
    """The peak of each device, counted at the start of every forward pass."""
    made, spans = found.schedule, found.spans
    peaks = [0.0] * made.num_devices
    for each in made.slots:
        if each.kind == "F":
            now, device = spans[each][0], made.devices[each.stage]
            live = [
                shares[stage]
                for stage, number in itertools.product(
                    range(len(made.devices)), range(made.num_microbatches)
                )
                if made.devices[stage] == device
                and spans["F", stage, number][0] <= now < spans["W", stage, number][1]
            ]
            peaks[device] = max(peaks[device], sum(live))
    return peaks


def test_a_trace_has_every_pass_and_what_lives_and_an_image_every_schedule(tmp_path):
    found = schedule.compare(3, 4, UNEVEN)
    write_trace(tmp_path / "trace.json", found)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for process, each in enumerate(found):
        mine = [event for event in events if event["pid"] == process]
        passes = [event for event in mine if event["ph"] == "X"]
        assert len(passes) == len(each.schedule.slots)
        assert max(e["ts"] + e["dur"] for e in passes) == pytest.approx(1000 * each.makespan)
        lives = [event["args"]["stages"] for event in mine if event["ph"] == "C"]
        assert max(lives) == max(each.schedule.peaks())
    write_plot(tmp_path / "all.svg", found)
    text = (tmp_path / "all.svg").read_text()
    assert all(f"<!-- {name}: bubble" in text for name in BLOCKS)


def test_the_command_prints_what_it_writes(tmp_path, capsys):
    path = tmp_path / "table.json"
    words = ["--devices", "8", "--microbatches", "32", "--json", str(path)]
    assert onepass.main(["pipeline", *words]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    rows = json.loads(path.read_text())["rows"]
    assert [line[0] for line in lines] == [row["schedule"] for row in rows] == list(BLOCKS)
    assert [float(line[4]) for line in lines] == [max(row["peaks"]) for row in rows]
    assert [line[2] for line in lines] == [f"{row['bubble']:.1%}" for row in rows]
    assert lines[-1] == ["v-zb", "99.5", "3.5%", "1.176", "8", "1.000"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--devices 0 --microbatches 3", "`devices` must be at least 1, got 0."),
        ("--devices 3 --microbatches 0", "`microbatches` must be at least 1, got 0."),
        ("--devices 3 --microbatches 2 --weights -1", "`weights` must be above 0"),
        ("--devices 3 --microbatches 2 --plot a.bmp", "`--plot` must end in .png"),
    ],
)
def test_bad_words_are_refused_in_one_line(words, said, mistake):
    assert said in mistake("pipeline", *words.split())


def test_a_schedule_without_a_name_of_ours_is_refused():
    with pytest.raises(UserError, match=r"`schedule` must be one of 1f1b, .*, got gpipe"):
        schedule.schedule("gpipe", 2, 2)
