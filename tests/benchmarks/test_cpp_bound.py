"""The C++ that the samplers are compared with."""

import pytest

from benchmarks import audio
from benchmarks import cpp_bound as bound
from wavenet.config import WaveNetConfig


def test_the_shape_of_a_vocoder_has_the_head_that_draws_each_sample():
    shape = bound.shape_of(audio.NETWORKS["vocoder"])
    assert shape == bound.Shape(8, 1, 2, 128, 128, 128, 15, 4, 64, 26)
    assert bound.shape_of(audio.NETWORKS["30x64"])[-3:] == (1, 0, 0)


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(FileNotFoundError, match=r"looked for no-such-compiler.*install g"):
        bound.find_compiler()


@pytest.mark.parametrize("batch", [0, 3])
def test_what_the_program_cannot_run_is_refused(batch):
    with pytest.raises(ValueError, match="must be"):
        bound.samples_per_second(WaveNetConfig(), batch, 100)


@pytest.mark.parametrize("name", ["30x64", "vocoder"])
def test_the_program_compiles_and_runs(name):
    try:
        bound.find_compiler()
    except FileNotFoundError:
        pytest.skip("no C++ compiler")
    assert bound.samples_per_second(audio.NETWORKS[name], 4, 100) > 0
