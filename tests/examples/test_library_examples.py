"""The scripts that show the library, at smoke size: short, and they say what they promise."""

from pathlib import Path

import pytest

from examples import fast_sampling, own_distribution, own_images, own_network, own_teacher

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = (
    *("own_network", "own_distribution", "fast_sampling", "own_images", "own_teacher"),
    "torch_teacher",
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_short(name):
    assert len((ROOT / "examples" / f"{name}.py").read_text().splitlines()) < 60


@pytest.mark.parametrize(
    ("main", "options", "said"),
    [
        (own_distribution.main, {"steps": 2, "length": 20}, "bits per element"),
        (fast_sampling.main, {"num_layers": 2, "channels": 4, "length": 20}, "(1, 20): "),
        (own_images.main, {"steps": 2, "size": 6, "num": 16}, "bits per dimension"),
        pytest.param(
            *(own_teacher.main, {"steps": 2, "length": 20}, "student: "), marks=pytest.mark.slow
        ),
    ],
)
def test_a_script_says_what_it_promises(capsys, main, options, said):
    main(**options)
    assert said in capsys.readouterr().out


@pytest.mark.slow
def test_own_network_is_the_same_after_loading(tmp_path, capsys):
    own_network.main(own_network.Settings(tmp_path, steps=2, length=20))
    assert "after loading the same: True" in capsys.readouterr().out
