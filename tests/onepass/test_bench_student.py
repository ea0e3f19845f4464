"""The student's part of `onepass bench audio`."""

import dataclasses
import json

import pytest
from students import SMALL

import onepass
from distill.config import StudentConfig
from onepass.bench.audio import command as audio
from onepass.bench.audio import students
from onepass.bench.audio.arguments import BenchArguments
from onepass.bench.report import Row, interleaved, ratio
from replicator.runs.errors import UserError
from replicator.runs.progress import Progress
from wavenet.config import WaveNetConfig

TINY = StudentConfig(**SMALL, draft_passes=2)
TINY_TEACHER = WaveNetConfig(
    layers=2,
    stacks=1,
    residual_channels=8,
    gate_channels=8,
    skip_channels=8,
    feature_channels=7,
    condition_channels=8,
    upsample_factors=(4, 5),
)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(students.STUDENTS, "paper", TINY)
    monkeypatch.setitem(audio.NETWORKS, "p", TINY_TEACHER)
    monkeypatch.setitem(audio.CHUNK, "p", 40)
    monkeypatch.setattr(students, "SIDE", 64)


def measured(tmp_path, *options):
    path = tmp_path / "rows.json"
    fixed = ["--networks", "--students", "paper", "--rounds", "2", "--json", str(path)]
    given = onepass.command.parse(BenchArguments, [*fixed, *options], "onepass bench")
    assert audio.run(given) == 0
    return json.loads(path.read_text())["rows"]


def test_operations_are_those_counted_by_hand():
    config = StudentConfig(
        flows=(1, 2),
        filter_width=2,
        residual_channels=3,
        gate_channels=5,
        front_width=4,
        feature_channels=9,
        condition_channels=7,
        upsample_factors=(2,),
    )
    gate = 10 * (3 + 3 + 7)  # multiplications: ten outputs of two taps and the condition
    residual, front, head = 5 * 3, 4 * 3, 3 * 3 + 3 * 2
    assert students.flops_per_sample(config) == 2 * (3 * (gate + residual) + 2 * (front + head))


def test_every_figure_is_held_against_its_own_alternative(tiny):
    rows = [row for row, _ in students.measures_of("paper", TINY, (0.5,), (1,))]
    held = [(row.what, row.unit, row.against, row.against_size) for row in rows]
    assert held == [
        ("matrix product", "GFLOP/s", None, None),
        ("flows, 0.5 s", "samples/s", "naive", "p"),
        ("flows, 0.5 s", "samples/s", "Numba cached", "p"),
        ("flows, 0.5 s", "samples/s", "TensorFlow flows, 0.5 s", None),
        ("flows, 0.5 s", "GFLOP/s", "matrix product", None),
        ("flows, 0.5 s", "s/s", None, None),
        ("TensorFlow flows, 0.5 s", "samples/s", None, None),
        ("end to end, 0.5 s", "samples/s", "flows, 0.5 s", None),
        ("end to end, 0.5 s", "s/s", None, None),
        ("first chunk, 0.5 s", "s", None, None),
    ]


def test_one_measurement_gives_all_figures_of_the_flows(tiny, monkeypatch):
    speeds = iter([8000.0, 2000.0])
    monkeypatch.setattr(students, "flow_speed", lambda *_: next(speeds))
    measures = students.measures_of("paper", TINY, (0.5,), (1,))
    flows = [(row, measure) for row, measure in measures if row.what == "flows, 0.5 s"]
    interleaved(flows, 2, Progress(2, "measuring", "row"))
    gigaflops = students.flops_per_sample(TINY) / 1e9
    assert [row.values for row, _ in flows[:3]] == [[8000, 2000]] * 3
    assert flows[3][0].values == pytest.approx([8000 * gigaflops, 2000 * gigaflops])
    assert flows[4][0].values == [0.5, 2.0]  # s/s at 4 kHz


def test_parts_of_a_second_are_timed_for_the_domain_of_the_residual(tiny):
    config = dataclasses.replace(
        students.STUDENTS["residual-16k"],
        flows=(1,),
        residual_channels=8,
        gate_channels=8,
        condition_channels=8,
        conditioner_units=8,
    )
    measures = students.measures_of("residual-16k", config, (0.1,), (2,))
    values = {row.what: measure() for row, measure in measures if row.unit == "s/s"}
    parts = ("noise", "conditioner", "source", "filter")
    assert all(values[f"{part}, 0.1 s"] > 0 for part in parts)


def test_a_ratio_is_over_the_other_size_that_the_row_names():
    fast = Row("flows", "paper", 4, "samples/s", "naive", "p", [60.0])
    other = Row("naive", "paper", 4, "samples/s", values=[1.0])
    naive = Row("naive", "p", 1, "samples/s", values=[20.0])
    assert ratio(fast, [other, fast, naive]) == 3.0
    assert ratio(dataclasses.replace(fast, against_size=None), [other, fast, naive]) == 60.0


def test_a_run_writes_every_ratio(tiny, tmp_path, capsys):
    rows = measured(tmp_path, "--seconds", "0.01", "0.02", "--student-batches", "1", "2")
    assert len(rows) == 2 * 2 + 1 + 2 * 2 * 9
    assert all(row["value"] > 0 for row in rows)
    assert all((row["ratio"] or 0) > 0 for row in rows if row["against"])
    assert "flows, 0.02 s" in capsys.readouterr().out


def test_the_teacher_is_measured_once_and_only_for_students(tiny):
    given = BenchArguments(networks=("p",), batches=(1,), students=(), seconds=(1.0,))
    alone = [row for row, _ in audio.chosen(given)]
    given = dataclasses.replace(given, students=("paper",), student_batches=(1, 4))
    both = [(row.what, row.batch) for row, _ in audio.chosen(given) if row.size == "p"]
    assert both == [(row.what, 1) for row in alone] + [("Numba cached", 4), ("naive", 4)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--students", "papre"],
            "there is no student `papre`; there are paper, residual-16k",
        ),
        (["--networks", "z"], "there is no network `z`; there are a, b, p"),
        (["--seconds", "1", "0"], "`--seconds` must be above 0, got 0"),
        (["--rounds", "0"], "`--rounds` must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, said):
    with pytest.raises(UserError, match=said):
        audio.run(onepass.command.parse(BenchArguments, options, "onepass bench"))
