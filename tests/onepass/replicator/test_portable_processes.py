"""One exported step that several processes of run.py train together."""

import json
import re
import shutil
import signal
import socket
from pathlib import Path

import jax_steps
import numpy as np
import pytest
from processes import Process, Started, wait_until

from onepass.foundation.files import read_npz
from onepass.replicator.launch.tf_config import free_ports
from onepass.replicator.portable import run

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]
SHAPES = {"up": (8, 16), "down": (16, 4)}, {"x": (8, 8), "y": (8, 4)}
CUT_BY_ALL = {
    "mesh": {"rows": 2, "model": 2},
    "batch": {"x": ["rows", None], "y": ["rows", None]},
    "state": {f"{kind}/up": ["rows", "model"] for kind in jax_steps.SLOTS},
}
END_SECONDS = 280


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported") / "step"
    return jax_steps.save_checkpoint(jax_steps.export(folder, jax_steps.perceptron, *SHAPES))


@pytest.fixture
def copied(exported, tmp_path):
    """Makes copies of the exported folder, each with what the others have not changed."""
    return lambda name: Path(shutil.copytree(exported, tmp_path / name))


@pytest.fixture
def start(tmp_path):
    """Starts run.py of folders, each a process with so many devices, that train together."""
    with Started(tmp_path) as group:

        def start(folders, *options, devices=1, count=None, port=None):
            address = f"127.0.0.1:{port or free_ports(1)[0]}"
            shared = ["--coordinator", address, "--processes", count or len(folders), *options]
            flags = f"--xla_force_host_platform_device_count={devices}"
            given = {"kind": Process, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
            return [
                group.start(folder / "run.py", *shared, "--process", index, **given)
                for index, folder in enumerate(folders)
            ]

        yield start


def ended(processes):
    return [process.ended(END_SECONDS) for process in processes]


def alone(folder, *options):
    """The state that one process trains."""
    run.train(folder, run.parse_options([*options]))
    return run.newest(run.Checkpoints(folder / "checkpoints"))


def saved(folder, step=5):
    return read_npz(folder / f"checkpoints/step_{step:08d}.npz")


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-7)


def errors(process):
    return re.findall(r"^(?!\[Gloo\]).+$", process.output(), re.M)


def test_two_processes_train_as_one_which_resumes_from_their_checkpoint(copied, start):
    first, second = copied("first"), copied("second")
    (second / "checkpoints/step_00000000.npz").unlink()  # the state is that of the first
    both = start([first, second], "--steps", "3", "--report-steps", "1")
    assert ended(both) == [0, 0], [process.output() for process in both]
    assert "2 x cpu in 2 processes: training from step 0 to 3" in both[0].output()
    assert errors(both[1]) == []
    assert not list(second.glob("checkpoints/*")) + list(second.glob("metrics.jsonl"))
    lines = (first / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]
    assert_close(alone(first), alone(copied("one")))


@pytest.mark.slow
def test_a_state_that_is_cut_over_processes_resumes_from_one_and_goes_back(copied, start):
    folder = copied("cut")
    alone(folder, "--steps", "2")
    digest = run.devices.Step.read(folder).digest
    layout = folder / "layout.json"
    layout.write_text(json.dumps({"program": digest, **CUT_BY_ALL}))
    both = start([folder] * 2, "--layout", layout, "--steps", "4", devices=2)
    assert ended(both) == [0, 0], [process.output() for process in both]
    assert "4 x cpu in 2 processes: training from step 2 to 4" in both[0].output()
    assert_close(alone(folder), alone(copied("one")))


@pytest.mark.slow
def test_a_layout_that_is_searched_is_the_same_in_all_processes(copied, start):
    folder = copied("searched")
    both = start([folder] * 2, "--mesh", "2x2", "--layout", "auto", devices=2)
    assert ended(both) == [0, 0], [process.output() for process in both]
    assert json.loads((folder / "layout.json").read_text())["mesh"] == {"rows": 2, "model": 2}
    assert_close(saved(folder), alone(copied("one")))


@pytest.mark.slow
def test_a_stop_signal_to_any_process_ends_all_after_one_step_which_is_saved(copied, start):
    folder = copied("stopped")
    both = start([folder] * 2, "--steps", "10000000", "--report-steps", "1")
    wait_until((folder / "metrics.jsonl").exists)
    both[1].signal(signal.SIGTERM)
    assert ended(both) == [0, 0], [process.output() for process in both]
    [step] = re.findall(r"SIGTERM: step (\d+) is saved", both[0].output())
    assert int(saved(folder, int(step))["step"]) == int(step)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_the_others_end_with_one_line_where_a_process_is_killed(victim, copied, start):
    folder = copied("killed")
    both = start([folder] * 2, "--steps", "10000000", "--report-steps", "1")
    wait_until((folder / "metrics.jsonl").exists)
    both[victim].signal(signal.SIGKILL)
    other = both[1 - victim]
    assert other.ended(END_SECONDS) == 2, other.output()
    gone = "error: another process of this training was lost; restart all of them to resume"
    assert [line for line in errors(other) if not line.startswith("training")][-1] == gone


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "count", "options"),
    [
        ("A mesh 8x1 needs 8 devices, there are 2.", 2, ["--mesh", "8x1"]),
        ("--devices must be one of [2], got 1", 2, ["--devices", "1"]),
        ("not all processes connected within 1 s", 3, ["--wait-seconds", "1"]),
    ],
)
def test_what_cannot_be_connected_is_one_line_and_status_2(copied, start, said, count, options):
    folder = copied("refused")
    for process in start([folder] * 2, *options, count=count):
        assert process.ended(END_SECONDS) == 2, process.output()
        [line] = errors(process)
        assert line.startswith("error: ") and said in line
    assert not (folder / "layout.json").exists()


@pytest.mark.slow
def test_a_port_that_is_in_use_is_one_line_and_status_2(copied, start):
    with socket.create_server(("127.0.0.1", 0)) as used:
        [process] = start([copied("in_use")], count=2, port=used.getsockname()[1])
        assert process.ended(END_SECONDS) == 2
    assert re.fullmatch(r"error: .*already in use.*\n", process.output())


@pytest.mark.slow
def test_processes_of_different_folders_are_refused(copied, start):
    first, second = copied("first"), copied("second")
    manifest = json.loads((second / "manifest.json").read_text())
    manifest["training"]["batches"] = {"x": [8, 8], "y": [8, 4], "seed": [1]}
    (second / "manifest.json").write_text(json.dumps(manifest))
    both = start([first, second])
    assert ended(both) == [2, 2]
    assert any("Process 1 has another program, layout" in p.output() for p in both)
