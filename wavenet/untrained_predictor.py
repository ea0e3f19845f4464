"""Mel-LPC: a baseline for bits per sample that uses the mel spectrogram without training.

A model conditioned on mel frames cannot be compared fairly with a lossless codec, which does not
read them. This predictor reads the same frames: they determine the coefficients and the gain of a
linear prediction (wavenet/linear_prediction.py). One distribution of the residual relative to the
gain is fitted to samples of all recordings.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from scipy.special import expit

from wavenet.features.mel import MelConvention, above_silence, mel_spectrogram
from wavenet.linear_prediction import MelPrediction, predictions

ORDER = 32
ROW_SAMPLES = 50  # approximate number of samples that share one set of coefficients
SCALES = 0.02 * 1.5 ** np.arange(16)  # scales of the logistics relative to the gain, 0.02 to 8.8
FITTED_SAMPLES = 500_000  # longer data are subsampled to this size for fitting
ITERATIONS = 100
STEP = 2.0 / 65535.0  # distance between two 16-bit levels


def untrained_bits(
    items: Sequence[dict], mel: MelConvention, order: int = ORDER
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bits per sample and the number of samples of each recording, [recordings] each.

    The probability of a 16-bit level is the mass in its bin under a mixture of logistics around the
    linear prediction of the given order. Only the mixture weights are fitted, by maximum likelihood
    over all recordings. Each item has a "waveform", [samples] in [-1, 1].
    """
    prediction = MelPrediction(mel, order)
    pairs = [_over_gain(item["waveform"], mel, prediction) for item in items]
    lengths = np.array([len(residual) for residual, _ in pairs])
    every = -(-int(lengths.sum()) // FITTED_SAMPLES)
    residuals, half_bins = (np.concatenate(each)[::every] for each in zip(*pairs, strict=True))
    weights = _fitted_weights(_bin_probabilities(residuals, half_bins))
    bits = [-np.mean(np.log2(_bin_probabilities(*pair) @ weights)) for pair in pairs]
    return np.array(bits, np.float64), lengths.astype(np.float64)


def _over_gain(
    waveform: np.ndarray, mel: MelConvention, prediction: MelPrediction
) -> tuple[np.ndarray, np.ndarray]:
    rows, row_samples = _rows(waveform, mel)
    coefficients, log_gain, _ = (np.asarray(each) for each in prediction(rows))
    padded = np.pad(waveform, (0, len(rows) * row_samples - len(waveform))).astype(np.float32)
    predicted = predictions(tf.constant(padded[None]), tf.constant(coefficients[None]))
    gain = np.repeat(np.exp(log_gain), row_samples)[: len(waveform)]
    residual = (waveform - np.asarray(predicted)[0, : len(waveform)]) / gain
    return residual.astype(np.float64), (STEP / 2.0 / gain).astype(np.float64)


def _rows(waveform: np.ndarray, mel: MelConvention) -> tuple[np.ndarray, int]:
    frames = above_silence(mel_spectrogram(waveform, mel), mel)
    hop = mel.hop_samples
    count = max(n for n in range(1, max(1, hop // ROW_SAMPLES) + 1) if hop % n == 0)
    places = (np.arange(len(frames) * count) + 0.5) / count - 0.5
    before = np.clip(np.floor(places).astype(int), 0, len(frames) - 1)
    after = np.minimum(before + 1, len(frames) - 1)
    share = np.clip(places - before, 0.0, 1.0)[:, None]
    rows = frames[before] * (1.0 - share) + frames[after] * share
    return rows.astype(np.float32), hop // count


def _bin_probabilities(residual: np.ndarray, half_bin: np.ndarray) -> np.ndarray:
    """Return the probability of each sample's bin under each logistic, [samples, scales].

    It is F(b) - F(a), where F is the logistic distribution function; both arguments are reflected
    to negative values, where F is small, to keep precision in the tails.
    """
    distance = np.abs(residual)[:, None]
    half = half_bin[:, None]
    upper, lower = (half - distance) / SCALES, (-half - distance) / SCALES
    return np.maximum(expit(upper) - expit(lower), 1e-30)


def _fitted_weights(probabilities: np.ndarray) -> np.ndarray:
    weights = np.full(len(SCALES), 1.0 / len(SCALES))
    for _ in range(ITERATIONS):
        responsibilities = (1.0 / (probabilities @ weights)) @ probabilities
        weights = weights * responsibilities / len(probabilities)
    return weights
