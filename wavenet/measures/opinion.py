"""Mean opinion scores predicted by networks trained on listeners' ratings: DNSMOS and PLCMOS.

Both rate a sound without a reference. The package `speechmos` contains the networks, and
`onnxruntime` runs them; the extra `listening` installs both. The input features of DNSMOS are
computed here, because the equivalent code in `speechmos` requires librosa.
"""

import functools
import importlib.resources
import math
from typing import Any

import numpy as np
import scipy.fft
import scipy.signal

from wavenet.data import audio
from wavenet.features.mel import hz_to_mel, mel_to_hz, triangles
from wavenet.measures.waveforms import check_waveform
from wavenet.optional_packages import available, require

RATE_HZ = 16_000
SHORTEST_SECONDS = 0.25
DNSMOS_SAMPLES = 144_160  # 9.01 seconds
DNSMOS_WINDOW, DNSMOS_HOP, DNSMOS_BANDS = 321, 160, 120
DNSMOS_DB = 80.0  # dynamic range of the features in dB, below the loudest band
RATERS = 15  # number of simulated raters, as in the package


def dnsmos_p808(sound: np.ndarray, sample_rate_hz: int) -> float:
    """Return the overall quality that DNSMOS predicts for a P.808 listening test, 1 to 5 (best).

    The score is the mean over windows of 9.01 seconds with a hop of one second. A shorter sound is
    repeated, and every sound is clipped to [-1, 1]. The result is nan for sounds shorter than a
    quarter of a second.

    Source: Reddy, Gopal, Cutler, "DNSMOS", arXiv 2010.15258, in the package `speechmos`.
    """
    x = _ready(sound, sample_rate_hz)
    if x is None:
        return math.nan
    while len(x) < DNSMOS_SAMPLES:
        x = np.concatenate([x, x])
    whole_seconds = len(x) // RATE_HZ * RATE_HZ  # as in the package, though it may skip a window
    starts = range(0, max(1, whole_seconds - DNSMOS_SAMPLES + 1), RATE_HZ)
    network = _dnsmos_network()
    scores = [
        network.run(None, {"input_1": _dnsmos_features(x[start : start + DNSMOS_SAMPLES])})[0]
        for start in starts
    ]
    return float(np.mean(scores))


def opinions(sound: np.ndarray, sample_rate_hz: int) -> dict[str, float]:
    """Return `dnsmos_p808` and `plcmos` of a sound by name; {} if a package is missing."""
    taken = {"dnsmos_p808": dnsmos_p808, "plcmos": plcmos}
    return {name: take(sound, sample_rate_hz) for name, take in taken.items() if available(name)}


def _dnsmos_features(x: np.ndarray) -> np.ndarray:
    """Return mel power in dB relative to the maximum, scaled to [-1, 1], float32 [1, 901, 120]."""
    padded = np.pad(x[:-DNSMOS_HOP], DNSMOS_WINDOW // 2)
    segments = np.lib.stride_tricks.sliding_window_view(padded, DNSMOS_WINDOW)[::DNSMOS_HOP]
    hann = scipy.signal.get_window("hann", DNSMOS_WINDOW).astype(np.float32)
    power = np.square(np.abs(scipy.fft.rfft(segments * hann, axis=-1)))
    decibels = 10.0 * np.log10(np.maximum(power @ _dnsmos_filters(), 1e-10))
    decibels = np.maximum(decibels - decibels.max(), -DNSMOS_DB)
    return ((decibels + 40.0) / 40.0).astype(np.float32)[None]


@functools.cache
def _dnsmos_filters() -> np.ndarray:
    """Return Slaney's mel filters [bins, bands]; low ones that contain no bin are zero."""
    highest = hz_to_mel(np.array(RATE_HZ / 2.0))
    points_hz = np.asarray(mel_to_hz(np.linspace(0.0, highest, DNSMOS_BANDS + 2)))
    bins_hz = np.arange(DNSMOS_WINDOW // 2 + 1)[:, None] * (RATE_HZ / DNSMOS_WINDOW)
    return triangles(points_hz, bins_hz) * (2.0 / (points_hz[2:] - points_hz[:-2]))


def plcmos(sound: np.ndarray, sample_rate_hz: int) -> float:
    """Return the quality that PLCMOS (version 2) predicts, 1 to 5 (best).

    PLCMOS was trained on speech with concealed packet loss. The sound is clipped to [-1, 1]. The
    score is the mean over 15 simulated raters, Gaussian vectors that are the same for every sound.
    It is nan for sounds shorter than a quarter of a second.

    Source: Diener, Purin, Sootla, Saabas, Aichner, Cutler, "PLCMOS", arXiv 2305.15127, in the
    package `speechmos`.
    """
    x = _ready(sound, sample_rate_hz)
    if x is None:
        return math.nan
    network = _plcmos_network()
    spectrum = np.asarray(network.stft_transform(x), np.float32)[None, None]
    raters = np.random.default_rng(0).normal(size=(RATERS, 1, 64)).astype(np.float32)
    scores = [
        network.session.run(None, {"degraded_audio": spectrum, "rater_embed": rater})[0]
        for rater in raters
    ]
    return float(np.mean(scores))


@functools.cache
def _dnsmos_network() -> Any:
    require("onnxruntime", "listening", "DNSMOS")
    require("speechmos", "listening", "DNSMOS")
    import onnxruntime  # optional

    path = importlib.resources.files("speechmos") / "dnsmos_models/model_v8.onnx"
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@functools.cache
def _plcmos_network() -> Any:
    require("onnxruntime", "listening", "PLCMOS")
    require("speechmos", "listening", "PLCMOS")
    from speechmos import plcmos as package

    return package.PLCMOS()


def _ready(sound: np.ndarray, sample_rate_hz: int) -> np.ndarray | None:
    sound = check_waveform("sound", sound)
    if len(sound) < SHORTEST_SECONDS * sample_rate_hz:
        return None
    return np.clip(audio.resample(sound, sample_rate_hz, RATE_HZ), -1.0, 1.0)
