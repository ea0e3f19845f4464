"""The GPU benchmark at toy size, on a processor: rows, folder, timing without TensorFlow, peers."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from benchmarks import tables
from benchmarks.gpu import gpu_run, plan

ALONE = """
import runpy, sys
for name in "tensorflow keras foundation replicator wavenet pixelcnn benchmarks".split():
    sys.modules[name] = None
sys.argv = ["gpu_run.py", *sys.argv[1:]]
sys.path.insert(0, ".")
runpy.run_path("gpu_run.py", run_name="__main__")
"""
TOYS = (("cached", "24x128", 1), ("naive", "GPT 3x64", 1), (plan.VOCODER_PEER, "24x128", 1))


@pytest.mark.parametrize("sizes", [plan.Sizes(), plan.QUICK])
def test_every_row_is_named_once_and_every_peer_is_a_row(sizes):
    jobs = plan.jobs(sizes)
    keys, functions = [job.key for job in jobs], [job.function for job in jobs if job.function]
    assert len(set(keys)) == len(keys) and len(set(functions)) == len(functions)
    whats = {job.what for job in jobs}
    assert all(set(job.against) <= whats or sizes is plan.QUICK for job in jobs)
    assert all(bool(job.function) != (job.what in plan.PEERS) for job in jobs)
    assert {job.batch for job in jobs if job.what == plan.CACHED} >= {*sizes.batches}


def test_rows_without_a_time_are_not_yet_measured():
    found = json.loads(gpu_run.Results(plan.jobs(plan.Sizes()), False, {}).text())
    made = tables.format_tables(found)
    assert made.startswith("Not yet measured.")
    assert "| cached | 24x128 | 1 | not yet measured | samples/s |  | naive |  |  |" in made


def test_ratios_and_shares_need_both_rows_and_the_bandwidth():
    ours = plan.Job("cached", "s", 1, "samples/s", ("naive",), "f", units=8, steps=4, step_bytes=10)
    peer = plan.Job("naive", "s", 1, "samples/s", (), "g", units=1)
    first = plan.Job("first", "s", 1, "ms", latency=True)
    results = gpu_run.Results([ours, peer, first], True, {})
    results.seconds[ours.key] = [2.0, 1.0, 4.0]
    results.reasons[peer.key] = "no time | left"
    row, *_ = json.loads(results.text())["rows"]
    assert (row["value"], row["ratio"], row["share"], row["spread"]) == (4.0, None, None, 1.5)
    results.seconds |= {peer.key: [0.5], first.key: [0.25]}
    results.machine["copy_bytes_per_second"] = 200.0
    row, _, latency = json.loads(results.text())["rows"]
    assert (row["ratio"], row["share"]) == (2.0, 4 / 2.0 * 10 / 200)
    assert (latency["value"], latency["share"]) == (250.0, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An exported folder with two functions and a peer."""
    from benchmarks.gpu import export

    def no_images(job, sizes):
        raise ValueError("no such\nimages")

    made = tmp_path_factory.mktemp("carried")
    with pytest.MonkeyPatch.context() as patch:
        all_jobs = plan.jobs

        def some(*arguments):
            jobs = [job for job in all_jobs(*arguments) if job.key in TOYS]
            broken = dataclasses.replace(jobs[0], what="broken", unit="images/s", size="?")
            return [*jobs, broken]

        patch.setattr(plan, "jobs", some)
        patch.setattr("benchmarks.gpu.programs.rate_hz", lambda: plan.RATE_HZ)
        patch.setattr("benchmarks.gpu.programs._images", no_images)
        export.export(made, plan.QUICK, True, log=lambda line: None)
    return made


def run_alone(folder, path, seconds):
    """gpu_run.py of the folder, in a process that cannot import TensorFlow or this library."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", ALONE, "--json", str(path), "--seconds", str(seconds)]
    done = subprocess.run(
        [*command, "--folder", "."], cwd=folder, env=environment, capture_output=True, text=True,
        check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


@pytest.mark.integration
def test_the_folder_is_timed_without_tensorflow(folder, tmp_path):
    found = run_alone(folder, tmp_path / "found.json", 200)
    rows = {(row["what"], row["size"], row["batch"]): row for row in found["rows"]}
    for key in TOYS[:2]:
        assert rows[key]["value"] > 0 and rows[key]["spread"] >= 0
    assert rows[TOYS[0]]["share"] > 0
    reasons = {line["what"]: line["reason"] for line in found["left_out"]}
    assert reasons["broken, ?, 1"] == "no such images"
    measured = rows[TOYS[2]]["value"] is not None
    assert measured != (", ".join(map(str, TOYS[2])) in reasons)  # where PyTorch is, or is not
    assert found["machine"]["compiling"] == 0  # while rows were timed
    assert found["machine"]["accelerator"] == "cpu" and tables.format_tables(found)


@pytest.mark.integration
def test_without_time_every_row_says_so(folder, tmp_path):
    found = run_alone(folder, tmp_path / "found.json", 0.1)
    assert all(row["value"] is None for row in found["rows"])
    assert len(found["left_out"]) == len(TOYS) + 1


def test_steps_with_a_static_cache_draw_the_tokens_of_transformers():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.gpu import gpu_peers

    with torch.inference_mode():
        network = gpu_peers.gpt_2((2, 32, 2, 64))
        steps = gpu_peers.StaticSteps(network, 3, 16)
        steps.tokens(2)
        found = steps.tokens(8)
        assert torch.equal(found, gpu_peers.generated(network, 3, 8)()[:, 1:])
        assert torch.equal(found, steps.tokens(8))  # it begins anew
