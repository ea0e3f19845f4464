"""`python -m onepass.torch_network` writes what a process without torch reads."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

from onepass import torch_network

FACTORY = """
import torch
from torch_networks import GPT

def network():
    torch.manual_seed(1)
    return GPT(), torch.zeros(1, 8, dtype=torch.int64)

def several():
    module = torch.nn.Linear(1, 2)
    return module, {"inputs": torch.zeros(1, 4, 1), "output": 0}
"""
WRITE = """
import sys
sys.path[:0] = sys.argv[3:]
from onepass import torch_network
status = torch_network.main([sys.argv[1], "--out", sys.argv[2]])
assert "tensorflow" not in sys.modules, "TensorFlow was imported"
sys.exit(status)
"""
READ = """
import sys
sys.modules["torch"] = None
import numpy as np
import onepass
np.save(sys.argv[2], onepass.load_network(sys.argv[1])(np.arange(6)[None]))
"""


def run(program, *words):
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def place(tmp_path):
    (tmp_path / "factories.py").write_text(FACTORY)
    return tmp_path


@pytest.mark.integration
def test_a_folder_is_written_without_tensorflow_and_read_without_torch(place):
    import torch
    from torch_networks import GPT

    tests = [path for path in sys.path if path.endswith("tests")]
    written = run(WRITE, "factories:network", place / "out", place, *tests)
    assert written.returncode == 0, written.stderr
    assert "onepass.load_network" in written.stdout
    read = run(READ, place / "out", place / "outputs.npy")
    assert read.returncode == 0, read.stderr
    torch.manual_seed(1)
    with torch.no_grad():
        wanted = GPT().eval()(torch.arange(6)[None]).numpy()
    np.testing.assert_allclose(np.load(place / "outputs.npy"), wanted, 1e-4, 1e-5)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("missing_module:network", "must name a function"),
        ("json:missing", "must name a function"),
        ("json", "must name a function"),
        ("os:getcwd", "must return a module and its inputs"),
        ("platform:libc_ver", "no such file"),
    ],
)
def test_mistakes_end_in_one_line_and_status_2(factory, said, capsys, tmp_path):
    assert torch_network.main([factory, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and line.startswith("python -m onepass.torch_network: ")


def test_a_factory_may_return_all_arguments(place, monkeypatch, capsys):
    monkeypatch.syspath_prepend(place)
    assert torch_network.main(["factories:several", "--out", str(place / "out")]) == 0
    assert "4 parameters" in capsys.readouterr().out
