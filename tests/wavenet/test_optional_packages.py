"""A measure whose package is missing is left out, and one line says what installs it."""

import numpy as np
import pytest

from onepass.foundation.errors import UserError
from wavenet import optional_packages as packages
from wavenet.features.conventions import MelConvention, PitchConvention
from wavenet.features.frames import fundamental_frequency
from wavenet.measures import measure

MEL = MelConvention(16_000, hop_samples=200)
NOISE = np.random.default_rng(0).normal(0.0, 0.1, 8000).astype(np.float32)


@pytest.fixture
def without(monkeypatch):
    """Makes as if only packages other than these were installed."""

    def without(*missing):
        monkeypatch.setattr(packages, "is_installed", lambda package: package not in missing)

    return without


def test_what_needs_a_missing_package_is_left_out_and_the_rest_is_measured(without):
    without("pesq", "pyworld", "onnxruntime")
    assert list(measure(NOISE, NOISE, 16_000, MEL)) == [
        "log_mel_distance_db",
        "multi_resolution_stft_distance",
        "stoi",
        "level_difference_db",
    ]
    assert packages.list_unavailable() == {
        "quality": [
            "pesq",
            "f0_within_50_cents",
            "f0_error_cents",
            "voicing_error",
            "residual_kurtosis",
        ],
        "listening": ["dnsmos_p808", "plcmos"],
    }


def test_one_line_names_the_measures_and_the_extra(without):
    without("speechmos")
    line = packages.describe_unavailable()
    assert "dnsmos p808, plcmos (pip install 'onepass[listening]')" in line
    assert "\n" not in line and "quality" not in line


def test_nothing_is_said_when_nothing_is_missing(without):
    without()
    assert packages.list_unavailable() == {} and packages.describe_unavailable() == ""


def test_f0_without_its_package_is_a_mistake_with_a_remedy(without):
    without("pyworld")
    with pytest.raises(UserError, match=r"needs pyworld: pip install 'onepass\[quality\]'"):
        fundamental_frequency(NOISE, PitchConvention(16_000, 200))
