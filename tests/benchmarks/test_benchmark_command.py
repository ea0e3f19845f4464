"""The command of the benchmarks, and `onepass bench`."""

import json
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import pytest
from processes import ROOT

import onepass.command.verbs
from benchmarks import report
from benchmarks.__main__ import BENCHMARKS, main
from benchmarks.report import Benchmark, Row
from onepass.foundation.rules import FAILURE, UserError, exit_status


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["audoi"], f"NAME must be one of {', '.join(BENCHMARKS)}, got audoi."),
        (["audio", "--rounds", "0"], "`--rounds` must be at least 1, got 0."),
        (["--plot", "curve.gif"], r"`--plot` must end in .png, .pdf, .svg, got curve.gif."),
        (["--json", "nowhere/rows.json"], "there is no folder nowhere to write rows.json to."),
        (["--json", "benchmarks"], "benchmarks is a folder: give the name of a file in it."),
    ],
)
def test_a_mistake_is_refused_before_anything_is_measured(words, said):
    with pytest.raises(UserError, match=said):
        main(words)


def test_a_run_prints_and_writes_its_rows(tmp_path, monkeypatch, capsys):
    def benchmark(quick, density=None):
        found = Benchmark("lossless", left_out={"peer": "absent"})
        found.add(Row("quick" if quick else "whole", "1", 1, "bits"), lambda: 2.0)
        return found

    module = types.SimpleNamespace(benchmark=benchmark)
    monkeypatch.setitem(sys.modules, "benchmarks.lossless", module)
    json_, plot = tmp_path / "rows.json", tmp_path / "p.png"
    words = ["lossless", "--quick", "--json", str(json_), "--plot", str(plot)]
    assert main(words) == 0
    (row,) = json.loads(json_.read_text())["rows"]
    assert (row["what"], row["value"], row["spread"]) == ("quick", 2.0, 0.0)
    assert "left out of lossless: peer: absent" in capsys.readouterr().out


def test_each_of_several_has_its_process_and_rows_before_a_failure_are_kept(tmp_path, monkeypatch):
    path, begun = tmp_path / "rows.json", []

    def run(words, **_):
        begun.append(words[3])
        if begun[-1] == "training":
            return types.SimpleNamespace(returncode=3)
        found = Benchmark(begun[-1], left_out={"peer": "absent"})
        found.add(Row("quick" if "--quick" in words else "whole", "1", 1, "bits"), lambda: 2.0)
        report.measure(found, int(words[words.index("--rounds") + 1]))
        report.write_json(Path(words[words.index("--json") + 1]), report.to_json(found, True))
        return types.SimpleNamespace(returncode=0)

    monkeypatch.setattr("benchmarks.__main__.subprocess.run", run)
    words = ["lossless", "audio", "training", "--quick", "--rounds", "1", "--json", str(path)]
    with pytest.raises(UserError, match="training has ended with status 3") as failed:
        main(words)
    assert exit_status(failed.value) == FAILURE
    written = json.loads(path.read_text())
    assert [row["bench"] for row in written["rows"]] == ["lossless", "audio"]
    assert [peer["bench"] for peer in written["left_out"]] == ["lossless", "audio"]
    assert begun == ["lossless", "audio", "training"] and written["quick"]


def test_a_failed_benchmark_is_one_line_of_onepass_bench(monkeypatch, capsys):
    failed = types.SimpleNamespace(returncode=1)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert onepass.main(["bench", "lossless", "audio"]) == FAILURE
    assert capsys.readouterr().err.splitlines()[-1] == "onepass: lossless has ended with status 1."


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_one_line_and_leaves_no_file(number, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: signal.raise_signal(number))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["benchmarks", "lossless", "audio"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / "__main__.py"), run_name="__main__")
    assert ended.value.code == 128 + number and not any(tmp_path.iterdir())
    assert capsys.readouterr().err == "benchmarks: interrupted.\n"


def test_onepass_bench_without_a_checkout_says_where_they_are(mistake, monkeypatch, tmp_path):
    assert mistake("bench", "audoi").startswith("NAME must be one of audio, ")
    monkeypatch.setattr(onepass.command.verbs, "ROOT", tmp_path)
    assert mistake("bench", "audio") == (
        "the benchmarks are not installed with the package: run `python -m benchmarks` in a "
        "checkout of the source."
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_runs_at_small_sizes(name, tmp_path):
    path = tmp_path / "rows.json"
    command = [sys.executable, "-m", "benchmarks", name, "--quick", "--rounds", "1"]
    subprocess.run([*command, "--json", path], cwd=ROOT, check=True)
    output = json.loads(path.read_text())
    assert all(row["value"] > 0 for row in output["rows"])
    assert any(row["ratio"] for row in output["rows"])
    if name == "audio":
        whats = {row["what"] for row in output["rows"]}
        assert ("C++, one core" in whats) == bool(shutil.which("c++"))
