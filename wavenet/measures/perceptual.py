"""Perceptual measures: PESQ for quality, STOI for intelligibility."""

import math
import warnings

import numpy as np

from wavenet.data import audio
from wavenet.measures.waveforms import is_silent, pair_waveforms
from wavenet.optional_packages import require

PESQ_RATE_HZ = 16_000
PESQ_LOWEST = 1.0  # lowest MOS-LQO; the limit of equation 1 of ITU-T P.862.2 is 0.999
# The package overruns an array of 50 utterances, each of which takes at least 0.2 seconds.
PESQ_MOST_SAMPLES = 10 * PESQ_RATE_HZ
STOI_SHORTEST_SECONDS = 0.4096  # 30 hops of 128 samples and a window of 256, at 10 kHz


def pesq(sound: np.ndarray, recorded: np.ndarray, sample_rate_hz: int) -> float:
    """Return wideband PESQ at 16 kHz, a predicted mean opinion score (MOS-LQO), 1.0 to 4.64.

    PESQ normalises the level of both sounds. Sounds longer than ten seconds are cut into equal
    pieces of at most ten seconds, and the mean over valid pieces is returned. The result is
    `PESQ_LOWEST` if the sound is silent or PESQ finds no speech in it; it is nan for sounds shorter
    than a quarter of a second, or if the recording contains no speech.

    Source: ITU-T P.862.2 (2007), in the package `pesq`, which is the ITU's reference code.
    """
    resampled = [
        audio.resample(x, sample_rate_hz, PESQ_RATE_HZ) for x in pair_waveforms(sound, recorded)
    ]
    pieces = -(-len(resampled[0]) // PESQ_MOST_SAMPLES)
    pairs = zip(*(np.array_split(x, max(1, pieces)) for x in resampled), strict=True)
    scores = np.array([_pesq_of_piece(*pair) for pair in pairs])
    known = scores[np.isfinite(scores)]
    return float(known.mean()) if known.size else math.nan


def stoi(sound: np.ndarray, recorded: np.ndarray, sample_rate_hz: int) -> float:
    """Return short-time objective intelligibility, approximately in [0, 1]; 1 is best.

    The result does not depend on the level, but is 0 for a silent sound. It is nan if less than
    0.41 seconds remain after removing frames 40 dB below the recording's loudest frame, since STOI
    correlates segments of 0.38 seconds.

    Source: Taal, Hendriks, Heusdens, Jensen, "An algorithm for intelligibility prediction of
    time-frequency weighted noisy speech", IEEE TASLP 19(7), 2011, in the package `pystoi`.
    """
    require("pystoi", "quality", "STOI")
    import pystoi  # optional, and slow to import

    sound, recorded = pair_waveforms(sound, recorded)
    if len(sound) < STOI_SHORTEST_SECONDS * sample_rate_hz or is_silent(recorded):
        return math.nan
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Not enough STFT frames")
        try:
            degraded = np.zeros_like(sound) if is_silent(sound) else sound
            return float(pystoi.stoi(recorded, degraded, sample_rate_hz, extended=False))
        except RuntimeWarning:
            return math.nan


def _pesq_of_piece(sound: np.ndarray, recorded: np.ndarray) -> float:
    if len(recorded) < PESQ_RATE_HZ // 4 or is_silent(recorded):
        return math.nan
    score = math.nan if is_silent(sound) else _p862(sound, recorded)
    if math.isnan(score) and not math.isnan(_p862(recorded, recorded)):
        return PESQ_LOWEST
    return score


def _p862(sound: np.ndarray, recorded: np.ndarray) -> float:
    """Return the package's score; nan unless it finds an utterance in each of the sounds."""
    require("pesq", "quality", "PESQ")
    import pesq as package  # optional

    try:
        return float(package.pesq(PESQ_RATE_HZ, recorded, sound, "wb"))
    except (package.NoUtterancesError, ValueError):  # ValueError: the package's score is nan
        return math.nan
