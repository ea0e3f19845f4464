"""Features of waveforms and their inversion: mel spectrograms, F0, Griffin-Lim.

Names are imported on first use, so that configurations can use the conventions without SciPy.
"""

from typing import TYPE_CHECKING

from onepass.foundation.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from wavenet.features.conventions import MelConvention as MelConvention
    from wavenet.features.conventions import PitchConvention as PitchConvention
    from wavenet.features.frames import above_silence as above_silence
    from wavenet.features.frames import fundamental_frequency as fundamental_frequency
    from wavenet.features.frames import griffin_lim as griffin_lim
    from wavenet.features.frames import log_f0_features as log_f0_features
    from wavenet.features.frames import magnitudes_of_mel as magnitudes_of_mel
    from wavenet.features.frames import mel_filters as mel_filters
    from wavenet.features.frames import mel_spectrogram as mel_spectrogram
    from wavenet.features.frames import num_frames as num_frames

_EXPORTS = {
    "MelConvention": "conventions",
    "PitchConvention": "conventions",
    "above_silence": "frames",
    "fundamental_frequency": "frames",
    "griffin_lim": "frames",
    "log_f0_features": "frames",
    "magnitudes_of_mel": "frames",
    "mel_filters": "frames",
    "mel_spectrogram": "frames",
    "num_frames": "frames",
}
__all__ = list(_EXPORTS)
__getattr__ = lazy_exports(__name__, _EXPORTS)
