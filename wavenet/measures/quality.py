"""How close a vocoder's speech comes to the recording: spectra, PESQ, STOI, pitch and level."""

import math

import numpy as np
import scipy.fft

from wavenet.data import audio
from wavenet.features.mel import MelConvention, mel_spectrogram
from wavenet.features.pitch import fundamental_frequency

DB_PER_NAT = 20.0 / math.log(10.0)
CENTS_PER_OCTAVE = 1200.0
RESOLUTIONS = ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240))  # FFT, hop, window in samples
MAGNITUDE_FLOOR = 1e-7**0.5  # of a bin of the windowed spectrum; below it lies silence
SILENCE_DB = -90.0  # dB re full scale, a peak below one 16-bit step
PESQ_RATE_HZ = 16_000
PESQ_LOWEST = 1.0  # MOS-LQO; equation 1 of ITU-T P.862.2 tends to 0.999
# An utterance takes at least 0.2 seconds, and the package writes past its array of 50 of them.
PESQ_MOST_SAMPLES = 10 * PESQ_RATE_HZ
STOI_SHORTEST_SECONDS = 0.4096  # 30 hops of 128 samples and a window of 256, at 10 kHz


def measure(
    sound: np.ndarray, recorded: np.ndarray, sample_rate_hz: int, mel: MelConvention
) -> dict[str, float]:
    """Every measure by its name, over the samples that both have; nan where one says nothing.

    The keys, in this order: log_mel_distance_db, multi_resolution_stft_distance, pesq, stoi,
    f0_error_cents, voicing_error, level_difference_db; each is a function of this module. F0 is
    WORLD's DIO with StoneMask on the mel's hop, 60 to 600 Hz.

    Args:
      sound, recorded: float32 [samples] in [-1, 1], at least one sample.
      sample_rate_hz: of both, and of the convention.
      mel: for the log-mel distance, and for the hop of F0.

    Raises:
      ValueError: a waveform of another shape or not finite, or a mel of another sample rate.
    """
    if mel.sample_rate_hz != sample_rate_hz:
        raise ValueError(f"`mel` must be at {sample_rate_hz} Hz, got {mel.sample_rate_hz} Hz.")
    sound, recorded = _cut(sound, recorded)
    f0_hz, recorded_f0_hz = (
        fundamental_frequency(x, sample_rate_hz, mel.hop_samples)[0] for x in (sound, recorded)
    )
    return {
        "log_mel_distance_db": log_mel_distance_db(sound, recorded, mel),
        "multi_resolution_stft_distance": multi_resolution_stft_distance(sound, recorded),
        "pesq": pesq(sound, recorded, sample_rate_hz),
        "stoi": stoi(sound, recorded, sample_rate_hz),
        "f0_error_cents": f0_error_cents(f0_hz, recorded_f0_hz),
        "voicing_error": voicing_error(f0_hz, recorded_f0_hz),
        "level_difference_db": level_difference_db(sound, recorded),
    }


def log_mel_distance_db(sound: np.ndarray, recorded: np.ndarray, mel: MelConvention) -> float:
    """Root mean square difference of two waveforms' log-mel spectrograms, in dB; 0 is best.

    Args:
      sound, recorded: float [samples]; the longer one is cut.
      mel: bands quieter than its floor count as the floor.
    """
    sound, recorded = _cut(sound, recorded)
    difference = mel_spectrogram(sound, mel) - mel_spectrogram(recorded, mel)
    db_per_unit = DB_PER_NAT if mel.log == "natural" else 20.0
    return float(np.sqrt(np.mean(np.square(difference)))) * db_per_unit


def multi_resolution_stft_distance(sound: np.ndarray, recorded: np.ndarray) -> float:
    """Spectral convergence plus log-magnitude distance, mean of three resolutions; 0 is best.

    For each resolution, X the magnitudes of the recording and Y those of the sound [frames, bins]:

        || X - Y ||_F / || X ||_F  +  mean | ln X - ln Y |

    Source: Yamamoto, Song, Kim, "Parallel WaveGAN", arXiv 1910.11480, equations 4 to 6 and table 1:
    FFTs of 1,024, 2,048 and 512 samples, hops of 120, 240 and 50, Hann windows of 600, 1,200 and
    240. These are 24 kHz numbers; they are the same sample counts at every rate, so figures of
    different rates do not compare. Magnitudes are at least 1e-3.5; zeros lie beyond both ends.

    Args:
      sound, recorded: float [samples] in [-1, 1]; the longer one is cut.
    """
    sound, recorded = _cut(sound, recorded)
    return float(np.mean([_stft_distance(sound, recorded, *sizes) for sizes in RESOLUTIONS]))


