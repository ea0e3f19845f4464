"""Features of waveforms and their inversion: mel spectrograms, F0, Griffin-Lim.

Names are imported on first use, so that configurations can use the conventions without SciPy.
"""

from typing import TYPE_CHECKING

from onepass.foundation.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from wavenet.features.conventions import MelConvention as MelConvention
    from wavenet.features.conventions import PitchConvention as PitchConvention
    from wavenet.features.mel import above_silence as above_silence
    from wavenet.features.mel import griffin_lim as griffin_lim
    from wavenet.features.mel import magnitudes_of_mel as magnitudes_of_mel
    from wavenet.features.mel import mel_filters as mel_filters
    from wavenet.features.mel import mel_spectrogram as mel_spectrogram
    from wavenet.features.mel import num_frames as num_frames
    from wavenet.features.pitch import fundamental_frequency as fundamental_frequency
    from wavenet.features.pitch import log_f0_features as log_f0_features

_EXPORTS = {
    "MelConvention": "conventions",
    "PitchConvention": "conventions",
    "above_silence": "mel",
    "fundamental_frequency": "pitch",
    "griffin_lim": "mel",
    "log_f0_features": "pitch",
    "magnitudes_of_mel": "mel",
    "mel_filters": "mel",
    "mel_spectrogram": "mel",
    "num_frames": "mel",
}
__all__ = list(_EXPORTS)
__getattr__ = lazy_exports(__name__, _EXPORTS)
