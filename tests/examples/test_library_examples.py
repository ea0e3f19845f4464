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


@pytest.mark.slow
def test_own_network_is_the_same_after_loading(tmp_path, capsys):
    own_network.main(own_network.Settings(tmp_path, steps=2, length=20))
    assert "after loading the same: True" in capsys.readouterr().out


def test_own_distribution_trains_and_samples(capsys):
    own_distribution.main(steps=2, length=20)
    assert "bits per element" in capsys.readouterr().out


def test_fast_sampling_times_both(capsys):
    fast_sampling.main(num_layers=2, channels=4, length=20)
    assert "(1, 20): " in capsys.readouterr().out


def test_own_images_has_an_interval(capsys):
    own_images.main(steps=2, size=6, num=16)
    assert "bits per dimension" in capsys.readouterr().out


@pytest.mark.slow
def test_own_teacher_is_distilled(capsys):
    own_teacher.main(steps=2, length=20)
    assert "student: " in capsys.readouterr().out
