"""Frames are of a whole, finite waveform; everything else is one line."""

import numpy as np
import pytest
import sound_bundles

WAVE = np.sin(np.arange(3000) / 20).astype(np.float32)
WRONG = {
    "empty": (np.zeros(0, np.float32), "got float32 [0]."),
    "nan": (np.where(np.arange(3000) == 70, np.nan, WAVE), "got nan at sample 70."),
    "infinite": (np.where(np.arange(3000) == 70, -np.inf, WAVE), "got -inf at sample 70."),
    "integers": (np.zeros(3000, np.int16), "got int16 [3000]."),
    "stereo": (np.stack([WAVE, WAVE], 1), "got float32 [3000, 2]."),
    "masked": (np.ma.masked_less(WAVE, 0.0), "must have no masked values"),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("method", ["frames", "frames_at_level"])
def test_what_is_no_waveform_has_no_frames(kind, method):
    waveform, why = WRONG[kind]
    with pytest.raises(ValueError) as caught:
        getattr(sound_bundles.model("plain").front, method)(waveform)
    line = str(caught.value)
    assert line.startswith("`waveform` must ") and why in line and "\n" not in line


def test_frames_of_other_floats_and_of_one_sample_are_finite():
    model = sound_bundles.model("plain")
    expected = model.front.frames(WAVE)
    np.testing.assert_array_equal(
        model.front.frames(list(WAVE)), model.front.frames(WAVE.astype(np.float64))
    )
    np.testing.assert_allclose(model.front.frames(WAVE.astype(np.float64)), expected, atol=1e-4)
    assert (
        np.isfinite(model.front.frames(WAVE[:1])).all() and len(model.front.frames(WAVE[:1])) == 1
    )
