"""Measures of how well a sound follows the fundamental frequency (F0) of a recording.

F0 is in Hz, 0 if unvoiced, as returned by `wavenet.features.fundamental_frequency`.
"""

import math

import numpy as np

CENTS_PER_OCTAVE = 1200.0
NEAR_CENTS = 50.0  # half a semitone


def f0_within_50_cents(f0_hz: np.ndarray, recorded_f0_hz: np.ndarray) -> float:
    """Return the share of frames voiced in both whose F0 is within 50 cents, in [0, 1]; 1 is best.

    It is nan if no frame is voiced in both. Unlike in `f0_error_cents`, an octave error counts no
    more than any other error above 50 cents.
    """
    cents = _cents_apart(f0_hz, recorded_f0_hz)
    return float(np.mean(np.abs(cents) <= NEAR_CENTS)) if cents.size else math.nan


def f0_error_cents(f0_hz: np.ndarray, recorded_f0_hz: np.ndarray) -> float:
    """Return the root mean square F0 error in cents (1,200 log2 of the ratio); 0 is best.

    It is computed over the frames voiced in both, and is nan if there are none. An octave error is
    1,200 cents, so a few octave errors dominate.
    """
    cents = _cents_apart(f0_hz, recorded_f0_hz)
    return float(np.sqrt(np.mean(np.square(cents)))) if cents.size else math.nan


def voicing_error(f0_hz: np.ndarray, recorded_f0_hz: np.ndarray) -> float:
    """Return the share of frames, in [0, 1], that are voiced in only one of the two; 0 is best."""
    return float(np.mean((f0_hz > 0.0) != (recorded_f0_hz > 0.0)))


def _cents_apart(f0_hz: np.ndarray, recorded_f0_hz: np.ndarray) -> np.ndarray:
    both = (f0_hz > 0.0) & (recorded_f0_hz > 0.0)
    octaves = np.log2(np.asarray(f0_hz, np.float64)[both] / recorded_f0_hz[both])
    return octaves * CENTS_PER_OCTAVE
