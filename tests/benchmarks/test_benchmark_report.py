"""Rows, ratios, JSON and tables of the benchmarks."""

import json
import shutil

import pytest
from processes import ROOT

from benchmarks import headlines, report, tables
from benchmarks.report import Benchmark, Row

CONTRACT = {"what", "size", "batch", "value", "unit", "against", "ratio", "spread"}


def held():
    """A benchmark of two speeds, one of which is held against the other and an absent one."""
    found = Benchmark("audio", left_out={"absent": "not | installed"})
    row = Row("ours", "big", 1, "samples/s", ("peer", "absent"), [40.0, 10.0, 30.0])
    found.add(row, lambda: 1.0)
    found.add(Row("peer", "big", 1, "samples/s", values=[10.0, 5.0, 10.0]), lambda: 1.0)
    found.add(Row("peer", "big", 8, "samples/s", values=[1.0, 1.0, 1.0]), lambda: 1.0)
    return found


def test_a_ratio_is_the_median_of_the_rounds_ratios_with_their_spread():
    found = held()
    output = json.loads(json.dumps(report.to_json(found, quick=True)))
    assert all(set(row) >= CONTRACT for row in output["rows"])
    assert output["left_out"] == [{"bench": "audio", "what": "absent", "reason": "not | installed"}]
    assert output["quick"] and output["machine"]["cores"]
    ours, *others = output["rows"]
    assert (ours["value"], ours["against"], ours["ratio"]) == (30.0, "peer", 3.0)
    assert ours["spread"] == pytest.approx((4 - 2) / 3)
    assert [row["ratio"] for row in others] == [None, None]
    assert others[0]["spread"] == 0.5
    # A line for each that it is held against.
    found.add(Row("absent", "big", 1, "samples/s", values=[1.0, 1.0, 1.0]), lambda: 1.0)
    lines = [r for r in report.to_json(found, quick=False)["rows"] if r["what"] == "ours"]
    assert [(line["against"], line["ratio"]) for line in lines] == [("peer", 3.0), ("absent", 30.0)]


def test_rounds_are_interleaved_and_the_first_call_is_not_counted(monkeypatch):
    monkeypatch.setattr(report, "LEAST_SECONDS", 0.0)
    calls, found = [], Benchmark("audio")
    for name in ("a", "b"):
        row = Row(name, "big", 1, "s")
        found.add(row, lambda name=name: calls.append(name) or float(len(calls)))
    report.measure(found, 2)
    assert calls == ["a", "b"] * 3
    assert [row.values for row in found.rows] == [[3.0, 5.0], [4.0, 6.0]]


def test_a_peer_that_is_not_installed_is_left_out_with_the_reason_and_one_that_fails_is_an_error():
    found = Benchmark("audio")
    found.peer("peer", lambda: __import__("no_such_package_of_a_peer"))
    assert found.left_out == {"peer": "No module named 'no_such_package_of_a_peer'"}
    with pytest.raises(ZeroDivisionError):
        found.peer("peer", lambda: 1 / 0)


def test_tables_replace_what_is_between_the_markers():
    made = tables.format_tables(report.to_json(held(), quick=True))
    assert "| ours | big | 1 | 30 | samples/s | 3 | peer | 67% |" in made
    assert "- absent (audio): not | installed" in made and "--quick" in made
    page = f"before\n\n{tables.BEGIN}\n\nold\n\n{tables.END}\n\nafter\n"
    once = tables.with_tables(page, made)
    assert once.startswith("before\n") and once.endswith("\nafter\n") and "old" not in once
    assert tables.with_tables(once, made) == once


def page(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_pages_have_the_tables_of_their_json():
    docs, marks = ROOT / "docs", (headlines.BEGIN, headlines.END)
    text = page("docs/benchmarks.md")
    for name, ends in (("benchmarks", ()), ("bench_gpu", (tables.GPU_BEGIN, tables.GPU_END))):
        made = tables.format_tables(json.loads(page(f"docs/{name}.json")))
        assert text == tables.with_tables(text, made, *ends)
    assert text == tables.with_tables(text, headlines.table(docs), *marks)
    assert text.index(headlines.END) < text.index("\n## ")
    assert len(headlines.rows(docs)) == 6 and (docs / headlines.PLOT).exists()


def test_the_readme_has_the_same_six_ratios_and_its_rows_fit_a_screen():
    text, narrow = page("README.md"), headlines.narrow_table(ROOT / "docs")
    assert text == tables.with_tables(text, narrow, headlines.BEGIN, headlines.END)
    wide = headlines.table(ROOT / "docs").splitlines()
    for line, other in zip(narrow.splitlines()[2:], wide[2:], strict=False):
        assert other.replace("**", "").startswith(line[:-1]) and len(line) <= 100
    assert len(narrow.splitlines()) == 2 + 6


def test_the_six_ratios_are_written_into_a_page_next_to_their_plot(tmp_path):
    for name in (headlines.CPU, headlines.GPU):
        shutil.copy(ROOT / "docs" / name, tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{headlines.BEGIN}\n\nold\n\n{headlines.END}\n\nafter\n")
    other = tmp_path / "other.md"
    shutil.copy(page, other)
    headlines.main(page, other)
    once = page.read_text()
    narrow = headlines.narrow_table(tmp_path)
    assert narrow in other.read_text() and headlines.PLOT not in other.read_text()
    assert once.startswith("before\n") and once.endswith("\nafter\n") and "old" not in once
    assert (tmp_path / headlines.PLOT).read_bytes().startswith(b"\x89PNG")
    headlines.main(page)
    assert page.read_text() == once
    report.write_plot(tmp_path / "p.png", report.to_json(held(), quick=False)["rows"])
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_ratio_that_is_not_in_the_json_is_an_error(tmp_path):
    for name in (headlines.CPU, headlines.GPU):
        (tmp_path / name).write_text(json.dumps({"machine": {}, "rows": []}))
    with pytest.raises(ValueError, match="unpack"):
        headlines.rows(tmp_path)
