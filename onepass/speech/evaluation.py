"""Measures of a voice on recordings, and corrections of its variance and durations."""

from collections.abc import Sequence

import numpy as np

from onepass.interface import Model
from onepass.speech.examples import Example
from onepass.speech.training import Scale, with_silence
from onepass.speech.voice import Voice
from wavenet.config import MelConvention, PitchConvention
from wavenet.data import audio
from wavenet.data.audio import recorded_frames
from wavenet.features.frames import above_silence, fundamental_frequency, mel_spectrogram
from wavenet.measures import DB_PER_NAT, f0_error_cents, opinions, voicing_error

BEFORE, BEHIND = 4, 10  # frames of silence around a recording
MOST_STRETCH = 1.5


def warped_distance_db(frames: np.ndarray, others: np.ndarray, unit_db: float) -> float:
    """Return the distance in dB between the frames of two sounds that may differ in pace.

    It is the root mean square difference over bands, averaged along the best path of dynamic time
    warping (steps of one frame in either sound or both; Sakoe and Chiba 1978).
    """
    # |x - y|^2 = |x|^2 + |y|^2 - 2 x y: one matrix product for all pairs, rounded to 0 or more.
    square = np.sum(frames**2, axis=1)[:, None] + np.sum(others**2, axis=1)
    square = np.maximum(square - 2.0 * frames @ others.T, 0.0)
    cost = unit_db * np.sqrt(square / frames.shape[1])
    rows, columns = cost.shape
    total = np.full((rows + 1, columns + 1), np.inf)
    steps = np.zeros((rows + 1, columns + 1))
    total[0, 0] = 0.0
    # A cell depends only on the two preceding antidiagonals, so each antidiagonal is one operation.
    for diagonal in range(2, rows + columns + 1):
        row = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        column = diagonal - row
        came = np.stack([row - 1, row - 1, row]), np.stack([column - 1, column, column - 1])
        best = np.argmin(total[came], axis=0), np.arange(len(row))
        total[row, column] = total[came][best] + cost[row - 1, column - 1]
        steps[row, column] = steps[came][best] + 1
    return float(total[rows, columns] / steps[rows, columns])


def unit_db(voice: Voice) -> float:
    """Return the number of dB that a difference of 1 in `above_silence` frames represents."""
    return voice.spec["harmonics"]["range_nats"] * DB_PER_NAT


def aligned_frames(voice: Voice, example: Example, scale: Scale, true_pitch: bool) -> np.ndarray:
    """Return a voice's expected frames for a recording, float32 [frames, bands].

    They are computed with the recording's durations and, if `true_pitch`, its F0 and voicing.
    """
    example = with_silence(example, BEFORE, BEHIND, scale)
    _, hidden = voice.durations(example.phonemes)
    pitch = example.pitch if true_pitch else None
    return voice.mel(hidden, example.durations, pitch, temperature=0.0)[BEFORE:-BEHIND]


def variance_corrections(
    voice: Voice, examples: Sequence[Example], scale: Scale
) -> tuple[np.ndarray, float]:
    """Return the factors that correct the variance of frames, [bands], and lengths of phonemes.

    They are recorded over predicted: standard deviations, at most MOST_STRETCH, and total
    durations. Training with the mean absolute error yields medians, which vary less than the data.
    """
    made = np.concatenate([aligned_frames(voice, e, scale, False) for e in examples])
    true = np.concatenate([e.mel for e in examples])
    bands = np.clip(true.std(axis=0) / made.std(axis=0), 1.0, MOST_STRETCH)
    pairs = [_lengths(voice, e) for e in examples]
    exact, guessed = (np.concatenate(side).sum() for side in zip(*pairs, strict=True))
    return bands.astype(np.float32), float(exact / guessed)


def frame_measures(voice: Voice, examples: Sequence[Example], scale: Scale) -> dict[str, float]:
    """Return the errors of frames, F0, voicing and durations by name, with baselines.

    Frames are predicted with the recorded durations, and errors of durations are mean absolute
    ones; their baseline predicts the median.
    """
    all_voiced = np.concatenate([e.pitch[e.pitch[:, 1] > 0.0, 0] for e in examples])
    median_hz = 200.0 * 2.0 ** float(np.median(all_voiced))
    rows = [_row(voice, e, scale, median_hz) for e in examples]
    result = {name: float(np.nanmean([row[name] for row in rows])) for name in rows[0]}
    pairs = [_lengths(voice, e) for e in examples]
    exact, guessed = (np.concatenate(side) for side in zip(*pairs, strict=True))
    hop_ms, spread = voice.hop_seconds * 1e3, np.abs(exact - np.median(exact))
    result["duration_error_ms"] = float(np.abs(exact - guessed).mean() * hop_ms)
    result["duration_spread_ms"] = float(spread.mean() * hop_ms)
    result["duration_correlation"] = float(np.corrcoef(exact, guessed)[0, 1])
    sums = [abs(g.sum() / e.sum() - 1.0) for e, g in pairs]
    result["sentence_length_error_percent"] = float(100.0 * np.mean(sums))
    return result


