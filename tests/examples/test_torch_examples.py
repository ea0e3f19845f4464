"""The script of a teacher of PyTorch, at smoke size."""

import re

import pytest

pytest.importorskip("torch")

from examples import torch_teacher


def test_torch_teacher_is_distilled(capsys):
    torch_teacher.main(steps=2, length=20)
    names = re.findall(r"^(\w+): \d\.\d{3}, [\d,]+ elements/s$", capsys.readouterr().out, re.M)
    assert names == ["teacher", "student"]
