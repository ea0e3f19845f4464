"""The C++ that the samplers are compared with."""

import pytest

from onepass.bench.audio import command as audio
from onepass.bench.audio import cpp_bound as bound


@pytest.mark.parametrize("name", bound.SHAPES)
def test_the_bound_has_the_sizes_of_the_networks_it_is_compared_with(name):
    config = audio.NETWORKS[name]
    head = (config.head_channels, 2 * config.head_width + config.pitch_taps)
    assert bound.SHAPES[name] == (
        config.layers,
        config.stacks,
        config.filter_width,
        config.residual_channels,
        config.gate_channels,
        config.skip_channels,
        config.make_likelihood().num_parameters,
        config.bunch_samples,
        *(head if config.conditioner_units else (0, 0)),
    )


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(FileNotFoundError, match=r"looked for no-such-compiler.*install g"):
        bound.find_compiler()


@pytest.mark.parametrize("name, batch", [("c", 1), ("a", 0), ("a", 3)])
def test_what_the_program_cannot_run_is_refused(name, batch):
    with pytest.raises(ValueError, match="must be"):
        bound.samples_per_second(name, batch)


@pytest.mark.parametrize("name", ["a", "v"])
def test_the_program_compiles_and_runs(name):
    try:
        bound.find_compiler()
    except FileNotFoundError:
        pytest.skip("no C++ compiler")
    # 50 x 1.8 million multiplications a second: any processor of this century.
    assert bound.samples_per_second(name, 4) > 50
