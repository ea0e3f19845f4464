"""What `python -m benchmarks torch` times draws the tokens of `generate`."""

import pytest

from benchmarks import report, torch

pytest.importorskip("torch")
pytest.importorskip("transformers")


def test_every_row_is_measured_and_the_tokens_are_those_of_generate():
    found = torch.benchmark(quick=True)
    report.measure(found, 1)
    values = {(row.what, row.size, row.batch): row.values for row in found.rows}
    assert values[torch.CONVERSION, "tiny", 1][0] > 0
    for batch in torch.BATCHES:
        assert values["share of equal tokens", "tiny", batch] == [1.0]
        assert values[torch.OURS, "tiny", batch][0] > 0
    assert not [name for name in found.left_out if "transformers" in name]
