"""A PyTorch network where PyTorch is not installed."""

import sys

import pytest

import onepass


def test_a_conversion_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "onepass.networks.from_torch.export", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(onepass.UserError, match=r'requires the package torch: pip install "onepas'):
        onepass.from_torch(object())
