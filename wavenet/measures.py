"""Measures of synthetic speech: similarity to a recording, and naturalness.

F0 is in Hz, 0 if unvoiced, as of `fundamental_frequency`. DNSMOS and PLCMOS rate a sound without a
reference; the extra `listening` installs their networks (`speechmos`) and `onnxruntime`. The input
features of DNSMOS are computed here, because the equivalent code in `speechmos` requires librosa.
"""

import functools
import importlib.resources
import math
import warnings
from typing import Any

import numpy as np
import scipy.fft
import scipy.linalg
import scipy.signal

from wavenet.data import audio
from wavenet.features.frames import (
    MelConvention,
    PitchConvention,
    fundamental_frequency,
    hz_to_mel,
    mel_spectrogram,
    mel_to_hz,
    triangles,
)
from wavenet.optional_packages import available, require

SILENCE_DB = -90.0  # peak level in dB of full scale, about one 16-bit step


def pair_waveforms(sound: np.ndarray, recorded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both waveforms as float32 [samples], cut to the length of the shorter one."""
    sound, recorded = check_waveform("sound", sound), check_waveform("recorded", recorded)
    length = min(len(sound), len(recorded))
    return sound[:length], recorded[:length]


def check_waveform(name: str, waveform: np.ndarray) -> np.ndarray:
    """Return the waveform as float32 [samples]."""
    waveform = np.asarray(waveform, np.float32)
    if waveform.ndim != 1 or not waveform.size:
        raise ValueError(f"`{name}` must have the shape [samples], got {waveform.shape}.")
    if not np.all(np.isfinite(waveform)):
        raise ValueError(f"`{name}` must be finite, got NaN or infinity.")
    return waveform


def is_silent(waveform: np.ndarray) -> bool:
    """Return whether all samples are within one 16-bit step of 0."""
    return audio.peak_db(waveform) < SILENCE_DB


DB_PER_NAT = 20.0 / math.log(10.0)
RESOLUTIONS = ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240))  # FFT, hop, window in samples
MAGNITUDE_FLOOR = 1e-7**0.5  # lower bound of STFT magnitudes
LOUDEST = 2.0  # ratio of norms above which the sound's norm replaces the recording's


def log_mel_distance_db(sound: np.ndarray, recorded: np.ndarray, mel: MelConvention) -> float:
    """Return the RMS difference of log-mel spectrograms, above the floor, in dB; 0 is best."""
    sound, recorded = pair_waveforms(sound, recorded)
    difference = mel_spectrogram(sound, mel) - mel_spectrogram(recorded, mel)
    db_per_unit = DB_PER_NAT if mel.log == "natural" else 20.0
    return float(np.sqrt(np.mean(np.square(difference)))) * db_per_unit


def multi_resolution_stft_distance(sound: np.ndarray, recorded: np.ndarray) -> float:
    """Return the mean STFT distance over three resolutions; 0 is best.

    For each resolution it is the spectral convergence plus the error of log magnitudes, where X are
    the magnitudes of the recording and Y the magnitudes of the sound, [frames, bins]:

        || X - Y ||_F / max(|| X ||_F, || Y ||_F / 2)  +  mean | ln X - ln Y |

    The paper divides by || X || instead of the maximum. The maximum, which matters if the sound is
    more than 6 dB louder than the recording, bounds the first term by 3; otherwise a silent
    recording would dominate a mean over recordings.

    Source: Yamamoto, Song, Kim, "Parallel WaveGAN", arXiv 1910.11480, equations 4 to 6 and table 1:
    FFTs of 1,024, 2,048 and 512 samples, hops of 120, 240 and 50, Hann windows of 600, 1,200 and
    240. The paper's sizes are for 24 kHz; they are used for every sample rate, so results at
    different rates are not comparable. Magnitudes are at least 10^-3.5; both ends are zero-padded.
    """
    sound, recorded = pair_waveforms(sound, recorded)
    each = [_stft_distance(sound, recorded, fft, hop, window) for fft, hop, window in RESOLUTIONS]
    return float(np.mean(each))


def level_difference_db(sound: np.ndarray, recorded: np.ndarray) -> float:
    """Return the RMS level of the sound minus the level of the recording, in dB; 0 is best."""
    sound, recorded = pair_waveforms(sound, recorded)
    return audio.rms_db(sound) - audio.rms_db(recorded)


def _stft_distance(
    sound: np.ndarray, recorded: np.ndarray, fft_size: int, hop: int, window: int
) -> float:
    X, Y = (_magnitudes(x, fft_size, hop, window) for x in (recorded, sound))
    loudness = max(np.linalg.norm(X), np.linalg.norm(Y) / LOUDEST)
    convergence = np.linalg.norm(X - Y) / loudness
    return float(convergence + np.mean(np.abs(np.log(X / Y))))


def _magnitudes(waveform: np.ndarray, fft_size: int, hop: int, window: int) -> np.ndarray:
    """Return STFT magnitudes, float32 [frames, bins]; frame f is centred on sample f * hop."""
    padded = np.pad(waveform, window // 2)
    segments = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    hann = np.sin(np.pi * np.arange(window, dtype=np.float32) / window) ** 2
    spectrum = scipy.fft.rfft(segments * hann, n=fft_size, axis=-1)
    return np.maximum(np.abs(spectrum), np.float32(MAGNITUDE_FLOOR))


CENTS_PER_OCTAVE = 1200.0
NEAR_CENTS = 50.0  # half a semitone


def f0_within_50_cents(f0_hz: np.ndarray, recorded_f0_hz: np.ndarray) -> float:
    """Return the share of frames voiced in both with F0 within 50 cents, in [0, 1]; nan if none."""
    cents = _cents_apart(f0_hz, recorded_f0_hz)
    return float(np.mean(np.abs(cents) <= NEAR_CENTS)) if cents.size else math.nan


def f0_error_cents(f0_hz: np.ndarray, recorded_f0_hz: np.ndarray) -> float:
    """Return the root mean square F0 error in cents over frames voiced in both; nan if none are.

    An octave error is 1,200 cents, so a few octave errors dominate.
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


RATE_HZ = 16_000
ORDER = 16
WINDOW_SAMPLES = 640  # 40 ms, at least four periods of most voices
WHITE_NOISE = 1e-9  # noise power relative to the signal's; keeps the equations solvable
LEAST_POWER = 1e-12  # windows with a lower mean square are silent and left out


def residual_kurtosis(
    sound: np.ndarray, f0_hz: np.ndarray, sample_rate_hz: int, hop_samples: int
) -> float:
    """Return the median kurtosis of the order-16 linear prediction residual over voiced frames.

    For every voiced frame, the coefficients a_1 .. a_16 are estimated by the autocorrelation method
    from a Hann window of 40 ms around the frame's centre, at 16 kHz. Over the same 40 ms, without a
    window,

        e_t = x_t - sum_k a_k x_(t-k),    kurtosis = mean (e - m)^4 / (mean (e - m)^2)^2

    where m is the mean of e. The kurtosis of Gaussian noise is 3. Speech has a higher kurtosis,
    since the vocal tract is excited once per period. Random phases smear the pulses and bring the
    kurtosis closer to 3; a buzz, with all harmonics in phase, has too high a kurtosis. The result
    is nan if no voiced frame has its complete window within the sound.

    Args:
      f0_hz: F0 of the recording, [frames], 0 if unvoiced, so that all sounds are measured on the
        same frames; frame f is centred on sample f * hop_samples + hop_samples / 2.
    """
    x = audio.resample(check_waveform("sound", sound), sample_rate_hz, RATE_HZ).astype(np.float64)
    frames = np.flatnonzero(np.asarray(f0_hz) > 0.0)
    middles = np.rint((frames + 0.5) * hop_samples * RATE_HZ / sample_rate_hz).astype(int)
    starts = middles - WINDOW_SAMPLES // 2
    whole = starts[(starts >= ORDER) & (starts + WINDOW_SAMPLES <= len(x))]
    pieces = (x[start - ORDER : start + WINDOW_SAMPLES] for start in whole)
    found = [_kurtosis(piece) for piece in pieces if np.mean(piece**2) > LEAST_POWER]
    return float(np.median(found)) if found else math.nan


def _kurtosis(piece: np.ndarray) -> float:
    """Return the kurtosis of the residual of a piece of ORDER + WINDOW_SAMPLES samples."""
    hann = scipy.signal.get_window("hann", WINDOW_SAMPLES)
    windowed = piece[ORDER:] * hann
    lags = np.array([windowed[k:] @ windowed[: WINDOW_SAMPLES - k] for k in range(ORDER + 1)])
    lags[0] *= 1.0 + WHITE_NOISE
    coefficients = scipy.linalg.solve_toeplitz(lags[:-1], lags[1:])
    residual = scipy.signal.lfilter(np.r_[1.0, -coefficients], [1.0], piece)[ORDER:]
    centred = residual - residual.mean()
    return float(np.mean(centred**4) / np.mean(centred**2) ** 2)


PESQ_LOWEST = 1.0  # lowest MOS-LQO; the limit of equation 1 of ITU-T P.862.2 is 0.999
# The package overruns an array of 50 utterances, each of which takes at least 0.2 seconds.
PESQ_MOST_SAMPLES = 10 * RATE_HZ
STOI_SHORTEST_SECONDS = 0.4096  # 30 hops of 128 samples and a window of 256, at 10 kHz


def pesq(sound: np.ndarray, recorded: np.ndarray, sample_rate_hz: int) -> float:
    """Return wideband PESQ at 16 kHz, a predicted mean opinion score (MOS-LQO), 1.0 to 4.64.

    PESQ normalises the level of both sounds. Sounds longer than ten seconds are cut into equal
    pieces of at most ten seconds, and the mean over valid pieces is returned. The result is
    `PESQ_LOWEST` if the sound is silent or PESQ finds no speech in it; it is nan for sounds shorter
    than a quarter of a second, or if the recording contains no speech.

    Source: ITU-T P.862.2 (2007), in the package `pesq`, which is the ITU's reference code.
    """
    both = pair_waveforms(sound, recorded)
    resampled = [audio.resample(x, sample_rate_hz, RATE_HZ) for x in both]
    pieces = -(-len(resampled[0]) // PESQ_MOST_SAMPLES)
    pairs = zip(*(np.array_split(x, max(1, pieces)) for x in resampled), strict=True)
    scores = np.array([_pesq_of_piece(piece, recorded) for piece, recorded in pairs])
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
    if len(recorded) < RATE_HZ // 4 or is_silent(recorded):
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
        return float(package.pesq(RATE_HZ, recorded, sound, "wb"))
    except (package.NoUtterancesError, ValueError):  # ValueError: the package's score is nan
        return math.nan


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


def measure(
    sound: np.ndarray, recorded: np.ndarray, sample_rate_hz: int, mel: MelConvention
) -> dict[str, float]:
    """Return all measures {name: value}, nan if undefined; the longer sound is cut.

    The keys are the names of this module's measures. Those that need a missing package are left
    out. F0 is that of WORLD's DIO with StoneMask, at the mel's hop length, from 60 to 600 Hz.
    """
    if mel.sample_rate_hz != sample_rate_hz:
        raise ValueError(f"`mel` must be at {sample_rate_hz} Hz, got {mel.sample_rate_hz} Hz.")
    sound, recorded = pair_waveforms(sound, recorded)
    found = {
        "log_mel_distance_db": log_mel_distance_db(sound, recorded, mel),
        "multi_resolution_stft_distance": multi_resolution_stft_distance(sound, recorded),
    }
    for name, take in {"pesq": pesq, "stoi": stoi}.items():
        if available(name):
            found[name] = take(sound, recorded, sample_rate_hz)
    if available("f0_error_cents"):
        hop, pitch = mel.hop_samples, PitchConvention(sample_rate_hz, mel.hop_samples)
        own, other = (fundamental_frequency(x, pitch)[0] for x in (sound, recorded))
        found["f0_within_50_cents"] = f0_within_50_cents(own, other)
        found["f0_error_cents"] = f0_error_cents(own, other)
        found["voicing_error"] = voicing_error(own, other)
        found["residual_kurtosis"] = residual_kurtosis(sound, other, sample_rate_hz, hop)
    found["level_difference_db"] = level_difference_db(sound, recorded)
    return found | opinions(sound, sample_rate_hz)