def pesq(sound: np.ndarray, recorded: np.ndarray, sample_rate_hz: int) -> float:
    """Wideband PESQ at 16 kHz, a predicted mean opinion score (MOS-LQO) from 1.0 to 4.64.

    The level does not matter: PESQ brings both to one. Sounds above ten seconds are cut into equal
    pieces no longer than that, and the mean over the pieces that say something comes back.
    `PESQ_LOWEST` stands for a silent sound, and for one in which nothing of the recording's speech
    is found; nan for less than a quarter of a second, or a recording without speech.

    Source: ITU-T P.862.2 (2007), in the package `pesq`, which is the ITU's reference code.

    Args:
      sound, recorded: float [samples] at sample_rate_hz; the longer one is cut.
    """
    resampled = [audio.resample(x, sample_rate_hz, PESQ_RATE_HZ) for x in _cut(sound, recorded)]
    pieces = -(-len(resampled[0]) // PESQ_MOST_SAMPLES)
    pairs = zip(*(np.array_split(x, max(1, pieces)) for x in resampled), strict=True)
    scores = np.array([_pesq_of_piece(*pair) for pair in pairs])
    heard = scores[np.isfinite(scores)]
    return float(heard.mean()) if heard.size else math.nan


def stoi(sound: np.ndarray, recorded: np.ndarray, sample_rate_hz: int) -> float:
    """Short-time objective intelligibility, in about [0, 1]; 1 is best.

    The level does not matter, but silence scores 0. nan for less than 0.41 seconds, or for a
    recording with less than that above its silence (40 dB below its loudest frame): the measure
    correlates stretches of 0.38 seconds.

    Source: Taal, Hendriks, Heusdens, Jensen, "An algorithm for intelligibility prediction of
    time-frequency weighted noisy speech", IEEE TASLP 19(7), 2011, in the package `pystoi`.

    Args:
      sound, recorded: float [samples] at sample_rate_hz; the longer one is cut.
    """
    import warnings

    import pystoi  # Loads slowly, and only this measure needs it.

    sound, recorded = _cut(sound, recorded)
    if len(sound) < STOI_SHORTEST_SECONDS * sample_rate_hz or _silent(recorded):
        return math.nan
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Not enough STFT frames")
        try:
            heard = np.zeros_like(sound) if _silent(sound) else sound
            return float(pystoi.stoi(recorded, heard, sample_rate_hz, extended=False))
        except RuntimeWarning:
            return math.nan


def f0_error_cents(f0_hz: np.ndarray, recorded_f0_hz: np.ndarray) -> float:
    """Root mean square F0 difference in cents (1,200 log2 of the ratio), 0 is best.

    Over the frames that are voiced in both; nan if there is none. An octave taken wrong counts as
    1,200 cents, so that a few such frames dominate.

    Args:
      f0_hz, recorded_f0_hz: [frames] in Hz, 0 where unvoiced, as `fundamental_frequency` gives.
    """
    both = (f0_hz > 0.0) & (recorded_f0_hz > 0.0)
    if not both.any():
        return math.nan
    octaves = np.log2(np.asarray(f0_hz, np.float64)[both] / recorded_f0_hz[both])
    return float(np.sqrt(np.mean(np.square(octaves)))) * CENTS_PER_OCTAVE


def voicing_error(f0_hz: np.ndarray, recorded_f0_hz: np.ndarray) -> float:
    """The share of frames, in [0, 1], that are voiced in one and not in the other; 0 is best.

    Args:
      f0_hz, recorded_f0_hz: [frames] in Hz, 0 where unvoiced, as `fundamental_frequency` gives.
    """
    return float(np.mean((f0_hz > 0.0) != (recorded_f0_hz > 0.0)))


def level_difference_db(sound: np.ndarray, recorded: np.ndarray) -> float:
    """RMS level of the sound minus that of the recording, in dB; 0 is best.

    Args:
      sound, recorded: float [samples]; the longer one is cut. Digital silence is -120 dB.
    """
    sound, recorded = _cut(sound, recorded)
    return audio.rms_db(sound) - audio.rms_db(recorded)


def _cut(sound: np.ndarray, recorded: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both as float32 [samples], as long as the shorter one."""
    both = np.asarray(sound, np.float32), np.asarray(recorded, np.float32)
    for name, waveform in zip(("sound", "recorded"), both, strict=True):
        if waveform.ndim != 1 or not waveform.size:
            raise ValueError(f"`{name}` must have the shape [samples], got {waveform.shape}.")
        if not np.all(np.isfinite(waveform)):
            raise ValueError(f"`{name}` must be finite, got NaN or infinity.")
    length = min(len(waveform) for waveform in both)
    return both[0][:length], both[1][:length]


def _stft_distance(sound, recorded, fft_size: int, hop: int, window: int) -> float:
    X, Y = (_magnitudes(x, fft_size, hop, window) for x in (recorded, sound))
    convergence = np.linalg.norm(X - Y) / np.linalg.norm(X)
    return float(convergence + np.mean(np.abs(np.log(X / Y))))


def _magnitudes(waveform: np.ndarray, fft_size: int, hop: int, window: int) -> np.ndarray:
    """float32 [frames, bins], frame f around sample f * hop."""
    padded = np.pad(waveform, window // 2)
    segments = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    hann = np.sin(np.pi * np.arange(window, dtype=np.float32) / window) ** 2
    spectrum = scipy.fft.rfft(segments * hann, n=fft_size, axis=-1)
    return np.maximum(np.abs(spectrum), np.float32(MAGNITUDE_FLOOR))


def _silent(waveform: np.ndarray) -> bool:
    return audio.peak_db(waveform) < SILENCE_DB


def _pesq_of_piece(sound: np.ndarray, recorded: np.ndarray) -> float:
    """MOS-LQO of at most ten seconds at 16 kHz, nan where PESQ has nothing to say."""
    if len(recorded) < PESQ_RATE_HZ // 4 or _silent(recorded):
        return math.nan
    score = math.nan if _silent(sound) else _p862(sound, recorded)
    if math.isnan(score) and not math.isnan(_p862(recorded, recorded)):
        return PESQ_LOWEST
    return score


def _p862(sound: np.ndarray, recorded: np.ndarray) -> float:
    """What the package says, nan where it finds no utterance in both."""
    import pesq as package  # Only this measure needs it.

    try:
        return float(package.pesq(PESQ_RATE_HZ, recorded, sound, "wb"))
    except (package.NoUtterancesError, ValueError):  # ValueError: its own score was nan.
        return math.nan
