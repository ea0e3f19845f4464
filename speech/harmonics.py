"""The harmonics of a voice in mel frames."""

import numpy as np

from wavenet.features import MelConvention, mel_filters, mel_spectrogram

LOW_HZ, HIGH_HZ = 90.0, 450.0
STEPS_PER_OCTAVE = 48
PERIODS = 16  # of the window's phase that a pulse train is looked at in
DEEPEST, HIGHEST = -3.0, 3.0  # nats


def harmonics_table(mel: MelConvention) -> np.ndarray:
    """float32 [steps, bands]: log-mel of pulse trains over that of a flat spectrum, in nats.

    Row s is F0 = LOW_HZ * 2^(s / STEPS_PER_OCTAVE). Only the convention is needed, no recording.
    """
    steps = int(np.ceil(np.log2(HIGH_HZ / LOW_HZ) * STEPS_PER_OCTAVE)) + 1
    rows = [pulses(LOW_HZ * 2.0 ** (step / STEPS_PER_OCTAVE), mel) for step in range(steps)]
    return np.stack(rows).astype(np.float32)


def pulses(f0_hz: float, mel: MelConvention) -> np.ndarray:
    """Return the log-mel of a pulse train relative to a flat spectrum, in nats, float [bands]."""
    rate_hz, window = mel.sample_rate_hz, mel.window_samples
    time = np.arange(3 * window + PERIODS * mel.hop_samples) / rate_hz
    orders = np.arange(1, int(0.5 * rate_hz / f0_hz) + 1)
    train = np.cos(2.0 * np.pi * f0_hz * orders[:, None] * time).sum(axis=0) / len(orders)
    frames = mel_spectrogram(train.astype(np.float32), mel)
    whole = -(-window // mel.hop_samples)
    level = frames[whole:-whole].mean(axis=0) * (np.log(10.0) if mel.log == "log10" else 1.0)
    flat = np.log(mel_filters(mel).sum(axis=0))
    relative = level - flat
    return np.clip(relative - np.median(relative[len(relative) // 2 :]), DEEPEST, HIGHEST)
