"""A user's model compresses arrays, and gives the same levels back."""

import math

import numpy as np
import own_models
import pytest
from own_models import model

import onepass
from onepass.command import main
from replicator.runs.errors import UserError

pytest.importorskip("constriction")
HEADER = 120  # bytes of a file that are not the stream's


@pytest.mark.parametrize("name", ["own", "deep", "conditioned", "attention"])
def test_what_is_decompressed_is_what_was_compressed(name):
    made, given = model(name), own_models.condition(name)
    elements = own_models.drawn(name)
    if name == "attention":  # whose decoder makes a pass for every element
        elements = elements[:, :12]
    data = onepass.compress(made, elements, *given)
    found = onepass.decompress(made, data, *given)
    np.testing.assert_array_equal(found, elements)
    assert found.dtype == elements.dtype
    bits = -float(np.sum(made.log_prob(elements, *given))) / math.log(2.0)
    assert bits < 8 * len(data) < 1.2 * bits + 8 * HEADER


def test_the_loaded_model_decompresses_what_the_live_one_compressed(tmp_path):
    elements = own_models.drawn("own")
    data = onepass.compress(model("own"), elements)
    loaded = onepass.load(onepass.save(model("own"), tmp_path / "own"))
    np.testing.assert_array_equal(onepass.decompress(loaded, data), elements)
    with pytest.raises(UserError, match="requires the model"):
        onepass.decompress(model("conditioned"), data)


def test_the_command_compresses_an_array(tmp_path, capsys):
    onepass.save(model("own"), tmp_path / "own")
    np.save(tmp_path / "x.npy", own_models.drawn("own"))
    words = [tmp_path / "own", tmp_path / "x.npy", "--out", tmp_path / "x.onepass"]
    assert main(["compress", *map(str, words)]) == 0
    words = [tmp_path / "own", tmp_path / "x.onepass", "--out", tmp_path / "back"]
    assert main(["decompress", *map(str, words)]) == 0
    assert "bits per element" in capsys.readouterr().out
    np.testing.assert_array_equal(np.load(tmp_path / "back" / "x.npy"), own_models.drawn("own"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("real", "must have 2 to 4096 levels to compress, got real numbers"),
        ("sound", "must have 2 to 4096 levels to compress, got 65536"),
        ("student", "`model` must have exact conditionals to compress, got FlowStudent"),
    ],
)
def test_what_cannot_compress_is_refused(name, reason):
    with pytest.raises(UserError, match=reason):
        onepass.compress(model(name), np.zeros([1, 4], np.float32))