def _lengths(voice: Voice, example: Example) -> tuple[np.ndarray, np.ndarray]:
    said = ~np.array([p.is_pause for p in example.phonemes])
    return example.durations[said], voice.durations(example.phonemes)[0][said]


def _row(voice: Voice, example: Example, scale: Scale, median_hz: float) -> dict[str, float]:
    made = {own: aligned_frames(voice, example, scale, not own) for own in (True, False)}
    whole = with_silence(example, BEFORE, BEHIND, scale)
    _, hidden = voice.durations(whole.phonemes)
    pitch = voice.pitch(hidden, whole.durations)[BEFORE:-BEHIND]
    f0_hz, true_hz = (200.0 * 2.0 ** p[:, 0] * p[:, 1] for p in (pitch, example.pitch))
    mean = np.broadcast_to(voice.weights["mel_mean"], example.mel.shape)
    unit = unit_db(voice)

    def distance(frames: np.ndarray) -> float:
        return unit * float(np.sqrt(np.mean(np.square(frames - example.mel))))

    return {
        "log_mel_distance_db": distance(made[True]),
        "log_mel_distance_true_pitch_db": distance(made[False]),
        "log_mel_distance_mean_frame_db": distance(mean),
        "f0_error_cents": f0_error_cents(f0_hz, true_hz),
        "f0_error_constant_cents": f0_error_cents(np.where(f0_hz > 0.0, median_hz, 0.0), true_hz),
        "voicing_error": voicing_error(f0_hz, true_hz),
    }


def measure_speech(
    voice: Voice, model: Model, examples: Sequence[Example], mel: MelConvention, count: int
) -> tuple[dict[str, float], dict[str, dict[str, np.ndarray]]]:
    """Return measures of a model's speech for the first `count` recordings' texts, and the audio.

    Measures are means over recordings. `found_share` is the share of texts whose speech is closer
    to their own recording than to any other. The audio is {name of a recording: {"text",
    "respoken": waveform}}, the latter made of the recording's own frames.
    """
    rows, sounds, rate_hz = [], {}, mel.sample_rate_hz
    for place, example in enumerate(examples[:count]):
        made = model.sample(condition=voice.frames(example.text))[0]
        # Any distance that remains with the recording's own frames is due to the model.
        again = model.sample(condition=recorded_frames(example.mel, 0.0))[0]
        synthesised = above_silence(mel_spectrogram(made, mel), mel)
        away = [warped_distance_db(synthesised, e.mel, unit_db(voice)) for e in examples]
        compared = {
            "text": synthesised,
            "respoken": above_silence(mel_spectrogram(again, mel), mel),
            "other_sentence": examples[(place + 1) % len(examples)].mel,
            "mean_frame": example.mel.mean(axis=0, keepdims=True),
        }
        row = {
            f"warped_distance_{name}_db": warped_distance_db(frames, example.mel, unit_db(voice))
            for name, frames in compared.items()
        }
        row["found_share"] = float(np.argmin(away) == place)
        row["level_difference_db"] = audio.rms_db(made) - audio.rms_db(again)
        f0_hz, voiced = fundamental_frequency(made, PitchConvention(rate_hz, mel.hop_samples))
        for what, sound in (("text", made), ("respoken", again)):
            for name, score in opinions(sound, rate_hz).items():
                row[f"{name}_{what}"] = score
        row["voiced_share"] = float(voiced.mean())
        row["voiced_share_recorded"] = float(example.pitch[:, 1].mean())
        row["f0_median_hz"] = float(np.median(f0_hz[voiced])) if voiced.any() else float("nan")
        row["seconds"], row["seconds_recorded"] = len(made) / rate_hz, len(again) / rate_hz
        rows.append(row)
        sounds[example.name] = {"text": made, "respoken": again}
    return {name: float(np.nanmean([row[name] for row in rows])) for name in rows[0]}, sounds
