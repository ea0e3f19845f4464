"""The page on PyTorch networks runs, and lists the operations of the table."""

import re
import sys

import pytest

pytest.importorskip("torch")

from doc_pages import blocks
from processes import ROOT

from onepass import torch_network
from onepass.networks.from_torch.network import RULE_MODULES
from onepass.networks.from_torch.table import RULES, SIZES

PAGE = ROOT / "docs" / "reference" / "torch.md"
FACTORY = """
import torch
def network():
    return torch.nn.Linear(1, 2), torch.zeros(1, 8, 1)
"""


def test_the_page_lists_the_operations_of_the_table():
    assert RULE_MODULES
    text = PAGE.read_text(encoding="utf-8").split("{ #operations }")[1]
    assert set(re.findall(r"`([\w.]+)`", text)) == {n for n in RULES if not n.startswith(SIZES)}


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")  # those of transformers' configurations
def test_the_page_runs(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_models.py").write_text(FACTORY)
    (command,) = (block for block in blocks(PAGE, "sh") if block.startswith("python -m"))
    assert torch_network.main(command.split()[3:]) == 0
    before, namespace = dict(RULES), {}
    try:
        for block in blocks(PAGE, "python"):
            exec(compile(block, str(PAGE), "exec"), namespace)
    finally:
        RULES.clear()
        RULES.update(before)
        sys.modules.pop("my_models", None)
    assert namespace["rows"].shape == (2, 40) and namespace["wave"].shape == (1, 40)
    assert namespace["vocoder"].conditions["mel"].hop == 4
    assert namespace["network"].input_signature[0].shape.as_list() == [None, None, 1]
