"""Clips with their true past, their neighbouring frames, and augmentation."""

import json

import numpy as np
import pytest

from wavenet.data import audio, batch_sampling
from wavenet.data.batch_sampling import Augmentation, ClipSource, batch
from wavenet.features.conventions import MelConvention
from wavenet.features.frames import above_silence, mel_spectrogram

HOP, CLIP, LEFT, SIDE = 100, 400, 300, 3
MEL = MelConvention(16_000, HOP, window_samples=400, fft_size=512, bands=8, low_hz=60.0)


def recording(seed, samples):
    generator = np.random.default_rng(seed)
    return audio.to_int16((0.05 * generator.standard_normal(samples)).astype(np.float32))


RECORDINGS = [recording(0, 2300), recording(1, 900)]
FRAMES = [above_silence(mel_spectrogram(audio.from_int16(r), MEL), MEL) for r in RECORDINGS]
PADDING = np.full(8, -1.0, np.float32)


def source_with(**changes):
    around = dict(left_samples=LEFT, side_frames=SIDE) | changes
    return ClipSource(
        RECORDINGS, [0, 1], CLIP, frames=FRAMES, padding=PADDING, hop_samples=HOP, **around
    )


def starts(source, count=40):
    """Yields the start of each clip with its batch, (recording, start, batch, row)."""
    for step in range(count):
        made = batch(source, 5, step, 2)
        for row, (which, start) in enumerate(batch_sampling.clip_places(source, 5, step, 2)):
            yield which, start, made, row


def test_a_clip_comes_with_the_samples_before_it_and_they_do_not_count():
    seen_first = seen_later = False
    for which, start, made, row in starts(source_with()):
        whole = np.concatenate([np.zeros(LEFT, np.float32), audio.from_int16(RECORDINGS[which])])
        np.testing.assert_array_equal(made["waveform"][row], whole[start : start + LEFT + CLIP])
        np.testing.assert_array_equal(made["mask"][row], [0.0] * LEFT + [1.0] * CLIP)
        seen_first |= start == 0
        seen_later |= start > LEFT
    assert seen_first and seen_later


def test_frames_reach_beyond_past_and_clip_on_both_sides():
    for which, start, made, row in starts(source_with()):
        first = (start - LEFT) // HOP - SIDE
        for n, frame in enumerate(made["frames"][row]):
            inside = 0 <= first + n < len(FRAMES[which])
            expected = FRAMES[which][first + n] if inside else PADDING
            np.testing.assert_array_equal(frame, expected)
        assert len(made["frames"][row]) == (LEFT + CLIP) // HOP + 2 * SIDE


def test_an_amplified_clip_has_the_mel_of_an_amplified_recording():
    loud = Augmentation(6.0, False, 8, MEL.silence)
    plain, changed = source_with(), source_with(augmentation=loud)
    gains = []
    for step in range(20):
        before, after = batch(plain, 5, step, 2), batch(changed, 5, step, 2)
        for row in range(2):
            power = [np.sqrt(np.mean(b["waveform"][row] ** 2)) for b in (before, after)]
            gain = power[1] / power[0]
            gains.append(20 * np.log10(gain))
            np.testing.assert_allclose(
                after["waveform"][row], gain * before["waveform"][row], atol=1e-6
            )
            inside = before["frames"][row] > 0.0
            expected = before["frames"][row] - np.log(gain) / MEL.silence
            np.testing.assert_allclose(after["frames"][row][inside], expected[inside], atol=1e-5)
            outside = after["frames"][row][~inside]
            assert np.all(outside == 0.0)
    assert -6.0 <= min(gains) < -3.0 and 3.0 < max(gains) <= 6.0


def test_polarity_inverts_about_half_of_the_clips():
    plain = source_with()
    turned = source_with(augmentation=Augmentation(0.0, True, 8, MEL.silence))
    signs = []
    for step in range(60):
        before, after = batch(plain, 5, step, 2), batch(turned, 5, step, 2)
        np.testing.assert_array_equal(np.maximum(before["frames"], 0.0), after["frames"])
        for row in range(2):
            same = np.array_equal(after["waveform"][row], before["waveform"][row])
            opposite = np.array_equal(after["waveform"][row], -before["waveform"][row])
            assert same != opposite
            signs.append(same)
    assert 35 < sum(signs) < 85


def test_no_gain_leaves_full_scale():
    loud = (RECORDINGS[0].astype(np.float64) / np.abs(RECORDINGS[0]).max() * 32000).astype(np.int16)
    source = ClipSource(
        [loud], [0], CLIP, hop_samples=1, augmentation=Augmentation(12.0, False, 0, -1.0)
    )
    assert max(np.abs(batch(source, 5, n, 2)["waveform"]).max() for n in range(20)) <= 0.991


def test_shards_of_augmented_batches_are_the_rows_of_the_whole():
    source = source_with(augmentation=Augmentation(6.0, True, 8, MEL.silence))
    whole = batch(source, 5, 3, 4)
    parts = [batch(source, 5, 3, 4, shard_index=n, num_shards=2) for n in range(2)]
    for name, value in whole.items():
        np.testing.assert_array_equal(value, np.concatenate([part[name] for part in parts]))


def test_batches_of_a_file_have_the_same_context(tmp_path):
    augmentation = Augmentation(6.0, True, 8, MEL.silence)
    source = source_with(augmentation=augmentation)
    lengths, counts = ([len(x) for x in each] for each in (RECORDINGS, FRAMES))
    np.savez(
        tmp_path / "clips.npz",
        train_waveform=np.concatenate(RECORDINGS),
        train_offsets=np.cumsum([0, *lengths]),
        train_speaker=np.array([0, 1], np.int32),
        train_frames=np.concatenate(FRAMES),
        train_frame_offsets=np.cumsum([0, *counts]),
        silent_frame=PADDING,
        description=json.dumps({"hop_samples": HOP}),
    )
    settings = dict(file="clips.npz", split="train", clip_samples=CLIP, batch_size=2, seed=5)
    settings |= dict(left_samples=LEFT, side_frames=SIDE)
    settings["augmentation"] = augmentation.__dict__
    made = batch_sampling.open_batches(tmp_path, settings)(7)
    for name, value in batch(source, 5, 7, 2).items():
        np.testing.assert_array_equal(value, made[name])


def test_a_past_of_half_a_frame_is_refused():
    with pytest.raises(ValueError, match="`left_samples` must be a multiple of `hop_samples` 100"):
        source_with(left_samples=150)
